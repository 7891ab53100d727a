// The public API end to end on the emulated driver, with 64 MiB of HBM that few allocations exceed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "vmem/vmem.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

#define ASSERT_OK(call) ASSERT_EQ(call, VMEM_OK) << vmem_last_error()
#define EXPECT_OK(call) EXPECT_EQ(call, VMEM_OK) << vmem_last_error()

class Api : public ::testing::Test {
 protected:
  void start(std::vector<vmem_option> more = {}) {
    ::setenv("VMEM_EMU", "devices=2,hbm=256MiB,host=1GiB", 1);
    std::vector<vmem_option> options = {{"driver", "emulated"}, {"hbm", "64MiB"}, {"space", "16GiB"}};
    options.insert(options.end(), more.begin(), more.end());
    if (std::ranges::none_of(more, [](const vmem_option& each) { return std::string_view(each.name) == "host"; }))
      options.push_back({"host", "512MiB"});
    ASSERT_OK(vmem_init(options.data(), options.size()));
  }
  void TearDown() override {
    vmem_statistics stats{};
    stats.struct_bytes = sizeof stats;
    if (vmem_stats(&stats) == VMEM_OK) {
      EXPECT_OK(vmem_shutdown());
    }
  }
  static vmem_statistics stats() {
    vmem_statistics stats{};
    stats.struct_bytes = sizeof stats;
    EXPECT_OK(vmem_stats(&stats));
    return stats;
  }
};

std::vector<std::uint32_t> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::uint32_t> words(bytes / 4);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::uint32_t(i) * 2654435761u + seed;
  return words;
}

TEST_F(Api, DataFourTimesLargerThanHbmSurvivesBeingWorkedThrough) {
  start();
  constexpr std::size_t kBytes = 256 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  const auto written = pattern(kBytes, 1);
  ASSERT_OK(vmem_write(memory, written.data(), kBytes));
  // Each pass acquires every page for writing.
  auto* base = static_cast<std::byte*>(memory);
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t at = 0; at < kBytes; at += 4 * kMiB) {
      vmem_range range{base + at, 4 * kMiB, VMEM_READ_WRITE, 0};
      ASSERT_OK(vmem_acquire(&range, 1, nullptr));
      ASSERT_OK(vmem_release(&range, 1, nullptr));
    }
  }
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_read(read.data(), memory, kBytes));
  EXPECT_EQ(read, written);
  EXPECT_GT(stats().evictions, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
}

TEST_F(Api, CopiesAndFillsCrossPagesAndTiers) {
  start();
  void *a = nullptr, *b = nullptr;
  constexpr std::size_t kBytes = 96 * kMiB;
  ASSERT_OK(vmem_malloc(&a, kBytes, 0, nullptr));
  ASSERT_OK(vmem_malloc(&b, kBytes, 0, nullptr));
  const auto words = pattern(kBytes, 5);
  ASSERT_OK(vmem_memcpy(a, words.data(), kBytes, nullptr));
  ASSERT_OK(vmem_memset(b, 0xab, kBytes, nullptr));
  ASSERT_OK(vmem_memcpy(static_cast<std::byte*>(b) + 12345, a, kBytes - 20000, nullptr));
  std::vector<std::byte> read(kBytes);
  ASSERT_OK(vmem_read(read.data(), b, kBytes));
  EXPECT_EQ(std::memcmp(read.data() + 12345, words.data(), kBytes - 20000), 0);
  EXPECT_EQ(read[12344], std::byte{0xab});
  EXPECT_EQ(read[12345 + kBytes - 20000], std::byte{0xab});
  EXPECT_EQ(read.back(), std::byte{0xab});
}

