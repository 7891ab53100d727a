// A disk in memory that can fail, shorten, tear or damage requests. Blocks never written hold
// zeros; a torn write keeps the old contents of the rest.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "tiers/io/io_queue.hpp"

namespace vmem::tiers {

struct Fate {
  // Not 0: the request moves nothing and fails with it.
  int error = 0;
  // Moves at most this many, and reports the number,
  std::uint32_t moves_bytes = ~std::uint32_t{0};
  bool torn = false;  // or reports all bytes as moved
};

class ScriptedDisk final : public IoQueue {
 public:
  static constexpr std::uint32_t kSector = 512;
  using Decide = std::function<Fate(const Io&)>;

  explicit ScriptedDisk(Decide decide) : decide_(std::move(decide)) {}

  std::uint32_t depth() const override { return 8; }
  void push(const Io& io) override {
    const Fate fate = decide_(io);
    if (fate.error != 0) return ended_.push_back({io.tag, -fate.error});
    const std::uint32_t bytes = std::min(io.bytes, fate.moves_bytes);
    for (std::uint32_t at = 0; at < bytes; at += kSector) {
      auto& sector = sectors_[{io.file, io.offset + at}];
      if (io.kind == Io::Kind::write) {
        std::memcpy(sector.data(), io.at(at), kSector);
      } else {
        std::memcpy(io.at(at), sector.data(), kSector);
      }
    }
    ended_.push_back({io.tag, fate.torn ? io.bytes : bytes});
  }
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override {
    if (ended_.empty()) {
      std::unique_lock lock(mutex_);
      woken_.wait_for(lock, longest, [&] { return wakes_ != seen_; });
      seen_ = wakes_;
    }
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
    return {};
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    ++wakes_;
    woken_.notify_one();
  }
  std::string describe() const override { return "scripted"; }

  // REQUIRES: no request is in flight.
  void flip(std::uint32_t file, std::uint64_t bit) {
    auto& sector = sectors_[{file, bit / 8 / kSector * kSector}];
    sector[bit / 8 % kSector] ^= std::byte(1u << bit % 8);
  }

 private:
  using Sector = std::array<std::byte, kSector>;
  Decide decide_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Sector> sectors_;
  std::vector<IoResult> ended_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::uint64_t wakes_ = 0, seen_ = 0;
};

}  // namespace vmem::tiers
