// Traces of programs for tests of replays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trace/file.hpp"

namespace vmem::replay {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kMs = 1'000'000;

// Writes the trace of a program, on one stream by default. Each launch is an epoch of its own.
class Recording {
 public:
  Recording() {
    trace_.header.devices.push_back({"a GPU", 64 * 1024 * kMiB, 0, 0});
    trace_.names = {"",
                    "a kernel",
                    "a Foreach kernel",
                    "an elementwise_kernel",
                    "its direct_copy_kernel elementwise_kernel",
                    "a vectorized_gather_kernel",
                    "an indexing_backward kernel"};
  }
  trace::Block begin(std::uint64_t mib, trace::BlockKind kind = trace::BlockKind::undeclared) {
    const auto granules = std::uint32_t((mib + 1) / 2);
    add(trace::BlockBegins{++blocks_, mib * kMiB, next_granule_, granules, 0, kind});
    next_granule_ += granules;
    return blocks_;
  }
  void end(trace::Block block) { add(trace::BlockEnds{block}); }
  void launch(const std::vector<trace::Block>& named, std::uint64_t gpu_ns, std::uint32_t what = 1,
              std::uint32_t stream = 1) {
    trace::Launch launch{0, stream, 0, ++epochs_, what, 0, {}};
    for (const trace::Block block : named) launch.named.push_back({.block = block});
    add(launch);
    std::uint64_t& ends_ns = gpu_ns_[stream];
    ends_ns = std::max(ends_ns, now_ns_) + gpu_ns;
    trace_.events.push_back({ends_ns, trace::EpochEnds{stream, epochs_, gpu_ns}});
  }
  void signal(std::uint32_t stream, std::uint32_t event, bool waits) { add(trace::Signal{0, stream, event, waits}); }
  void pause(std::uint64_t ns) { now_ns_ += ns; }
  std::uint64_t now_ns() const { return now_ns_; }
  trace::Trace take() {
    // Last epochs have no time.
    for (const auto& [stream, ends_ns] : std::map(gpu_ns_)) launch({}, 0, 1, stream);
    std::ranges::stable_sort(trace_.events, {}, &trace::Event::at_ns);
    return std::move(trace_);
  }
  trace::Trace& trace() { return trace_; }

 private:
  void add(const trace::Body& body) {
    trace::Event& event = trace_.events.emplace_back();
    event.at_ns = now_ns_ += 10'000;
    event.body = body;
  }
  trace::Trace trace_;
  trace::Block blocks_ = 0;
  std::uint32_t next_granule_ = 0;
  std::uint64_t epochs_ = 0, now_ns_ = 0;
  std::map<std::uint32_t, std::uint64_t> gpu_ns_{{1, 0}};  // by stream: when its work ends
};

// Steps like training: forward makes what backward frees, then all weights are written.
inline trace::Trace training(std::uint32_t layers, std::uint32_t steps, std::uint64_t& from_ns) {
  Recording recording;
  std::vector<trace::Block> weights;
  for (std::uint32_t i = 0; i < layers; ++i) {
    weights.push_back(recording.begin(32));
    recording.launch({weights.back()}, kMs);
  }
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (step + 2 == steps) from_ns = recording.now_ns();
    std::vector<trace::Block> made;
    for (std::uint32_t i = 0; i < layers; ++i) {
      made.push_back(recording.begin(32));
      recording.launch({weights[i], made.back()}, kMs);
    }
    for (std::uint32_t i = layers; i-- > 0;) {
      recording.launch({weights[i], made[i]}, kMs);
      recording.end(made[i]);
    }
    for (const trace::Block weight : weights) recording.launch({weight}, kMs / 4, 2);
  }
  return recording.take();
}

}  // namespace vmem::replay
