// The runtime under test, through its public interface: start to end, regions, holds, counters.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "bench/gpu.hpp"
#include "bench/settings.hpp"
#include "vmem/vmem.h"

namespace vmem::bench {

// A failed call of the public interface, with its sentence.
Status check(vmem_status status);

// vmem_init to vmem_shutdown.
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

// One allocation, or mapping.
class Region {
 public:
  static Result<Region> allocate(std::uint64_t bytes, int device, CUstream stream);
  static Result<Region> map_file(const std::string& path, int device);  // all of it; only to be read
  Region(Region&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_), page_bytes_(other.page_bytes_) {}
  Region& operator=(Region&&) = delete;
  ~Region();

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
};

// What the sizes of a measurement were, for its record.
nlohmann::json size_options(const Settings& settings, const Sizes& sizes);

// What a measurement did to the pages: the difference of two snapshots.
struct Traffic {
  std::uint64_t in_bytes = 0;   // host to HBM
  std::uint64_t out_bytes = 0;  // HBM to host
  std::uint64_t dropped_bytes = 0;
  std::uint64_t in_place_acquires = 0;
  std::uint64_t waits = 0;
  std::uint64_t mover_busy_us = 0;  // of the thread that moves pages

  std::uint64_t moved() const { return in_bytes + out_bytes; }
  Traffic& operator+=(const Traffic& other);
};
Result<vmem_statistics> read_statistics();
Traffic traffic_between(const vmem_statistics& before, const vmem_statistics& after);

// acquire, `queue` (which puts work on the stream), release.
template <class Queue>
Status with_range(void* address, std::uint64_t bytes, std::uint32_t access, CUstream stream, Queue&& queue) {
  const vmem_range range{address, bytes, access, 0};
  VMEM_TRY(check(vmem_acquire(&range, 1, stream)));
  const Status queued = queue();
  VMEM_TRY(check(vmem_release(&range, 1, stream)));
  return queued;
}

}  // namespace vmem::bench
