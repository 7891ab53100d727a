// Other nodes that are stopped, cut off and killed, over Unix sockets and TLS.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "campaign/seeds.hpp"
#include "rdma/transport/other_network.hpp"
#include "runtime/remote_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

// VMEM_TEST_KILLS: the number of kills; more takes longer.
std::uint64_t kills() {
  const char* given = std::getenv("VMEM_TEST_KILLS");
  return given == nullptr ? 6 : std::strtoull(given, nullptr, 10);
}

struct Load {
  std::uint64_t pages;
  std::vector<std::uint64_t> versions;
  std::vector<bool> gone;  // reported lost
  std::uint64_t last_version = 1;
  std::mt19937_64 random;
  std::uint64_t reads = 0, writes = 0, lost = 0, refused = 0, longest_us = 0;
};

// A node that does not answer may still have the page: TIMEOUT. A node whose end is proved does
// not: LOST.
bool may_end_with(vmem_status status) {
  return status == VMEM_OK || status == VMEM_ERROR_TIMEOUT || status == VMEM_ERROR_LOST ||
         status == VMEM_ERROR_OUT_OF_MEMORY;
}

// Reads or writes one page within the time limit; what is read is right, or reported lost. A lost
// page stays lost until it is freed.
void use_one(std::byte* base, Load& load, std::vector<std::uint64_t> (*words)(std::uint64_t, std::uint64_t),
             std::uint64_t most_us) {
  const std::uint64_t page = load.random() % load.pages;
  const auto begun = steady_clock::now();
  vmem_status status = VMEM_OK;
  if (load.random() % 3 == 0) {
    const auto written = words(page, ++load.last_version);
    status = vmem_write(base + page * kPage, written.data(), kPage);
    ++load.writes;
    // vmem.h: a failed call changes nothing, and a write within one page is one piece. Later reads
    // check this.
    if (status == VMEM_OK) load.versions[page] = load.last_version;
    EXPECT_TRUE(may_end_with(status)) << vmem_last_error();
    load.lost += status == VMEM_ERROR_LOST ? 1 : 0;
  } else {
    std::vector<std::uint64_t> read(kPage / 8);
    status = vmem_read(read.data(), base + page * kPage, kPage);
    ++load.reads;
    // Both nodes may be away: then the page to evict for this one has nowhere to go.
    EXPECT_TRUE(may_end_with(status)) << vmem_last_error();
    if (status == VMEM_OK) {
      ASSERT_EQ(read, words(page, load.versions[page])) << "wrong bytes in page " << page;
    } else {
      (status == VMEM_ERROR_LOST ? load.lost : load.refused) += 1;
    }
  }
  if (load.gone[page]) {
    EXPECT_EQ(status, VMEM_ERROR_LOST) << "page " << page << " was lost before";
  }
  if (status == VMEM_ERROR_LOST) load.gone[page] = true;
  const auto took =
      std::uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - begun).count());
  load.longest_us = std::max(load.longest_us, took);
  ASSERT_LT(took, most_us) << "a call was blocked beyond its deadline";
}

// A port that stays free while nobody listens: outside the kernel's ephemeral range.
std::uint16_t lasting_port(std::mt19937_64& random) {
  for (;;) {
    const auto port = static_cast<std::uint16_t>(10'000 + random() % 20'000);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
    const int bound = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::close(socket);
    if (bound == 0) return port;
  }
}

// The socket of a listening node without a secret; "" if there is none.
std::string socket_file(const std::string& address) {
  for (const std::string& folder :
       {fmt::format("/run/user/{}/vmem", ::geteuid()), fmt::format("/tmp/vmem-{}", ::geteuid())}) {
    if (std::filesystem::is_socket(folder + "/" + address)) return folder + "/" + address;
  }
  return "";
}

