// The options published_cache and published_cache_disk: how much host memory, and which room of
// disks, the pages of other programs' regions hold, over real sockets.
#include <atomic>
#include <filesystem>
#include <thread>

#include "runtime/published_fixture.hpp"

namespace vmem {
namespace {

class PublishedCache : public PublishedApi {
 protected:
  // HBM of 16 pages.
  vmem_status start_with(const std::string& quota, const std::string& host = "64MiB", const std::string& ahead = "8",
                         const std::string& nvme = "256MiB", const std::string& on_disk = "auto") {
    return start({{"cluster", cluster()},
                  {"host", host},
                  {"published_cache", quota},
                  {"published_cache_disk", on_disk},
                  {"prefetch", ahead},
                  {"nvme", disk() + ":" + nvme}});
  }
  // Pages that were fetched meanwhile.
  std::uint64_t scan(std::uint64_t pages) {
    const std::uint64_t before = shared().fetched_pages;
    for (std::uint64_t page = 0; page < pages; ++page) EXPECT_OK(read_page(page, 3));
    return shared().fetched_pages - before;
  }
  // 16: as many as are written before it is known what the disks deliver.
  static constexpr std::uint64_t kTried = 16;
  static bool has_stored(std::uint64_t pages) {
    return within(std::chrono::milliseconds(5000), [&] { return shared().disk_stored_pages >= pages; });
  }
  std::string disk() {
    if (disk_.empty()) {
      disk_ = std::filesystem::temp_directory_path() / "vmem-published-XXXXXX";
      EXPECT_NE(::mkdtemp(disk_.data()), nullptr);
    }
    return disk_;
  }
  void TearDown() override {
    PublishedApi::TearDown();
    if (!disk_.empty()) std::filesystem::remove_all(disk_);
  }
  std::unique_ptr<Peer> publisher_of(const std::string& name, int pages) {
    auto peer = std::make_unique<Peer>(cluster(), std::vector<std::pair<std::string, std::string>>{{"host", "256MiB"}});
    EXPECT_THAT((*peer)(fmt::format("publish {} {} 3 0", name, pages)), StartsWith("ok"));
    return peer;
  }
  vmem_status use(std::uint64_t page) {
    const vmem_range range{base + page * kPage, kPage, VMEM_READ, 0};
    const vmem_status status = vmem_acquire(&range, 1, nullptr);
    return status == VMEM_OK ? vmem_release(&range, 1, nullptr) : status;
  }
  // Without what is in flight.
  static std::uint64_t cached_at_rest() {
    EXPECT_OK(vmem_quiesce());
    return shared().cached_bytes;
  }

