#include "replay/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/sizes.hpp"
#include "replay/machine.hpp"

namespace vmem::replay {
namespace {

using trace::BlockBegins;
using trace::BlockEnds;
using trace::BlockKind;
using trace::EpochEnds;
using trace::Launch;

// A pause of the program that is longer than this was spent waiting for the GPU: for the copy
// before it, or in a full queue of launches.
constexpr std::uint64_t kPauseNs = 200'000;
// Launches that the driver queues on a stream before it makes their thread wait.
constexpr std::size_t kQueued = 1024;
constexpr std::string_view kCopy = "a copy";
constexpr std::uint64_t kInPlaceBytesPerS = 50'000'000'000, kInPlaceAtPeerBytesPerS = 370'000'000'000;

// Kernels that change what they read: optimizers and the like, by parts of their names.
constexpr std::array<std::string_view, 4> kWritesAll{"multi_tensor_apply", "Foreach", "FillFunctor", "index_put"};
// Kernels whose first argument is what they write, as large as what they read. Where nothing that
// such a launch names is new, that is one of the arguments that it reads.
constexpr std::string_view kElementwise = "elementwise_kernel";
// Of these, what copies into a part of a block: as much as there is to copy.
constexpr std::string_view kCopies = "direct_copy_kernel";
// Kernels that write rows here and there in their largest block, as many bytes as another one has.
// Rows are taken to be of kRowBytes, and each changes a piece of kPieceBytes, in which changes are
// found.
constexpr std::string_view kScatters = "indexing_backward";
constexpr std::uint64_t kRowBytes = 1024, kPieceBytes = std::uint64_t{64} << 10;
// Kernels that use rows here and there of their largest block, as many bytes as another one has.
constexpr std::array<std::string_view, 3> kUsesRows{"gather_kernel", "indexSelect", kScatters};

// What is counted from the begin of what is measured.
constexpr std::array kCounted{&Measured::time_ns,
                              &Measured::waited_ns,
                              &Measured::waits,
                              &Measured::in_bytes,
                              &Measured::out_bytes,
                              &Measured::in_busy_ns,
                              &Measured::out_busy_ns,
                              &Measured::peer_in_busy_ns,
                              &Measured::peer_out_busy_ns,
                              &Measured::below_in_bytes,
                              &Measured::below_out_bytes,
                              &Measured::below_in_busy_ns,
                              &Measured::below_out_busy_ns,
                              &Measured::ahead_bytes,
                              &Measured::maps,
                              &Measured::unmaps,
                              &Measured::frames_made,
                              &Measured::mover_busy_ns};

class Player {
 public:
  Player(const trace::Trace& trace, const Setting& setting) : trace_(trace), setting_(setting) {}

  Result<Measured> play() {
    VMEM_TRY(look_ahead());
    Setting setting = setting_;
    setting.hbm_bytes = hbm_bytes();
    VMEM_ASSIGN(machine_, Machine::start(setting));
    for (const trace::Event& event : trace_.events) {
      if (!measuring_ && event.at_ns >= setting_.from_ns && std::holds_alternative<Launch>(event.body)) begin();
      Status played;
      std::visit([&](const auto& body) { played = add(event.at_ns, body); }, event.body);
      VMEM_TRY(played);
    }
    machine_.reset();  // its destructor records the mover's last work
    if (setting_.timeline != nullptr) clip(*setting_.timeline);
    return result_;
  }

 private:
  struct Stream {
    CUstream handle = nullptr;
    std::deque<std::uint64_t> ends_ns;  // of its last kQueued launches
    std::uint64_t gpu_ns = 0;
  };
  struct Block {
    void* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t stream = 0;
    bool used = false;
  };
  struct Epoch {
    std::uint64_t launches = 0, acquires = 0, first_ns = 0, ends_ns = 0, gpu_ns = 0;
  };
  using EpochKey = std::pair<std::uint32_t, std::uint64_t>;

