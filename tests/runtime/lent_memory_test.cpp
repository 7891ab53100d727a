// Host memory of a daemon: the kernel provides it before anything is stored there.
#include "runtime/remote/lent_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

bool is_present(std::span<std::byte> memory) {
  std::vector<unsigned char> pages(memory.size() / static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(::mincore(memory.data(), memory.size(), pages.data()), 0);
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(LentMemory, IsThereBeforeItIsUsedAndKeepsWhatIsStoredMeanwhile) {
  if (::madvise(nullptr, 0, MADV_POPULATE_WRITE) != 0) GTEST_SKIP() << "needs Linux 5.14";
  const auto memory = *LentMemory::create(48 * kMiB);
  const std::span<std::byte> bytes = memory->bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kMiB) bytes[bytes.size() - 1 - at] = std::byte{7};
  while (memory->ready_bytes() != bytes.size()) std::this_thread::yield();
  EXPECT_TRUE(is_present(bytes));
  for (std::size_t at = 0; at < bytes.size(); at += kMiB) EXPECT_EQ(bytes[bytes.size() - 1 - at], std::byte{7});
}

TEST(LentMemory, EndsBeforeAllOfItIsThere) {
  auto memory = *LentMemory::create(4096 * kMiB);
  const std::span<std::byte> bytes = memory->bytes();
  memory->leave_mapped();
  memory.reset();
  EXPECT_FALSE(is_present(bytes));
  EXPECT_EQ(::munmap(bytes.data(), bytes.size()), 0);
}

TEST(LentMemory, MoreThanTheKernelGivesIsAnError) {
  const auto memory = LentMemory::create(std::uint64_t{1} << 50);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(memory.error().message.find("1 PiB of host memory, to lend"), std::string::npos) << memory.error().message;
}

}  // namespace
}  // namespace vmem::runtime