TEST_F(Api, ARangeLargerThanHbmIsServedPartlyInPlace) {
  start();
  constexpr std::size_t kBytes = 200 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  const auto words = pattern(kBytes, 9);
  ASSERT_OK(vmem_write(memory, words.data(), kBytes));
  vmem_range range{memory, kBytes, VMEM_READ, 0};
  ASSERT_OK(vmem_acquire(&range, 1, nullptr));
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_GT(info.bytes_host_mapped, 100 * kMiB);
  EXPECT_GT(info.bytes_hbm, 50 * kMiB);
  EXPECT_EQ(info.bytes_hbm + info.bytes_host_mapped, kBytes);
  ASSERT_OK(vmem_release(&range, 1, nullptr));
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_read(read.data(), memory, kBytes));
  EXPECT_EQ(read, words);
}

// The files are in the test's working directory.
TEST_F(Api, DataLargerThanHbmAndHostMemorySurvivesInFiles) {
  start({{"nvme", ".:512MiB"}, {"host", "96MiB"}});
  constexpr std::size_t kBytes = 400 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  auto* base = static_cast<std::byte*>(memory);
  const auto written = pattern(kBytes, 4);
  ASSERT_OK(vmem_memcpy(base, written.data(), kBytes, nullptr));
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(base, &info));
  EXPECT_GE(info.bytes_below_host, kBytes - (64 + 96) * kMiB);
  EXPECT_EQ(info.bytes_hbm + info.bytes_host + info.bytes_host_mapped + info.bytes_below_host, kBytes);
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_memcpy(read.data(), base, kBytes, nullptr));
  EXPECT_EQ(read, written) << "through HBM";
  std::ranges::fill(read, 0u);
  ASSERT_OK(vmem_read(read.data(), base, kBytes));
  EXPECT_EQ(read, written) << "where it lies";
  const auto after = stats();
  EXPECT_EQ(after.nvme_budget_bytes, 512 * kMiB);
  EXPECT_GT(after.spilled_bytes, 200 * kMiB);
  EXPECT_GT(after.recalled_bytes, 200 * kMiB);
  ASSERT_OK(vmem_free(memory, nullptr));
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(stats().nvme_used_bytes, 0u);
}

// Writes by the CPU fill host memory and the files first, and leave HBM empty.
TEST_F(Api, EveryPageThatMallocAcceptedIsUsableWhereTheTiersBelowHbmAreFull) {
  start({{"nvme", ".:128MiB"}, {"host", "64MiB"}});
  constexpr std::size_t kBytes = 192 * kMiB, kPage = 2 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  auto* base = static_cast<std::byte*>(memory);
  const auto written = pattern(kBytes, 5);
  ASSERT_OK(vmem_write(memory, written.data(), kBytes));
  for (std::size_t at = 0; at < kBytes; at += kPage) {
    const vmem_range range{base + at, kPage, VMEM_READ, 0};
    ASSERT_OK(vmem_acquire(&range, 1, nullptr)) << "page " << at / kPage;
    ASSERT_OK(vmem_release(&range, 1, nullptr));
  }
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_read(read.data(), memory, kBytes));
  EXPECT_EQ(read, written) << "where it lies";
  std::ranges::fill(read, 0u);
  ASSERT_OK(vmem_memcpy(read.data(), memory, kBytes, nullptr));
  EXPECT_EQ(read, written) << "through HBM";
}

// The program does not use device 1, which only lends.
TEST_F(Api, DataLargerThanHbmLiesInAnotherGpusMemoryFirst) {
  start({{"devices", "0"}, {"peers", "1:96MiB"}});
  constexpr std::size_t kBytes = 200 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  auto* base = static_cast<std::byte*>(memory);
  const auto written = pattern(kBytes, 5);
  ASSERT_OK(vmem_memcpy(base, written.data(), kBytes, nullptr));
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(base, &info));
  EXPECT_GE(info.bytes_peer, 90 * kMiB);
  EXPECT_EQ(info.bytes_hbm + info.bytes_peer + info.bytes_host + info.bytes_host_mapped, kBytes);
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_memcpy(read.data(), base, kBytes, nullptr));
  EXPECT_EQ(read, written) << "through HBM";
  std::ranges::fill(read, 0u);
  ASSERT_OK(vmem_read(read.data(), base, kBytes));
  EXPECT_EQ(read, written) << "where it lies";
  const auto after = stats();
  EXPECT_EQ(after.device_count, 1);
  EXPECT_EQ(after.peer_budget_bytes, 96 * kMiB);
  EXPECT_GT(after.peer_out_bytes, 90 * kMiB);
  EXPECT_GT(after.peer_in_bytes, 90 * kMiB);
  EXPECT_EQ(after.peer_returned_bytes, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(stats().peer_used_bytes, 0u);
}