  // What a launch takes, and where each block is first used, is told later in the trace.
  Status look_ahead() {
    if (trace_.header.devices.size() > 1)
      return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("the trace is of {} devices; those of one can be replayed",
                                                        trace_.header.devices.size()));
    std::unordered_map<trace::Block, std::uint64_t> slabs;
    std::uint64_t live = 0;
    for (const trace::Event& event : trace_.events) {
      if (const auto* launch = std::get_if<Launch>(&event.body)) {
        note(event.at_ns, *launch);
      } else if (const auto* ends = std::get_if<EpochEnds>(&event.body)) {
        Epoch& epoch = epochs_[{ends->stream, ends->epoch}];
        epoch.ends_ns = event.at_ns;
        epoch.gpu_ns = ends->gpu_ns;
      } else if (const auto* begins = std::get_if<BlockBegins>(&event.body)) {
        if (begins->kind == BlockKind::slab && slabs.try_emplace(begins->block, begins->bytes).second)
          live += begins->bytes;
        slab_bytes_ = std::max(slab_bytes_, live);
        if (begins->kind == BlockKind::slab || begins->kind == BlockKind::undeclared) continue;
        return fail(VMEM_ERROR_INVALID_VALUE,
                    "the trace's program calls vmem itself; only those that do not can be replayed");
      } else if (const auto* gone = std::get_if<BlockEnds>(&event.body)) {
        const auto slab = slabs.find(gone->block);
        if (slab == slabs.end()) continue;
        live -= slab->second;
        slabs.erase(slab);
      }
    }
    if (last_epoch_.empty() || last_ns_ < setting_.from_ns) {
      return fail(VMEM_ERROR_INVALID_VALUE,
                  fmt::format("no launch comes after {:.3f} s; the last one was made at {:.3f} s",
                              double(setting_.from_ns) / 1e9, double(last_ns_) / 1e9));
    }
    return check_sizes();
  }

  void note(std::uint64_t at_ns, const Launch& launch) {
    Epoch& epoch = epochs_[{launch.stream, launch.epoch}];
    if (epoch.launches++ == 0) epoch.first_ns = at_ns;
    if (launch.what == 0) ++epoch.acquires;
    last_epoch_[launch.stream] = launch.epoch;
    const std::uint32_t home = home_stream_.try_emplace(launch.thread, launch.stream).first->second;
    for (const trace::Named& each : launch.named) {
      if ((each.flags & trace::Named::kPossible) == 0) first_stream_.try_emplace(each.block, home);
    }
    last_ns_ = at_ns;
  }

  // Slabs are pinned in HBM, up to a quarter of it.
  std::uint64_t hbm_bytes() const {
    const std::uint64_t hbm = setting_.hbm_bytes / pagetable::kGranuleBytes * pagetable::kGranuleBytes;
    return hbm - std::min(slab_bytes_, hbm / 4);
  }

