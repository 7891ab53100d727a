// What a disk gives to bare requests: direct I/O in a file of a directory, allocated as the disk tier allocates its own, with the tier's size
// of requests and depth. By fio where there is one, else by a loop over io_uring.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.hpp"
#include "bench/request_memory.hpp"
#include "bench/stream_limit.hpp"
#include "bench/tier_pages.hpp"
#include "tiers/disk/io_queue.hpp"

namespace vmem::bench {

enum class DiskWay { in, out, both };  // from the disk, to it, and at once: as much each way

class BareDisk {
 public:
  // With a file of `bytes` in `directory`, written once. Errors: INVALID_OPTION (no file can be made there), DRIVER.
  // `memory` is of kMemoryBytes, for loop().
  static Result<std::unique_ptr<BareDisk>> create(const std::string& directory, std::uint64_t bytes,
                                                  RequestMemory memory);
  ~BareDisk();
  BareDisk(const BareDisk&) = delete;
  BareDisk& operator=(const BareDisk&) = delete;

  // GB/s, over the whole file; of both, in sum.
  Result<double> loop(DiskWay way) { return loop(way, {memory_.get(), kMemoryBytes}); }
  // The same, with the requests' memory taken from all of this in turn, at least kMemoryBytes: where a disk is software, as a virtual machine's is,
  // it is faster with memory that caches hold.
  Result<double> loop(DiskWay way, std::span<std::byte> memory);
  // By fio: over the whole file once, or again and again for so long, after so long that does not count. REQUIRES: has_fio().
  Result<double> fio(DiskWay way, Steady steady) const;
  static bool has_fio();
  // Memory in 2 MiB pages, as slots of host memory are, to be had from the system's pool: in 4 KiB pages a disk's requests are many pieces each.
  // Looked at once: all runs are with the same.
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

// Of streaming over a chain that ends in files: the disk is what there is to be waited for.
class DiskLimit final : public StreamLimit {
 public:
  explicit DiskLimit(std::unique_ptr<BareDisk> disk) : disk_(std::move(disk)) {}
  Result<double> rate(StreamMode mode) override {
    return disk_->loop(mode == StreamMode::read_write ? DiskWay::both : DiskWay::in);
  }
  std::string name(StreamMode mode) const override {
    return mode == StreamMode::read_write ? "the disk, both ways" : "reading the disk";
  }

 private:
  std::unique_ptr<BareDisk> disk_;
};

}  // namespace vmem::bench
