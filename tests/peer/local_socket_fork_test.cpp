// Local sockets of lenders and borrowers, in processes that fork.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "peer/living_child.hpp"
#include "peer/wire.hpp"

namespace vmem::peer {
namespace {

using namespace std::chrono_literals;

class LocalSocketFork : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/hbm"; }

  std::string folder_ = ::testing::TempDir() + "vmem-local-XXXXXX";
};

TEST_F(LocalSocketFork, ALendersNameIsFreeOnceItWasKilledThoughAForkedChildLives) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t killed = ::fork();
  if (killed == 0) {
    const auto listener = listen_at(path());
    if (!listener || ::fork() != 0) ::_exit(listener ? 0 : 1);
    const pid_t child = ::getpid();
    if (::write(write_end.get(), &child, sizeof child) != sizeof child) ::_exit(1);
    for (;;) ::pause();
  }
  ASSERT_EQ(::waitpid(killed, nullptr, 0), killed);
  write_end.reset();
  pid_t child = -1;
  ASSERT_EQ(::read(read_end.get(), &child, sizeof child), ssize_t{sizeof child});
  ASSERT_GT(child, 0);
  const auto next = listen_at(path());
  EXPECT_TRUE(next) << next.error().message;
  EXPECT_EQ(::kill(child, SIGKILL), 0) << "it lived all the while";
}

TEST_F(LocalSocketFork, AForkedChildOfABorrowerKeepsNoConnection) {
  auto listener = listen_at(path());
  ASSERT_TRUE(listener) << listener.error().message;
  auto connected = connect_to(path());
  ASSERT_TRUE(connected) << connected.error().message;
  const auto accepted = accept_from(listener->socket.get());
  ASSERT_TRUE(accepted) << accepted.error().message;
  const LivingChild child;
  connected->reset();
  wait_readable(accepted->get(), 1s);
  EXPECT_FALSE(receive(accepted->get())) << "the borrower has closed it";
}

TEST_F(LocalSocketFork, AForkedChildKeepsNoLockOfTheFolder) {
  const std::string other = folder_ + "/other";
  std::atomic<bool> done = false;
  // Takes the lock repeatedly, so that some forks happen while it is held.
  std::thread lending([&] {
    while (!done) (void)listen_at(other);
  });
  std::vector<std::unique_ptr<LivingChild>> children;
  for (int i = 0; i < 50; ++i) children.push_back(std::make_unique<LivingChild>());
  done = true;
  lending.join();
  const auto listener = listen_at(path());
  EXPECT_TRUE(listener) << listener.error().message;
}

}  // namespace
}  // namespace vmem::peer
