// Programs that are killed at any moment, or just end: the next one finds all the room that the
// daemon lends.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <thread>

#include "campaign/seeds.hpp"
#include "rdma/process.hpp"
#include "vmem/vmem.h"

namespace vmem {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::uint64_t kLent = 64 * kMiB;

// VMEM_TEST_KILLS: the number of kills; more takes longer.
int kills() {
  const char* given = std::getenv("VMEM_TEST_KILLS");
  return given == nullptr ? 12 : std::atoi(given);
}

std::string tool() {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  for (const char* folder : {".", "bin", "../bin", "../../bin", "../../../bin"})
    if (const auto path = here / folder / "vmem"; std::filesystem::is_regular_file(path)) return path.string();
  return "vmem";
}

// Prints "room BYTES" or the reason that there is none. Then works until killed, or returns from
// main without vmem_shutdown.
int borrow(const std::string& daemon, const std::string& secret, bool returns) {
  fmt::print("pid {}\n", ::getpid());
  std::fflush(stdout);
  ::setenv("VMEM_EMU", "devices=1,hbm=256MiB,host=1GiB", 1);
  std::vector<vmem_option> options{{"driver", "emulated"}, {"hbm", "32MiB"}, {"host", "32MiB"},
                                   {"page", "2MiB"},       {"log", "error"}, {"remote", daemon.c_str()}};
  if (!secret.empty()) options.push_back({"secret", secret.c_str()});
  if (vmem_init(options.data(), options.size()) != VMEM_OK) {
    fmt::print("{}\n", vmem_last_error());
    return 1;
  }
  vmem_statistics stats{};
  stats.struct_bytes = sizeof(stats);
  (void)vmem_stats(&stats);
  fmt::print("room {}\n", stats.remote_budget_bytes);
  std::fflush(stdout);
  constexpr std::size_t kBytes = 96 * kMiB;
  void* memory = nullptr;
  if (vmem_malloc(&memory, kBytes, 0, nullptr) != VMEM_OK) return 2;
  const std::vector<std::byte> page(2 * kMiB, std::byte{7});
  for (int pass = 0; !returns || pass < 2; ++pass) {
    for (std::size_t at = 0; at < kBytes; at += page.size())
      (void)vmem_write(static_cast<std::byte*>(memory) + at, page.data(), page.size());
  }
  return 0;
}

class Killed : public ::testing::Test {
 protected:
  void start_daemon(const std::string& secret) {
    secret_ = secret;
    std::vector<std::string> words{tool(), "daemon", "--listen", "127.0.0.1:0", "--lend", "64MiB"};
    if (!secret.empty()) words.insert(words.end(), {"--secret", secret});
    daemon_.emplace(words);
    const std::string line = daemon_->first_line();
    const auto at = line.find("listens on ");
    ASSERT_NE(at, std::string::npos) << line;
    address_ = line.substr(at + 11, line.find(' ', at + 11) - at - 11);
  }
  std::vector<std::string> program(const std::string& how) const {
    return {std::filesystem::canonical("/proc/self/exe").string(), "--borrow", address_, secret_, how};
  }
  static void expect_room(rdma::Process& borrower, int number) {
    EXPECT_TRUE(borrower.says(fmt::format("room {}", kLent)))
        << "start " << number << ": " << (borrower.said().empty() ? "" : borrower.said().back());
  }
  // Kills half of the programs at some moment of their start, the others later. `under`: the
  // command that starts them.
  void kill_again_and_again(const std::vector<std::string>& under) {
    std::mt19937_64 random(test::printed_seed());
    for (int i = 0; i < kills() && !HasFailure(); ++i) {
      std::vector<std::string> words = under;
      std::ranges::copy(program("works"), std::back_inserter(words));
      rdma::Process borrower(words);
      const std::string first = borrower.first_line();
      ASSERT_TRUE(first.starts_with("pid ")) << first;
      if (i % 2 == 1) expect_room(borrower, i);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
      ::kill(std::stoi(first.substr(4)), SIGKILL);
      borrower.wait();
      expect_nothing_but_room(borrower, i);
    }
  }
  // Also checks a killed start: its output up to then.
  static void expect_nothing_but_room(rdma::Process& borrower, int number) {
    for (const std::string& line : borrower.said())
      EXPECT_TRUE(line.starts_with("pid ") || line == fmt::format("room {}", kLent))
          << "start " << number << ": " << line;
  }
  void kill_one() const {
    rdma::Process borrower(program("works"));
    expect_room(borrower, 0);
    borrower.signal(SIGKILL);
    borrower.wait();
  }
  void return_again_and_again(const std::vector<std::string>& under) {
    for (int i = 0; i < 4; ++i) {
      std::vector<std::string> words = under;
      std::ranges::copy(program("returns"), std::back_inserter(words));
      rdma::Process borrower(words);
      expect_room(borrower, i);
      EXPECT_EQ(borrower.wait(), 0);
    }
  }

