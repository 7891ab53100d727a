#include "tiers/disk/page_codec.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::tiers {
namespace {

std::uint64_t steady_ns() {
  return std::uint64_t(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Logs a sample and the resulting decision.
void tell(const compress::Sample& sample, const compress::Conditions& now, const compress::Decision& decision) {
  if (!log::enabled(log::Level::debug)) return;
  std::string trials;
  for (const compress::Trial& each : sample.trials) {
    const auto rate = [&](double seconds) { return seconds > 0 ? double(sample.bytes) / 1e9 / seconds : 0; };
    trials += fmt::format("; {} to {:.2f} at {:.2f} GB/s, back at {:.2f}", each.codec->name(), each.fraction,
                          rate(each.compress_s), rate(each.decompress_s));
  }
  VMEM_LOG_DEBUG("a sample of {} in {:.1f} ms{}; {} workers beside {:.2f} GB/s there, {} beside {:.2f} back: {}{}",
                 format_bytes(sample.bytes), sample.seconds * 1e3, trials, now.compressors, now.write_bytes_s / 1e9,
                 now.decompressors, now.read_bytes_s / 1e9, compress::why_name(decision.why),
                 decision.codec == nullptr ? "" : fmt::format(", {}", decision.codec->name()));
}

CompressionConfig with_clock(CompressionConfig config) {
  if (!config.now_ns) config.now_ns = steady_ns;
  return config;
}

}  // namespace

Result<CompressionConfig> compression_config(std::string_view setting) {
  if (setting == "off") return CompressionConfig{};
  auto parsed = compress::parse_setting(setting);
  if (!parsed)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--compress: {}; and there is off", parsed.error().message));
  const bool on = parsed->codec == nullptr || parsed->codec->id() != compress::kNone;
  return CompressionConfig{.on = on, .codec = parsed->codec, .now_ns = {}};
}

PageCodec::PageCodec(CompressionConfig config, std::uint64_t block_bytes)
    : config_(with_clock(std::move(config))), block_bytes_(block_bytes) {}

PageCodec::Known& PageCodec::known(std::uint64_t kind) {
  if (known_.size() >= kKinds && !known_.contains(kind)) known_.clear();
  return known_.try_emplace(kind, candidates_).first->second;
}

bool PageCodec::probes(Known& known, std::uint64_t measurements) {
  if (std::exchange(known.measurements, measurements) != measurements) known.pages_since_measured = 0;
  return known.pages_since_measured++ % (kPagesBeforeProbe + kPagesOfProbe) >= kPagesBeforeProbe;
}

compress::Decision PageCodec::decide(const Store& store, compress::Workspace& workspace) {
  // Saving less than a block saves nothing.
  if (config_.codec != nullptr) return {.codec = config_.codec, .out_bytes = store.page.size() - block_bytes_};
  std::unique_lock lock(mutex_);
  compress::SamplePlan plan;
  if (!known(store.kind).sampling) plan = known(store.kind).chooser.plan_sample(store.now);
  Result<compress::Sample> sample;
  if (!plan.codecs.empty()) {
    known(store.kind).sampling = true;
    lock.unlock();
    sample = take_sample(store.page, plan, workspace, config_.now_ns);
    lock.lock();
    known(store.kind).sampling = false;
    if (sample) {
      counters_.sample_ns += std::uint64_t(sample->seconds * 1e9);
      known(store.kind).chooser.observe(store.now, *sample);
    }
  }
  Known& found = known(store.kind);
  compress::Decision decision = found.chooser.decide(store.now);
  if (decision.codec == nullptr) {
    found.pages_since_measured = 0;
  } else if (probes(found, store.measurements)) {
    decision.codec = nullptr;
  }
  lock.unlock();
  if (sample && !sample->trials.empty()) tell(*sample, store.now, decision);
  return decision;
}

PageCodec::Form PageCodec::as_it_is(const Store& store) {
  const std::lock_guard lock(mutex_);
  ++counters_.pages[std::size_t(compress::kNone)];
  return {compress::kNone, store.page.size()};
}

// REQUIRES: mutex_.
PageCodec::Form PageCodec::stored_as(compress::CodecId codec, const Store& store, std::size_t bytes) {
  ++counters_.pages[std::size_t(codec)];
  counters_.in_bytes += store.page.size();
  counters_.out_bytes += bytes;
  return {codec, bytes};
}

PageCodec::Form PageCodec::encode(const Store& store, compress::Workspace& workspace) {
  // Storing the word is always fastest, and says nothing about other pages: skip the chooser.
  const auto word = config_.codec == nullptr ? compress::repeated_word(store.page) : std::nullopt;
  if (word) {
    std::memcpy(store.out.data(), &*word, sizeof *word);
    const std::lock_guard lock(mutex_);
    return stored_as(compress::kFill, store, sizeof *word);
  }
  const compress::Decision decision = decide(store, workspace);
  if (decision.codec == nullptr || decision.codec->id() == compress::kNone) return as_it_is(store);
  const std::uint64_t began_ns = config_.now_ns();
  const auto compressed = decision.codec->compress(store.page, store.out.first(decision.out_bytes), workspace);
  const std::uint64_t took_ns = config_.now_ns() - began_ns;
  const std::optional<std::size_t> stored = compressed ? *compressed : std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    counters_.compress_ns += took_ns;
    known(store.kind)
        .chooser.observe(compress::Stored{.codec = decision.codec,
                                          .page_bytes = store.page.size(),
                                          .stored_bytes = stored,
                                          .seconds = store.other_s + double(took_ns) * 1e-9});
    if (stored) return stored_as(decision.codec->id(), store, *stored);
    ++counters_.refused_pages;
  }
  return as_it_is(store);
}

Status PageCodec::decode(const Load& load, compress::Workspace& workspace) {
  if (load.codec == compress::kFill) {
    std::uint64_t word = 0;
    if (load.stored.size() != sizeof word)
      return fail(VMEM_ERROR_LOST, "what is stored of a page of one word is no word");
    std::memcpy(&word, load.stored.data(), sizeof word);
    compress::fill(load.page, word);
    return {};
  }
  VMEM_ASSIGN(const compress::Codec* const codec, compress::find(load.codec));
  const std::uint64_t began_ns = config_.now_ns();
  VMEM_TRY(codec->decompress(load.stored, load.page, workspace));
  const std::uint64_t took_ns = config_.now_ns() - began_ns;
  const std::lock_guard lock(mutex_);
  counters_.decompress_ns += took_ns;
  known(load.kind).chooser.observe(
      compress::Loaded{.codec = codec, .page_bytes = load.page.size(), .seconds = double(took_ns) * 1e-9});
  return {};
}

CompressionCounters PageCodec::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace vmem::tiers