// The program uses device 1 too: its own allocations reduce what it lends.
TEST_F(Api, WhatALenderAllocatesItDoesNotLend) {
  start({{"peers", "1"}});
  constexpr std::size_t kBytes = 110 * kMiB;
  void *memory = nullptr, *own = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  const auto written = pattern(kBytes, 6);
  ASSERT_OK(vmem_memcpy(memory, written.data(), kBytes, nullptr));
  const auto before = stats();
  EXPECT_GT(before.peer_used_bytes, 40 * kMiB);
  ASSERT_OK(vmem_malloc(&own, 60 * kMiB, 1, nullptr));
  ASSERT_OK(vmem_quiesce());
  const auto after = stats();
  EXPECT_LE(after.peer_used_bytes, 4 * kMiB);
  EXPECT_GT(after.peer_returned_bytes, 30 * kMiB);
  ASSERT_OK(vmem_memset(own, 7, 60 * kMiB, nullptr));
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_read(read.data(), memory, kBytes));
  EXPECT_EQ(read, written);
  ASSERT_OK(vmem_free(own, nullptr));
  ASSERT_OK(vmem_free(memory, nullptr));
}

TEST_F(Api, PeersThatCannotLendStopTheStart) {
  for (const auto& [machine, value, why] : std::initializer_list<std::tuple<const char*, const char*, const char*>>{
           {"devices=2,hbm=256MiB,host=1GiB", "5", "--peers names device 5, and there are 2"},
           {"devices=2,hbm=256MiB,host=1GiB", "1:300MiB", "--peers asks device 1 for 300 MiB"},
           {"devices=2,hbm=256MiB,host=1GiB", "0:32MiB", "it is the only one that the program uses"},
           {"devices=2,hbm=256MiB,host=1GiB", "1,1", "device 1 is named twice"},
           {"devices=2,hbm=256MiB,host=1GiB", "one", "option peers='one'"}}) {
    ::setenv("VMEM_EMU", machine, 1);
    const vmem_option options[] = {
        {"driver", "emulated"}, {"hbm", "64MiB"}, {"host", "64MiB"}, {"devices", "0"}, {"peers", value}};
    EXPECT_EQ(vmem_init(options, 5), VMEM_ERROR_INVALID_OPTION) << value;
    EXPECT_NE(std::string(vmem_last_error()).find(why), std::string::npos) << vmem_last_error();
  }
}

