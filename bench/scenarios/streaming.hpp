// The measured part of the scenarios that work through a region from end to end.
#pragma once

#include <string>

#include "bench/context.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

struct Streamed {
  Measured rates;           // GB/s: bare copies, and working-set bytes (read-write: in and out) worked through
  Traffic traffic;          // in all achieved samples together
  double seconds = 0;       // of them
  std::uint64_t bytes = 0;  // of working set worked through in them
  std::uint64_t page_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  int passes = 0;  // a sample
  std::string mismatch;

  double moved_rate() const { return static_cast<double>(traffic.moved()) / seconds / 1e9; }
  // Share of the bytes worked through that need not cross the link into HBM.
  double hit_share() const { return 1.0 - static_cast<double>(traffic.in_bytes) / static_cast<double>(bytes); }
};

// Starts the runtime with `sizes`, fills a region, works through it, verifies it, ends the runtime.
Result<Streamed> measure_stream(Context& context, const Sizes& sizes, StreamMode mode, StreamLimit& limit);

// A row of streaming against `limit`; the scenario's name and goal are the caller's.
Record stream_record(const Context& context, const Sizes& sizes, StreamMode mode, const StreamLimit& limit,
                     const Streamed& streamed);

// The sizes and what was moved, for the record.
nlohmann::json stream_options(const Context& context, const Sizes& sizes, const Streamed& streamed);
void add_traffic(Record& record, const Streamed& streamed);
std::string ratio_text(double ratio);  // "4x"

}  // namespace vmem::bench
