// Daemons that lend HBM of an emulated GPU, and its owner, who wants it back.
#include <nlohmann/json.hpp>

#include "runtime/cluster_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

// `link`: more settings of the emulated GPU.
std::vector<std::string> with_hbm(const char* size, std::vector<std::string> more = {}, const char* link = "") {
  ::setenv("VMEM_EMU", fmt::format("devices=1,hbm=1GiB,host=1GiB{}", link).c_str(), 1);
  std::vector<std::string> all{"--driver", "emulated", "--hbm", fmt::format("0:{}", size)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_F(RemoteApi, TheOtherNodesHbmIsRoomToo) {
  DaemonProcess daemon("127.0.0.1:0", with_hbm("256MiB"));
  EXPECT_THAT(daemon.ready(),
              HasSubstr("lends 0 B of memory, 0 B of disk, 256 MiB of HBM (GPU 0, through pinned staging)"));
  ASSERT_OK(start({{"remote", daemon.address()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 256 * kMiB);
  constexpr std::uint64_t kPages = 100;
  hold_pages(kPages);
  expect_pages(kPages);
  EXPECT_GT(stats().remote_used_bytes, 100 * kMiB);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
}

// UCX over TCP on this machine, for daemons and programs. The memory of an emulated GPU is host
// memory, so every UCX sends from there.
constexpr const char* kFabric = "ucx:lo";
void let_ucx_use_tcp() { ::setenv("VMEM_TEST_UCX_TLS", "tcp", 1); }
// "of HBM, 3 pages were sent back directly and 0 through staging"
std::string how_pages_were_sent(DaemonProcess& daemon) {
  daemon.process().signal(SIGUSR1);
  constexpr std::string_view kBegin = "vmem daemon: of HBM, ";
  EXPECT_TRUE(daemon.process().says(kBegin));
  const auto& lines = daemon.process().said();
  const auto line = std::ranges::find_if(lines, [&](const auto& each) { return each.starts_with(kBegin); });
  return line == lines.end() ? "" : *line;
}

TEST_F(RemoteApi, PagesAreFetchedDirectlyFromHbmOverUcx) {
  let_ucx_use_tcp();
  DaemonProcess daemon("127.0.0.1:0", with_hbm("256MiB", {"--fabric", kFabric}));
  EXPECT_THAT(daemon.ready(), HasSubstr("256 MiB of HBM (GPU 0, fetched from directly by UCX "));
  EXPECT_THAT(daemon.ready(), HasSubstr(", stored to through pinned staging)"));
  ASSERT_OK(start({{"remote", daemon.address()}, {"fabric", kFabric}}));
  constexpr std::uint64_t kPages = 100;
  hold_pages(kPages);
  expect_pages(kPages);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
  const std::string sent = how_pages_were_sent(daemon);
  EXPECT_THAT(sent, HasSubstr(" directly and 0 through staging"));
  EXPECT_THAT(sent, Not(HasSubstr("of HBM, 0 pages")));
}

class HbmLimit : public ClusterApi {
 protected:
  std::string node(const std::string& arguments) const {
    return output("node " + arguments + " --cluster " + cluster() + " 2>&1");
  }
  std::uint64_t field(int id, const char* name) const {
    for (const auto& each : nlohmann::json::parse(node("list --json")))
      if (each.at("id") == id) return each.at(name);
    return 0;
  }
};

class HbmPlacement : public HbmLimit {
 protected:
  static constexpr const char* kSlowLink = ",h2d=0.05,d2h=0.05";  // 2 MiB in 40 ms
  static constexpr std::uint64_t kPages = 150;
  // Of two lenders, the second has more room: by that alone, it would get most of the pages. Some
  // pages tell the rates of both first.
  void hold_pages_on_two() {
    ASSERT_OK(start({{"cluster", cluster()}}));
    hold_pages(80);
    expect_pages(80);
    ASSERT_OK(vmem_quiesce());
    hold_pages(kPages);
    expect_pages(kPages);
    ASSERT_OK(vmem_quiesce());
    ASSERT_TRUE(within(milliseconds(10'000),
                       [&] { return field(1, "held_bytes") + field(2, "held_bytes") >= stats().remote_used_bytes; }));
    EXPECT_GT(stats().remote_used_bytes, 200 * kMiB);
  }
  // The rate of a medium counts after 16 transfers; here, each stored page is loaded once at most.
  static constexpr std::uint64_t kTried = 16 / 2 * kPage;
};

TEST_F(HbmPlacement, MemoryOfALenderComesBeforeHbmThatIsMeasuredToBeSlower) {
  const auto memory = join({"--lend", "320MiB"});
  const auto hbm = join(with_hbm("640MiB", {"--lend", "0"}, kSlowLink));
  hold_pages_on_two();
  EXPECT_GT(field(1, "held_bytes"), 2 * field(2, "held_bytes"));
  EXPECT_GE(field(2, "held_bytes"), kTried);
}

TEST_F(HbmPlacement, TheFasterHbmComesFirst) {
  const auto fast = join(with_hbm("320MiB", {"--lend", "0"}));
  const auto slow = join(with_hbm("640MiB", {"--lend", "0"}, kSlowLink));
  hold_pages_on_two();
  EXPECT_GT(field(1, "held_bytes"), 2 * field(2, "held_bytes"));
}

// 64 MiB is a slab: 128 MiB of HBM go back to the GPU.
TEST_F(HbmLimit, TheOwnerGetsHbmBackAndNoByteIsLost) {
  constexpr std::uint64_t kPages = 100;
  const auto lender = join(with_hbm("192MiB", {"--lend", "16MiB"}));
  EXPECT_THAT(node("list"), HasSubstr("16 MiB of memory, 192 MiB of HBM (GPU 0, through pinned staging)"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  hold_pages(kPages);
  ASSERT_TRUE(within(milliseconds(10'000), [&] { return field(1, "held_bytes") > 100 * kMiB; }));
  EXPECT_EQ(field(1, "hbm_taken_bytes"), 192 * kMiB);
  EXPECT_THAT(node("limit 1 --hbm 64MiB"), HasSubstr("have to leave, and elsewhere there is room for"));
  EXPECT_THAT(node("limit 1 --hbm 1GiB"), HasSubstr("1 GiB of HBM asked for, and node 1 was started with 192 MiB"));
  const auto second = join({"--lend", "256MiB"});
  EXPECT_THAT(node("limit 3 --hbm 64MiB"), HasSubstr("node 3 lends no HBM"));
  const auto began = steady_clock::now();
  EXPECT_THAT(node("limit 1 --hbm 64MiB"), HasSubstr("node 1 lends 64 MiB of HBM at most"));
  // 2 s, the copies, and a second until the daemon has said so.
  ASSERT_TRUE(within(milliseconds(6'000), [&] { return field(1, "hbm_taken_bytes") == 64 * kMiB; }));
  RecordProperty("ms", static_cast<int>(std::chrono::duration_cast<milliseconds>(steady_clock::now() - began).count()));
  EXPECT_THAT(node("limit 1 --hbm 64MiB --wait"), HasSubstr("node 1 takes 64 MiB of its GPU\n"));
  EXPECT_THAT(node("list"), HasSubstr("192 MiB of HBM (GPU 0, through pinned staging), limited to 64 MiB"));
  for (std::uint64_t page = 0; page < kPages; ++page) expect_page(page, 1);
  EXPECT_EQ(stats().remote_copies_lost, 0u);
}

// While pages are sent directly from the slabs that the owner wants back.
TEST_F(HbmLimit, TheOwnerGetsHbmBackThatPagesAreFetchedFromOverUcx) {
  let_ucx_use_tcp();
  constexpr std::uint64_t kPages = 100;
  const auto lender = join(with_hbm("192MiB", {"--lend", "0", "--fabric", kFabric}));
  ASSERT_OK(start({{"cluster", cluster()}, {"fabric", kFabric}}));
  hold_pages(kPages);
  ASSERT_TRUE(within(milliseconds(10'000), [&] { return field(1, "held_bytes") > 100 * kMiB; }));
  const auto second = join({"--lend", "256MiB", "--fabric", kFabric});
  // Some versions of UCX take a second to connect; until then there is no room elsewhere.
  ASSERT_TRUE(within(milliseconds(10'000), [&] { return stats().remote_budget_bytes == (192 + 256) * kMiB; }));
  for (const char* limit : {"64MiB", "192MiB", "0"}) {
    EXPECT_THAT(node(fmt::format("limit 1 --hbm {}", limit)), HasSubstr("node 1 lends"));
    for (std::uint64_t page = 0; page < kPages; ++page) expect_page(page, 1);
  }
  ASSERT_TRUE(within(milliseconds(20'000), [&] { return field(1, "hbm_taken_bytes") == 0; }));
  for (std::uint64_t page = 0; page < kPages; ++page) expect_page(page, 1);
  EXPECT_GT(field(1, "hbm_pages_sent_directly"), 0u);
  EXPECT_EQ(stats().remote_copies_lost, 0u);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
}

TEST_F(HbmLimit, ARaisedLimitIsUsedByProgramsThatRun) {
  const auto lender = join(with_hbm("192MiB", {"--lend", "16MiB"}));
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 208 * kMiB);
  EXPECT_THAT(node("limit 1 --hbm 0 --wait"), HasSubstr("node 1 takes 0 B of its GPU"));
  ASSERT_TRUE(within(milliseconds(5'000), [&] { return stats().remote_budget_bytes == 16 * kMiB; }));
  EXPECT_THAT(node("limit 1 --hbm 192MiB"), HasSubstr("node 1 lends 192 MiB of HBM at most"));
  ASSERT_TRUE(within(milliseconds(5'000), [&] { return stats().remote_budget_bytes == 208 * kMiB; }));
  EXPECT_EQ(field(1, "hbm_limit_bytes"), 192 * kMiB);
  hold_pages(100);
  for (std::uint64_t page = 0; page < 100; ++page) expect_page(page, 1);
}

}  // namespace
}  // namespace vmem
