// Measures a disk with bare requests: direct I/O to a file allocated as the disk tier allocates its
// own, with the tier's request size and depth. Uses fio if installed, else a loop over io_uring.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "bench/request_memory.hpp"
#include "bench/stream_limit.hpp"
#include "bench/tier_pages.hpp"
#include "tiers/io/io_queue.hpp"

namespace vmem::bench {

enum class DiskWay { in, out, both };  // read, write, or both at once in equal parts

class BareDisk {
 public:
  // Creates a file of `bytes` in `directory` and writes it once. `memory` has kMemoryBytes and is
  // used by loop(). Errors: INVALID_OPTION (no file can be made there), DRIVER.
  static Result<std::unique_ptr<BareDisk>> create(const std::string& directory, std::uint64_t bytes,
                                                  RequestMemory memory);
  ~BareDisk();
  BareDisk(const BareDisk&) = delete;
  BareDisk& operator=(const BareDisk&) = delete;

  // GB/s over the whole file; for `both`, the sum of the two directions.
  Result<double> loop(DiskWay way) { return loop(way, {memory_.get(), kMemoryBytes}); }
  // The same, cycling the requests through all of `memory`, at least kMemoryBytes. A disk in
  // software, such as a virtual machine's, is faster with memory that caches hold.
  Result<double> loop(DiskWay way, std::span<std::byte> memory);
  // Runs fio over the whole file once, or repeatedly for `steady`. REQUIRES: has_fio().
  Result<double> fio(DiskWay way, Steady steady) const;
  static bool has_fio();
  // True if the system's pool has 2 MiB pages, which host memory slots use too: in 4 KiB pages a
  // request is many pieces to the disk. Checked once, so that all runs use the same memory.
  static bool fio_has_large_pages();

  static constexpr std::uint32_t kRequestBytes = 1u << 20;
  static constexpr std::uint32_t kDepth = 64;
  static constexpr std::uint64_t kMemoryBytes = std::uint64_t{kDepth} * kRequestBytes;

 private:
  BareDisk() = default;

  std::string path_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  RequestMemory memory_;
  std::unique_ptr<tiers::IoQueue> queue_;
};

// Limit for streaming over a chain that ends in files, where the disks are the bottleneck: all
// directories at once. Requests have the tier's size and depth, whatever a page's is.
class DiskLimit final : public StreamLimit {
 public:
  explicit DiskLimit(std::vector<std::unique_ptr<BareDisk>> disks) : disks_(std::move(disks)) {}
  Status prepare(std::uint64_t /*page_bytes*/, std::uint64_t /*bytes*/) override { return {}; }
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;
  std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const override {
    const std::uint64_t in = traffic.recalled_bytes - traffic.remote_in_bytes;
    return mode == StreamMode::read_write ? in + traffic.spilled_bytes : in;
  }

 private:
  std::vector<std::unique_ptr<BareDisk>> disks_;
};

}  // namespace vmem::bench
