#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/printable.hpp"
#include "tools/trace/blocks.hpp"
#include "tools/trace/reports.hpp"

namespace vmem::tools {
namespace {

using namespace trace;  // NOLINT(google-build-using-namespace): the event types
using nlohmann::json;

// Groups of tracks; Perfetto shows each as a process.
enum Group : int { kThreads = 1, kStreams, kVmem };
// Tracks of kVmem.
enum Track : int { kIn = 1, kOut, kPeerIn, kPeerOut, kBelowIn, kBelowOut, kMover, kWaits };
constexpr std::pair<Track, const char*> kTracks[] = {{kIn, "link in"},
                                                     {kOut, "link out"},
                                                     {kPeerIn, "other GPUs, in"},
                                                     {kPeerOut, "other GPUs, out"},
                                                     {kBelowIn, "disks and nodes, in"},
                                                     {kBelowOut, "disks and nodes, out"},
                                                     {kMover, "mover"},
                                                     {kWaits, "waits"}};

double us(std::uint64_t ns) { return double(ns) * 1e-3; }

Track track_of(const Transfer& transfer) {
  const int out = transfer.direction == Transfer::Direction::out ? 1 : 0;
  return Track(kIn + 2 * int(transfer.place) + out);
}

class Chrome {
 public:
  Chrome(const Trace& trace, std::FILE* file) : trace_(trace), file_(file) {}

  void write() {
    std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file_);
    group(kThreads, "launching threads");
    group(kStreams, "streams (GPU)");
    group(kVmem, "vmem");
    for (const auto& [id, name] : kTracks) track(kVmem, id, name);
    for (const Event& event : trace_.events) {
      blocks_.see(event);
      std::visit([&](const auto& body) { add(event.at_ns, body); }, event.body);
    }
    std::fputs("\n]}\n", file_);
  }

 private:
  void put(const json& event) {
    std::fputs(std::exchange(any_, true) ? ",\n" : "", file_);
    const std::string text = event.dump(-1, ' ', false, json::error_handler_t::replace);
    std::fwrite(text.data(), 1, text.size(), file_);
  }
  void group(int pid, const char* name) {
    put({{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"tid", 0}, {"args", {{"name", name}}}});
  }
  void track(int pid, int tid, const std::string& name) {
    put({{"ph", "M"}, {"name", "thread_name"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}});
  }
  // Names a track at its first event.
  void known(int pid, int tid, const char* kind) {
    if (!std::exchange(known_[{pid, tid}], true)) track(pid, tid, fmt::format("{} {}", kind, tid));
  }
  void slice(int pid, int tid, std::uint64_t from_ns, std::uint64_t took_ns, const std::string& name,
             const json& arguments, const char* color = nullptr) {
    json event{{"ph", "X"},         {"name", name},       {"pid", pid},       {"tid", tid},
               {"ts", us(from_ns)}, {"dur", us(took_ns)}, {"args", arguments}};
    if (color != nullptr) event["cname"] = color;
    put(event);
  }
  void arrow(const char* phase, int pid, int tid, std::uint64_t at_ns, std::uint64_t id) {
    json event{{"ph", phase}, {"name", "waited for"}, {"cat", "wait"},  {"id", id},
               {"pid", pid},  {"tid", tid},           {"ts", us(at_ns)}};
    if (*phase == 'f') event["bp"] = "e";  // to the slice that encloses it
    put(event);
  }
  std::string block_at(std::uint32_t granule) const {
    const BlockBegins* const block = blocks_.at(granule);
    return block == nullptr ? fmt::format("granule {}", granule) : fmt::format("block {}", block->block);
  }

