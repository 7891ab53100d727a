// A program whose pages go to other nodes: where they go, and what stops its start.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "runtime/loop_file_system.hpp"
#include "runtime/remote_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(RemoteApi, DataFourTimesWhatFitsHereSurvivesOnAnotherNode) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "512MiB", "--channels", "2"});
  ASSERT_OK(start({{"remote", daemon.address()}, {"remote_channels", "4"}}));
  constexpr std::uint64_t kPages = 128;  // 256 MiB, with 64 MiB of HBM and host memory
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kPages * kPage, 0, nullptr));
  base = static_cast<std::byte*>(memory);
  for (std::uint64_t page = 0; page < kPages; ++page) write_page(page, 1);
  std::vector<std::uint64_t> read(kPage / 8);
  for (int pass = 0; pass < 2; ++pass) {
    for (std::uint64_t page = 0; page < kPages; ++page) {
      // Through HBM, then in place.
      ASSERT_OK((pass == 0 ? vmem_memcpy(read.data(), base + page * kPage, kPage, nullptr)
                           : vmem_read(read.data(), base + page * kPage, kPage)));
      ASSERT_EQ(read, page_words(page, 1)) << page;
    }
  }
  const auto after = stats();
  EXPECT_EQ(after.remote_budget_bytes, 512 * kMiB);
  EXPECT_GT(after.remote_stored_bytes, 190 * kMiB);
  EXPECT_GT(after.remote_fetched_bytes, 300 * kMiB);
  EXPECT_EQ(after.remote_checksum_failures, 0u);
  EXPECT_EQ(after.nvme_budget_bytes, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(stats().remote_used_bytes, 0u);
}

TEST_F(RemoteApi, WhatTheOtherNodeHasNoRoomForGoesToFiles) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "64MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}, {"nvme", ".:256MiB"}}));
  constexpr std::uint64_t kPages = 100;
  hold_pages(kPages);
  expect_pages(kPages);
  EXPECT_EQ(stats().remote_used_bytes, 64 * kMiB);
  EXPECT_GT(stats().nvme_used_bytes, 0u);
}

TEST_F(RemoteApi, TheOtherNodesDiskIsRoomToo) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "32MiB", "--nvme", ".:256MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}}));
  constexpr std::uint64_t kPages = 100;
  hold_pages(kPages);
  expect_pages(kPages);
  EXPECT_GT(stats().remote_used_bytes, 100 * kMiB);
}