 private:
  std::string disk_;
};

// Twice as much as HBM and the quota hold, by two threads and prefetches.
TEST_F(PublishedCache, ScansByTwoThreadsKeepWithinItAndMoveNoPageOfTheProgram) {
  constexpr std::uint64_t kPages = 60, kOwn = 12, kQuota = 16 * kMiB;
  const auto publisher = publisher_of("table", kPages);
  ASSERT_OK(start_with("16MiB"));
  hold_pages(kOwn);
  std::byte* const own = base;
  ASSERT_OK(vmem_quiesce());
  const std::uint64_t own_host = stats().host_used_bytes;
  ASSERT_OK(open("table"));
  std::atomic<bool> ended = false;
  std::uint64_t most = 0;
  std::thread watch([&] {
    while (!ended) most = std::max(most, shared().cached_bytes);
  });
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&, reader] {
      for (int round = 0; round < 2; ++round) {
        for (std::uint64_t page = 0; page < kPages; ++page) {
          const std::uint64_t each = reader == 0 ? page : kPages - 1 - page;
          if (page % 4 == 0 && reader == 0) {
            EXPECT_OK(vmem_prefetch(base + each * kPage, std::min<std::uint64_t>(4, kPages - each) * kPage));
          }
          if (page % 2 == 0) {
            EXPECT_OK(use(each));
          }
          EXPECT_OK(read_page(each, 3));
        }
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  ended = true;
  watch.join();
  EXPECT_LE(cached_at_rest(), kQuota);
  EXPECT_EQ(shared().cache_limit_bytes, kQuota);
  EXPECT_GT(shared().dropped_pages, 0u);
  EXPECT_EQ(shared().dropped_bytes, shared().dropped_pages * kPage);
  EXPECT_EQ(shared().mismatches, 0u);
  // A prefetch of 4 pages, those that the scan reads ahead, and one page a reader.
  EXPECT_LE(most, kQuota + (4 + 8 + 2) * kPage);
  EXPECT_EQ(stats().spilled_bytes, 0u);
  EXPECT_EQ(stats().host_used_bytes - shared().cached_bytes, own_host) << "the program's own pages";
  base = own;
  expect_pages(kOwn);
}

// The policy reads 64 MiB ahead of it, as much as all of host memory.
TEST_F(PublishedCache, AScanByTheGpuThatIsReadFarAheadMovesNoPageOfTheProgram) {
  constexpr std::uint64_t kPages = 60, kOwn = 20;
  const auto publisher = publisher_of("table", kPages);
  ASSERT_OK(start_with("50%", "64MiB", "32"));
  hold_pages(kOwn);
  std::byte* const own = base;
  ASSERT_OK(open("table"));
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t page = 0; page < kPages; ++page) ASSERT_OK(read_page(page, 3));
    for (std::uint64_t page = 0; page < kPages; ++page) ASSERT_OK(use(page));
    ASSERT_OK(vmem_quiesce());
    EXPECT_EQ(stats().spilled_bytes, 0u) << round;
  }
  base = own;
  expect_pages(kOwn);
}

TEST_F(PublishedCache, WhatIsCachedIsNotFetchedAgain) {
  const auto publisher = publisher_of("table", 24);
  ASSERT_OK(start_with("100%"));
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 24; ++page) ASSERT_OK(read_page(page, 3));
  EXPECT_EQ(cached_at_rest(), 24 * kPage);
  const std::uint64_t fetched = shared().fetched_pages;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t page = 0; page < 24; ++page) ASSERT_OK(read_page(page, 3));
  }
  EXPECT_EQ(shared().fetched_pages, fetched);
  ASSERT_OK(vmem_close(base, nullptr, 0));
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [] { return shared().cached_bytes == 0; }));
}

TEST_F(PublishedCache, At0PagesPassToHbmAndNoneStaysInHostMemory) {
  const auto publisher = publisher_of("table", 24);
  ASSERT_OK(start_with("0"));
  hold_pages(4);
  std::byte* const own = base;
  ASSERT_OK(open("table"));
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t page = 0; page < 24; ++page) {
      ASSERT_OK(use(page));
      ASSERT_OK(read_page(page, 3));
    }
  }
  for (std::uint64_t page = 0; page < 24; ++page) ASSERT_OK(read_page(page, 3));
  EXPECT_EQ(cached_at_rest(), 0u);
  EXPECT_EQ(shared().cache_limit_bytes, 0u);
  EXPECT_EQ(stats().spilled_bytes, 0u);
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(base, &info));
  EXPECT_EQ(info.bytes_host + info.bytes_host_mapped, 0u);
  base = own;
  expect_pages(4);
}

TEST_F(PublishedCache, ALimitBeyondHostMemoryLeavesTheProgramsPagesTheirRoom) {
  const auto publisher = publisher_of("table", 60);
  ASSERT_OK(start_with("1TiB"));
  ASSERT_OK(open("table"));
  std::byte* const table = base;
  for (std::uint64_t page = 0; page < 60; ++page) ASSERT_OK(read_page(page, 3));
  EXPECT_EQ(shared().cache_limit_bytes, 64 * kMiB);
  EXPECT_EQ(cached_at_rest(), 64 * kMiB);
  hold_pages(20);
  std::byte* const own = base;
  for (int round = 0; round < 2; ++round) {
    base = table;
    for (std::uint64_t page = 0; page < 60; ++page) ASSERT_OK(read_page(page, 3));
    base = own;
    expect_pages(20);
  }
  EXPECT_EQ(stats().spilled_bytes, 0u);
}

