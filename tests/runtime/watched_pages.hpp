// Pages of one allocation under test: each call has a time limit and verified bytes; any thread may
// call.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "vmem/vmem.h"

namespace vmem::test {

class WatchedPages {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  using Refusable = std::function<bool(vmem_status status, const std::string& message)>;
  struct Config {
    const EmulatedGpu* gpu = nullptr;
    std::byte* base = nullptr;
    std::size_t pages = 0;
    std::chrono::steady_clock::duration longest{};  // time limit of a call
    Refusable refusable;                            // accepted answers beside OK
    // A page, if those above are read-only: then nothing writes to them.
    std::byte* copies_to = nullptr;
  };
  explicit WatchedPages(Config config);

  enum class Call : std::uint8_t { read, write, acquire, copy, prefetch };
  static constexpr Call kCalls[] = {Call::read, Call::write, Call::acquire, Call::copy, Call::prefetch};
  // Makes the call on that page. The stream is the calling thread's, whose current context is the
  // device's.
  vmem_status make(Call call, std::size_t page, CUstream stream, std::mt19937_64& random);

  vmem_status read(std::size_t page, CUstream stream);
  vmem_status write(std::size_t page);
  // A kernel reads the page and, unless it is read-only, fills it anew.
  vmem_status acquire(std::size_t page, CUstream stream);
  vmem_status copy(std::size_t from, std::size_t to, CUstream stream);
  vmem_status prefetch(std::size_t page);
  // The contents of a file: word i is `first` + i.
  void know(std::size_t page, std::uint64_t first) { pages_[page].first = first; }

  // Of all calls so far.
  std::uint64_t refused() const { return refused_; }
  std::uint64_t refused(Call call) const { return refused_by_call_[static_cast<std::size_t>(call)]; }
  std::chrono::milliseconds longest() const;
  std::string last_error() const;

 private:
  struct Page {
    std::mutex mutex;
    std::uint64_t first = 0;  // word i is first + i
  };
  bool read_only() const { return config_.copies_to != nullptr; }
  std::byte* at(std::size_t page) const { return config_.base + page * kPage; }
  std::uint64_t fresh() { return ++last_version_ << 24; }
  vmem_status copy_away(std::size_t from, CUstream stream);
  vmem_status timed(Call call, const std::function<vmem_status()>& made);
  void expect_bytes(std::size_t page, const std::vector<std::uint64_t>& words) const;

  const Config config_;
  std::vector<Page> pages_;
  std::atomic<std::uint64_t> last_version_{0}, refused_{0};
  std::array<std::atomic<std::uint64_t>, 5> refused_by_call_{};
  std::mutex copying_;        // guards copies_to
  mutable std::mutex mutex_;  // guards the members below
  std::chrono::steady_clock::duration longest_{};
  std::string last_error_;
};

}  // namespace vmem::test