TEST_F(Api, DataInFilesIsCompressedWhereThatIsAskedFor) {
  start({{"nvme", ".:512MiB"}, {"host", "96MiB"}, {"compress", "shuffle4+zstd-huffman"}});
  constexpr std::size_t kBytes = 320 * kMiB;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  std::vector<std::uint32_t> written(kBytes / 4);
  for (std::size_t i = 0; i < written.size(); ++i) written[i] = std::uint32_t(i / 7);
  ASSERT_OK(vmem_memcpy(memory, written.data(), kBytes, nullptr));
  std::vector<std::uint32_t> read(kBytes / 4);
  ASSERT_OK(vmem_memcpy(read.data(), memory, kBytes, nullptr));
  EXPECT_EQ(read, written);
  const auto after = stats();
  EXPECT_GT(after.nvme_pages_shuffled, 0u);
  EXPECT_EQ(after.nvme_pages_as_is, 0u);
  EXPECT_GE(after.nvme_compressed_bytes, after.spilled_bytes);
  EXPECT_LT(after.nvme_compressed_to_bytes, after.nvme_compressed_bytes / 2);
  EXPECT_GT(after.nvme_compress_us, 0u);
  EXPECT_GT(after.nvme_decompress_us, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
}

TEST_F(Api, ACodecThatThereIsNotStopsTheStart) {
  ::setenv("VMEM_EMU", "devices=1,hbm=256MiB,host=1GiB", 1);
  const vmem_option options[] = {{"driver", "emulated"}, {"hbm", "64MiB"}, {"host", "64MiB"}, {"compress", "lz5"}};
  EXPECT_EQ(vmem_init(options, 4), VMEM_ERROR_INVALID_OPTION);
  EXPECT_NE(std::string(vmem_last_error()).find("--compress: there is no codec 'lz5'"), std::string::npos)
      << vmem_last_error();
}

TEST_F(Api, DirectoriesThatCannotHoldPagesStopTheStart) {
  ::setenv("VMEM_EMU", "devices=1,hbm=256MiB,host=1GiB", 1);
  for (const auto& [value, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"/nonexistent:1GiB", "--nvme /nonexistent: No such file or directory"},
           {"/proc:1GiB", "--nvme /proc: cannot make a file there"},
           {".:1000TiB", "are free there"}}) {
    const vmem_option options[] = {{"driver", "emulated"}, {"hbm", "64MiB"}, {"host", "64MiB"}, {"nvme", value}};
    EXPECT_EQ(vmem_init(options, 4), VMEM_ERROR_INVALID_OPTION) << value;
    EXPECT_NE(std::string(vmem_last_error()).find(why), std::string::npos) << vmem_last_error();
  }
}

TEST_F(Api, FreedMemoryIsNeverWrittenBack) {
  start();
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, 32 * kMiB, 0, nullptr));
  ASSERT_OK(vmem_memset(memory, 1, 32 * kMiB, nullptr));
  ASSERT_OK(vmem_free(memory, nullptr));
  ASSERT_OK(vmem_quiesce());
  const auto after = stats();
  EXPECT_EQ(after.migrated_out_bytes, 0u);
  EXPECT_EQ(after.hbm_used_bytes, 0u);
  EXPECT_EQ(after.host_used_bytes, 0u);
  EXPECT_EQ(after.committed_bytes, 0u);
}

TEST_F(Api, SmallAllocationsShareAPageAndAreUsable) {
  start();
  void *a = nullptr, *b = nullptr;
  ASSERT_OK(vmem_malloc(&a, 100, 0, nullptr));
  ASSERT_OK(vmem_malloc(&b, 5000, 0, nullptr));
  const auto words = pattern(5000, 3);
  ASSERT_OK(vmem_memcpy(b, words.data(), 5000, nullptr));
  std::vector<std::uint32_t> read(1250);
  ASSERT_OK(vmem_read(read.data(), b, 5000));
  EXPECT_EQ(read, words);
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(static_cast<std::byte*>(b) + 17, &info));
  EXPECT_EQ(info.base, b);
  EXPECT_EQ(info.bytes, 5000u);
  EXPECT_EQ(info.shared_pages, 1u);
  ASSERT_OK(vmem_free(a, nullptr));
  ASSERT_OK(vmem_free(b, nullptr));
  EXPECT_EQ(vmem_free(b, nullptr), VMEM_ERROR_INVALID_POINTER);
}

TEST_F(Api, WorkingSetBeyondEveryTierIsRefusedWithEachTiersFigures) {
  start();
  void* memory = nullptr;
  EXPECT_EQ(vmem_malloc(&memory, 4096 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory, nullptr);
  const std::string message = vmem_last_error();
  EXPECT_NE(message.find("64 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("512 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("--host"), std::string::npos) << message;
}

TEST_F(Api, WhatTheDriversFunctionsTookIsToldAtTheEnd) {
  start({{"call_times", "on"}});
  ::testing::internal::CaptureStderr();
  ASSERT_OK(vmem_shutdown());
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("vmem-mover      cuCtxSetCurrent"), std::string::npos) << told;
}

}  // namespace
