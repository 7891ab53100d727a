#include "compress/chooser.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "compress/registry.hpp"

namespace vmem::compress {
namespace {

// Expected write gain to start using a codec, and to keep it.
constexpr double kGainToStart = 1.10;
constexpr double kGainToStay = 1.04;
constexpr double kGainForRoom = 1.03;
constexpr double kBetterThanCurrent = 0.9;  // factor on the current codec's time or size
// Reads come later, when a wrong estimate can no longer be corrected.
constexpr double kReadHeadroom = 1.2;

constexpr double kFullToStart = 0.90;
constexpr double kFullToStay = 0.85;
constexpr double kFractionForRoom = 0.9;
// Pages that save less are stored uncompressed: not worth a decompression.
constexpr std::uint64_t kLeastSaving = 32;  // 1/32 of the page

constexpr double kSampleShare = 0.02;
constexpr double kSampleShareSaved = 256;  // at most the share of so many pages is accumulated
constexpr std::uint64_t kSamplePart = 64;  // a sample is 1/64 of the page
constexpr std::uint64_t kLeastSample = std::uint64_t{64} << 10;
constexpr std::uint64_t kMostSample = std::uint64_t{256} << 10;
constexpr std::uint32_t kMostRefusals = 6;
constexpr std::uint32_t kRenewPages = 64;  // while pages are compressed
// Rates depend on the data: a codec that is slower elsewhere by this factor may suffice here.
constexpr double kDoubt = 2;

struct Named {
  std::string_view name;
  Rates rates;
};
constexpr std::array kDefaults{
    Named{"lz4", {1e9, 4e9}},
    Named{"zstd-1", {0.5e9, 1.2e9}},
    Named{"zstd-3", {0.25e9, 1.1e9}},
    Named{"shuffle2+zstd-huffman", {1.3e9, 3e9}},
    Named{"shuffle4+zstd-huffman", {1.7e9, 5e9}},
};

// False until both of the path's rates have been measured.
bool measured(const Conditions& now) { return now.page_bytes > 0 && now.write_bytes_s > 0 && now.read_bytes_s > 0; }
double transfer_s(const Conditions& now) { return double(now.page_bytes) / now.write_bytes_s; }

std::uint64_t sample_bytes(const Conditions& now) {
  return std::clamp(now.page_bytes / kSamplePart, kLeastSample, kMostSample);
}

// Uses the slower of the estimated and the assumed rate: samples must not exceed their budget.
double sample_cost_s(std::span<const Estimate* const> tried, std::uint64_t bytes) {
  double cost_s = 0;
  for (const Estimate* each : tried) {
    cost_s += std::max(each->compress_s_per_byte.value(), 1 / each->elsewhere.compress_bytes_s) +
              std::max(each->decompress_s_per_byte.value(), 1 / each->elsewhere.decompress_bytes_s);
  }
  return cost_s * double(bytes);
}

}  // namespace

std::string_view why_name(Why why) {
  switch (why) {
    case Why::nothing_known:
      return "nothing known";
    case Why::no_gain:
      return "no gain";
    case Why::faster:
      return "faster";
    case Why::more_room:
      return "more room";
  }
  return "?";
}

std::vector<Candidate> default_candidates() {
  std::vector<Candidate> candidates;
  for (const Named& each : kDefaults) candidates.push_back({parse_setting(each.name)->codec, each.rates});
  return candidates;
}

Chooser::Chooser(std::span<const Candidate> candidates) {
  for (const Candidate& each : candidates) estimates_.emplace_back(each);
}

Chooser::Gain Chooser::gain(const Estimate& estimate, const Conditions& now) {
  const double shrunk = 1 / estimate.fraction.value();
  const double work_there = now.compressors / estimate.compress_s_per_byte.value();
  const double work_back = now.decompressors / estimate.decompress_s_per_byte.value();
  Gain gain;
  gain.write = std::min(work_there / now.write_bytes_s, shrunk);
  gain.read = std::min(work_back / now.read_bytes_s, shrunk);
  gain.seconds = double(now.page_bytes) * (1 / (gain.write * now.write_bytes_s) + 1 / (gain.read * now.read_bytes_s));
  return gain;
}

bool Chooser::reads_keep_up(const Estimate& estimate, const Conditions& now) {
  return now.decompressors / estimate.decompress_s_per_byte.value() >= kReadHeadroom * now.read_bytes_s;
}

bool Chooser::nearly_full(const Conditions& now) const { return now.fill >= (filling_ ? kFullToStay : kFullToStart); }

const Estimate* Chooser::fastest(const Conditions& now) const {
  const Estimate* best = nullptr;
  double best_s = std::numeric_limits<double>::infinity();
  for (const Estimate& each : estimates_) {
    const bool current = each.codec == current_;
    const Gain expected = gain(each, now);
    if (!each.fraction.known() || !reads_keep_up(each, now)) continue;
    if (expected.write < (current ? kGainToStay : kGainToStart)) continue;
    const double way_s = expected.seconds * (current ? kBetterThanCurrent : 1);
    if (way_s < best_s) {
      best = &each;
      best_s = way_s;
    }
  }
  return best;
}

const Estimate* Chooser::smallest(const Conditions& now) const {
  const Estimate* best = nullptr;
  double best_fraction = kFractionForRoom;
  for (const Estimate& each : estimates_) {
    if (!each.fraction.known() || !reads_keep_up(each, now) || gain(each, now).write < kGainForRoom) continue;
    const double fraction = each.fraction.value() * (each.codec == current_ ? kBetterThanCurrent : 1);
    if (fraction < best_fraction) {
      best = &each;
      best_fraction = fraction;
    }
  }
  return best;
}

Decision Chooser::compressed(const Estimate& estimate, const Conditions& now, Why why) {
  const Gain expected = gain(estimate, now);
  return {.codec = estimate.codec,
          .out_bytes = now.page_bytes - now.page_bytes / kLeastSaving,
          .write_gain = expected.write,
          .read_gain = expected.read,
          .why = why};
}

Decision Chooser::choose(const Conditions& now) const {
  if (nearly_full(now)) {
    if (const Estimate* best = smallest(now)) return compressed(*best, now, Why::more_room);
  }
  if (const Estimate* best = fastest(now)) return compressed(*best, now, Why::faster);
  const bool tried = std::ranges::any_of(estimates_, [](const Estimate& each) { return each.fraction.known(); });
  return {.out_bytes = now.page_bytes, .why = tried ? Why::no_gain : Why::nothing_known};
}

Decision Chooser::decide(const Conditions& now) {
  if (!measured(now)) return {.out_bytes = now.page_bytes};
  const Decision decision = choose(now);
  current_ = decision.codec;
  filling_ = nearly_full(now);
  ++pages_since_sample_;
  const double share_s = kSampleShare * transfer_s(now);
  sample_credit_s_ = std::min(sample_credit_s_ + share_s, kSampleShareSaved * share_s);
  return decision;
}

// Whether the codec could keep up with the path, given a sufficient ratio.
bool Chooser::worth_trying(const Estimate& estimate, const Conditions& now) {
  const double there = std::max(1 / estimate.compress_s_per_byte.value(), estimate.elsewhere.compress_bytes_s);
  const double back = std::max(1 / estimate.decompress_s_per_byte.value(), estimate.elsewhere.decompress_bytes_s);
  return kDoubt * now.compressors * there >= kGainForRoom * now.write_bytes_s &&
         kDoubt * now.decompressors * back >= kReadHeadroom * now.read_bytes_s;
}

bool Chooser::sample_is_due(std::span<const Estimate* const> tried) const {
  const std::uint32_t interval = current_ != nullptr ? kRenewPages : std::uint32_t{1} << refusals_;
  const bool any_unknown = std::ranges::any_of(tried, [](const Estimate* each) { return !each->fraction.known(); });
  return any_unknown || pages_since_sample_ >= interval;
}

SamplePlan Chooser::plan_sample(const Conditions& now) const {
  if (!measured(now)) return {};
  std::vector<const Estimate*> tried;
  for (const Estimate& each : estimates_) {
    if (worth_trying(each, now)) tried.push_back(&each);
  }
  if (tried.empty() || !sample_is_due(tried)) return {};
  const std::uint64_t bytes = sample_bytes(now);
  if (sample_cost_s(tried, bytes) > sample_credit_s_ + kSampleShare * transfer_s(now)) return {};
  SamplePlan plan{.bytes = bytes, .seed = samples_, .codecs = {}};
  for (const Estimate* each : tried) plan.codecs.push_back(each->codec);
  return plan;
}

Estimate* Chooser::find(const Codec* codec) {
  const auto found = std::ranges::find(estimates_, codec, &Estimate::codec);
  return found == estimates_.end() ? nullptr : &*found;
}

void Chooser::observe(const Conditions& now, const Sample& sample) {
  if (sample.bytes == 0 || !measured(now)) return;
  const double bytes = double(sample.bytes);
  for (const Trial& trial : sample.trials) {
    Estimate* const estimate = find(trial.codec);
    if (estimate == nullptr) continue;
    estimate->observe_sample(trial.fraction, trial.compress_s / bytes, trial.decompress_s / bytes);
  }
  ++samples_;
  pages_since_sample_ = 0;
  sample_credit_s_ -= sample.seconds;
  refusals_ = choose(now).codec != nullptr ? 0 : std::min(refusals_ + 1, kMostRefusals);
}

void Chooser::observe(const Stored& stored) {
  Estimate* const estimate = find(stored.codec);
  if (estimate == nullptr || stored.page_bytes == 0) return;
  const double page_bytes = double(stored.page_bytes);
  estimate->observe_page(stored.stored_bytes ? double(*stored.stored_bytes) / page_bytes : 1,
                         stored.seconds / page_bytes);
}

void Chooser::observe(const Loaded& loaded) {
  Estimate* const estimate = find(loaded.codec);
  if (estimate == nullptr || loaded.page_bytes == 0) return;
  estimate->decompress_s_per_byte.observe(loaded.seconds / double(loaded.page_bytes));
}

}  // namespace vmem::compress
