#include "tiers/disk/slot_files.hpp"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tiers/disk_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargePage = std::uint64_t{16} << 20;
constexpr std::uint64_t kChunks = 32;  // per directory

std::unique_ptr<SlotFiles> files_with(std::vector<StoreDirectory> directories) {
  auto made = SlotFiles::create(directories);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

std::string refusal(const StoreDirectory& directory) {
  const auto made = SlotFiles::create({directory});
  EXPECT_FALSE(made);
  EXPECT_EQ(made.error().status, VMEM_ERROR_INVALID_OPTION);
  return made.error().message;
}

SlotId take(SlotFiles& files, std::uint64_t page_bytes) {
  for (;;) {
    if (const auto slot = files.take(page_bytes)) return *slot;
    const auto growth = files.plan_growth(page_bytes);
    EXPECT_TRUE(growth);
    EXPECT_TRUE(files.carry_out(*growth));
    files.settle(*growth, true);
  }
}

std::uint64_t bytes_on_disk(const SlotFiles& files) {
  std::uint64_t bytes = 0;
  for (const int file : files.descriptors()) {
    struct stat about{};
    EXPECT_EQ(::fstat(file, &about), 0);
    bytes += std::uint64_t(about.st_blocks) * 512;
  }
  return bytes;
}

TEST(SlotFiles, MemoryThatPosesAsADiskIsWarnedOf) {
  struct statfs about{};
  if (::statfs("/dev/shm", &about) != 0 || about.f_type != TMPFS_MAGIC) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  testing::internal::CaptureStderr();
  (void)SlotFiles::create({{"/dev/shm", 8 * kPage}});  // kernels before 6.6 refuse it
  EXPECT_NE(testing::internal::GetCapturedStderr().find("--nvme /dev/shm: that is memory (tmpfs)"), std::string::npos);
}

TEST(SlotFiles, NoTwoSlotsShareABlock) {
  auto files = files_with({{kTestDirectory, 64 * kPage}, {kTestDirectory, 64 * kPage}});
  // (file, first byte) → end.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> taken;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t page_bytes = i % 5 == 0 ? kLargePage : kPage;
    const std::uint64_t used_bytes = files->used_bytes();
    const auto place = files->place(take(*files, page_bytes));
    EXPECT_EQ(files->used_bytes(), used_bytes + page_bytes);
    EXPECT_EQ(place.bytes, place.header + kHeaderBytes);
    taken.emplace(std::pair(place.file, place.header), place.bytes + page_bytes);
  }
  ASSERT_EQ(taken.size(), 40u);
  for (auto next = std::next(taken.begin()); next != taken.end(); ++next) {
    const auto& [place, end] = *std::prev(next);
    EXPECT_TRUE(place.first != next->first.first || end <= next->first.second);
  }
}

TEST(SlotFiles, SlotsComeFromEachFileInTurn) {
  auto files = files_with({{kTestDirectory, kChunks * 8 * kPage}, {kTestDirectory, kChunks * 8 * kPage}});
  while (files->uneven(kPage)) {
    const auto growth = files->plan_growth(kPage);
    ASSERT_TRUE(growth);
    files->settle(*growth, true);
  }
  std::vector<std::uint32_t> order;
  for (int i = 0; i < 6; ++i) order.push_back(files->place(*files->take(kPage)).file);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 0, 1, 0, 1}));
}

TEST(SlotFiles, TheSpaceOfAChunkIsAllocatedBeforeAPageIsSentThere) {
  auto files = files_with({{kTestDirectory, kChunks * 16 * kPage}});
  const SlotId slot = take(*files, kPage);
  EXPECT_GE(bytes_on_disk(*files), 16 * kPage);
  EXPECT_EQ(files->used_bytes(), kPage);
  EXPECT_EQ(files->ready_bytes(), 15 * kPage);
  files->give_back(slot);
  EXPECT_EQ(files->used_bytes(), 0u);
}

TEST(SlotFiles, FreedSpaceGoesBackToTheFileSystemAndServesOtherSizes) {
  auto files = files_with({{kTestDirectory, 16 * kPage}});
  std::vector<SlotId> slots;
  for (int i = 0; i < 16; ++i) slots.push_back(take(*files, kPage));
  EXPECT_FALSE(files->plan_growth(kLargePage)) << "the budget is used";
  for (const SlotId slot : slots) files->give_back(slot);
  while (const auto shrinking = files->plan_shrinking(kLargePage)) {
    ASSERT_TRUE(files->carry_out(*shrinking));
    files->settle(*shrinking, true);
  }
  EXPECT_LT(bytes_on_disk(*files), kPage);
  (void)take(*files, kLargePage);
  EXPECT_EQ(files->used_bytes(), kLargePage);
}