  std::string secret_, address_;
  std::optional<rdma::Process> daemon_;
};

TEST_F(Killed, OverUnixSocketsEveryStartFindsItsRoom) {
  start_daemon("");
  kill_again_and_again({});
}

TEST_F(Killed, WhoReturnsFromMainLeavesItsRoom) {
  start_daemon("");
  return_again_and_again({});
}

#ifdef __SANITIZE_ADDRESS__
constexpr const char* kNotPreloaded = "vmem run preloads a library, before which AddressSanitizer's would have to come";
#endif

// Under `vmem run`, which sees the program's end and tells the daemon.
class KilledOverTls : public Killed {
 protected:
  void SetUp() override {
    rdma::Process maker({tool(), "secret", "new", file});
    ASSERT_EQ(maker.wait(), 0);
    start_daemon(file);
  }
  void TearDown() override { std::filesystem::remove(file); }
  std::vector<std::string> under() const { return {tool(), "run", "--remote", address_, "--secret", file, "--"}; }
  const std::string file = std::filesystem::temp_directory_path() / fmt::format("vmem-killed-secret-{}", ::getpid());
};

TEST_F(KilledOverTls, EveryStartFindsItsRoom) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << kNotPreloaded;
#endif
  kill_again_and_again(under());
}

// The daemon on the program's host sees its end and tells the lender over TLS; here it is both.
TEST_F(KilledOverTls, OutsideVmemRunEveryStartFindsItsRoomWhereADaemonIsOnItsHost) { kill_again_and_again({}); }

// Two daemons, one of which ends, and the remains of a killed one.
TEST_F(KilledOverTls, OutsideVmemRunEveryStartFindsItsRoomWhileDaemonsComeAndGo) {
  std::optional<rdma::Process> other;
  for (const int end : {SIGKILL, SIGTERM}) {
    other.emplace(std::vector<std::string>{tool(), "daemon", "--listen", "127.0.0.1:0", "--lend", "2MiB"});
    ASSERT_NE(other->first_line().find("listens on "), std::string::npos);
    kill_one();
    other->signal(end);
    other->wait();
    kill_one();
  }
}

TEST_F(KilledOverTls, WhoReturnsFromMainLeavesItsRoom) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << kNotPreloaded;
#endif
  return_again_and_again(under());
}

TEST_F(KilledOverTls, WhoReturnsFromMainLeavesItsRoomThoughNobodyWatches) { return_again_and_again({}); }

TEST_F(KilledOverTls, WithoutAnybodyWhoSawTheEndTheNextOneHearsWhoHasTheRoom) {
  {
    std::vector<std::string> unwatched{"env", "VMEM_GUARD="};
    std::ranges::copy(program("works"), std::back_inserter(unwatched));
    rdma::Process borrower(unwatched);
    expect_room(borrower, 0);
    borrower.signal(SIGKILL);
    borrower.wait();
  }
  rdma::Process next(program("returns"));
  EXPECT_TRUE(next.says("--remote " + address_ + ": 64 MiB of 64 MiB that it lends are leased to 1 node"));
  EXPECT_EQ(next.said().back().find("secret"), std::string::npos) << next.said().back();
}

}  // namespace
}  // namespace vmem

int main(int count, char** words) {
  if (count == 5 && std::string(words[1]) == "--borrow")
    return vmem::borrow(words[2], words[3], std::string(words[4]) == "returns");
  ::testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
