// Guards in this process: a silent process delays no other, and programs find the guards of
// daemons.
#include "runtime/remote/guard.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "rdma/trust/local_socket.hpp"
#include "runtime/remote/remote.hpp"

namespace {

std::atomic<bool> no_threads{false};

}  // namespace

// Fails as if the user had reached the limit of threads.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : create(thread, attributes, run, argument);
}

namespace vmem::runtime {
namespace {

using std::chrono::steady_clock;

FileDescriptor connect_to(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0) << path;
  return socket;
}

std::chrono::milliseconds time_to_announce() {
  const auto begun = steady_clock::now();
  announce_to_guard(
      {.node = {NodeId{7}, Incarnation{1}}, .secret = "", .certificates = "", .fabric = "", .lenders = {}});
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begun);
}

constexpr const char* kNobodyLends = "7 1\n\n\n\n127.0.0.1:9";

// Sends a borrowing process's announcement; returns whether the guard answers, and so watches it.
bool is_watched(const FileDescriptor& caller, const std::string& text) {
  if (::send(caller.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) return false;
  pollfd answer{caller.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&answer, 1, 5'000) == 1 && ::recv(caller.get(), &byte, 1, MSG_DONTWAIT) == 1;
}

std::ptrdiff_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

struct GuardTest : ::testing::Test {
  ~GuardTest() override { ::unsetenv(kGuardVariable); }
};

TEST_F(GuardTest, WhoSaysNothingHoldsUpNobody) {
  const auto guard = *Guard::of_run();
  guard->start();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(connect_to(guard->path()));
  ::setenv(kGuardVariable, guard->path().c_str(), 1);
  EXPECT_LT(time_to_announce(), std::chrono::milliseconds(900)) << "the first of them has a second";
}

TEST_F(GuardTest, OneProcessThatAnnouncesAgainAndAgainTakesAFewDescriptors) {
  const auto guard = *Guard::of_run();
  guard->start();
  const std::ptrdiff_t before = descriptors();
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(is_watched(connect_to(guard->path()), kNobodyLends));
  EXPECT_LT(descriptors(), before + 20);
}

// A process that announces `lender` as its lender, and lives until release().
class BorrowingProcess {
 public:
  BorrowingProcess(const std::string& guard, const std::string& lender) {
    int watched[2], released[2];
    EXPECT_EQ(::pipe(watched) | ::pipe(released), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(released[1]);
      char byte = 0;
      const bool heard = is_watched(connect_to(guard), "7 1\n\n\n\n" + lender);
      (void)!::write(watched[1], &byte, heard ? 1 : 0);
      ::close(watched[1]);
      ::_exit(::read(released[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::close(watched[1]);
    ::close(released[0]);
    released_ = FileDescriptor(released[1]);
    char byte = 0;
    EXPECT_EQ(::read(watched[0], &byte, 1), 1) << "the guard did not answer";
    ::close(watched[0]);
  }
  void release() {
    released_.reset();
    EXPECT_EQ(::waitpid(child_, nullptr, 0), child_);
  }

 private:
  pid_t child_ = -1;
  FileDescriptor released_;
};

TEST_F(GuardTest, WithoutAThreadToBeHadAnEndIsReportedAllTheSame) {
  const std::string lender = fmt::format("127.0.0.1:{}", 20'000 + ::getpid() % 10'000);
  const sockaddr_un name = *rdma::socket_path(*rdma::SocketAddress::parse(lender));
  FileDescriptor there(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  (void)::unlink(name.sun_path);  // left by a daemon that was killed
  ASSERT_EQ(::bind(there.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) | ::listen(there.get(), 1), 0);
  const auto guard = *Guard::of_run();
  guard->start();
  BorrowingProcess program(guard->path(), lender);
  no_threads = true;
  program.release();
  pollfd called{there.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&called, 1, 10'000), 1) << "nothing was reported";
  no_threads = false;
  (void)::unlink(name.sun_path);
}

TEST_F(GuardTest, NoiseIsAnsweredByTheEndOfTheConnection) {
  const auto guard = *Guard::of_run();
  guard->start();
  for (const char* const text : {"", "noise", "1", "1 2\n\n\n", "\n\n\n\n\n\n"})
    EXPECT_FALSE(is_watched(connect_to(guard->path()), text)) << text;
  EXPECT_TRUE(is_watched(connect_to(guard->path()), kNobodyLends));
}

TEST_F(GuardTest, AnEmptyVariableMeansThatNobodyIsToWatch) {
  const auto guard = *Guard::of_daemon();  // does not answer: its thread has not started
  ::setenv(kGuardVariable, "", 1);
  EXPECT_LT(time_to_announce(), std::chrono::milliseconds(500));
}

TEST_F(GuardTest, ADaemonThatDoesNotAnswerHoldsUpAStartForTwoSecondsAtMost) {
  const auto guard = *Guard::of_daemon();
  EXPECT_GE(time_to_announce(), std::chrono::milliseconds(1'900)) << "it was asked";
  EXPECT_LT(time_to_announce(), std::chrono::milliseconds(4'000));
}

// A guard could not report its end, since the file is unusable.
TEST_F(GuardTest, AStartWhoseSecretCannotBeReadIsAnnouncedToNobody) {
  const auto guard = *Guard::of_run();  // does not answer: its thread has not started
  ::setenv(kGuardVariable, guard->path().c_str(), 1);
  Options options;
  options.remote = {"127.0.0.1:9"};
  options.secret = "/nonexistent";
  const auto begun = steady_clock::now();
  EXPECT_FALSE(Remote::start(options, [] {}));
  EXPECT_LT(steady_clock::now() - begun, std::chrono::seconds(5)) << "an answer would be waited for 10 s";
}

TEST_F(GuardTest, ADaemonsSocketGoesWithItAndOneThatWasLeftGoesWithTheNext) {
  const std::string folder = *rdma::socket_directory();
  const std::string left = fmt::format("{}/daemon-guard-left-{}", folder, ::getpid());
  {
    const auto killed = *Guard::of_daemon();
    std::filesystem::rename(killed->path(), left);  // as if it could not be removed
  }
  EXPECT_TRUE(std::filesystem::exists(left));
  std::string path;
  {
    const auto guard = *Guard::of_daemon(), other = *Guard::of_daemon();
    path = guard->path();
    EXPECT_TRUE(std::filesystem::exists(path)) << "the other one has left it alone";
    EXPECT_FALSE(std::filesystem::exists(left));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace vmem::runtime