class RemoteDeaths : public RemoteApi {
 protected:
  static constexpr std::uint64_t kPages = 64;  // 128 MiB, with 64 MiB of HBM and host memory
  void SetUp() override {
    std::mt19937_64 ports(seed);
    for (std::size_t i = 0; i < 2; ++i) addresses.push_back(fmt::format("127.0.0.1:{}", lasting_port(ports)));
    daemons.resize(2);
    for (std::size_t i = 0; i < 2; ++i) start_daemon(i);
  }
  // The same node, at the same address. The first has several channels to the program, a thread
  // each.
  void start_daemon(std::size_t i) {
    daemons[i] = std::make_unique<DaemonProcess>(
        addresses[i],
        with_secret({"--lend", "512MiB", "--id", std::to_string(i + 1), "--channels", i == 0 ? "3" : "1"}));
  }
  std::vector<std::string> with_secret(std::vector<std::string> arguments) const {
    if (!secret.empty()) arguments.insert(arguments.end(), {"--secret", secret});
    return arguments;
  }
  void begin(const std::string& replicas, const std::string& wait = "2s",
             std::vector<std::pair<std::string, std::string>> more = {}) {
    more.insert(more.end(), {{"remote", addresses[0] + "," + addresses[1]},
                             {"remote_channels", "3"},
                             {"replicas", replicas},
                             {"remote_wait", wait}});
    ASSERT_OK(start(std::move(more)));
    load.random.seed(seed);
    fill();
  }
  void fill() {
    // While no node has room, malloc finds no backing, and a page without another place is refused.
    const auto until = steady_clock::now() + std::chrono::seconds(10);
    void* memory = nullptr;
    vmem_status allocated = VMEM_ERROR_OUT_OF_MEMORY;
    while (allocated == VMEM_ERROR_OUT_OF_MEMORY && steady_clock::now() < until)
      allocated = vmem_malloc(&memory, kPages * kPage, 0, nullptr);
    ASSERT_OK(allocated);
    base = static_cast<std::byte*>(memory);
    load.pages = kPages;
    load.versions.assign(kPages, 1);
    load.gone.assign(kPages, false);
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const auto words = page_words(page, 1);
      vmem_status status = VMEM_ERROR_OUT_OF_MEMORY;
      while (status == VMEM_ERROR_OUT_OF_MEMORY && steady_clock::now() < until)
        status = vmem_write(base + page * kPage, words.data(), kPage);
      ASSERT_OK(status);
    }
  }
  void use(int times, std::uint64_t most_us) {
    for (int i = 0; i < times; ++i) {
      use_one(base, load, page_words, most_us);
      if (HasFatalFailure()) return;
    }
  }
  template <class Until>
  void use_until(Until until, std::uint64_t most_us) {
    while (!HasFatalFailure() && !until()) use(1, most_us);
  }
  // Keeps up the load until the program has reconnected; no call exceeds `most_us`.
  void use_until_reconnected(std::uint64_t before, std::uint64_t most_us) {
    const auto late = steady_clock::now() + std::chrono::seconds(10);
    use_until([&] { return stats().remote_reconnects > before || steady_clock::now() > late; }, most_us);
    ASSERT_GT(stats().remote_reconnects, before) << "the node did not come back";
  }
  // Every page has its last version, or is reported lost.
  void read_all(std::uint64_t most_us) {
    std::uint64_t right = 0, lost = 0;
    std::vector<std::uint64_t> read(kPage / 8);
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const auto begun = steady_clock::now();
      const vmem_status status = vmem_read(read.data(), base + page * kPage, kPage);
      ASSERT_LT(steady_clock::now() - begun, std::chrono::microseconds(most_us));
      if (status == VMEM_OK) {
        ASSERT_EQ(read, page_words(page, load.versions[page])) << page;
        ASSERT_FALSE(load.gone[page]) << page << " was lost before";
      }
      ASSERT_TRUE(status == VMEM_OK || status == VMEM_ERROR_LOST) << vmem_last_error();
      ++(status == VMEM_OK ? right : lost);
    }
    fmt::print("at the end {} pages are right, {} lost\n", right, lost);
  }
  void tell(const char* what) const {
    fmt::print("{}: {} reads, {} writes, {} lost, {} refused, longest call {} ms; {} reconnects, {} copies lost\n",
               what, load.reads, load.writes, load.lost, load.refused, load.longest_us / 1000,
               stats().remote_reconnects, stats().remote_copies_lost);
  }

  const std::uint64_t seed = test::printed_seed();
  std::vector<std::unique_ptr<DaemonProcess>> daemons;
  std::vector<std::string> addresses;
  std::string secret;  // a file; "": Unix sockets
  Load load;
};

TEST_F(RemoteDeaths, KilledUnderLoadPagesAreRightOrLost) {
  begin("1");
  for (std::uint64_t kill = 0; kill < kills(); ++kill) {
    auto& daemon = daemons[kill % 2];
    std::thread killer([&] { daemon->process().signal(SIGKILL); });
    use(40, 3'000'000);
    killer.join();
    daemon.reset();
    start_daemon(kill % 2);
    use(10, 3'000'000);
    ASSERT_OK(vmem_free(base, nullptr));  // lost pages stay lost until freed
    fill();
    if (HasFatalFailure()) return;
  }
  tell("one copy");
}

