// Processes of a local cluster: how they are named, started and ended.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>

#include "tools/cluster/ending.hpp"
#include "tools/cluster/interrupts.hpp"
#include "tools/cluster/launch.hpp"
#include "tools/cluster_folder.hpp"

namespace vmem::tools::local_cluster {
namespace {

using std::chrono::milliseconds;

// A child that says when it is ready, and then runs until a signal ends it.
class Child {
 public:
  explicit Child(const std::function<void()>& before = [] {}) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      before();
      (void)!::write(ready[1], "r", 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  ProcessId id() const { return process_with(pid_).value_or(ProcessId{}); }
  // Its end, without waiting for it as a parent: it is a zombie then.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t about{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOWAIT), 0);
  }

 private:
  pid_t pid_ = -1;
};

TEST(ClusterProcess, APidWithAnotherStartIsAnotherProcess) {
  const auto self = process_with(::getpid());
  ASSERT_TRUE(self);
  EXPECT_TRUE(lives(*self));
  EXPECT_FALSE(lives({.pid = self->pid, .started = self->started + 1}));
  EXPECT_FALSE(process_with(-1));
}

TEST(ClusterProcess, OneThatHasEndedDoesNotLiveThoughItsParentHasNotWaited) {
  const Child child;
  const ProcessId id = child.id();
  EXPECT_TRUE(lives(id));
  child.kill();
  EXPECT_FALSE(lives(id));
}

TEST(ClusterProcess, ItsNameMayLookLikeOtherFields) {
  const Child plain, named([] { ::prctl(PR_SET_NAME, ") Z 1 2 3 (x) "); });
  ASSERT_TRUE(process_with(named.pid()));
  const auto apart =
      std::max(plain.id().started, named.id().started) - std::min(plain.id().started, named.id().started);
  EXPECT_LT(apart, 1000u) << "ticks between the starts of two children";
}

TEST(ClusterProcess, TheirEndIsWaitedFor) {
  const Child first, second;
  const std::array ids{first.id(), second.id()};
  const auto killed = end_processes(ids, {});
  ASSERT_GOOD(killed);
  EXPECT_TRUE(killed->empty());
  EXPECT_FALSE(lives(ids[0]));
  EXPECT_FALSE(lives(ids[1]));
}

TEST(ClusterProcess, OneThatIgnoresSigtermIsKilledAndNamed) {
  const Child good, deaf([] { (void)::signal(SIGTERM, SIG_IGN); });
  const std::array ids{good.id(), deaf.id()};
  const auto killed = end_processes(ids, {.after_term = milliseconds(200), .after_kill = milliseconds(10'000)});
  ASSERT_GOOD(killed);
  EXPECT_EQ(*killed, std::vector<std::size_t>{1});
  EXPECT_FALSE(lives(ids[1]));
}

TEST(ClusterProcess, ARecycledPidGetsNoSignal) {
  const Child child;
  ProcessId other = child.id();
  ++other.started;
  const std::array ids{other, ProcessId{.pid = 1 << 30, .started = 5}};
  const auto killed = end_processes(ids, {.after_term = milliseconds(50), .after_kill = milliseconds(50)});
  ASSERT_GOOD(killed);
  EXPECT_TRUE(killed->empty());
  EXPECT_TRUE(lives(child.id()));
}

TEST(ClusterProcess, ASignalEndsThePauseAndIsNamed) {
  const Interrupts interrupts;
  EXPECT_TRUE(interrupts.pause(milliseconds(1)));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::raise(signal);
    EXPECT_THAT(message_of(interrupts.pause(milliseconds(60'000)), VMEM_ERROR_TIMEOUT),
                HasSubstr(std::string("SIG") + ::sigabbrev_np(signal)));
  }
  EXPECT_TRUE(interrupts.pause(milliseconds(1)));
}

class ClusterLaunch : public FolderTest {
 protected:
  Result<Launch> prepare(std::vector<std::string> words) {
    log_ = FileDescriptor(::open(around("log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    return Launch::prepare({.words = std::move(words), .environment = {"WORD=from outside"}}, log_);
  }
  // Runs a shell's script to its end, and returns its output.
  std::string output_of(const std::string& text) {
    auto launch = prepare({"/bin/sh", "-c", text});
    EXPECT_TRUE(launch);
    const pid_t pid = launch->process().pid;
    EXPECT_TRUE(launch->let_go());
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
    return text_in(around("log"));
  }

 private:
  FileDescriptor log_;
};

TEST_F(ClusterLaunch, AProcessThatIsNotLetGoEndsWithoutHavingRun) {
  ProcessId id;
  {
    const auto launch = prepare({"/bin/touch", around("ran")});
    ASSERT_GOOD(launch);
    id = launch->process();
    EXPECT_TRUE(lives(id));
  }
  EXPECT_FALSE(lives(id));
  EXPECT_FALSE(std::filesystem::exists(around("ran")));
}

// As if `up` were killed: its end closes the gate.
TEST_F(ClusterLaunch, AProcessEndsWithTheOneThatPreparedIt) {
  std::array<int, 2> told{};
  ASSERT_EQ(::pipe2(told.data(), O_CLOEXEC), 0);
  const pid_t starter = ::fork();
  if (starter == 0) {
    const auto launch = prepare({"/bin/touch", around("ran")});
    const ProcessId id = launch ? launch->process() : ProcessId{};
    (void)!::write(told[1], &id, sizeof(id));
    ::kill(::getpid(), SIGKILL);
  }
  ::close(told[1]);
  ProcessId id;
  EXPECT_EQ(::read(told[0], &id, sizeof(id)), ssize_t{sizeof(id)});
  ::close(told[0]);
  EXPECT_GT(id.pid, 0);
  const auto end = watch(id);
  ASSERT_GOOD(end);
  pollfd polled{.fd = *end ? (*end)->get() : -1, .events = POLLIN, .revents = 0};
  EXPECT_TRUE(!*end || ::poll(&polled, 1, 20'000) == 1);
  ::waitpid(starter, nullptr, 0);
  EXPECT_FALSE(std::filesystem::exists(around("ran")));
}

TEST_F(ClusterLaunch, ItsSessionIsItsOwnAndItsOutputIsInTheLog) {
  const std::string output = output_of("echo pid $$ session $(cut -d' ' -f6 /proc/$$/stat); echo $WORD >&2");
  int pid = 0, session = 0;
  ASSERT_EQ(std::sscanf(output.c_str(), "pid %d session %d", &pid, &session), 2) << output;
  EXPECT_EQ(pid, session);
  EXPECT_NE(session, ::getsid(0));
  EXPECT_THAT(output, HasSubstr("\nfrom outside\n"));
}

TEST_F(ClusterLaunch, ItReadsNothing) {
  const FileDescriptor kept(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  std::ofstream(around("input")) << "typed";
  const FileDescriptor input(::open(around("input").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::dup2(input.get(), STDIN_FILENO), STDIN_FILENO);
  const std::string output = output_of("cat; readlink /proc/$$/fd/0");
  kept ? (void)::dup2(kept.get(), STDIN_FILENO) : (void)::close(STDIN_FILENO);
  EXPECT_EQ(output, "/dev/null\n");
}

TEST_F(ClusterLaunch, ItGetsNoDescriptorsAndNoBlockedSignals) {
  const int inherited = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  const Interrupts interrupts;
  const auto before = ::signal(SIGTERM, SIG_IGN);
  const std::string output = output_of("ls /proc/$$/fd; grep -e SigBlk -e SigIgn /proc/self/status");
  (void)::signal(SIGTERM, before);
  ::close(inherited);
  // Signals 32 and 33 are the C library's: signal() refuses them, and it gives them handlers of its
  // own before it sends them, so that they may stay as whoever ran this test left them.
  EXPECT_THAT(output, ::testing::MatchesRegex("0\n1\n2\nSigBlk:\t0000000000000000\nSigIgn:\t0000000[01][08]0000000\n"));
}

TEST_F(ClusterLaunch, AProgramThatCannotBeRunIsNamedWithTheReason) {
  auto launch = prepare({around("missing")});
  ASSERT_GOOD(launch);
  const ProcessId id = launch->process();
  const std::string message = message_of(launch->let_go());
  EXPECT_THAT(message, HasSubstr(around("missing")));
  EXPECT_THAT(message, HasSubstr("No such file"));
  EXPECT_FALSE(lives(id));
}

TEST_F(ClusterLaunch, OneThatIsKilledBeforeItIsLetGoIsAnError) {
  auto launch = prepare({"/bin/true"});
  ASSERT_GOOD(launch);
  ::kill(launch->process().pid, SIGKILL);
  siginfo_t about{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(launch->process().pid), &about, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(message_of(launch->let_go()), HasSubstr("/bin/true cannot be run"));
}

}  // namespace
}  // namespace vmem::tools::local_cluster
