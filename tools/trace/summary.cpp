#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "tools/trace/blocks.hpp"
#include "tools/trace/reports.hpp"
#include "tools/trace/shares.hpp"

namespace vmem::tools {
namespace {

using namespace trace;  // NOLINT(google-build-using-namespace): the event types

constexpr std::size_t kNamesShown = 8;
constexpr std::size_t kNameBytes = 90;

double seconds(std::uint64_t ns) { return double(ns) * 1e-9; }
std::string rate(std::uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? "not measured" : fmt::format("{:.1f} GB/s", double(bytes_per_s) * 1e-9);
}
std::string name_of(const Trace& trace, std::uint32_t what) {
  if (what == 0) return "an acquire";
  return what < trace.names.size() ? printable(trace.names[what], kNameBytes) : fmt::format("name {}", what);
}

struct Moved {
  std::uint64_t bytes = 0, compared_bytes = 0, transfers = 0;
};

struct Sums {
  std::uint64_t last_ns = 0;
  std::uint64_t launches = 0, waits = 0, waited_ns = 0, longest_ns = 0, longest_at_ns = 0, busy_ns = 0;
  std::uint64_t maps = 0, unmaps = 0, made = 0, unmade = 0;
  std::set<std::uint32_t> threads, streams;
  std::map<std::pair<Transfer::Place, Transfer::Direction>, Moved> moved;
  std::map<std::uint32_t, std::uint64_t> ran;  // launches by name

  void see(const Event& event) {
    last_ns = std::max(last_ns, event.at_ns);
    std::visit([&](const auto& body) { add(event.at_ns, body); }, event.body);
  }

 private:
  void add(std::uint64_t, const Launch& launch) {
    ++launches;
    ++ran[launch.what];
    threads.insert(launch.thread);
    streams.insert(launch.stream);
  }
  void add(std::uint64_t at_ns, const Wait& wait) {
    ++waits;
    waited_ns += wait.took_ns;
    if (wait.took_ns <= longest_ns) return;
    longest_ns = wait.took_ns;
    longest_at_ns = at_ns;
  }
  void add(std::uint64_t, const Transfer& transfer) {
    Moved& sum = moved[{transfer.place, transfer.direction}];
    const std::uint64_t bytes = std::uint64_t{transfer.granules} << kGranuleShift;
    (transfer.copied ? sum.bytes : sum.compared_bytes) += bytes;
    ++sum.transfers;
  }
  void add(std::uint64_t, const PageChanges& page) {
    maps += page.what <= Happened::mapped_peer ? 1 : 0;
    unmaps += page.what == Happened::unmapped ? 1 : 0;
  }
  void add(std::uint64_t, const Busy& busy) { busy_ns += busy.took_ns; }
  void add(std::uint64_t, const Frames& frames) {
    made += frames.made;
    unmade += frames.unmade;
  }
  void add(std::uint64_t, const auto&) {}
};

std::string words(Transfer::Place place) {
  switch (place) {
    case Transfer::Place::host:
      return "host memory";
    case Transfer::Place::peer:
      return "other GPUs";
    case Transfer::Place::below:
      return "disks, files and nodes";
  }
  return "?";
}

std::string most_frequent(const Trace& trace, const Sums& sums) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_count;
  for (const auto& [what, count] : sums.ran) by_count.emplace_back(count, what);
  std::ranges::sort(by_count, std::greater{});
  std::string text;
  for (std::size_t i = 0; i < std::min(by_count.size(), kNamesShown); ++i)
    text += fmt::format("  {:>10}  {}\n", by_count[i].first, name_of(trace, by_count[i].second));
  if (by_count.size() > kNamesShown) text += fmt::format("  {:>10}  more names\n", by_count.size() - kNamesShown);
  return text;
}

std::string words(const Shares& shares) {
  const auto percent = [&](std::uint64_t ns) {
    return 100 * double(ns) / double(std::max<std::uint64_t>(shares.all, 1));
  };
  return fmt::format(
      "of the later half of the launches ({:.3f} s): copying in {:.0f} %, out {:.0f} %, both at once {:.0f} %, neither "
      "{:.0f} %; mover busy {:.0f} %; launches waited {:.0f} %\n",
      seconds(shares.all), percent(shares.in), percent(shares.out), percent(shares.both), percent(shares.neither()),
      percent(shares.mover), percent(shares.waiting));
}

}  // namespace

