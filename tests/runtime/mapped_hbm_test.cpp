// Daemons whose HBM programs of their host map, and their owner, who wants it back.
#include <sys/socket.h>
#include <sys/un.h>

#include <nlohmann/json.hpp>

#include "peer/wire.hpp"
#include "runtime/cluster_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

// The daemon's GPU is device 1, the program's is device 0, of the same emulated machine.
constexpr const char* kMachine = "devices=2,hbm=512MiB,host=1GiB";

class MappedHbm : public ClusterApi {
 protected:
  // `gpu` and `mapped`: as the options say them.
  std::unique_ptr<DaemonProcess> lend(const char* gpu, const char* mapped) const {
    ::setenv("VMEM_EMU", machine.c_str(), 1);
    return join({"--driver", "emulated", "--hbm", gpu, "--hbm-mapped", mapped, "--lend", "0"});
  }
  // HBM 32 MiB, host memory 32 MiB.
  vmem_status start_program(std::vector<std::pair<std::string, std::string>> more = {}) {
    ::setenv("VMEM_EMU", machine.c_str(), 1);
    std::vector<std::pair<std::string, std::string>> all{{"driver", "emulated"}, {"devices", "0"},
                                                         {"hbm", "32MiB"},       {"host", "32MiB"},
                                                         {"page", "2MiB"},       {"cluster", cluster()}};
    for (const auto& option : more) std::erase_if(all, [&](const auto& usual) { return usual.first == option.first; });
    all.insert(all.end(), more.begin(), more.end());
    std::vector<vmem_option> options;
    for (const auto& [name, value] : all) options.push_back({name.c_str(), value.c_str()});
    return vmem_init(options.data(), options.size());
  }
  static std::string socket_of(DaemonProcess& daemon) {
    const std::string line = daemon.process().line(1);
    const auto at = line.find("to map, at /");
    EXPECT_NE(at, std::string::npos) << line;
    return at == std::string::npos ? "" : line.substr(at + 11);
  }
  // What the program says at its start.
  std::string start_says(std::vector<std::pair<std::string, std::string>> more = {}) {
    more.emplace_back("log", "info");
    CaptureStderr();
    const vmem_status started = start_program(more);
    const std::string said = GetCapturedStderr();
    EXPECT_EQ(started, VMEM_OK) << vmem_last_error();
    return said;
  }
  std::string node(const std::string& arguments) const {
    return output("node " + arguments + " --cluster " + cluster() + " 2>&1");
  }
  std::uint64_t field(int id, const char* name) const {
    for (const auto& each : nlohmann::json::parse(node("list --json")))
      if (each.at("id") == id) return each.at(name);
    return UINT64_MAX;
  }

  std::string machine = kMachine;
};

