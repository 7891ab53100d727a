// A disk tier with memory to transfer, and operations on one page of it.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>

#include "tiers/disk/disk_tier.hpp"
#include "tiers/forbidden_calls.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::tiers {

// CTest's working folder: a folder of the build, on a disk.
inline const std::string kTestDirectory = ".";

inline DiskTier::MakeQueue uring(std::uint32_t depth = 32, bool poll = false) {
  return [depth, poll](const std::vector<int>& files) {
    return make_uring_queue({.files = files, .depth = depth, .poll = poll});
  };
}
inline DiskTier::MakeQueue unregistered_uring(bool poll = false) {
  return [make = uring(32, poll)](const std::vector<int>& files) {
    return without_registration([&] { return make(files); });
  };
}

// Compression with the named codec; "off" disables it.
inline CompressionConfig compression(std::string_view name) {
  if (name == "off") return {};
  return {.on = true, .codec = compress::parse_setting(name)->codec, .now_ns = {}};
}

// Random bytes in which every other 64 repeat the previous 64: every byte is significant, and the
// page compresses 2:1.
inline void fill_half(std::byte* memory, std::uint64_t bytes, std::mt19937_64& random) {
  for (std::uint64_t at = 0; at < bytes; at += 128) {
    for (std::uint64_t i = 0; i < 64; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(memory + at + i, &word, 8);
    }
    std::memcpy(memory + at + 64, memory + at, 64);
  }
}

class DiskFixture {
 public:
  DiskFixture(std::uint64_t page_bytes, std::uint64_t budget_bytes, DiskTier::MakeQueue make_queue,
              std::size_t directories = 1, CompressionConfig compression = {})
      : page_bytes_(page_bytes) {
    DiskTier::Config config;
    for (std::size_t i = 0; i < directories; ++i)
      config.directories.push_back({kTestDirectory, budget_bytes / directories});
    config.make_queue = std::move(make_queue);
    config.piece_bytes = 256u << 10;
    config.compression = std::move(compression);
    config.on_ready = [this] {
      const std::lock_guard lock(mutex_);
      ++ready_;
      changed_.notify_all();
    };
    for (auto& memory : memories_) memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, page_bytes)));
    tier_ = std::move(*DiskTier::create(std::move(config)));
  }
  DiskTier& tier() { return *tier_; }
  void wait_until_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ != seen_; });
    seen_ = ready_;
  }
  void wait_until_a_slot_is_free() {
    while (tier_->usage().ready_bytes == 0) wait_until_ready();
  }
  std::byte* memory(std::size_t i) { return memories_[i].get(); }
  void aim(Transfer& transfer, std::size_t i) { transfer.host = memory(i); }
  void fill(std::size_t i, unsigned char value) { std::memset(memory(i), value, page_bytes_); }
  bool holds(std::size_t i, unsigned char value) {
    const auto* bytes = reinterpret_cast<unsigned char*>(memory(i));
    return std::all_of(bytes, bytes + page_bytes_, [&](unsigned char byte) { return byte == value; });
  }
  SlotId slot() {
    for (;;) {
      const SlotGrant grant = *tier_->allocate(page_bytes_);
      if (grant.grant == Grant::granted) return grant.slot;
      EXPECT_EQ(grant.grant, Grant::later);
      wait_until_ready();
    }
  }
  // Runs one transfer to its end.
  Completion move(Direction direction, SlotId slot, std::size_t memory, std::uint64_t version,
                  std::uint32_t granule = 0) {
    Transfer transfer;
    transfer.page.granule = granule;
    transfer.version = version;
    transfer.slot = slot;
    transfer.bytes = page_bytes_;
    transfer.direction = direction;
    aim(transfer, memory);
    EXPECT_TRUE(tier_->submit({&transfer, 1}));
    std::vector<Completion> completions;
    for (;;) {
      EXPECT_TRUE(tier_->poll(completions));
      if (!completions.empty()) break;
      wait_until_ready();
    }
    EXPECT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions.front().id, transfer.id);
    return completions.front();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const std::uint64_t page_bytes_;
  std::unique_ptr<std::byte, Free> memories_[2];
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0, seen_ = 0;
  std::unique_ptr<DiskTier> tier_;
};

}  // namespace vmem::tiers
