#include <sys/wait.h>

#include "cluster/registry/etcd_client.hpp"

namespace vmem::cluster {
namespace {

namespace fs = std::filesystem;

// Descriptors of connections over IP.
std::vector<int> connections() {
  std::vector<int> found;
  for (const fs::directory_entry& each : fs::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(each.path().filename());
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_INET)
      found.push_back(number);
  }
  return found;
}

class EtcdForkTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(client.asker().keys().empty()); }

  const std::unique_ptr<EtcdServers> servers = start_etcd(1);
  EtcdClient client{address_of(*servers)};
};

TEST_F(EtcdForkTest, AChildHasNoConnectionAndSaysSo) {
  ASSERT_FALSE(connections().empty());
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    if (!connections().empty()) wrong |= 1;
    const RequestId id = client.registry().post(ReadPrefix{""});
    std::vector<Reply> replies;
    client.registry().poll(replies);
    if (replies.size() != 1 || replies[0].request != id) ::_exit(2);
    const auto* error = std::get_if<Error>(&replies[0].what);
    if (error == nullptr || error->status != VMEM_ERROR_FORKED) wrong |= 4;
    client.end();
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client.asker().keys().empty());
}

TEST_F(EtcdForkTest, NoConnectionOutlivesExec) {
  ASSERT_FALSE(connections().empty());
  for (const int each : connections()) EXPECT_NE(::fcntl(each, F_GETFD) & FD_CLOEXEC, 0) << each;
}

}  // namespace
}  // namespace vmem::cluster
