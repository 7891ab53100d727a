// What streaming is held to: the rate of bare copies over the link that the missing bytes have to cross.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace vmem::bench {

enum class StreamMode { read_only, read_write };

class StreamLimit {
 public:
  virtual ~StreamLimit() = default;
  // Told once before the first rate is asked for. Copies that depend on the size of pages are set up then.
  virtual Status prepare(std::uint64_t /*page_bytes*/) { return {}; }
  // GB/s (10^9 bytes): one way for read_only, both ways at once and in sum for read_write.
  virtual Result<double> rate(StreamMode mode) = 0;
  virtual std::string name(StreamMode mode) const = 0;
};

}  // namespace vmem::bench