// Only the end of the daemon's process proves the loss; without that proof a read waits 20 s.
TEST_F(RemoteDeaths, ALocalDaemonThatIsKilledLosesItsPagesAtOnce) {
  begin("1", "20s");
  daemons[0]->process().signal(SIGKILL);
  read_all(3'000'000);
  EXPECT_GT(stats().remote_copies_lost, 0u);
}

// As a cleaner of temporary files does.
TEST_F(RemoteDeaths, ADaemonWhoseSocketFileIsRemovedKeepsItsPages) {
  const std::string socket = socket_file(addresses[0]);
  ASSERT_NE(socket, "");
  begin("1");
  const std::uint64_t before = stats().remote_reconnects;
  std::filesystem::rename(socket, socket + ".away");
  daemons[0]->process().stop();
  const auto until = steady_clock::now() + std::chrono::seconds(3);
  use_until([&] { return steady_clock::now() >= until; }, 3'000'000);
  std::filesystem::rename(socket + ".away", socket);
  daemons[0]->process().signal(SIGCONT);
  use_until_reconnected(before, 3'000'000);
  if (!HasFatalFailure()) read_all(3'000'000);
  EXPECT_EQ(load.lost, 0u);
  EXPECT_EQ(stats().remote_copies_lost, 0u);
}

class RemoteDeathsOverTls : public RemoteDeaths {
 protected:
  void SetUp() override {
    secret = ::testing::TempDir() + fmt::format("vmem-secret-{}", ::getpid());
    std::ofstream(secret) << "cluster n3ZQjTqJ0mVtYk8w1sLxR5c2UuFhG7oPaEiB4DdMCvI=\n";
    ASSERT_EQ(::chmod(secret.c_str(), 0600), 0);
    RemoteDeaths::SetUp();
  }
  void TearDown() override {
    RemoteDeaths::TearDown();
    std::filesystem::remove(secret);
  }
  // The first page whose read fails with TIMEOUT; kPages if none does.
  std::uint64_t first_that_times_out() {
    std::vector<std::uint64_t> read(kPage / 8);
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const auto begun = steady_clock::now();
      const vmem_status status = vmem_read(read.data(), base + page * kPage, kPage);
      EXPECT_LT(steady_clock::now() - begun, std::chrono::seconds(3));
      EXPECT_TRUE(status == VMEM_OK || status == VMEM_ERROR_TIMEOUT) << vmem_last_error();
      if (status != VMEM_OK) return page;
    }
    return kPages;
  }
};

TEST_F(RemoteDeathsOverTls, AKilledDaemonsPagesAreLostOnceANewOneAnswersAndNotBefore) {
  begin("1", "1s", {{"secret", secret}});
  const std::uint64_t before = stats().remote_reconnects;
  daemons[0]->process().signal(SIGKILL);
  const std::uint64_t page = first_that_times_out();
  ASSERT_LT(page, kPages) << "half of the pages are there";
  EXPECT_EQ(stats().remote_copies_lost, 0u);
  daemons[0].reset();
  start_daemon(0);
  const auto late = steady_clock::now() + std::chrono::seconds(10);
  while (stats().remote_reconnects == before && steady_clock::now() < late)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::vector<std::uint64_t> read(kPage / 8);
  EXPECT_EQ(vmem_read(read.data(), base + page * kPage, kPage), VMEM_ERROR_LOST) << vmem_last_error();
  read_all(3'000'000);
}

// A page stored while one node is away has one copy, and two when written again: here every page
// is, between deaths.
TEST_F(RemoteDeaths, WithTwoCopiesNothingIsLostByOneDeathAtATime) {
  begin("2");
  for (std::uint64_t kill = 0; kill < kills(); ++kill) {
    auto& daemon = daemons[kill % 2];
    std::thread killer([&] { daemon->process().signal(SIGKILL); });
    use(40, 3'000'000);
    killer.join();
    daemon.reset();
    const std::uint64_t before = stats().remote_reconnects;
    start_daemon(kill % 2);
    const auto until = steady_clock::now() + std::chrono::seconds(10);
    while (stats().remote_reconnects == before && steady_clock::now() < until) use(1, 3'000'000);
    ASSERT_GT(stats().remote_reconnects, before);
    for (std::uint64_t page = 0; page < kPages; ++page) write_page(page, ++load.versions[page]);
    if (HasFatalFailure()) return;
  }
  tell("two copies");
  EXPECT_EQ(load.lost, 0u);
}