TEST_F(RemoteApi, WhenTheOtherNodesDiskDiesCapacityFollowsAndErrorsNameTheNode) {
  const test::LoopFileSystem disk(192 * kMiB);
  if (disk.why_not()) GTEST_SKIP() << *disk.why_not();
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "64MiB", "--nvme", disk.path() + ":128MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}, {"call_wait", "2s"}, {"compress", "off"}}));
  EXPECT_EQ(stats().remote_budget_bytes, 192 * kMiB);
  constexpr std::uint64_t kPages = 90;  // at least 20 of them on the disk
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kPages * kPage, 0, nullptr));
  base = static_cast<std::byte*>(memory);
  for (std::uint64_t page = 0; page < kPages; ++page) write_page(page, 1);
  ASSERT_OK(vmem_quiesce());
  ASSERT_GT(stats().remote_used_bytes, 64 * kMiB);
  ASSERT_TRUE(disk.shut_down());
  std::string said;
  for (std::uint64_t page = 0; page < kPages; ++page) {
    const auto words = page_words(page, 2);
    const auto begun = steady_clock::now();
    if (vmem_write(base + page * kPage, words.data(), kPage) == VMEM_OK) continue;
    EXPECT_LT(steady_clock::now() - begun, std::chrono::seconds(3));
    said = vmem_last_error();
    break;
  }
  EXPECT_THAT(said, HasSubstr(daemon.address()));
  const auto until = steady_clock::now() + std::chrono::seconds(1);
  while (stats().remote_budget_bytes != 64 * kMiB && steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(stats().remote_budget_bytes, 64 * kMiB);
  EXPECT_EQ(vmem_malloc(&memory, 16 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
}

// ---- what is known to be wrong at the start is said then ----

TEST_F(RemoteApi, NobodyListensAndTheStartSaysSo) {
  EXPECT_EQ(start({{"remote", "127.0.0.1:9"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("--remote 127.0.0.1:9"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("Connection refused"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("--remote 127.0.0.1:9: nothing listens there without a secret"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("`vmem daemon --listen 127.0.0.1:9 --lend SIZE` has to run there"));
}

TEST_F(RemoteApi, WithTwoCopiesOneNodeThatIsOffDoesNotStopTheStart) {
  DaemonProcess daemon;
  const std::string nodes = daemon.address() + ",127.0.0.1:9";
  EXPECT_EQ(start({{"remote", nodes}}), VMEM_ERROR_INVALID_OPTION) << "each page would have one copy";
  EXPECT_EQ(start({{"remote", "127.0.0.1:9,127.0.0.1:11"}, {"replicas", "2"}}), VMEM_ERROR_INVALID_OPTION)
      << "none answers";
  ::testing::internal::CaptureStderr();
  ASSERT_OK(start({{"remote", nodes}, {"replicas", "2"}, {"log", "warn"}}));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--remote 127.0.0.1:9: nothing listens there"));
  EXPECT_EQ(stats().remote_budget_bytes, 512 * kMiB);
}

TEST_F(RemoteApi, WhatShouldRunThereIsSaidAsADaemonTakesIt) {
  EXPECT_EQ(start({{"remote", "localhost:9"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("`vmem daemon --listen "));
  EXPECT_THAT(vmem_last_error(), Not(HasSubstr("--listen localhost/")));
  const std::string secret = ::testing::TempDir() + fmt::format("vmem-unheard-{}", ::getpid());
  std::ofstream(secret) << "cluster n3ZQjTqJ0mVtYk8w1sLxR5c2UuFhG7oPaEiB4DdMCvI=\n";
  ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
  EXPECT_EQ(start({{"remote", "127.0.0.1:9"}, {"secret", secret}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("--remote 127.0.0.1:9: nothing listens there (connecting to 127.0.0.1:9"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("`vmem daemon --listen 127.0.0.1:9 --lend SIZE --secret FILE`"));
  std::filesystem::remove(secret);
}

TEST_F(RemoteApi, ASecretThatTheOtherDoesNotShareStopsTheStart) {
  const std::string folder = ::testing::TempDir() + fmt::format("vmem-secrets-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const std::string ours = folder + "/ours", theirs = folder + "/theirs";
  for (const auto& [file, key] : {std::pair{ours, "eYZ7Dk2nOeTq0PB7p8m1x6FJ5wqvRr3GgT4sUQhLoNA="},
                                  std::pair{theirs, "n3ZQjTqJ0mVtYk8w1sLxR5c2UuFhG7oPaEiB4DdMCvI="}}) {
    std::ofstream(file) << "cluster " << key << '\n';
    ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  }
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "64MiB", "--secret", theirs});
  EXPECT_THAT(daemon.ready(), HasSubstr("of disk; only this machine reaches that address"));
  EXPECT_EQ(start({{"remote", daemon.address()}, {"secret", ours}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("secret"));
  EXPECT_EQ(start({{"remote", daemon.address()}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("secret"));
  EXPECT_EQ(start({{"remote", daemon.address()}, {"secret", "/nonexistent"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_EQ(start({{"remote", daemon.address()}, {"secret", theirs}}), VMEM_OK) << vmem_last_error();
  std::filesystem::remove_all(folder);
}

TEST_F(RemoteApi, EncryptedPagesComeBackAsTheyWere) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "256MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}, {"remote_encrypt", "on"}}));
  constexpr std::uint64_t kPages = 64;
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kPages * kPage, 0, nullptr));
  base = static_cast<std::byte*>(memory);
  for (std::uint64_t page = 0; page < kPages; ++page) write_page(page, 1);
  std::vector<std::uint64_t> read(kPage / 8);
  for (std::uint64_t page = 0; page < kPages; ++page) {
    ASSERT_OK(vmem_read(read.data(), base + page * kPage, kPage));
    ASSERT_EQ(read, page_words(page, 1)) << page;
  }
  const auto after = stats();
  EXPECT_GT(after.remote_fetched_bytes, 60 * kMiB);
  EXPECT_EQ(after.remote_checksum_failures, 0u);
}

// Both programs have 32 MiB of HBM and as much host memory.
TEST_F(RemoteApi, ProgramsShareALenderByWhatTheyAllocate) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "64MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}}));
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  rdma::Process other({(here / "vmem_joint_peer").string(), "driver", "emulated", "hbm", "32MiB", "host", "32MiB",
                       "page", "2MiB", "log", "error", "remote", daemon.address()});
  std::size_t lines = 0;
  EXPECT_THAT(other.line(lines++), StartsWith("ok"));
  const auto ask = [&](const char* command) {
    other.tell(std::string(command) + "\n");
    return other.line(lines++);
  };
  hold_pages(50);
  const std::string refused = ask("allocate 50");
  EXPECT_THAT(refused, StartsWith(fmt::format("error {} ", int(VMEM_ERROR_OUT_OF_MEMORY))));
  EXPECT_THAT(refused, HasSubstr(fmt::format("(other nodes have no more room: {}: ", daemon.address())));
  EXPECT_THAT(refused, HasSubstr("of 64 MiB that it lends are leased to 2 nodes, "));
  EXPECT_THAT(refused, HasSubstr("which is connected"));
  EXPECT_THAT(refused, Not(HasSubstr("secret")));
  expect_pages(50);
  ASSERT_OK(vmem_free(base, nullptr));
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (!ask("allocate 50").starts_with("ok") && steady_clock::now() < end) ::usleep(100'000);
  for (int page = 0; page < 50; ++page) EXPECT_THAT(ask(fmt::format("read {} 1", page).c_str()), StartsWith("ok"));
}

TEST_F(RemoteApi, WhatDoesNotFitMayTakeMoreOfTheNodes) {
  DaemonProcess daemon("127.0.0.1:0", {"--lend", "256MiB"});
  ASSERT_OK(start({{"remote", daemon.address()}, {"borrow", "16MiB"}}));
  void* memory = nullptr;
  EXPECT_EQ(vmem_malloc(&memory, 128 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(vmem_last_error(),
              HasSubstr("raise --hbm, --host, --borrow or --nvme, or run `vmem daemon` on another node"));
}

}  // namespace
}  // namespace vmem