TEST_F(PublishedCache, WhatIsFetchedAgainComesFromTheDisksTheThirdTime) {
  constexpr std::uint64_t kPages = 60;
  const auto publisher = publisher_of("table", kPages);
  ASSERT_OK(start_with("16MiB", "64MiB", "0"));
  ASSERT_OK(open("table"));
  EXPECT_EQ(shared().disk_cache_limit_bytes, 256 * kMiB / 5 * 4 + 1) << "four fifths";
  EXPECT_EQ(scan(kPages), kPages);
  EXPECT_EQ(shared().disk_stored_pages, 0u) << "scanned once";
  EXPECT_EQ(scan(kPages), kPages);
  ASSERT_TRUE(has_stored(kTried));
  EXPECT_EQ(shared().disk_cached_bytes, kTried * kPage);
  EXPECT_EQ(scan(kPages), kPages - kTried);
  EXPECT_EQ(shared().disk_loaded_pages, kTried);
  EXPECT_EQ(stats().nvme_used_bytes, 0u) << "of this program's own pages";
  EXPECT_EQ(stats().spilled_bytes, 0u);
  for (std::uint64_t page = 0; page < kPages; ++page) {
    ASSERT_OK(use(page));
    ASSERT_OK(read_page(page, 3));
  }
  EXPECT_EQ(shared().mismatches, 0u);
  ASSERT_OK(vmem_close(base, nullptr, 0));
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [] { return shared().disk_cached_bytes == 0; }));
}

// Of 16 pages on disk copies have 12. HBM and host memory hold 24 of this program's 30.
TEST_F(PublishedCache, CopiesOnDisksLeaveTheProgramsPagesTheirRoom) {
  constexpr std::uint64_t kPages = 40, kOwn = 30;
  const auto publisher = publisher_of("table", kPages);
  ASSERT_OK(start_with("8MiB", "16MiB", "0", "32MiB"));
  ASSERT_OK(open("table"));
  std::byte* const table = base;
  for (int round = 0; round < 2; ++round) scan(kPages);
  ASSERT_TRUE(has_stored(12));
  EXPECT_EQ(shared().disk_cached_bytes, 12 * kPage);
  hold_pages(kOwn);
  std::byte* const own = base;
  for (int round = 0; round < 2; ++round) {
    base = own;
    expect_pages(kOwn);
    base = table;
    scan(kPages);
  }
  EXPECT_GT(stats().spilled_bytes, 0u);
  EXPECT_GE(stats().nvme_used_bytes, 6 * kPage);
  EXPECT_LE(shared().disk_cached_bytes + stats().nvme_used_bytes, 16 * kPage);
  base = own;
  expect_pages(kOwn);
}

TEST_F(PublishedCache, NothingIsWrittenToDisksWhereTheirCacheIsOff) {
  const auto publisher = publisher_of("table", 40);
  ASSERT_OK(start_with("8MiB", "64MiB", "0", "256MiB", "0"));
  ASSERT_OK(open("table"));
  for (int round = 0; round < 3; ++round) EXPECT_EQ(scan(40), 40u);
  EXPECT_EQ(shared().disk_stored_pages, 0u);
  EXPECT_EQ(shared().disk_cache_limit_bytes, 0u);
}

TEST_F(PublishedCache, APageWhosePublisherIsGoneIsReadFromTheDisk) {
  constexpr std::uint64_t kPages = 40;
  auto publisher = publisher_of("table", kPages);
  ASSERT_OK(start_with("8MiB", "64MiB", "0"));
  ASSERT_OK(open("table"));
  for (int round = 0; round < 2; ++round) scan(kPages);
  ASSERT_TRUE(has_stored(kTried));
  publisher->process().signal(SIGKILL);
  publisher->process().wait();
  for (std::uint64_t page = 0; page < kTried; ++page) EXPECT_OK(read_page(page, 3));
}

TEST_F(PublishedCache, BadValuesAreNamed) {
  for (const char* value : {"101%", "half", "-1", "10 percent"}) {
    EXPECT_EQ(start_with(value), VMEM_ERROR_INVALID_OPTION) << value;
    EXPECT_THAT(vmem_last_error(), HasSubstr(fmt::format("published_cache='{}'", value)));
    EXPECT_THAT(vmem_last_error(), HasSubstr("accepted: a size such as 8GiB, or a part of host from 0% to 100%"));
  }
  EXPECT_EQ(start({{"published_cache", "1GiB"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("give cluster"));
}

}  // namespace
}  // namespace vmem
