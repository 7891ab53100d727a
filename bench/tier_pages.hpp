// Sends pages through a tier below host memory as the mover does, with as many in flight.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "bench/gpu.hpp"
#include "bench/request_memory.hpp"
#include "bench/samples.hpp"
#include "tiers/tier.hpp"

namespace vmem::bench {

// Memory of many pages, aligned for direct I/O and touched.
class PageMemory {
 public:
  static Result<PageMemory> create(std::uint64_t page_bytes, std::uint64_t count);
  // As slots of the runtime's host memory are. Errors: those of as_slots.
  static Result<PageMemory> pinned(const Gpu& gpu, std::uint64_t page_bytes, std::uint64_t count);
  std::uint64_t page_bytes() const { return page_bytes_; }
  std::uint64_t count() const { return count_; }
  std::uint64_t bytes() const { return page_bytes_ * count_; }
  std::span<std::byte> all() const { return {memory_.get(), bytes()}; }
  std::span<std::byte> page(std::uint64_t i) const { return {memory_.get() + i * page_bytes_, page_bytes_}; }
  // Fills all pages with random words, so that every place has its own data.
  void fill(std::uint64_t seed) const;
  void wipe() const;

 private:
  PageMemory(RequestMemory memory, std::uint64_t page_bytes, std::uint64_t count)
      : memory_(std::move(memory)), page_bytes_(page_bytes), count_(count) {}
  RequestMemory memory_;
  std::uint64_t page_bytes_ = 0, count_ = 0;
};

// Names the first page that differs; "" if there is none.
std::string difference(const PageMemory& from, const PageMemory& to);

// A tier with one slot per page.
class TierPages {
 public:
  virtual ~TierPages() = default;
  TierPages(const TierPages&) = delete;
  TierPages& operator=(const TierPages&) = delete;

  // GB/s of uncompressed pages. Versions count up, so that no page is taken for an older one.
  Result<double> store(const PageMemory& from);
  Result<double> load(const PageMemory& to);
  // Loads one page, with nothing else in flight.
  Status load_one(const PageMemory& to, std::uint64_t page);

 protected:
  TierPages() = default;
  // The tier's on_ready; callable from any thread.
  void note_ready();
  // Must be called first. `tier` is the derived class's. Errors: INVALID_OPTION, advising a larger
  // `option`.
  Status take_slots(tiers::Tier& tier, std::uint64_t page_bytes, std::uint64_t pages, const char* option);

 private:
  Result<double> move(tiers::Direction direction, const PageMemory& memory);
  Status submit(tiers::Direction direction, const PageMemory& memory, std::uint64_t page);
  // How many transfers have ended since the last call. Errors: the first one's that failed.
  Result<std::uint64_t> take_ended();
  void wait_beyond(std::uint64_t seen);
  std::uint64_t ready() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t ready_ = 0;  // protected by mutex_
  std::uint64_t version_ = 0;
  std::vector<tiers::SlotId> slots_;
  tiers::Tier* tier_ = nullptr;
};

// Duration of one side of a measurement: `timed_s` after an uncounted `ramp_s`.
struct Steady {
  double ramp_s = 0, timed_s = 0;  // 0: once
};

// Repeats passes of `bytes` each; `pass` returns its rate in GB/s.
template <class Pass>
Result<double> repeat(Steady steady, std::uint64_t bytes, Pass&& pass) {
  for (const Stopwatch ramp; ramp.seconds() < steady.ramp_s;) VMEM_TRY(pass());
  double seconds = 0;
  std::uint64_t passes = 0;
  do {
    VMEM_ASSIGN(const double rate, pass());
    seconds += double(bytes) / 1e9 / rate;
    ++passes;
  } while (seconds < steady.timed_s);
  return double(passes * bytes) / 1e9 / seconds;
}

}  // namespace vmem::bench
