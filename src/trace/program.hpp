// A traced program as paging sees it: launches in order, and the items that each needs in HBM.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "trace/file.hpp"

namespace vmem::trace {

// A position in the order of launches: launch i runs from i to i + 1.
using Position = std::uint32_t;
inline constexpr Position kNever = std::numeric_limits<Position>::max();

struct Program {
  // Where the contents come from that an item's first use finds.
  enum class Contents : std::uint8_t {
    made,     // there are none: that use makes them
    before,   // they exist before the first launch, with a copy outside of HBM
    unknown,  // the trace does not say: the program may have written them through vmem's API
  };
  struct Item {
    std::uint64_t bytes = 0;
    Contents contents = Contents::made;
    Position first = kNever, last = 0;  // uses; after the last one its contents are worthless
  };
  struct Use {
    std::uint32_t item = 0;
    bool writes = false;  // the program says so
  };
  struct Launch {
    // Its share of its epoch's time, on the stream that computes longest; on others 0.
    std::uint64_t gpu_ns = 0;
    std::uint32_t first_use = 0, uses = 0;  // in Program::uses; each item once
  };
  // An epoch of the stream that computes longest, whose launches are all in the program. The time
  // of other streams does not count: it may overlap with this one's.
  struct Epoch {
    Position first = 0;   // launch
    Position behind = 0;  // the stream's next launch after it: by then its work is complete
    std::uint64_t gpu_ns = 0;
  };
  std::vector<Item> items;
  std::vector<Launch> launches;
  std::vector<Use> uses;
  std::vector<Epoch> epochs;
  std::uint64_t waited_ns = 0;  // launches waited for memory: GPU times then contain some of that

  // For each use: the launch that uses the item next, or kNever.
  std::vector<Position> next_uses() const;
  std::uint64_t needed_bytes(const Launch& launch) const;
  // The largest launch: less HBM than that is none to run in.
  std::uint64_t largest_launch_bytes() const;
};

struct Extract {
  std::uint64_t from_ns = 0, until_ns = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t device = 0;  // by its place in the header
};
// The launches on one device between two times, and what they use of its memory. A block that some
// launch uses in part is an item for each granule; every other one is one item. A use that discards
// an item's contents begins another item. Left out, since a bound must hold without them: slabs,
// whose small allocations nobody names, and uses that only a pointer table makes possible.
Program extract(const Trace& trace, const Extract& what);

}  // namespace vmem::trace
