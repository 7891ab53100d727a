#include "trace/program.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace vmem::trace {
namespace {

constexpr std::uint64_t kGranuleBytes = std::uint64_t{1} << kGranuleShift;

class Extraction {
 public:
  Extraction(const Trace& trace, const Extract& what) : trace_(trace), what_(what) {}

  Program take() {
    look_ahead();
    for (const Event& event : trace_.events) {
      inside_ = event.at_ns >= what_.from_ns && event.at_ns < what_.until_ns;
      // The ends of epochs are seen later.
      if (event.at_ns >= what_.until_ns && !std::holds_alternative<EpochEnds>(event.body)) continue;
      now_ns_ = event.at_ns;
      std::visit([&](const auto& body) { add(body); }, event.body);
    }
    share_out_times();
    return std::move(program_);
  }

 private:
  struct Block {
    std::uint64_t bytes = 0;
    BlockKind kind = BlockKind::undeclared;
    bool reached = false;  // by uses that are not in the program
    // By granule; what concerns the whole block is at 0.
    std::map<std::uint32_t, std::uint32_t> items;
    std::set<std::uint32_t> used_before;  // the program's first launch
  };
  struct EpochSoFar {
    std::vector<Position> launches;
    std::uint64_t others = 0;  // launches that are not in the program
    std::uint64_t first_ns = 0;
    Position behind = kNever;
    std::uint64_t took_ns = 0;  // once its end was seen
  };
  using EpochKey = std::pair<std::uint32_t, std::uint64_t>;  // stream, number

  void look_ahead() {
    for (const Event& event : trace_.events) {
      const auto* const launch = std::get_if<Launch>(&event.body);
      if (launch == nullptr) continue;
      std::uint64_t& last = last_epoch_[launch->stream];
      last = std::max(last, launch->epoch);
      for (const Named& each : launch->named) {
        if ((each.flags & Named::kPart) != 0) in_parts_.insert(each.block);
      }
    }
  }

  void add(const BlockBegins& begins) {
    if (begins.device != what_.device || begins.kind == BlockKind::slab) return;
    blocks_[begins.block] = {begins.bytes, begins.kind, false, {}, {}};
  }
  void add(const BlockEnds& ends) { blocks_.erase(ends.block); }

  void add(const Launch& launch) {
    if (launch.device != what_.device) return reach(launch, Named::kFlags);
    reach(launch, Named::kPossible);
    EpochSoFar& epoch = epochs_[{launch.stream, launch.epoch}];
    if (epoch.first_ns == 0) {
      epoch.first_ns = now_ns_;
      const auto before = epochs_.find({launch.stream, std::exchange(open_epoch_[launch.stream], launch.epoch)});
      if (before != epochs_.end()) before->second.behind = Position(program_.launches.size());
    }
    const auto first = std::uint32_t(program_.uses.size());
    for (const Named& each : launch.named) {
      const auto found = blocks_.find(each.block);
      if ((each.flags & Named::kPossible) == 0 && found != blocks_.end()) use(found->first, found->second, each);
    }
    if (!inside_) {
      ++epoch.others;
      return;
    }
    epoch.launches.push_back(Position(program_.launches.size()));
    program_.launches.push_back({0, first, std::uint32_t(program_.uses.size()) - first});
  }

  // Uses that are not in the program may make contents: those with any of the flags, or all.
  void reach(const Launch& launch, std::uint8_t flags) {
    for (const Named& each : launch.named) {
      if (flags != Named::kFlags && (each.flags & flags) == 0) continue;
      if (const auto found = blocks_.find(each.block); found != blocks_.end()) found->second.reached = true;
    }
  }

  void use(trace::Block number, Block& block, const Named& named) {
    if (!in_parts_.contains(number)) return use_item(block, 0, block.bytes, named.flags);
    const auto all = std::uint32_t((block.bytes + kGranuleBytes - 1) / kGranuleBytes);
    const bool part = (named.flags & Named::kPart) != 0;
    const std::uint32_t first = part ? std::min(all, named.first) : 0;
    const std::uint32_t end = part ? first + std::min(all - first, named.granules) : all;
    for (std::uint32_t granule = first; granule < end; ++granule)
      use_item(block, granule, std::min(kGranuleBytes, block.bytes - granule * kGranuleBytes), named.flags);
  }

