// Random calls against a reference that knows every live block, and every block that work may still
// use.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/fake_source.hpp"

namespace vmem::runtime::testing {
namespace {

const std::array kStreams{kDefault, kA, kB, kPerThread, stream(0xc000)};

struct Live {
  std::size_t bytes;
  int device;
};
struct Freed {
  std::size_t bytes;
  std::size_t stream;  // index
  std::uint64_t time;
};

class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {}

  void run(int steps) {
    for (now_ = 1; now_ <= std::uint64_t(steps) && !::testing::Test::HasFatalFailure(); ++now_) step();
    while (!live_.empty()) free_one();
    finish_all();
    ASSERT_TRUE(blocks_->trim());
    EXPECT_EQ(blocks_->live_bytes(), 0u);
    EXPECT_EQ(source_.used_granules(), 0u);
  }

 private:
  std::size_t pick(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  void step() {
    const std::size_t dice = pick(1000);
    if (dice < 470) {
      allocate();
    } else if (dice < 930) {
      if (!live_.empty()) free_one();
    } else if (dice < 980) {
      finish(pick(kStreams.size()));
    } else if (dice < 985) {
      ASSERT_TRUE(blocks_->trim());
    } else if (dice < 990) {
      source_.failing_allocations = int(pick(3));
    } else if (dice < 995) {
      source_.failing_marks = int(pick(3));
    } else {
      check_wrong_frees();
    }
    ASSERT_EQ(blocks_->live_bytes(), live_bytes_);
  }

  // Mostly a few sizes, as in programs, and sometimes any size.
  std::size_t any_bytes() {
    static constexpr std::array<std::size_t, 6> kUsual{1, 256, 4000, 70'000, 500'000, 1 << 20};
    return pick(4) != 0 ? kUsual[pick(kUsual.size())] : 1 + pick(Suballocator::kLargestBytes);
  }

  void allocate() {
    const std::size_t on = pick(kStreams.size());
    const int device = int(pick(2));
    const std::size_t bytes = any_bytes();
    const auto block = blocks_->allocate(device, bytes, kStreams[on]);
    if (!block) {
      ASSERT_EQ(block.error().status, VMEM_ERROR_OUT_OF_MEMORY);
      return;
    }
    ASSERT_EQ(*block % 256, 0u);
    ASSERT_TRUE(source_.backs(*block, bytes, device));
    check_no_live_overlap(*block, bytes);
    check_order(*block, bytes, on);
    live_[*block] = {bytes, device};
    live_bytes_ += bytes;
    check_found(*block);
  }

  void check_no_live_overlap(std::uintptr_t block, std::size_t bytes) {
    auto next = live_.lower_bound(block);
    ASSERT_TRUE(next == live_.end() || next->first >= block + bytes);
    if (next != live_.begin()) {
      --next;
      ASSERT_LE(next->first + next->second.bytes, block);
    }
  }

  void check_order(std::uintptr_t block, std::size_t bytes, std::size_t on) {
    auto entry = freed_.lower_bound(block);
    if (entry != freed_.begin() && std::prev(entry)->first + std::prev(entry)->second.bytes > block) --entry;
    while (entry != freed_.end() && entry->first < block + bytes) {
      const Freed& freed = entry->second;
      ASSERT_TRUE(freed.stream == on || freed.time <= finished_[freed.stream])
          << "reused on stream " << on << " while work of stream " << freed.stream << " may still run";
      entry = freed_.erase(entry);
    }
  }

  void check_found(std::uintptr_t block) {
    const Live& live = live_[block];
    const auto found = blocks_->find(block + pick(live.bytes));
    ASSERT_TRUE(found);
    ASSERT_EQ(found->base, block);
    ASSERT_EQ(found->bytes, live.bytes);
    ASSERT_EQ(found->device, live.device);
  }

  std::uintptr_t any_live() {
    auto found = live_.lower_bound(FakeSource::kBase + pick(kGranules * FakeSource::kGranule));
    return found == live_.end() ? live_.begin()->first : found->first;
  }

  void free_one() {
    const std::uintptr_t block = any_live();
    const std::size_t on = pick(kStreams.size());
    check_found(block);
    ASSERT_TRUE(blocks_->free(block, kStreams[on]));
    ASSERT_FALSE(blocks_->find(block));
    ASSERT_FALSE(blocks_->free(block, kStreams[on]));
    freed_[block] = {live_[block].bytes, on, now_};
    live_bytes_ -= live_[block].bytes;
    live_.erase(block);
  }

  void check_wrong_frees() {
    const std::uintptr_t address = FakeSource::kBase + pick(kGranules * FakeSource::kGranule);
    if (live_.contains(address)) return;
    const auto freed = blocks_->free(address, kA);
    ASSERT_FALSE(freed);
    ASSERT_EQ(freed.error().status, VMEM_ERROR_INVALID_POINTER);
  }

  void finish(std::size_t on) {
    finished_[on] = now_;
    const vmem_stream handle = kStreams[on] == kDefault ? kLegacy : kStreams[on];
    source_.finish(handle);
  }
  void finish_all() {
    source_.failing_allocations = source_.failing_marks = 0;
    // Blocks freed without a mark get one now.
    ASSERT_TRUE(blocks_->trim());
    for (std::size_t i = 0; i < kStreams.size(); ++i) ASSERT_TRUE(blocks_->close_stream(kStreams[i]));
    source_.always_complete = true;
  }

  static constexpr std::size_t kGranules = 64;
  std::mt19937_64 random_;
  FakeSource source_{kGranules};
  std::unique_ptr<Suballocator> blocks_ = make_suballocator(source_, kGranules);
  std::map<std::uintptr_t, Live> live_;
  std::map<std::uintptr_t, Freed> freed_;
  std::array<std::uint64_t, kStreams.size()> finished_{};
  std::size_t live_bytes_ = 0;
  std::uint64_t now_ = 0;
};

std::uint64_t first_seed() {
  const char* text = std::getenv("VMEM_TEST_SEED");
  return text != nullptr ? std::stoull(text) : std::random_device{}();
}

TEST(SuballocatorModel, RandomCallsAgreeWithTheReference) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 10; ++seed) {
    SCOPED_TRACE("VMEM_TEST_SEED=" + std::to_string(seed));
    Model(seed).run(20'000);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace vmem::runtime::testing