  void add(std::uint64_t at_ns, const Launch& launch) {
    known(kThreads, int(launch.thread), "thread");
    json named = json::array();
    for (const Named& each : launch.named) named.push_back(each.block);
    const std::string name = launch.what == 0                    ? "acquire"
                             : launch.what < trace_.names.size() ? trace_.names[launch.what]
                                                                 : "?";
    constexpr std::uint64_t kShownNs = 1000;  // how long a launch took is not recorded
    slice(kThreads, int(launch.thread), at_ns - std::min(at_ns, kShownNs), kShownNs, name,
          {{"blocks", named}, {"stream", launch.stream}, {"epoch", launch.epoch}});
    // The first launch behind a wait that names its block is the one that waited.
    std::erase_if(waiting_, [&](const Waiting& wait) {
      if (wait.until_ns > at_ns) return false;
      const bool named_it =
          std::ranges::any_of(launch.named, [&](const Named& each) { return each.block == wait.block; });
      if (!named_it) return at_ns - wait.until_ns > kForgetNs;
      if (const auto from = fetched_.find(wait.granule); from != fetched_.end()) {
        arrow("s", kVmem, from->second.track, from->second.at_ns, ++arrows_);
        arrow("f", kThreads, int(launch.thread), at_ns - std::min<std::uint64_t>(at_ns, kShownNs / 2), arrows_);
      }
      return true;
    });
  }
  void add(std::uint64_t at_ns, const EpochEnds& epoch) {
    known(kStreams, int(epoch.stream), "stream");
    if (epoch.gpu_ns == 0) return;
    const std::uint64_t began = at_ns - std::min(at_ns, epoch.gpu_ns);
    slice(kStreams, int(epoch.stream), std::max(began, stream_until_[epoch.stream]),
          at_ns - std::max(began, std::min(at_ns, stream_until_[epoch.stream])), fmt::format("epoch {}", epoch.epoch),
          {{"gpu_us", us(epoch.gpu_ns)}});
    stream_until_[epoch.stream] = at_ns;
  }
  // Transfers of one direction follow each other: one that waited began when the last one ended.
  void add(std::uint64_t at_ns, const Transfer& transfer) {
    const Track on = track_of(transfer);
    const std::uint64_t until = at_ns + transfer.took_ns;
    const std::uint64_t from = std::min(until, std::max(at_ns, link_until_[on]));
    link_until_[on] = std::max(link_until_[on], until);
    slice(kVmem, on, from, until - from, block_at(transfer.granule),
          {{"granule", transfer.granule},
           {"MiB", std::uint64_t{transfer.granules} << kGranuleShift >> 20},
           {"copied", transfer.copied},
           {"queued_us", us(from - at_ns)}});
    if (transfer.direction == Transfer::Direction::in)
      fetched_[transfer.granule] = {on, until - std::min<std::uint64_t>(until - from, 1)};
  }
  void add(std::uint64_t at_ns, const Wait& wait) {
    const BlockBegins* const block = blocks_.at(wait.granule);
    const bool missed = wait.granule != kNoGranule;
    const std::string name = missed ? "waits for " + block_at(wait.granule) : "asks the mover";
    slice(kVmem, kWaits, at_ns, wait.took_ns, name, {{"granule", wait.granule}}, missed ? "terrible" : nullptr);
    if (!missed) return;
    waiting_.push_back({at_ns + wait.took_ns, wait.granule, block == nullptr ? 0 : block->block});
  }
  void add(std::uint64_t at_ns, const Busy& busy) { slice(kVmem, kMover, at_ns, busy.took_ns, "busy", json::object()); }
  void add(std::uint64_t at_ns, const Frames& frames) {
    made_ += frames.made;
    unmade_ += frames.unmade;
    put({{"ph", "C"},
         {"name", "frames"},
         {"pid", int{kVmem}},
         {"tid", 0},
         {"ts", us(at_ns)},
         {"args", {{"made", made_}, {"unmade", unmade_}}}});
  }
  void add(std::uint64_t at_ns, const BlockBegins&) { live(at_ns); }
  void add(std::uint64_t at_ns, const BlockEnds&) { live(at_ns); }
  void live(std::uint64_t at_ns) {
    put({{"ph", "C"},
         {"name", "live MiB"},
         {"pid", int{kVmem}},
         {"tid", 0},
         {"ts", us(at_ns)},
         {"args", {{"live", blocks_.live_bytes() >> 20}}}});
  }
  void add(std::uint64_t, const auto&) {}

  static constexpr std::uint64_t kForgetNs = 1'000'000'000;
  struct Fetched {
    Track track;
    std::uint64_t at_ns;
  };
  struct Waiting {
    std::uint64_t until_ns;
    std::uint32_t granule;
    Block block;
  };
  const Trace& trace_;
  std::FILE* const file_;
  bool any_ = false;
  Blocks blocks_;
  std::map<std::pair<int, int>, bool> known_;
  std::unordered_map<std::uint32_t, std::uint64_t> stream_until_;
  std::map<Track, std::uint64_t> link_until_;
  std::unordered_map<std::uint32_t, Fetched> fetched_;  // by granule
  std::vector<Waiting> waiting_;
  std::uint64_t arrows_ = 0, made_ = 0, unmade_ = 0;
};

}  // namespace

Status export_chrome(const Trace& trace, const std::string& path) {
  const auto failed = [&] {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("cannot write {}: {}", printable(path, 1000), std::strerror(errno)), errno);
  };
  const bool standard = path == "-";
  std::FILE* const file = standard ? stdout : std::fopen(path.c_str(), "we");
  if (file == nullptr) return failed();
  Chrome(trace, file).write();
  const bool written = std::fflush(file) == 0 && std::ferror(file) == 0;
  const bool closed = standard || std::fclose(file) == 0;
  return written && closed ? Status{} : failed();
}

}  // namespace vmem::tools
