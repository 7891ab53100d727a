// The runtime under test through its public interface: start and end, regions, holds, counters.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "bench/gpu.hpp"
#include "bench/settings.hpp"
#include "vmem/cluster.h"
#include "vmem/vmem.h"

namespace vmem::bench {

// Turns a failed call of the public interface into an error with its message.
Status check(vmem_status status);

// Lifetime of the runtime: vmem_init to vmem_shutdown.
class Session {
 public:
  static Result<Session> start(const Settings& settings, const Sizes& sizes, const Gpu& gpu);
  Session(Session&& other) noexcept : running_(std::exchange(other.running_, false)) {}
  Session& operator=(Session&&) = delete;
  ~Session();

 private:
  Session() = default;
  bool running_ = true;
};

// One allocation or mapping.
class Region {
 public:
  static Result<Region> allocate(std::uint64_t bytes, int device, CUstream stream);
  static Result<Region> map_file(const std::string& path, int device);  // the whole file, read-only
  static Result<Region> open(const std::string& name, int device);      // published, read-only
  Region(Region&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        bytes_(other.bytes_),
        page_bytes_(other.page_bytes_),
        is_published_(other.is_published_) {}
  Region& operator=(Region&&) = delete;
  ~Region();

  // Returns when so many daemons have copies.
  Status publish(const std::string& name, std::uint32_t copies);

  std::uint8_t* at(std::uint64_t offset) const { return address_ + offset; }
  std::uint64_t* words(std::uint64_t offset = 0) const { return reinterpret_cast<std::uint64_t*>(address_ + offset); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t page_bytes() const { return page_bytes_; }

 private:
  Region(void* address, std::uint64_t bytes, std::uint64_t page_bytes)
      : address_(static_cast<std::uint8_t*>(address)), bytes_(bytes), page_bytes_(page_bytes) {}
  std::uint8_t* address_;
  std::uint64_t bytes_;
  std::uint64_t page_bytes_;
  bool is_published_ = false;  // vmem_close ends it
};

// The sizes of a measurement, for its record.
nlohmann::json size_options(const Settings& settings, const Sizes& sizes);

// Page traffic of a measurement: the difference of two snapshots.
struct Traffic {
  std::uint64_t in_bytes = 0;                               // host or peer to HBM
  std::uint64_t out_bytes = 0;                              // HBM to host or peer
  std::uint64_t peer_in_bytes = 0, peer_out_bytes = 0;      // part of the above
  std::uint64_t spilled_bytes = 0, recalled_bytes = 0;      // host to disks and nodes, and back
  std::uint64_t remote_out_bytes = 0, remote_in_bytes = 0;  // to nodes, each copy, and back
  std::uint64_t dropped_bytes = 0;
  std::uint64_t in_place_acquires = 0;
  std::uint64_t waits = 0;
  std::uint64_t mover_busy_us = 0;  // of the thread that moves pages

  std::uint64_t moved() const { return in_bytes + out_bytes; }
  Traffic& operator+=(const Traffic& other);
};
Result<vmem_statistics> read_statistics();
// What this process has sent and fetched of published regions.
Result<vmem_published_statistics> read_published_statistics();
// Read when no move is in flight.
Result<vmem_statistics> quiet_statistics();
Traffic traffic_between(const vmem_statistics& before, const vmem_statistics& after);

// Acquires, calls `queue` (which puts work on the stream), releases.
template <class Queue>
Status with_range(void* address, std::uint64_t bytes, std::uint32_t access, CUstream stream, Queue&& queue) {
  const vmem_range range{address, bytes, access, 0};
  VMEM_TRY(check(vmem_acquire(&range, 1, stream)));
  const Status queued = queue();
  VMEM_TRY(check(vmem_release(&range, 1, stream)));
  return queued;
}

}  // namespace vmem::bench
