#include "compress/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace vmem::compress {
namespace {

// The decision for a page: the candidate, if any, and the worker's seconds for samples.
struct Plan {
  std::optional<std::size_t> candidate;
  double sampled_s = 0;
};
struct Done {
  double at_s = 0;
  std::optional<std::size_t> candidate;
  const Phase* phase = nullptr;
};

class Simulation {
 public:
  explicit Simulation(const World& world) : world_(world), workers_s_(world.workers, 0.0) {}

  // `learn` gets the pages that are through before `decide` is asked about the next one.
  Outcome run(const std::function<Plan(const Phase&)>& decide, const std::function<void(const Done&)>& learn) {
    for (const Phase& phase : world_.phases) {
      for (std::uint32_t page = 0; page < phase.pages; ++page) write(phase, decide, learn);
    }
    outcome_.write_s = path_s_;
    read();
    return outcome_;
  }

 private:
  // Number of buffers in which pages wait for the path or a worker.
  std::size_t window() const { return 2 * world_.workers + 2; }
  double window_opens_s() const { return left_s_.size() < window() ? 0 : left_s_[left_s_.size() - window()]; }
  double fraction(const Phase& phase, std::optional<std::size_t> candidate) const {
    if (!candidate) return 1;
    const double fraction = phase.truths[*candidate].fraction;
    return fraction > 31.0 / 32 ? 1 : fraction;
  }

  void write(const Phase& phase, const std::function<Plan(const Phase&)>& decide,
             const std::function<void(const Done&)>& learn) {
    auto& worker_s = *std::ranges::min_element(workers_s_);
    const double start_s = std::max(worker_s, window_opens_s());
    tell(start_s, learn);
    const Plan plan = decide(phase);
    const double bytes = double(world_.page_bytes);
    const double work_s = plan.candidate ? bytes / phase.truths[*plan.candidate].compress_bytes_s : 0;
    worker_s = start_s + plan.sampled_s + work_s;
    path_s_ = std::max(path_s_, worker_s) + bytes * fraction(phase, plan.candidate) / phase.path_bytes_s;
    left_s_.push_back(path_s_);
    pending_.push_back({worker_s, plan.candidate, &phase});
    written_.push_back({0, plan.candidate, &phase});
    count(phase, plan);
  }
  void tell(double now_s, const std::function<void(const Done&)>& learn) {
    std::erase_if(pending_, [&](const Done& done) {
      if (done.at_s > now_s) return false;
      learn(done);
      return true;
    });
  }
  void count(const Phase& phase, const Plan& plan) {
    outcome_.plain_s += double(world_.page_bytes) / phase.path_bytes_s;
    outcome_.sampled_s += plan.sampled_s;
    outcome_.compressed += plan.candidate ? 1 : 0;
    outcome_.changes += written_.size() > 1 && written_[written_.size() - 2].candidate != plan.candidate ? 1 : 0;
  }
  void read() {
    double path_s = 0;
    std::vector<double> workers_s(world_.workers, 0.0), left_s;
    for (const Done& page : written_) {
      const double opens_s = left_s.size() < window() ? 0 : left_s[left_s.size() - window()];
      const double bytes = double(world_.page_bytes), shrunk = fraction(*page.phase, page.candidate);
      path_s = std::max(path_s, opens_s) + bytes * shrunk / page.phase->path_bytes_s;
      double done_s = path_s;
      if (shrunk < 1) {
        auto& worker_s = *std::ranges::min_element(workers_s);
        done_s = worker_s = std::max(worker_s, path_s) + bytes / page.phase->truths[*page.candidate].decompress_bytes_s;
      }
      left_s.push_back(done_s);
      outcome_.read_s = std::max(outcome_.read_s, done_s);
    }
  }