  Status check_sizes() const {
    const std::uint64_t hbm = hbm_bytes();
    if (hbm < kSmallestHbm)
      return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} of HBM are left beside small allocations; {} is the least",
                                                        format_bytes(hbm), format_bytes(kSmallestHbm)));
    if (setting_.page_bytes && *setting_.page_bytes > hbm / kPagesInHbm)
      return fail(VMEM_ERROR_INVALID_VALUE,
                  fmt::format("pages of {} are more than an eighth of the {} of HBM that are left beside small "
                              "allocations",
                              format_bytes(*setting_.page_bytes), format_bytes(hbm)));
    return {};
  }

  std::uint64_t takes_ns(const Launch& launch) const {
    // Nothing tells when the last epoch of a stream ended: its end is that of the program.
    if (last_epoch_.at(launch.stream) == launch.epoch) return 0;
    const Epoch& epoch = epochs_.at({launch.stream, launch.epoch});
    if (epoch.launches == 0 || epoch.ends_ns <= epoch.first_ns) return 0;
    // Beside launches, acquires take no time.
    const bool only_acquires = epoch.launches == epoch.acquires;
    if (launch.what == 0 && !only_acquires) return 0;
    return std::min(epoch.gpu_ns, epoch.ends_ns - epoch.first_ns) /
           (only_acquires ? epoch.launches : epoch.launches - epoch.acquires);
  }

  Stream& stream_of(std::uint32_t number) {
    Stream& stream = streams_[number];
    if (stream.handle == nullptr) stream.handle = machine_->gpu().create_stream(0);
    return stream;
  }

  // When all that was queued so far is done.
  std::uint64_t done_ns() const {
    std::uint64_t done_ns = machine_->gpu().now_ns();
    for (const auto& [number, stream] : streams_) done_ns = std::max(done_ns, machine_->gpu().end_of(stream.handle));
    return done_ns;
  }

  void begin() {
    measuring_ = true;
    for (auto& [number, stream] : streams_) stream.gpu_ns = 0;
    before_ = so_far();
  }

  // To what was measured.
  void clip(Timeline& timeline) const {
    const std::uint64_t begin_ns = before_.time_ns, end_ns = begin_ns + result_.time_ns;
    for (Work& work : timeline) {
      work.begin_ns = std::clamp(work.begin_ns, begin_ns, end_ns);
      work.end_ns = std::clamp(work.end_ns, begin_ns, end_ns);
    }
    std::erase_if(timeline, [](const Work& work) { return work.begin_ns == work.end_ns; });
  }

  void measure() {
    const std::uint64_t launches = result_.launches;
    result_ = so_far();
    for (const auto field : kCounted) result_.*field -= before_.*field;
    result_.launches = launches;
  }

  // Since the replay began; `gpu_ns` since what is measured did.
  Measured so_far() const {
    using Direction = VirtualGpu::Direction;
    using tiers::Direction::load, tiers::Direction::store;
    constexpr auto kPeer = VirtualGpu::Far::peer;
    const auto& counters = machine_->counters();
    const VirtualGpu& gpu = machine_->gpu();
    Measured all;
    all.time_ns = done_ns();
    for (const auto& [number, stream] : streams_) all.gpu_ns = std::max(all.gpu_ns, stream.gpu_ns);
    all.waited_ns = counters.acquire_wait_us * 1000;
    all.waits = counters.acquire_waits;
    all.in_bytes = counters.migrated_in_bytes;
    all.out_bytes = counters.migrated_out_bytes;
    all.in_busy_ns = gpu.busy_ns(0, Direction::in);
    all.out_busy_ns = gpu.busy_ns(0, Direction::out);
    all.peer_in_busy_ns = gpu.busy_ns(0, Direction::in, kPeer);
    all.peer_out_busy_ns = gpu.busy_ns(0, Direction::out, kPeer);
    if (const VirtualBelow* const below = machine_->below()) {
      all.below_in_bytes = below->bytes(load);
      all.below_out_bytes = below->bytes(store);
      all.below_in_busy_ns = below->busy_ns(load);
      all.below_out_busy_ns = below->busy_ns(store);
    }
    all.ahead_bytes = counters.prefetched_used_bytes;
    all.maps = counters.maps;
    all.unmaps = counters.unmaps;
    all.frames_made = machine_->frames_made();
    all.mover_busy_ns = machine_->mover_busy_ns();
    all.wrong_loads = machine_->wrong_loads();
    return all;
  }

  Status add(std::uint64_t at_ns, const trace::Signal& signal) {
    pass(at_ns);
    CUstream const stream = stream_of(signal.stream).handle;
    if (!signal.waits) {
      signals_ns_[signal.event] = machine_->gpu().end_of(stream);
    } else if (const auto found = signals_ns_.find(signal.event); found != signals_ns_.end()) {
      machine_->gpu().hold_until(stream, found->second);
    }
    return {};
  }

  template <class Other>
  Status add(std::uint64_t, const Other&) {
    return {};
  }

  Status add(std::uint64_t at_ns, const BlockBegins& begins) {
    pass(at_ns);
    if (begins.kind == BlockKind::slab) return {};
    const auto stream = first_stream_.find(begins.block);
    const std::uint32_t number = stream == first_stream_.end() ? 0 : stream->second;
    VMEM_ASSIGN(void* const address, machine_->blocks().allocate(begins.bytes, 0, stream_of(number).handle));
    blocks_[begins.block] = {address, begins.bytes, number, false};
    return {};
  }

  Status add(std::uint64_t at_ns, const BlockEnds& ends) {
    pass(at_ns);
    const auto found = blocks_.find(ends.block);
    if (found == blocks_.end()) return {};
    const Block block = found->second;
    blocks_.erase(found);
    return machine_->blocks().free(block.address, std::optional<vmem_stream>(stream_of(block.stream).handle));
  }

  Status add(std::uint64_t at_ns, const Launch& launch) {
    pass(at_ns, std::uint64_t{launch.tracing_us} * 1000);
    waits_for_copy_ = launch.what == 0 || name_of(launch) == kCopy;
    Stream& stream = stream_of(launch.stream);
    addresses_.clear();
    for (const trace::Named& each : launch.named) {
      const auto found = blocks_.find(each.block);
      const bool named = (each.flags & trace::Named::kPossible) == 0;
      if (named && found != blocks_.end())
        addresses_.push_back(reinterpret_cast<std::uintptr_t>(found->second.address));
    }
    VirtualGpu& gpu = machine_->gpu();
    if (stream.ends_ns.size() == kQueued) {
      gpu.set_now(std::max(gpu.now_ns(), stream.ends_ns.front()));
      stream.ends_ns.pop_front();
      machine_->catch_up();
    }
    VMEM_TRY(machine_->launches().begin(addresses_, stream.handle, false, holds_));
    const std::uint64_t takes = takes_ns(launch) + in_place_ns(launch);
    stream.ends_ns.push_back(gpu.run(stream.handle, takes));
    stream.gpu_ns += takes;
    write(launch);
    machine_->uses_logged(holds_.held.size());
    VMEM_TRY(machine_->launches().end(holds_));
    if (measuring_) ++result_.launches;
    if (at_ns == last_ns_) measure();
    return {};
  }

  // What the GPU reads in place comes over a link.
  std::uint64_t in_place_ns(const Launch& launch) const {
    double ns = 0;
    std::uint64_t largest = 0, second = 0;
    for (const auto& held : holds_.held) {
      const runtime::PageRun pages = held.pages();
      const std::uint64_t bytes = std::uint64_t{held.span.count()} * pagetable::kGranuleBytes;
      second = std::max(std::min(largest, bytes), second);
      largest = std::max(largest, bytes);
      for (std::uint32_t i = pages.first; i < pages.first + pages.count; ++i) {
        const pagetable::PageState state(held.region->pages[i].state.load(std::memory_order_relaxed));
        if (!state.has(pagetable::PageState::kInPlace)) continue;
        const std::uint64_t rate = held.region->pages[i].near == 0 ? kInPlaceBytesPerS : kInPlaceAtPeerBytesPerS;
        ns += double(held.region->page_bytes()) * 1e9 / double(rate);
      }
    }
    const std::string_view name = name_of(launch);
    const bool rows = std::ranges::any_of(kUsesRows, [&](std::string_view part) { return name.contains(part); });
    return std::uint64_t(rows && largest != 0 ? ns * double(second) / double(largest) : ns);
  }

  std::string_view name_of(const Launch& launch) const {
    return launch.what < trace_.names.size() ? std::string_view(trace_.names[launch.what]) : std::string_view();
  }
  bool changes_what_it_reads(const Launch& launch) const {
    const std::string_view name = name_of(launch);
    return std::ranges::any_of(kWritesAll, [&](std::string_view part) { return name.contains(part); });
  }

  void write(const Launch& launch) {
    const std::string_view name = name_of(launch);
    std::vector<Block*>& named = named_;
    named.clear();
    for (const trace::Named& each : launch.named) {
      const auto found = blocks_.find(each.block);
      if (found != blocks_.end() && (each.flags & trace::Named::kPossible) == 0) named.push_back(&found->second);
    }
    if (named.empty()) return;
    const bool all = changes_what_it_reads(launch);
    bool any_new = false;
    std::uint64_t others_bytes = 0;
    for (Block* const block : named) {
      const bool fresh = !std::exchange(block->used, true);
      any_new = any_new || fresh;
      if (block != named.front()) others_bytes = std::max(others_bytes, block->bytes);
      if (fresh || all) write(*block, block->bytes);
    }
    if (any_new || all) return;
    if (name.contains(kScatters)) {
      std::ranges::sort(named, std::greater{}, &Block::bytes);
      if (named.size() > 1) scatter(*named[0], named[1]->bytes);
    } else if (name.contains(kCopies)) {
      write(*named.front(), std::clamp(others_bytes, std::uint64_t{1}, named.front()->bytes));
    } else if (name.contains(kElementwise)) {
      write(*named.front(), named.front()->bytes);
    }
  }

  // Writes rows of so many bytes, evenly spread over the block.
  void scatter(const Block& block, std::uint64_t bytes) {
    const std::uint32_t granules = granules_of(block.bytes);
    const std::uint32_t touched = granules_of(std::min(block.bytes, bytes / kRowBytes * kPieceBytes));
    const std::uint32_t first = machine_->space().granule_at(reinterpret_cast<std::uintptr_t>(block.address));
    for (std::uint32_t i = 0; i < touched; ++i)
      machine_->contents().write(first + std::uint32_t(std::uint64_t{i} * granules / touched), 1);
  }

  static std::uint32_t granules_of(std::uint64_t bytes) {
    return std::uint32_t((bytes + pagetable::kGranuleBytes - 1) / pagetable::kGranuleBytes);
  }

  void write(const Block& block, std::uint64_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(block.address);
    machine_->contents().write(machine_->space().granule_at(address), granules_of(bytes));
  }

  // The host's time up to an event of the trace, without what recording took.
  void pass(std::uint64_t at_ns, std::uint64_t tracing_ns = 0) {
    VirtualGpu& gpu = machine_->gpu();
    std::uint64_t pause = passed_ns_ == 0 ? 0 : at_ns - passed_ns_;
    pause -= std::min(pause, tracing_ns);
    passed_ns_ = at_ns;
    std::uint64_t now_ns = gpu.now_ns() + std::min(pause, kPauseNs);
    if (pause > kPauseNs && std::exchange(waits_for_copy_, false)) now_ns = std::max(now_ns, done_ns());
    gpu.set_now(now_ns);
    machine_->catch_up();
  }

  const trace::Trace& trace_;
  const Setting setting_;
  std::map<EpochKey, Epoch> epochs_;
  std::unordered_map<std::uint32_t, std::uint64_t> last_epoch_;   // by stream
  std::unordered_map<std::uint32_t, std::uint32_t> home_stream_;  // by thread: of its first launch
  std::unordered_map<trace::Block, std::uint32_t> first_stream_;  // home of who uses it first
  std::uint64_t slab_bytes_ = 0, last_ns_ = 0, passed_ns_ = 0;
  std::unique_ptr<Machine> machine_;
  std::map<std::uint32_t, Stream> streams_;
  std::unordered_map<trace::Block, Block> blocks_;
  std::unordered_map<std::uint32_t, std::uint64_t> signals_ns_;  // by event: what it covers ends
  std::vector<std::uintptr_t> addresses_;
  std::vector<Block*> named_;  // by the launch that is being played
  runtime::LaunchHolds holds_;
  bool waits_for_copy_ = false;
  bool measuring_ = false;
  Measured before_, result_;
};

}  // namespace

Result<Measured> replay(const trace::Trace& trace, const Setting& setting) { return Player(trace, setting).play(); }

}  // namespace vmem::replay