// A page stored while the node is away has one copy, on the other node.
TEST_F(RemoteDeaths, OneOfTwoNodesThatDiesAgainAndAgainTakesNothingWithIt) {
  begin("2");
  for (std::uint64_t kill = 0; kill < kills(); ++kill) {
    auto& daemon = daemons[0];
    const std::uint64_t before = stats().remote_reconnects;
    std::thread killer([&] { daemon->process().signal(SIGKILL); });
    use(20, 3'000'000);
    killer.join();
    daemon.reset();
    start_daemon(0);
    use_until_reconnected(before, 3'000'000);
    if (HasFatalFailure()) return;
  }
  read_all(3'000'000);
  tell("one of two killed");
  EXPECT_EQ(load.lost, 0u);
  EXPECT_EQ(load.refused, 0u);
}

// VMEM_TEST_STOP: seconds for which a node is stopped or cut off; 3 exceed a request's time limit.
std::chrono::seconds stopped_for() {
  const char* given = std::getenv("VMEM_TEST_STOP");
  return std::chrono::seconds(given == nullptr ? 3 : std::strtoull(given, nullptr, 10));
}
bool once_over(steady_clock::time_point at) { return steady_clock::now() >= at; }

TEST_F(RemoteDeaths, StoppedForLongerThanItIsWaitedForNothingIsLost) {
  begin("1");
  const std::uint64_t before = stats().remote_reconnects;
  std::thread stopper([&] { daemons[0]->process().stop(); });
  const auto until = steady_clock::now() + stopped_for();
  use_until([&] { return once_over(until); }, 3'000'000);
  stopper.join();
  daemons[0]->process().signal(SIGCONT);
  use_until_reconnected(before, 3'000'000);
  use(60, 3'000'000);
  if (!HasFatalFailure()) read_all(3'000'000);
  tell("stopped for longer than it is waited for");
  EXPECT_EQ(load.lost, 0u);
}

TEST_F(RemoteDeaths, StoppedForLongerThanItIsWaitedForTheOtherCopyIsRead) {
  begin("2");
  const std::uint64_t before = stats().remote_reconnects;
  std::thread stopper([&] { daemons[0]->process().stop(); });
  const auto until = steady_clock::now() + stopped_for();
  use_until([&] { return once_over(until); }, 3'000'000);
  stopper.join();
  daemons[0]->process().signal(SIGCONT);
  use_until_reconnected(before, 3'000'000);
  if (!HasFatalFailure()) read_all(3'000'000);
  tell("one of two stopped");
  EXPECT_EQ(load.lost, 0u);
}

// The first node is behind a network cable that is unplugged and plugged in again.
class RemoteCutOff : public RemoteDeaths {
 protected:
  void SetUp() override {
    if (!network.why_not().empty()) GTEST_SKIP() << network.why_not();
    addresses = {"10.77.0.2:0", "127.0.0.1:0"};
    daemons.resize(2);
    for (std::size_t i = 0; i < 2; ++i) {
      daemons[i] = std::make_unique<DaemonProcess>(
          addresses[i],
          std::vector<std::string>{"--lend", "512MiB", "--id", std::to_string(i + 1), "--secret", network.secret()},
          i == 0 ? network.name() : "");
      addresses[i] = daemons[i]->address();
    }
  }
  void pull_and_put_in() {
    const std::uint64_t before = stats().remote_reconnects;
    std::thread puller([&] { EXPECT_TRUE(network.set_link(false)); });
    const auto until = steady_clock::now() + stopped_for();
    use_until([&] { return once_over(until); }, 3'000'000);
    puller.join();
    ASSERT_TRUE(network.set_link(true));
    use_until_reconnected(before, 3'000'000);
    use(60, 3'000'000);
    if (!HasFatalFailure()) read_all(3'000'000);
  }

  rdma::OtherNetwork network;
};

TEST_F(RemoteCutOff, NothingIsLost) {
  begin("1", "2s", {{"secret", network.secret()}});
  pull_and_put_in();
  tell("cut off");
  EXPECT_EQ(load.lost, 0u);
}

TEST_F(RemoteCutOff, PagesWithTwoCopiesSurvive) {
  begin("2", "2s", {{"secret", network.secret()}});
  pull_and_put_in();
  tell("one of two cut off");
  EXPECT_EQ(load.lost, 0u);
}

TEST_F(RemoteDeaths, StoppedAndContinuedNothingIsLost) {
  begin("1", "20s");
  daemons[0]->process().stop();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    daemons[0]->process().signal(SIGCONT);
  });
  use(60, 21'000'000);
  later.join();
  tell("stopped for 3 s");
  EXPECT_EQ(load.lost, 0u);
}

}  // namespace
}  // namespace vmem
