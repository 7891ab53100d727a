#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "tools/trace/reports.hpp"

namespace vmem::tools {
namespace {

using nlohmann::ordered_json;
using replay::Track;
using replay::Work;

// Steps of the mover that follow each other so closely are one piece.
constexpr std::uint64_t kPauseNs = 20'000;
constexpr std::array kNames{"computing", "link in",  "link out",  "peer in",
                            "peer out",  "below in", "below out", "mover"};

ordered_json named(const char* what, int process, std::uint32_t track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", track}, {"args", {{"name", name}}}};
}

// In order of tracks and time; the mover's pieces become one where they follow each other closely.
replay::Timeline joined(const replay::Timeline& timeline) {
  replay::Timeline all = timeline;
  std::ranges::stable_sort(all, {},
                           [](const Work& work) { return std::tuple(work.track, work.stream, work.begin_ns); });
  replay::Timeline result;
  for (const Work& work : all) {
    const bool follows = !result.empty() && work.track == Track::mover && result.back().track == Track::mover &&
                         work.begin_ns <= result.back().end_ns + kPauseNs;
    if (follows) {
      result.back().end_ns = std::max(result.back().end_ns, work.end_ns);
    } else {
      result.push_back(work);
    }
  }
  return result;
}

}  // namespace

std::string json_of(const replay::Timeline& timeline) {
  constexpr int kStreams = 1, kVmem = 2;
  const replay::Timeline all = joined(timeline);
  std::uint64_t first_ns = ~std::uint64_t{0};
  for (const Work& work : all) first_ns = std::min(first_ns, work.begin_ns);
  ordered_json events = ordered_json::array();
  events.push_back(named("process_name", kStreams, 0, "streams (GPU)"));
  events.push_back(named("process_name", kVmem, 0, "vmem"));
  for (std::size_t i = 1; i < kNames.size(); ++i)
    events.push_back(named("thread_name", kVmem, std::uint32_t(i), kNames[i]));
  for (const Work& work : all) {
    const bool computes = work.track == Track::computing;
    events.push_back({{"ph", "X"},
                      {"name", kNames[std::size_t(work.track)]},
                      {"pid", computes ? kStreams : kVmem},
                      {"tid", computes ? work.stream : std::uint32_t(work.track)},
                      {"ts", double(work.begin_ns - first_ns) * 1e-3},
                      {"dur", double(work.end_ns - work.begin_ns) * 1e-3}});
  }
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump() + "\n";
}

}  // namespace vmem::tools
