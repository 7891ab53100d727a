// The limit for streaming: the rate of bare copies over the link that missing bytes cross.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "bench/runtime.hpp"

namespace vmem::bench {

enum class StreamMode { read_only, read_write };

class StreamLimit {
 public:
  virtual ~StreamLimit() = default;
  // Called before the first rate(): copies have vmem's page size, and a sample about `bytes` each
  // way, as vmem's have.
  virtual Status prepare(std::uint64_t page_bytes, std::uint64_t bytes) = 0;
  // GB/s (10^9 bytes): one way for read_only, both ways at once and summed for read_write.
  virtual Result<double> rate(StreamMode mode) = 0;
  virtual std::string name(StreamMode mode) const = 0;
  // The bytes of `traffic` that crossed this link, in the directions that rate() counts.
  virtual std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const = 0;
};

}  // namespace vmem::bench