TEST_F(MappedHbm, PagesThatLeaveHbmGoThereFirstThenToHostMemoryAndTheRestOverTheNetwork) {
  const auto lender = lend("1:256MiB", "64MiB");
  EXPECT_THAT(lender->ready(), HasSubstr("256 MiB of HBM (GPU 1, through pinned staging)"));
  EXPECT_THAT(lender->process().line(1), HasSubstr("64 MiB of the HBM are for programs of this host to map, at /"));
  EXPECT_THAT(node("list"), HasSubstr("256 MiB of HBM (GPU 1, through pinned staging), of which programs of its host "
                                      "map 64 MiB"));
  ASSERT_OK(start_program());
  EXPECT_EQ(stats().peer_budget_bytes, 64 * kMiB);
  EXPECT_EQ(stats().remote_budget_bytes, 192 * kMiB);
  hold_pages(40);  // 80 MiB: HBM has room for 32, the other GPU for the rest
  ASSERT_OK(vmem_quiesce());
  EXPECT_GE(stats().peer_used_bytes, 48 * kMiB);
  EXPECT_EQ(stats().remote_used_bytes, 0u);
  expect_pages(40);
  std::byte* const first = base;
  hold_pages(60);  // 200 MiB in all, 128 of which have room without the network
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(stats().peer_used_bytes, 64 * kMiB);
  EXPECT_GE(stats().remote_used_bytes, 72 * kMiB);
  expect_pages(60);
  base = first;
  expect_pages(40);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
  EXPECT_TRUE(within(milliseconds(5'000), [&] { return field(1, "hbm_taken_bytes") == 256 * kMiB; }));
  EXPECT_TRUE(within(milliseconds(5'000), [&] { return field(1, "held_bytes") >= 136 * kMiB; }));
  lender->process().signal(SIGUSR1);
  EXPECT_TRUE(
      lender->process().says("vmem daemon: of HBM, 1 program of this host maps 64 MiB, 0 B of which are overdue"));
}

TEST_F(MappedHbm, TheOwnerGetsItBackInTimeAndNoByteIsLost) {
  const auto lender = lend("1:128MiB", "64MiB"), second = join({"--lend", "256MiB"});
  ASSERT_OK(start_program());
  hold_pages(90);
  ASSERT_OK(vmem_quiesce());
  ASSERT_TRUE(within(milliseconds(5'000), [&] { return field(1, "hbm_mapped_taken_bytes") == 64 * kMiB; }));
  // The part for pages from the network goes first; of what is mapped, 24 MiB.
  const auto began = steady_clock::now();
  EXPECT_THAT(node("limit 1 --hbm 40MiB"), HasSubstr("node 1 lends 40 MiB of HBM at most"));
  // A second until the daemon sees it, two for the borrower, and the copies.
  const auto given_back = [](std::uint64_t bytes) {
    return within(milliseconds(4'000), [&] { return stats().peer_used_bytes <= bytes; });
  };
  EXPECT_TRUE(given_back(40 * kMiB)) << stats().peer_used_bytes;
  RecordProperty("ms", static_cast<int>(std::chrono::duration_cast<milliseconds>(steady_clock::now() - began).count()));
  EXPECT_THAT(node("limit 1 --hbm 40MiB --wait"), HasSubstr("node 1 takes 40 MiB of its GPU\n"));
  EXPECT_THAT(node("list"), HasSubstr("map 64 MiB, limited to 40 MiB"));
  EXPECT_GE(stats().peer_returned_bytes, 24 * kMiB);
  expect_pages(90);
  EXPECT_GE(stats().peer_used_bytes, 32 * kMiB);
  EXPECT_THAT(node("limit 1 --hbm 0"), HasSubstr("node 1 lends 0 B of HBM at most"));
  EXPECT_TRUE(given_back(0)) << stats().peer_used_bytes;
  EXPECT_THAT(node("limit 1 --hbm 0 --wait"), HasSubstr("node 1 takes 0 B of its GPU\n"));
  expect_pages(90);
  EXPECT_THAT(node("limit 1 --hbm 128MiB"), HasSubstr("node 1 lends 128 MiB of HBM at most"));
  ASSERT_TRUE(within(milliseconds(5'000), [] { return stats().peer_budget_bytes == 64 * kMiB; }));
  // Only pages that change in HBM need a new place when they leave it.
  std::uint64_t version = 1;
  EXPECT_TRUE(within(milliseconds(10'000), [&] {
    ++version;
    for (std::uint64_t page = 0; page < 90; ++page) {
      const auto words = page_words(page, version);
      EXPECT_OK(vmem_memcpy(base + page * kPage, words.data(), kPage, nullptr));
    }
    return stats().peer_used_bytes >= 32 * kMiB;
  })) << stats().peer_used_bytes;
  for (std::uint64_t page = 0; page < 90; ++page) expect_page(page, version);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
}

// A borrower that gives back only when it is told to.
class HoldOut {
 public:
  explicit HoldOut(const std::string& path) : socket_(peer::connect_to(path)) {
    EXPECT_TRUE(socket_) << socket_.error().message;
    EXPECT_EQ(ask({.kind = peer::Kind::hello}), peer::Kind::welcome);
    EXPECT_EQ(ask({.kind = peer::Kind::take, .number = 1, .bytes = kPage}), peer::Kind::grant);
  }
  void give_back() { EXPECT_TRUE(*peer::send(socket_->get(), {.kind = peer::Kind::give, .number = 1})); }

 private:
  peer::Kind ask(const peer::Message& message) {
    EXPECT_TRUE(*peer::send(socket_->get(), message));
    for (;;) {
      peer::wait_readable(socket_->get(), milliseconds(5'000));
      auto answer = peer::receive(socket_->get());
      if (!answer || !*answer) return peer::Kind::bye;
      if ((*answer)->message.kind == peer::Kind::limit) continue;
      if ((*answer)->descriptor) piece_ = std::move((*answer)->descriptor);
      return (*answer)->message.kind;
    }
  }
  Result<OwnDescriptor> socket_;
  FileDescriptor piece_;
};

TEST_F(MappedHbm, ADrainEndsOnlyWhenNothingIsMapped) {
  const auto lender = lend("1:64MiB", "64MiB"), second = join({"--lend", "256MiB"});
  EXPECT_THAT(lender->ready(), HasSubstr("64 MiB of HBM (GPU 1)"));
  HoldOut hold_out(socket_of(*lender));
  ASSERT_OK(start_program());
  hold_pages(60);
  ASSERT_OK(vmem_quiesce());
  EXPECT_GE(stats().peer_used_bytes, 48 * kMiB);
  EXPECT_THAT(node("drain 1"), HasSubstr("node 1 drains"));
  ASSERT_TRUE(within(milliseconds(10'000), [] { return stats().peer_used_bytes == 0; }));
  EXPECT_TRUE(within(milliseconds(5'000), [&] { return field(1, "held_bytes") == kPage; }));
  EXPECT_THAT(node("list"), HasSubstr("drains, and holds 2 MiB of pages, of which programs of its host map 2 MiB"));
  EXPECT_EQ(field(1, "hbm_mapper_pid"), static_cast<std::uint64_t>(::getpid())) << "it holds out";
  expect_pages(60);
  EXPECT_EQ(stats().peer_used_bytes, 0u) << "nothing new is mapped";
  hold_out.give_back();
  EXPECT_THAT(node("drain 1 --wait"), HasSubstr("node 1 is drained: it holds nothing"));
  EXPECT_EQ(field(1, "hbm_taken_bytes"), 0u);
}

TEST_F(MappedHbm, PagesStayWhenTheDaemonIsKilled) {
  const auto lender = lend("1:64MiB", "64MiB");
  ASSERT_OK(start_program({{"host", "128MiB"}}));
  hold_pages(40);
  ASSERT_OK(vmem_quiesce());
  EXPECT_GE(stats().peer_used_bytes, 48 * kMiB);
  lender->process().signal(SIGKILL);
  lender->process().wait();
  expect_pages(40);
  for (std::uint64_t page = 0; page < 40; ++page) write_page(page, 2);
  for (std::uint64_t page = 0; page < 40; ++page) expect_page(page, 2);
}

TEST_F(MappedHbm, ALenderThatIsNamedAsAPeerTooIsUsedOnce) {
  const auto lender = lend("1:192MiB", "64MiB");
  ASSERT_OK(start_program({{"peers", socket_of(*lender)}}));
  EXPECT_EQ(stats().peer_budget_bytes, 64 * kMiB);
}

// The program starts all the same, and says why.
class UnmappedHbm : public MappedHbm {
 protected:
  static void expect_use_over_the_network() {
    EXPECT_EQ(stats().peer_budget_bytes, 0u);
    EXPECT_EQ(stats().remote_budget_bytes, 128 * kMiB);
    EXPECT_EQ(vmem_shutdown(), VMEM_OK);
  }
};

TEST_F(UnmappedHbm, OfAGpuThatTheProgramDoesNotSee) {
  machine = "devices=2,hbm=256MiB,host=1GiB";
  const auto lender = lend("1:192MiB", "64MiB");
  machine = kMachine;
  EXPECT_THAT(start_says(),
              AllOf(HasSubstr("node 1 of this host lends 64 MiB of HBM to programs that map it; this program does not"),
                    HasSubstr("this program does not see GPU-")));
  expect_use_over_the_network();
}

TEST_F(UnmappedHbm, OfAGpuOfItsOwn) {
  const auto lender = lend("1:192MiB", "64MiB");
  EXPECT_THAT(start_says({{"devices", "0,1"}}), HasSubstr("it lends device 1, which this program uses itself"));
  expect_use_over_the_network();
}

TEST_F(UnmappedHbm, ThatIsMeasuredToBeSlowerThanHostMemory) {
  machine = fmt::format("{},p2p=0.1,h2d=2,d2h=2", kMachine);
  const auto lender = lend("1:192MiB", "64MiB");
  std::string folder = ::testing::TempDir() + "vmem-mapped-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/topology.json";
  ASSERT_THAT(output("topo --driver emulated --topology " + file + " 2>&1"), HasSubstr("NVLink"));
  EXPECT_THAT(start_says({{"topology", file}}),
              AllOf(HasSubstr("device 1's memory is measured at 0.1 GB/s, and host memory at "),
                    HasSubstr(" GB/s for device 0")));
  expect_use_over_the_network();
  std::filesystem::remove_all(folder);
}

TEST_F(UnmappedHbm, OfASocketThatIsMissingOrAnotherUsers) {
  const auto lender = lend("1:192MiB", "64MiB");
  const std::string path = socket_of(*lender);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_THAT(start_says(), HasSubstr(path + ": No such file or directory"));
  hold_pages(60);
  expect_pages(60);
  expect_use_over_the_network();
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const OwnDescriptor strangers(FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  ASSERT_EQ(::bind(strangers.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  // The kernel notes who listens.
  ASSERT_EQ(::seteuid(65'534), 0);
  ASSERT_EQ(::listen(strangers.get(), 1), 0);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_THAT(start_says(), HasSubstr("a process of user 65534 lends there"));
  expect_use_over_the_network();
}

}  // namespace
}  // namespace vmem
