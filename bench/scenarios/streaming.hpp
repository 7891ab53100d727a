// The measured part of the scenarios that process a region from end to end.
#pragma once

#include <string>

#include "bench/context.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

struct Streamed {
  Measured rates;           // GB/s over the link: bare copies; what vmem moved
  Samples processed;        // GB/s of working set (read-write: in and out)
  Traffic traffic;          // in all achieved samples together
  double seconds = 0;       // of all achieved samples
  std::uint64_t bytes = 0;  // of working set processed in them
  std::uint64_t page_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  int passes = 0;  // per sample
  std::string mismatch;

  // Share of the processed bytes that need not cross the link into HBM.
  double hit_share() const { return 1.0 - static_cast<double>(traffic.in_bytes) / static_cast<double>(bytes); }
};

// Starts the runtime with `sizes`, fills a region, streams it, verifies it, ends the runtime.
Result<Streamed> measure_stream(Context& context, const Sizes& sizes, StreamMode mode, StreamLimit& limit);

// A row of streaming against `limit`; the caller sets the scenario's name and goal. Its figure is
// the bytes that crossed the link: pages that stay in HBM between passes do not make a faster link.
Record stream_record(const Context& context, const Sizes& sizes, StreamMode mode, const StreamLimit& limit,
                     const Streamed& streamed);

// The sizes of the run and its chunks, for the record.
nlohmann::json stream_options(const Context& context, const Sizes& sizes, const Streamed& streamed);
void add_traffic(Record& record, const Streamed& streamed);
std::string ratio_text(double ratio);  // "4x"

}  // namespace vmem::bench
