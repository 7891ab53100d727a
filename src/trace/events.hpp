// The events of a trace: what a program named, launch by launch, and what the mover did for it.
// docs/internals/trace.md describes the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vmem::trace {

// Places are counted in granules of 2 MiB from the base of the address space.
inline constexpr unsigned kGranuleShift = 21;
inline constexpr std::uint32_t kNoGranule = ~std::uint32_t{0};

// Numbers the blocks of a trace from 1: an allocation from its malloc to its free. The next
// allocation at the same address is another block. 0: none.
using Block = std::uint32_t;

// What a launch runs: a kernel's name, or "a copy".
struct Name {
  std::uint32_t id = 0;
  std::string text;
};

enum class BlockKind : std::uint8_t {
  undeclared,  // of a program that does not call vmem
  declared,
  slab,  // a range for small allocations
  file,  // read-only
};
inline constexpr BlockKind kLastBlockKind = BlockKind::file;

struct BlockBegins {
  Block block = 0;
  std::uint64_t bytes = 0;  // what vmem allocated for it: rounded up
  std::uint32_t granule = 0, granules = 0;
  std::uint32_t device = 0;
  BlockKind kind = BlockKind::undeclared;
};
// Its contents are worthless from here on.
struct BlockEnds {
  Block block = 0;
};

// One use of a block by a launch.
struct Named {
  static constexpr std::uint8_t kWrites = 1;    // the program says so
  static constexpr std::uint8_t kPossible = 2;  // only a pointer table leads to it
  static constexpr std::uint8_t kPart = 4;      // of the block: `granules` from `first`
  static constexpr std::uint8_t kDiscards = 8;  // the old contents do not matter
  static constexpr std::uint8_t kFlags = 15;
  Block block = 0;
  std::uint8_t flags = 0;
  std::uint32_t first = 0, granules = 0;  // with kPart; relative to the block
};

// A kernel, a copy, a graph; or the release of what a program or vmem itself, for a copy or a fill,
// had acquired.
struct Launch {
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;
  std::uint32_t device = 0;  // of the stream
  std::uint64_t epoch = 0;
  std::uint32_t what = 0;  // a Name; 0: an acquire
  // What recording took the thread since its launch before: at most 255.
  std::uint32_t tracing_us = 0;
  std::vector<Named> named;
};

// The end of an epoch was seen. The event's time: when it was seen.
struct EpochEnds {
  std::uint32_t stream = 0;
  std::uint64_t epoch = 0;
  // GPU time from the begin of its first launch. Of an epoch that consists of acquires: since the
  // end of the stream's previous epoch; first one: 0.
  std::uint64_t gpu_ns = 0;
};

// The program recorded one of its events on a stream, or made the stream wait for what the event's
// last such record covers.
struct Signal {
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;
  std::uint32_t event = 0;  // numbers the program's events, from 1
  bool waits = false;
};

// What happened to a page.
enum class Happened : std::uint8_t {
  mapped_hbm,
  mapped_host,
  mapped_peer,
  unmapped,
  loaded,
  stored,
  returned,
  spilled,
  recalled,
  read_to_hbm,
  freed
};
inline constexpr Happened kLastHappened = Happened::freed;

constexpr std::string_view words(Happened what) {
  switch (what) {
    case Happened::mapped_hbm:
      return "mapped to HBM";
    case Happened::mapped_host:
      return "mapped to host memory";
    case Happened::mapped_peer:
      return "mapped to another GPU's memory";
    case Happened::unmapped:
      return "unmapped";
    case Happened::loaded:
      return "fetched to HBM";
    case Happened::stored:
      return "copied out of HBM";
    case Happened::returned:
      return "moved from another GPU's memory to host memory";
    case Happened::spilled:
      return "written below host memory";
    case Happened::recalled:
      return "read back to host memory";
    case Happened::read_to_hbm:
      return "read from a file to HBM";
    case Happened::freed:
      return "freed";
  }
  return "?";
}

struct PageChanges {
  Happened what = Happened::unmapped;
  std::uint32_t granule = 0, granules = 0;
};

// A copy ended. The event's time: when it was submitted.
struct Transfer {
  enum class Direction : std::uint8_t { in, out };
  // Where the other end is: pinned host memory, another GPU, or a tier below host memory. Transfers
  // with `below` that do not concern HBM run between host memory and that tier.
  enum class Place : std::uint8_t { host, peer, below };
  static constexpr Place kLastPlace = Place::below;
  std::uint64_t took_ns = 0;  // until its end was seen
  Direction direction = Direction::in;
  Place place = Place::host;
  std::uint32_t granule = 0, granules = 0;
  bool copied = true;  // false: compared by fingerprint, and found unchanged
};

// A launch or an acquire waited for the mover. The event's time: the begin.
struct Wait {
  std::uint64_t took_ns = 0;
  std::uint32_t granule = kNoGranule;  // of the page that came last; kNoGranule: none was missing
};

// The mover worked. The event's time: the begin.
struct Busy {
  std::uint64_t took_ns = 0;
};

// Frames made and unmade since the last such event.
struct Frames {
  std::uint32_t made = 0, unmade = 0;
};

// The last event.
struct End {
  enum class Why : std::uint8_t {
    finished,     // the program or the runtime ended
    limit,        // the file has the size that the option trace_limit allows
    fell_behind,  // the file's disk is too slow
    no_memory,    // the process had no memory for the trace
  };
  static constexpr Why kLastWhy = Why::no_memory;
  Why why = Why::finished;
};

constexpr std::string_view words(End::Why why) {
  switch (why) {
    case End::Why::finished:
      return "the program ended";
    case End::Why::limit:
      return "it has reached the size that the option trace_limit allows";
    case End::Why::fell_behind:
      return "its disk is slower than the program's launches";
    case End::Why::no_memory:
      return "the process has no memory for it";
  }
  return "?";
}

using Body = std::variant<Name, BlockBegins, BlockEnds, Launch, EpochEnds, PageChanges, Transfer, Wait, Busy, Frames,
                          End, Signal>;

struct Event {
  std::uint64_t at_ns = 0;  // since the trace's begin, by the host's clock
  Body body;
};

struct Device {
  std::string name;
  std::uint64_t hbm_bytes = 0;  // the budget
  // Of the link to host memory; 0: not measured.
  std::uint64_t in_bytes_per_s = 0, out_bytes_per_s = 0;
};

// What was recorded, and where.
struct Header {
  std::string version;  // of vmem
  std::string command;
  bool emulated = false;
  std::uint64_t base = 0;  // address of granule 0
  std::vector<Device> devices;
};

}  // namespace vmem::trace