// An empty chunk cached for its own page size is released when pages of another size have no room.
TEST(SlotFiles, EmptyChunksMakeWayForPagesOfAnotherSize) {
  auto files = files_with({{kTestDirectory, 9 * kPage}});
  std::vector<SlotId> slots;
  for (int i = 0; i < 9; ++i) slots.push_back(take(*files, kPage));
  for (int i = 1; i < 9; ++i) files->give_back(slots[std::size_t(i)]);
  for (auto change = files->plan_shrinking(); change; change = files->plan_shrinking()) files->settle(*change, true);
  EXPECT_FALSE(files->plan_growth(kLargePage)) << "one is kept";
  const auto change = files->plan_shrinking(kLargePage);
  ASSERT_TRUE(change);
  files->settle(*change, true);
  EXPECT_TRUE(files->plan_growth(kLargePage));
}

TEST(SlotFiles, ADiskThatHasNoRoomForAChunkIsNotAskedAtOnceAgain) {
  auto files = files_with({{kTestDirectory, 16 * kPage}});
  const auto growth = files->plan_growth(kPage);
  ASSERT_TRUE(growth);
  files->settle(*growth, false);
  EXPECT_FALSE(files->plan_growth(kPage));
  EXPECT_FALSE(files->take(kPage));
  files->try_full_ones();
  EXPECT_TRUE(files->plan_growth(kPage));
}

TEST(SlotFiles, AFileOutOfServiceGivesNoSlotsAndCountsForNothing) {
  auto files = files_with({{kTestDirectory, kChunks * 8 * kPage}, {kTestDirectory, kChunks * 8 * kPage}});
  while (files->uneven(kPage)) {
    const auto growth = files->plan_growth(kPage);
    ASSERT_TRUE(growth);
    files->settle(*growth, true);
  }
  const SlotId first = *files->take(kPage), second = *files->take(kPage);
  ASSERT_EQ(files->place(second).file, 1u);
  EXPECT_TRUE(files->retire(1, {VMEM_ERROR_DRIVER, EIO, "as scripted"}));
  EXPECT_FALSE(files->retire(1, {VMEM_ERROR_DRIVER, EIO, "as scripted"})) << "it is already";
  EXPECT_EQ(files->budget_bytes(), kChunks * 8 * kPage);
  EXPECT_EQ(files->ready_bytes(), 7 * kPage);
  EXPECT_FALSE(files->uneven(kPage));
  files->give_back(second);
  EXPECT_EQ(files->used_bytes(), kPage);
  EXPECT_EQ(files->ready_bytes(), 7 * kPage);
  EXPECT_FALSE(files->plan_shrinking());
  for (int i = 0; i < 7; ++i) EXPECT_EQ(files->place(take(*files, kPage)).file, 0u);
  EXPECT_FALSE(files->take(kPage));
  EXPECT_EQ(files->plan_growth(kPage)->file, 0u);
  EXPECT_FALSE(files->out_of_service());
  EXPECT_TRUE(files->retire(0, {VMEM_ERROR_DRIVER, EROFS, "as scripted"}));
  EXPECT_EQ(files->out_of_service()->message, "as scripted");
  files->give_back(first);
}

TEST(SlotFiles, BadDirectoriesAreRefusedWithTheReason) {
  EXPECT_NE(refusal({"/nonexistent", kPage}).find("--nvme /nonexistent: No such file or directory"), std::string::npos);
  std::ofstream("not_a_directory") << "x";
  EXPECT_NE(refusal({"not_a_directory", kPage}).find("not a directory"), std::string::npos);
  std::filesystem::remove("not_a_directory");
  EXPECT_NE(refusal({"/proc", kPage}).find("cannot make a file there"), std::string::npos);
  const std::string too_large = refusal({kTestDirectory, std::uint64_t{1} << 60});
  EXPECT_NE(too_large.find("asked for"), std::string::npos) << too_large;
  EXPECT_NE(too_large.find("are free there"), std::string::npos) << too_large;
}

}  // namespace
}  // namespace vmem::tiers
