// Turns what the mover hears into a trace: regions and their lives become blocks, uses become
// launches. A lack of memory ends the trace, and nothing else. Thread: the mover's, except where a
// comment says otherwise.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "trace/events.hpp"
#include "trace/writer.hpp"

namespace vmem::trace {

class Recorder {
 public:
  // `began_ns`: the time of the trace's begin, by the clock of all times given here. Null: see
  // Writer::create, also for the errors.
  static Result<std::unique_ptr<Recorder>> create(const std::string& path, std::uint64_t limit_bytes,
                                                  const Header& header, std::uint64_t began_ns);
  ~Recorder() { finish(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Any thread. The number of what launches run, for `launched`; 0: no memory.
  std::uint32_t number_of(const std::string& name) noexcept;
  // Any thread. The number of one of the program's events, for `signalled`; 0: no memory.
  std::uint32_t number_of_event(std::uintptr_t event) noexcept;

  struct RegionBegins {
    std::uint32_t region = 0;  // id
    std::uint64_t bytes = 0;
    std::uint32_t granule = 0, granules = 0;
    std::uint32_t device = 0;
    BlockKind kind = BlockKind::undeclared;
  };
  void region_begins(const RegionBegins& region, std::uint64_t now_ns) noexcept;
  void region_ends(std::uint32_t region, std::uint64_t now_ns) noexcept;
  // The region was freed into a cache, or taken out of it. `life`: counts its frees.
  void region_changed(std::uint32_t region, std::uint64_t life, bool dead, std::uint64_t at_ns) noexcept;

  // A region begins whose pages blocks share. They begin and end one by one.
  void shared_region_begins(std::uint32_t granule, std::uint32_t granules) noexcept;
  // Where a block lies in such a region.
  struct Place {
    std::uint32_t granule = 0, granules = 0;
    std::uint32_t device = 0;
  };
  // The block was freed, or allocated. `life`: of its region, which counts the ends of its blocks.
  void block_changed(const Place& place, std::uint64_t life, bool dead, std::uint64_t at_ns) noexcept;

  // What one thread used, in order; the uses of a launch come before it.
  struct Use {
    std::uint32_t region = 0;
    std::uint64_t life = 0;
    std::uint32_t granule = 0, granules = 0;
    bool writes = false, discards = false, possible = false;
  };
  struct Work {
    std::uint32_t stream = 0;
    std::uint32_t device = 0;
    std::uint64_t epoch = 0;
    std::uint32_t tracing_us = 0;  // see Launch
  };
  void used(std::uint32_t thread, const Use& use) noexcept;
  // `use`: without region and place.
  void used_at(std::uint32_t thread, const Place& place, const Use& use) noexcept;
  void launched(std::uint32_t thread, const Work& work, std::uint32_t what, std::uint64_t at_ns) noexcept;
  void signalled(const Signal& signal, std::uint64_t at_ns) noexcept { add(at_ns, signal); }

  void add(std::uint64_t at_ns, const Body& body) noexcept;
  // Work that follows earlier work within 20 µs counts as one piece.
  void busy(std::uint64_t from_ns, std::uint64_t until_ns) noexcept;
  void frames(std::uint64_t made, std::uint64_t unmade, std::uint64_t now_ns) noexcept;  // totals
  bool ended() const { return writer_->ended(); }
  // The trace ends, if it has not.
  void lacks_memory() noexcept {
    if (!ended()) writer_->end(End::Why::no_memory);
  }
  void finish() noexcept;

 private:
  struct Region {
    RegionBegins begins;
    std::uint64_t life = 0;
    Block block = 0;             // of this life; 0: none yet
    Block before = 0;            // of the life before
    std::uint64_t since_ns = 0;  // the last begin or end of a block
  };
  // Where blocks share pages: what lies at a granule.
  struct Neighbour {
    std::uint32_t granules = 0;
    std::uint64_t since = 0;      // the region's life at the last begin or end
    Block block = 0, before = 0;  // 0: none
    std::uint64_t since_ns = 0;
  };
  struct Thread {
    std::uint64_t last_ns = 0;  // of its last launch
    std::vector<Named> named;   // by the next launch
  };

  Recorder(std::unique_ptr<Writer> writer, std::uint64_t began_ns);
  template <class Piece>
  void note(Piece&& piece) noexcept;
  Thread& thread(std::uint32_t number);
  std::uint64_t since_begin(std::uint64_t ns) const { return ns - std::min(ns, began_ns_); }
  void begin_block(Region& region, std::uint64_t at_ns);
  void end_block(Region& region, std::uint64_t at_ns);
  void begin_life(Region& region, std::uint64_t life, std::uint64_t at_ns);
  bool named_by(const Use& use, std::uint64_t at_ns, Named& named);
  void begin_at(Neighbour& at, const Place& place, std::uint64_t at_ns);
  void end_at(Neighbour& at, std::uint64_t life, std::uint64_t at_ns);
  Block block_used(const Place& place, std::uint64_t life, std::uint64_t at_ns);
  void write_names(std::uint64_t at_ns);

  const std::unique_ptr<Writer> writer_;
  const std::uint64_t began_ns_;
  std::unordered_map<std::uint32_t, Region> regions_;
  std::map<std::uint32_t, Neighbour> neighbours_;  // by first granule
  std::vector<Thread> threads_;
  Block last_block_ = 0;
  Busy busy_{};
  std::uint64_t busy_from_ns_ = 0;
  std::uint64_t made_ = 0, unmade_ = 0;
  std::atomic<bool> has_new_names_{false};
  std::mutex mutex_;  // guards the members below
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::unordered_map<std::uintptr_t, std::uint32_t> event_numbers_;
  std::vector<Name> new_names_;
};

}  // namespace vmem::trace