  void use_item(Block& block, std::uint32_t granule, std::uint64_t bytes, std::uint8_t flags) {
    if (!inside_) {
      block.used_before.insert(granule);
      return;
    }
    const Position now = Position(program_.launches.size());
    if ((flags & Named::kDiscards) != 0) block.items.erase(granule);
    const auto [at, fresh] = block.items.try_emplace(granule, std::uint32_t(program_.items.size()));
    if (fresh) program_.items.push_back({bytes, contents(block, granule, flags), now, now});
    program_.items[at->second].last = now;
    const bool writes = (flags & Named::kWrites) != 0;
    // A launch that names an item twice needs it once.
    const auto [last, first_use] = last_use_.try_emplace(at->second, now, 0u);
    if (!first_use && last->second.first == now) {
      Program::Use& earlier = program_.uses[last->second.second];
      earlier.writes = earlier.writes || writes;
      return;
    }
    last->second = {now, std::uint32_t(program_.uses.size())};
    program_.uses.push_back({at->second, writes});
  }

  static Program::Contents contents(const Block& block, std::uint32_t granule, std::uint8_t flags) {
    if ((flags & Named::kDiscards) != 0) return Program::Contents::made;
    if (block.kind == BlockKind::file || block.used_before.contains(granule)) return Program::Contents::before;
    if (block.kind == BlockKind::undeclared)
      return block.reached ? Program::Contents::unknown : Program::Contents::made;
    return (flags & Named::kWrites) != 0 ? Program::Contents::unknown : Program::Contents::before;
  }

  // The time since the stream's epoch before holds a pause, if the first launch came after that.
  // A stream's last epoch has no known time: it ends when somebody has to know, perhaps much later.
  void add(const EpochEnds& ends) {
    const auto found = epochs_.find({ends.stream, ends.epoch});
    if (found == epochs_.end() || found->second.launches.empty() || ends.epoch == last_epoch_[ends.stream]) return;
    found->second.took_ns = std::min(ends.gpu_ns, now_ns_ - std::min(now_ns_, found->second.first_ns));
  }

  // An epoch's time belongs to its launches in equal parts.
  void share_out_times() {
    const std::uint32_t busiest = busiest_stream();
    for (const auto& [key, epoch] : epochs_) {
      if (epoch.launches.empty() || key.first != busiest) continue;
      for (const Position launch : epoch.launches)
        program_.launches[launch].gpu_ns = epoch.took_ns / (epoch.launches.size() + epoch.others);
      const bool whole = epoch.others == 0 && epoch.behind != kNever && epoch.behind > epoch.launches.back();
      if (whole) program_.epochs.push_back({epoch.launches.front(), epoch.behind, epoch.took_ns});
    }
  }
  std::uint32_t busiest_stream() const {
    std::map<std::uint32_t, std::uint64_t> took_ns;
    for (const auto& [key, epoch] : epochs_) took_ns[key.first] += epoch.launches.empty() ? 0 : epoch.took_ns;
    const auto most = std::ranges::max_element(took_ns, {}, [](const auto& each) { return each.second; });
    return most == took_ns.end() ? 0 : most->first;
  }
  void add(const Wait& wait) {
    if (inside_) program_.waited_ns += wait.took_ns;
  }
  void add(const auto&) {}

  const Trace& trace_;
  const Extract what_;
  Program program_;
  bool inside_ = false;
  std::uint64_t now_ns_ = 0;
  // Of each stream.
  std::unordered_map<std::uint32_t, std::uint64_t> last_epoch_, open_epoch_;
  std::unordered_set<trace::Block> in_parts_;
  std::unordered_map<trace::Block, Block> blocks_;
  // Of each item: launch, and index in Program::uses.
  std::unordered_map<std::uint32_t, std::pair<Position, std::uint32_t>> last_use_;
  std::map<EpochKey, EpochSoFar> epochs_;
};

}  // namespace

std::vector<Position> Program::next_uses() const {
  std::vector<Position> next_of(items.size(), kNever), next(uses.size());
  for (Position at = Position(launches.size()); at-- > 0;) {
    const Launch& launch = launches[at];
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i)
      next[i] = std::exchange(next_of[uses[i].item], at);
  }
  return next;
}

std::uint64_t Program::needed_bytes(const Launch& launch) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < launch.uses; ++i) bytes += items[uses[launch.first_use + i].item].bytes;
  return bytes;
}

std::uint64_t Program::largest_launch_bytes() const {
  std::uint64_t most = 0;
  for (const Launch& launch : launches) most = std::max(most, needed_bytes(launch));
  return most;
}

Program extract(const Trace& trace, const Extract& what) { return Extraction(trace, what).take(); }

}  // namespace vmem::trace
