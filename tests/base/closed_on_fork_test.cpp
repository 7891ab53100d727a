#include "base/closed_on_fork.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace vmem {
namespace {

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

// The result of `ask` in a forked child.
template <class Ask>
bool in_child(Ask ask) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ask() ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  int ends[2];
};

TEST(ClosedOnFork, AChildHasTheDescriptorNoMore) {
  const Pipe pipe;
  const ClosedOnFork owned(pipe.ends[0]);
  EXPECT_FALSE(in_child([&] { return is_open(pipe.ends[0]); }));
  EXPECT_TRUE(in_child([&] { return is_open(pipe.ends[1]); }));
  EXPECT_TRUE(is_open(pipe.ends[0])) << "in the parent it stays";
}

TEST(ClosedOnFork, WhatIsNoLongerOwnedIsLeftAlone) {
  const Pipe pipe;
  {
    const ClosedOnFork owned(pipe.ends[0]);
  }
  EXPECT_TRUE(in_child([&] { return is_open(pipe.ends[0]); }));
}

TEST(ClosedOnFork, OwnershipMoves) {
  const Pipe pipe;
  ClosedOnFork owner;
  {
    ClosedOnFork first(pipe.ends[0]);
    owner = std::move(first);
  }
  EXPECT_FALSE(in_child([&] { return is_open(pipe.ends[0]); }));
  owner = {};
  EXPECT_TRUE(in_child([&] { return is_open(pipe.ends[0]); }));
}

TEST(OwnDescriptor, AChildHasItNoMoreAndAnotherFilesNumberStays) {
  const Pipe pipe;
  OwnDescriptor owner(FileDescriptor(::dup(pipe.ends[0])));
  const int number = owner.get();
  OwnDescriptor moved(std::move(owner));
  EXPECT_FALSE(in_child([&] { return is_open(number); }));
  moved = OwnDescriptor(FileDescriptor(::dup(pipe.ends[0])));
  EXPECT_FALSE(is_open(number)) << "what it had is closed";
  const int second = moved.get();
  EXPECT_FALSE(in_child([&] { return is_open(second); }));
  moved.reset();
  EXPECT_FALSE(moved);
  const FileDescriptor another(::dup2(pipe.ends[0], second));
  EXPECT_TRUE(in_child([&] { return is_open(second); }));
}

TEST(ClosedOnFork, MoreThanThereArePlacesForAreKeptByChildren) {
  const Pipe pipe;
  std::vector<ClosedOnFork> many;
  for (int i = 0; i < ClosedOnFork::kMost; ++i) many.emplace_back(1'000'000 + i);
  {
    const ClosedOnFork one_more(pipe.ends[0]);
  }
  many.clear();
  const ClosedOnFork owned(pipe.ends[0]);
  EXPECT_FALSE(in_child([&] { return is_open(pipe.ends[0]); }));
}

}  // namespace
}  // namespace vmem