std::string summary_of(const Trace& trace, const std::string& path) {
  Sums sums;
  Blocks blocks;
  for (const Event& event : trace.events) {
    sums.see(event);
    blocks.see(event);
  }
  const Header& header = trace.header;
  std::string text = fmt::format("{}: vmem {}{}\n  {}\n", printable(path, 1000), header.version,
                                 header.emulated ? ", emulated driver" : "", printable(header.command, 300));
  for (const Device& device : header.devices)
    text += fmt::format("  {} with {} of HBM; link from host memory {}, to it {}\n", printable(device.name),
                        format_bytes(device.hbm_bytes), rate(device.in_bytes_per_s), rate(device.out_bytes_per_s));
  text += fmt::format("{:.3f} s: {} launches by {} threads on {} streams; {} blocks, {} at most at a time\n",
                      seconds(sums.last_ns), sums.launches, sums.threads.size(), sums.streams.size(), blocks.count(),
                      format_bytes(blocks.peak_bytes()));
  for (const auto& [path_of, moved] : sums.moved)
    text += fmt::format("{} {}: {} in {} transfers, {} were unchanged and not copied\n",
                        path_of.second == Transfer::Direction::in ? "from" : "to", words(path_of.first),
                        format_bytes(moved.bytes), moved.transfers, format_bytes(moved.compared_bytes));
  text += fmt::format("mover: busy {:.3f} s; {} maps, {} unmaps; {} frames made, {} unmade\n", seconds(sums.busy_ns),
                      sums.maps, sums.unmaps, sums.made, sums.unmade);
  text += fmt::format("waits: {}, {:.3f} s in all, the longest {:.3f} ms at {:.6f} s\n", sums.waits,
                      seconds(sums.waited_ns), double(sums.longest_ns) * 1e-6, seconds(sums.longest_at_ns));
  text += words(shares_of(trace));
  text += "launches by name:\n" + most_frequent(trace, sums);
  if (trace.ended != End::Why::finished)
    text += fmt::format("the trace ended before the program: {}\n", trace::words(trace.ended));
  if (!trace.cut_short.empty()) text += trace.cut_short + "\n";
  return text;
}

namespace {

std::string words(const Named& named) {
  std::string text = fmt::format(" {}", named.block);
  if ((named.flags & Named::kPart) != 0) text += fmt::format("[{}+{}]", named.first, named.granules);
  if ((named.flags & Named::kWrites) != 0) text += (named.flags & Named::kDiscards) != 0 ? 'W' : 'w';
  if ((named.flags & Named::kPossible) != 0) text += '?';
  return text;
}

struct InWords {
  const Trace& trace;
  std::string operator()(const Name& e) const { return fmt::format("name     {} {}", e.id, name_of(trace, e.id)); }
  std::string operator()(const BlockBegins& e) const {
    constexpr const char* kKinds[] = {"undeclared", "declared", "slab", "file"};
    return fmt::format("begins   block {} of {} at granule {}, device {}, {}", e.block, format_bytes(e.bytes),
                       e.granule, e.device, kKinds[std::size_t(e.kind)]);
  }
  std::string operator()(const BlockEnds& e) const { return fmt::format("ends     block {}", e.block); }
  std::string operator()(const Launch& e) const {
    std::string text =
        fmt::format("launch   thread {} stream {} epoch {} {}:", e.thread, e.stream, e.epoch, name_of(trace, e.what));
    for (const Named& each : e.named) text += vmem::tools::words(each);
    return text;
  }
  std::string operator()(const EpochEnds& e) const {
    return fmt::format("epoch    stream {} epoch {} ended, {:.1f} µs of GPU time", e.stream, e.epoch,
                       double(e.gpu_ns) * 1e-3);
  }
  std::string operator()(const PageChanges& e) const {
    return fmt::format("page     granules {}+{} {}", e.granule, e.granules, trace::words(e.what));
  }
  std::string operator()(const Transfer& e) const {
    return fmt::format("transfer granules {}+{} {} {}, {:.1f} µs{}", e.granule, e.granules,
                       e.direction == Transfer::Direction::in ? "from" : "to", vmem::tools::words(e.place),
                       double(e.took_ns) * 1e-3, e.copied ? "" : ", unchanged");
  }
  std::string operator()(const Wait& e) const {
    return fmt::format("wait     {:.1f} µs{}", double(e.took_ns) * 1e-3,
                       e.granule == kNoGranule ? "" : fmt::format(", last for granule {}", e.granule));
  }
  std::string operator()(const Busy& e) const {
    return fmt::format("mover    busy {:.1f} µs", double(e.took_ns) * 1e-3);
  }
  std::string operator()(const Frames& e) const { return fmt::format("frames   {} made, {} unmade", e.made, e.unmade); }
  std::string operator()(const Signal& e) const {
    return fmt::format("signal   thread {} stream {} {} event {}", e.thread, e.stream,
                       e.waits ? "waits for" : "records", e.event);
  }
  std::string operator()(const End&) const { return "end"; }
};

}  // namespace

std::string words_of(const Trace& trace, const Event& event) {
  return fmt::format("{:>14.6f} {}\n", seconds(event.at_ns), std::visit(InWords{trace}, event.body));
}

}  // namespace vmem::tools
