#include "rdma/transport/ucx/ucx_address_check.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "rdma/transport/mutated_address.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

// "" if UCX accepts the addresses, or the reason.
std::string outcome_of(const UcxAddressChecker& checker, const std::vector<UcxAddress>& addresses) {
  auto check = checker.start(addresses);
  if (!check) return check.error().message;
  for (;;) {
    pollfd ended{.fd = check->descriptor(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ended, 1, 20'000), 1) << "it does not end";
    const auto done = check->done();
    if (!done) return done.error().message;
    if (*done) return "";
  }
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(open), end(open)));
}

class UcxAddressCheckTest : public testing::Test {
 protected:
  AddressOwner owner_;
  const UcxAddressChecker checker_ = *UcxAddressChecker::create(*Ucx::load(), kTcpOnLoopback);
};

TEST_F(UcxAddressCheckTest, AddressesOfWorkersAreTaken) {
  const AddressOwner other;
  EXPECT_EQ(outcome_of(checker_, {owner_.address()}), "");
  EXPECT_EQ(outcome_of(checker_, {owner_.address(), other.address(), owner_.address()}), "");
}

TEST_F(UcxAddressCheckTest, AnAddressThatEndsAProcessIsRefused) {
  std::mt19937 random(1);
  std::size_t refused = 0, fatal = 0;
  for (int round = 0; round < 400 && fatal < 3; ++round) {
    const std::string outcome = outcome_of(checker_, {owner_.address(), mutated(owner_.address(), random)});
    refused += outcome.empty() ? 0 : 1;
    fatal += outcome.find("ends a process that uses it") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(fatal, 3u) << "of " << refused << " that were refused";
  EXPECT_EQ(outcome_of(checker_, {owner_.address()}), "");
}

// The lower six bits of some bytes hold the length of a part. UCX dereferences a null pointer for a
// part of length 0, so an address accepted by mistake crashes this process.
TEST_F(UcxAddressCheckTest, WhatIsTakenCanBeConnectedToWhicheverPartIsLeftOut) {
  const auto worker = *UcxWorker::create(*UcxContext::create(*Ucx::load(), kTcpOnLoopback));
  std::size_t taken = 0, refused = 0;
  for (std::size_t i = 0; i < owner_.address().size(); ++i) {
    UcxAddress without = owner_.address();
    without[i] &= std::byte{0xc0};
    if (without == owner_.address()) continue;
    if (!outcome_of(checker_, {without}).empty()) {
      ++refused;
      continue;
    }
    ++taken;
    (void)UcxEndpoint::create(worker, without, [](void*, ucp_ep_h, ucs_status_t) {}, nullptr);
  }
  EXPECT_GT(taken, 0u);
  EXPECT_GT(refused, 0u);
}

TEST_F(UcxAddressCheckTest, WhatIsNoAddressIsRefused) {
  const UcxAddress cut(owner_.address().begin(), owner_.address().begin() + 9);
  EXPECT_NE(outcome_of(checker_, {cut}), "");
  EXPECT_NE(outcome_of(checker_, {UcxAddress(owner_.address().size(), std::byte{0})}), "");
}

// A TCP connection would add a socket to this process, where the worker listens.
TEST_F(UcxAddressCheckTest, TheOwnerOfAnAddressSeesNothing) {
  const std::size_t before = descriptors();
  EXPECT_EQ(outcome_of(checker_, {owner_.address()}), "");
  for (int i = 0; i < 1000; ++i) owner_.worker().progress();
  ::usleep(50'000);  // UCX accepts connections in a thread of its own
  EXPECT_EQ(descriptors(), before);
}

TEST_F(UcxAddressCheckTest, OneThatIsGivenUpLeavesNothingBehind) {
  const std::size_t open = descriptors();
  {
    const auto unfinished = checker_.start({&owner_.address(), 1});
    ASSERT_TRUE(unfinished);
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_EQ(descriptors(), open);
}

// Programs that use vmem have children of their own.
TEST_F(UcxAddressCheckTest, TheVerdictIsThereWhoeverWaitsForChildren) {
  const std::size_t open = descriptors();
  ASSERT_NE(::signal(SIGCHLD, SIG_IGN), SIG_ERR);
  EXPECT_EQ(outcome_of(checker_, {owner_.address()}), "");
  ASSERT_NE(::signal(SIGCHLD, [](int) { (void)::waitpid(-1, nullptr, WNOHANG); }), SIG_ERR);
  EXPECT_EQ(outcome_of(checker_, {owner_.address()}), "");
  EXPECT_NE(outcome_of(checker_, {UcxAddress(9, std::byte{1})}), "");
  ASSERT_NE(::signal(SIGCHLD, SIG_DFL), SIG_ERR);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "one is left behind";
  EXPECT_EQ(descriptors(), open);
}

}  // namespace
}  // namespace vmem::rdma