  const World& world_;
  std::vector<double> workers_s_;  // when each becomes free
  double path_s_ = 0;              // when the path becomes free
  std::vector<double> left_s_;     // when each page was through
  std::vector<Done> pending_;      // compressed, not yet reported to the chooser
  std::vector<Done> written_;
  Outcome outcome_;
};

Conditions conditions(const World& world, const Phase& phase) {
  return {.page_bytes = world.page_bytes,
          .write_bytes_s = phase.path_bytes_s,
          .read_bytes_s = phase.path_bytes_s,
          .compressors = world.workers,
          .decompressors = world.workers,
          .fill = phase.fill};
}

class Played {
 public:
  Played(const World& world, std::uint64_t seed) : world_(world), random_(seed), chooser_(world.candidates) {}

  Plan decide(const Phase& phase) {
    const Conditions now = conditions(world_, phase);
    Plan plan;
    if (const SamplePlan wanted = chooser_.plan_sample(now); !wanted.codecs.empty()) {
      const Sample taken = sample(wanted, phase);
      chooser_.observe(now, taken);
      plan.sampled_s = taken.seconds;
    }
    const Decision decision = chooser_.decide(now);
    if (decision.codec != nullptr) plan.candidate = index(decision.codec);
    return plan;
  }
  void learn(const Done& done) {
    if (!done.candidate) return;
    const Truth& truth = done.phase->truths[*done.candidate];
    Stored stored{
        .codec = world_.candidates[*done.candidate].codec, .page_bytes = world_.page_bytes, .stored_bytes = {}};
    if (truth.fraction <= 31.0 / 32) stored.stored_bytes = std::uint64_t(double(world_.page_bytes) * truth.fraction);
    stored.seconds = double(world_.page_bytes) / truth.compress_bytes_s * error(world_.page_error);
    chooser_.observe(stored);
  }

 private:
  std::size_t index(const Codec* codec) const {
    return std::size_t(std::ranges::find(world_.candidates, codec, &Candidate::codec) - world_.candidates.begin());
  }
  double error(double deviation) { return std::exp(std::normal_distribution<double>(0, deviation)(random_)); }
  Sample sample(const SamplePlan& plan, const Phase& phase) {
    Sample taken{.bytes = plan.bytes, .seconds = 0, .trials = {}};
    const double bytes = double(plan.bytes) * world_.sample_slowness;
    for (const Codec* codec : plan.codecs) {
      const Truth& truth = phase.truths[index(codec)];
      Trial trial{.codec = codec};
      // Samples shrink slightly less than pages.
      trial.fraction = std::min(1.0, truth.fraction * (1 + std::abs(error(world_.sample_error / 4) - 1)));
      trial.compress_s = bytes / truth.compress_bytes_s * error(world_.sample_error);
      if (trial.fraction < 1) {
        trial.decompress_s = bytes / truth.decompress_bytes_s * error(world_.sample_error);
      }
      taken.seconds += trial.compress_s + trial.decompress_s;
      taken.trials.push_back(trial);
    }
    return taken;
  }

  const World& world_;
  std::mt19937_64 random_;
  Chooser chooser_;
};

}  // namespace

std::string World::describe() const {
  std::string text = fmt::format("{} workers, pages of {} MiB, samples {:.2f} times as slow", workers, page_bytes >> 20,
                                 sample_slowness);
  for (const Phase& phase : phases) {
    text += fmt::format("\n  {} pages of {}, path {:.2f} GB/s, fill {:.2f}:", phase.pages, phase.name,
                        phase.path_bytes_s / 1e9, phase.fill);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Truth& truth = phase.truths[i];
      text += fmt::format("\n    {}: to {:.2f} at {:.2f} GB/s, back at {:.2f}", candidates[i].codec->name(),
                          truth.fraction, truth.compress_bytes_s / 1e9, truth.decompress_bytes_s / 1e9);
    }
  }
  return text;
}

Outcome run_static(const World& world, std::size_t candidate) {
  return Simulation(world).run([&](const Phase&) { return Plan{candidate, 0}; }, [](const Done&) {});
}

Outcome run_chosen(const World& world, std::uint64_t seed) {
  Played played(world, seed);
  return Simulation(world).run([&](const Phase& phase) { return played.decide(phase); },
                               [&](const Done& done) { played.learn(done); });
}

}  // namespace vmem::compress
