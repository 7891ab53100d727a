// The guard of `vmem run` beside processes of its user that say nothing, or too much.
#include "runtime/guard.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace vmem::runtime {
namespace {

constexpr const char* kNobodyLends = "7 1\n\n\n\n127.0.0.1:9";

FileDescriptor dial(const std::string& path) {
  FileDescriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(::connect(made.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  return made;
}

// What a process that borrows says; whether the guard watches it.
bool is_watched(const FileDescriptor& caller, const std::string& text, int most_ms = 5'000) {
  if (::send(caller.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) return false;
  pollfd answer{caller.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&answer, 1, most_ms) == 1 && ::recv(caller.get(), &byte, 1, MSG_DONTWAIT) == 1;
}

std::size_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(open), end(open)));
}

struct Guarded : ::testing::Test {
  std::unique_ptr<Guard> guard;
  void SetUp() override {
    auto made = Guard::create();
    ASSERT_TRUE(made) << made.error().message;
    guard = std::move(*made);
    guard->start();
  }
};

TEST_F(Guarded, CallersThatSayNothingKeepNobodyWaiting) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(dial(guard->path()));
  EXPECT_TRUE(is_watched(dial(guard->path()), kNobodyLends));
}

TEST_F(Guarded, OneProcessThatAnnouncesAgainAndAgainTakesAFewDescriptors) {
  const std::size_t before = descriptors();
  int watched = 0;
  for (int i = 0; i < 200; ++i) watched += is_watched(dial(guard->path()), kNobodyLends) ? 1 : 0;
  EXPECT_GE(watched, 1);
  EXPECT_LT(watched, 10);
  EXPECT_LT(descriptors(), before + 20);
}

TEST_F(Guarded, NoiseIsAnsweredByTheEndOfTheConnection) {
  for (const char* const text : {"", "noise", "1", "1 2\n\n\n", "\n\n\n\n\n\n"})
    EXPECT_FALSE(is_watched(dial(guard->path()), text)) << text;
  EXPECT_TRUE(is_watched(dial(guard->path()), kNobodyLends));
}

}  // namespace
}  // namespace vmem::runtime
