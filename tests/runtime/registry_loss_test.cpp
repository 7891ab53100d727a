// What a member says when its cluster's registry is away, or does not take it in again.
#include "runtime/cluster_fixture.hpp"

namespace vmem {
namespace {

using ::testing::HasSubstr;

class RegistryLoss : public ClusterApi {
 protected:
  static std::size_t count(const std::string& text, std::string_view part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  // Of one that ends again, so that memory does not run out.
  static vmem_status allocation() {
    void* memory = nullptr;
    const vmem_status status = vmem_malloc(&memory, kPage, 0, nullptr);
    if (status == VMEM_OK) {
      EXPECT_OK(vmem_free(memory, nullptr));
    }
    return status;
  }
};

// As after an upgrade of the cluster that this process has slept through.
TEST_F(RegistryLoss, AMemberThatIsNotTakenInAgainSaysWhyInItsLogAndInItsErrors) {
  ::testing::internal::CaptureStderr();
  ASSERT_OK(start({{"cluster", cluster()}}));
  put_record("params", R"({\"format\":2})");
  forget_node(1);
  EXPECT_TRUE(within(std::chrono::milliseconds(20'000), [&] { return allocation() == VMEM_ERROR_NOT_INITIALIZED; }));
  EXPECT_THAT(vmem_last_error(), HasSubstr("no longer a member of the cluster, which does not take it in again"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("reads format 1"));
  ASSERT_OK(vmem_shutdown());  // so that all of it is logged
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("error: this process is no longer a member of the cluster, which does not take it in"));
}

TEST_F(RegistryLoss, WhatKeepsAMemberFromEnrollingAgainIsLogged) {
  ::testing::internal::CaptureStderr();
  ASSERT_OK(start({{"cluster", cluster()}, {"log", "warn"}}));
  put_record("counters/serial", "07");
  forget_node(1);
  std::string log;
  EXPECT_TRUE(within(std::chrono::milliseconds(60'000), [&] { return allocation() == VMEM_ERROR_TIMEOUT; }));
  EXPECT_THAT(vmem_last_error(), HasSubstr("'counters/serial' is '07'"));
  put_record("counters/serial", "41");
  EXPECT_TRUE(within(std::chrono::milliseconds(20'000), [&] { return allocation() == VMEM_OK; })) << vmem_last_error();
  log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("no member of the cluster any more, and could not enroll again so far"));
  EXPECT_THAT(log, HasSubstr("'counters/serial' is '07'"));
  EXPECT_THAT(log, HasSubstr("a member of the cluster again, as node 42"));
  EXPECT_LE(count(log, "could not enroll again"), 4u) << log;
}

// The daemons also try to erase the record of a program that was killed meanwhile.
TEST_F(RegistryLoss, ARegistryThatIsAwayIsLoggedRarelyAndOnceWhenItIsBack) {
  ::testing::internal::CaptureStderr();
  const auto first = join(), second = join();
  ASSERT_OK(start({{"cluster", cluster()}, {"log", "warn"}}));
  {
    rdma::Process killed({program(), "daemon", "--listen", "127.0.0.1:0", "--lend", "64MiB", "--cluster", cluster()});
    EXPECT_THAT(killed.first_line(), HasSubstr("listens on"));
    EXPECT_TRUE(within(std::chrono::milliseconds(5'000), [] { return stats().remote_budget_bytes == 192 * kMiB; }));
    kill_registry();
    killed.signal(SIGKILL);
    killed.wait();
  }
  ::sleep(12);
  restart_registry();
  EXPECT_TRUE(within(std::chrono::milliseconds(20'000), [&] {
    return output("node list --json --cluster " + cluster() + " 2>/dev/null").contains("daemon");
  }));
  EXPECT_TRUE(within(std::chrono::milliseconds(10'000), [] { return stats().remote_budget_bytes == 128 * kMiB; }));
  // They leave by the registry, and so have heard of it.
  for (const auto& daemon : {first.get(), second.get()}) {
    daemon->process().signal(SIGTERM);
    daemon->process().wait();
  }
  ASSERT_OK(vmem_shutdown());  // so does this program
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(count(log, "registry: etcd at"), 9u) << "3 processes: away, 10 s later, back\n" << log;
  EXPECT_EQ(count(log, "answers again"), 3u) << log;
  EXPECT_LE(count(log, "warning: "), 15u) << log;
}

TEST_F(RegistryLoss, AProgramWhoseClusterHasNoDaemonsSaysSoOnce) {
  ::testing::internal::CaptureStderr();
  ASSERT_OK(start({{"cluster", cluster() + "x"}, {"log", "warn"}}));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(log, "cluster 'demox' has no daemons yet"), 1u) << log;
  void* memory = nullptr;
  EXPECT_EQ(vmem_malloc(&memory, 512 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(vmem_last_error(), HasSubstr("run `vmem daemon` on another node"));
  EXPECT_THAT(output("node list --cluster " + cluster() + "y"),
              HasSubstr("cluster 'demoy' has no nodes; is that its name?"));
}

TEST_F(RegistryLoss, TheDoctorCountsTheNodesOfTheCluster) {
  const auto daemon = join();
  EXPECT_THAT(output("doctor --driver emulated --cluster " + cluster()),
              HasSubstr("the registry of cluster 'demo' answers; nodes: 1, of which daemons: 1"));
  EXPECT_THAT(output("doctor --driver emulated --cluster " + cluster() + "x"),
              HasSubstr("the registry of cluster 'demox' answers; nodes: 0, of which daemons: 0"));
}

}  // namespace
}  // namespace vmem
