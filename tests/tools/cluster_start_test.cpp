// Starting and ending a local cluster, with programs that fail in the ways that etcd and daemons
// can.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "tools/cluster/claim.hpp"
#include "tools/cluster/start.hpp"
#include "tools/cluster/survey.hpp"
#include "tools/cluster_folder.hpp"

namespace vmem::tools::local_cluster {
namespace {

using std::chrono::milliseconds;
using std::filesystem::exists;

constexpr std::uint64_t kMiB = 1 << 20;

TEST(ClusterOptions, AreCheckedAgainstTheirRangesAndTheMachine) {
  const auto check = [](StartOptions options) { return check_options(options, 1000 * kMiB); };
  EXPECT_TRUE(check({.nodes = 16, .memory_bytes = 62 * kMiB, .copies_bytes = 0, .name = "a.B_c-9"}));
  EXPECT_TRUE(check({.nodes = 1, .memory_bytes = 1000 * kMiB, .copies_bytes = 0}));
  EXPECT_TRUE(check({.nodes = 1, .memory_bytes = 744 * kMiB})) << "and 256 MiB for copies";
  EXPECT_THAT(message_of(check({.nodes = 1, .memory_bytes = 745 * kMiB})),
              HasSubstr("--copies 256 MiB and --memory 745 MiB for each of 1 nodes"));
  EXPECT_THAT(message_of(check({.nodes = 0})), HasSubstr("--nodes 0: accepted: 1 to 16"));
  EXPECT_THAT(message_of(check({.nodes = 17})), HasSubstr("1 to 16"));
  EXPECT_THAT(message_of(check({.memory_bytes = kMiB})), HasSubstr("--memory 1MiB: memory is lent in units of 2 MiB"));
  const std::string too_much = message_of(check({.nodes = 3, .memory_bytes = 334 * kMiB, .copies_bytes = 0}));
  EXPECT_THAT(too_much, HasSubstr("--memory 334 MiB for each of 3 nodes"));
  EXPECT_THAT(too_much, HasSubstr("1000 MiB are available"));
  EXPECT_THAT(too_much, HasSubstr("at most 333MiB together"));
  EXPECT_TRUE(check({.nodes = 1, .memory_bytes = 600 * kMiB, .copies_bytes = 400 * kMiB}));
  EXPECT_THAT(message_of(check({.nodes = 1, .memory_bytes = 600 * kMiB, .copies_bytes = 401 * kMiB})),
              HasSubstr("--copies 401 MiB and --memory 600 MiB for each of 1 nodes"));
  EXPECT_THAT(message_of(check({.copies_bytes = kMiB})), HasSubstr("--copies 1MiB: pages have at least 2 MiB"));
  EXPECT_THAT(message_of(check({.nodes = 16, .memory_bytes = UINT64_MAX})), HasSubstr("for each of 16 nodes"));
  const runtime::HbmLoan loan{.ordinal = 0, .bytes = 64 * kMiB};
  EXPECT_TRUE(check({.nodes = 1, .memory_bytes = 488 * kMiB, .copies_bytes = 0, .hbm = {loan}}));
  EXPECT_THAT(message_of(check({.nodes = 1, .memory_bytes = 489 * kMiB, .copies_bytes = 0, .hbm = {loan}})),
              HasSubstr("and with --hbm each takes 512 MiB for the way to HBM; give at most 488MiB together"));
  EXPECT_THAT(message_of(check({.nodes = 1, .memory_bytes = 2 * kMiB, .hbm = {loan, loan}})),
              HasSubstr("--hbm says 2 times what a node lends, for 1 node; give --nodes 2"));
  for (const char* const name : {"", "a/b", "a b", "a?", "a@b:1/c"})
    EXPECT_THAT(message_of(check({.memory_bytes = 2 * kMiB, .name = name})), HasSubstr(std::string("--name '") + name));
}

TEST(ClusterOptions, LoansOfHbmGoToTheNodesInTurn) {
  const StartOptions options{.nodes = 3, .hbm = {{.ordinal = 0, .bytes = kMiB}, {.ordinal = 1, .bytes = 2 * kMiB}}};
  EXPECT_EQ(options.hbm_of(1)->ordinal, 0);
  EXPECT_EQ(options.hbm_of(2)->ordinal, 1);
  EXPECT_EQ(options.hbm_of(3)->ordinal, 0);
  EXPECT_FALSE(StartOptions{}.hbm_of(1));
}

class ClusterStart : public FolderTest {
 protected:
  ClusterStart() {
    surroundings.etcd = find_etcd().value_or("/no etcd is installed");
    surroundings.vmem = "/bin/false";
    surroundings.available_bytes = 1024 * kMiB;
  }
  Result<State> start(const Folder& folder) const {
    return Start(folder, {.nodes = 2, .memory_bytes = 2 * kMiB}, surroundings, interrupts_).run();
  }
  // The message with which it fails. Then nothing may be left.
  std::string failure(vmem_status status = VMEM_ERROR_DRIVER) {
    const auto folder = Folder::make(path());
    EXPECT_TRUE(folder);
    std::string message = message_of(start(*folder), status);
    EXPECT_FALSE(exists(path())) << message;
    expect_no_child_lives();
    return message;
  }
  // Its processes are this one's children.
  void expect_no_child_lives() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    EXPECT_EQ(errno, ECHILD) << "a process lives on";
  }

  Surroundings surroundings;

 private:
  const Interrupts interrupts_;
};

TEST_F(ClusterStart, AnEtcdThatEndsIsQuotedWithTheLastLinesOfItsLog) {
  surroundings.etcd = script("etcd", "seq 1 9; echo no room on the disk >&2; exit 1");
  const std::string message = failure();
  EXPECT_THAT(message, HasSubstr("etcd has ended; the last lines of its log:\n  5\n  6\n"));
  EXPECT_THAT(message, HasSubstr("\n  no room on the disk"));
}

TEST_F(ClusterStart, AnEtcdThatCannotBeRunIsNamed) {
  surroundings.etcd = around("missing");
  EXPECT_THAT(failure(VMEM_ERROR_INVALID_OPTION), HasSubstr(around("missing") + " cannot be run: No such file"));
}

TEST_F(ClusterStart, AnEtcdThatDoesNotAnswerIsEndedAfterItsTime) {
  surroundings.etcd = script("etcd", "exec sleep 1000");
  surroundings.etcd_limit = milliseconds(100);
  const std::string message = failure(VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(message, HasSubstr("etcd does not answer at 127.0.0.1:"));
  EXPECT_THAT(message, HasSubstr("within 100 ms; its log is empty"));
}

// Takes a port, as another process may do before etcd uses it.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), any, size) | ::listen(socket_.get(), 9) | ::getsockname(socket_.get(), any, &size),
              0);
    number = ntohs(address.sin_port);
  }
  std::uint16_t number = 0;

 private:
  FileDescriptor socket_;
};

TEST_F(ClusterStart, PortsThatAreTakenAreChosenAnew) {
  const TakenPort taken;
  int choices = 0;
  surroundings.choose_ports = [&]() -> Result<EtcdPorts> {
    VMEM_ASSIGN(EtcdPorts ports, free_ports());
    if (++choices == 1) ports.client = taken.number;
    if (choices == 2) ports.peer = taken.number;
    return ports;
  };
  EXPECT_THAT(failure(), HasSubstr("n1 has ended"));  // etcd ran, at last
  EXPECT_EQ(choices, 3);
}

TEST_F(ClusterStart, PortsThatAreTakenAgainAndAgainAreAnError) {
  const TakenPort taken;
  surroundings.choose_ports = [&]() -> Result<EtcdPorts> {
    VMEM_ASSIGN(EtcdPorts ports, free_ports());
    return EtcdPorts{.client = taken.number, .peer = ports.peer};
  };
  const std::string message = failure();
  EXPECT_THAT(message, HasSubstr(fmt::format("took etcd's ports 3 times, at last {}", taken.number)));
  EXPECT_THAT(message, HasSubstr("address already in use"));
}

TEST_F(ClusterStart, ADaemonThatEndsTakesAllDownAgain) {
  surroundings.vmem = script("vmem", R"(test "$9" = node=n1 && exec sleep 1000; echo no "$9" today)");
  const std::string message = failure();
  EXPECT_THAT(message, ::testing::MatchesRegex("n2 has ended; the last lines of its log:\n  no node=n2 today"));
}

// Or `down` could not find it.
TEST_F(ClusterStart, AProcessThatCannotBePutOnRecordDoesNotRun) {
  surroundings.etcd = script("etcd", "mkdir " + path() + "/state.json.new; exec " + surroundings.etcd + R"( "$@")");
  surroundings.vmem = script("vmem", "echo ran > " + around("ran"));
  EXPECT_THAT(failure(VMEM_ERROR_INVALID_OPTION), HasSubstr("state.json.new cannot be written: Is a directory"));
  EXPECT_FALSE(exists(around("ran")));
}

TEST_F(ClusterStart, ADaemonThatDoesNotJoinEndsTheStartAfterItsTime) {
  surroundings.vmem = script("vmem", "exec sleep 1000");
  surroundings.daemons_limit = milliseconds(100);
  EXPECT_THAT(failure(VMEM_ERROR_TIMEOUT), HasSubstr("n1 is not a member within 100 ms"));
}

TEST_F(ClusterStart, ASignalTakesAllDownAgain) {
  surroundings.vmem = script("vmem", fmt::format("kill -INT {}; exec sleep 1000", ::getpid()));
  EXPECT_THAT(failure(VMEM_ERROR_TIMEOUT), HasSubstr("ended by SIGINT"));
}

TEST_F(ClusterStart, FilesOfOthersAreLeftAsTheyAre) {
  std::filesystem::create_directory(path());
  ::chmod(path().c_str(), 0700);
  for (const std::string name : {"n2.log", "etcd", "etcd.log"}) {
    std::ofstream(path() + "/" + name) << "mine";
    const auto folder = Folder::make(path());
    ASSERT_GOOD(folder);
    EXPECT_THAT(message_of(start(*folder)), HasSubstr(path() + "/" + name + " exists, and is of no cluster"));
    EXPECT_EQ(text_in(path() + "/" + name), "mine");
    std::filesystem::remove(path() + "/" + name);
  }
  // A failure later on removes the cluster's own files, and no others.
  std::ofstream(path() + "/n3.log") << "mine";
  {
    const auto folder = Folder::make(path());
    ASSERT_GOOD(folder);
    EXPECT_THAT(message_of(start(*folder), VMEM_ERROR_DRIVER), HasSubstr("n1 has ended"));
  }
  EXPECT_EQ(text_in(path() + "/n3.log"), "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path()), {}), 1);
  expect_no_child_lives();
}

// Children that stand for the processes of a cluster, and the folder with their state.
class LeftCluster : public FolderTest {
 protected:
  LeftCluster() {
    auto folder = Folder::make(path());
    EXPECT_TRUE(folder);
    state.boot = this_boot();
    state.address = "etcd://127.0.0.1:1/local";
    state.nodes = 1;
    state.made_folder = true;
    for (const char* const name : {"etcd", "n1"}) {
      auto log = folder->make_log(log_of(name));
      auto launch = Launch::prepare({.words = {"/bin/sleep", "1000"}, .environment = {}}, *log);
      EXPECT_TRUE(launch && launch->let_go());
      state.processes.push_back({.name = name, .id = launch->process(), .command = {"sleep"}});
    }
    std::filesystem::create_directory(folder->file("etcd"));
    std::ofstream(folder->file("etcd/data")) << "data";
  }
  ~LeftCluster() override {
    for (const ManagedProcess& each : state.processes) ::kill(each.id.pid, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }
  void write() const {
    const auto folder = Folder::make(path());
    ASSERT_GOOD(folder);
    ASSERT_GOOD(write_state(*folder, state));
  }
  bool lives(std::size_t place) const { return vmem::lives(state.processes[place].id); }

  State state;
};

TEST_F(LeftCluster, OneThatIsUpIsNotStartedAgain) {
  state.started = true;
  write();
  EXPECT_THAT(message_of(claim(path())), HasSubstr("etcd://127.0.0.1:1/local is up already, in " + path()));
  ASSERT_GOOD(end_processes(std::array{state.processes[1].id}, {}));
  EXPECT_THAT(message_of(claim(path())), HasSubstr("is up already (without n1)"));
  EXPECT_TRUE(lives(0));
}

TEST_F(LeftCluster, OneWhoseStartWasCutOffIsEndedFirst) {
  write();
  std::ofstream(path() + "/state.json.new") << "{";  // it was killed while it wrote this
  const auto claimed = claim(path());
  ASSERT_GOOD(claimed);
  EXPECT_EQ(claimed->ended, (std::vector<std::string>{"n1", "etcd"}));
  EXPECT_FALSE(lives(0));
  EXPECT_FALSE(lives(1));
  EXPECT_TRUE(claimed->folder.is_new());
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(LeftCluster, OneOfAnEarlierBootLosesItsFilesOnly) {
  state.started = true;
  state.boot = "another";
  write();
  const auto claimed = claim(path());
  ASSERT_GOOD(claimed);
  EXPECT_TRUE(claimed->ended.empty());
  EXPECT_TRUE(lives(0));
  EXPECT_TRUE(lives(1));
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(LeftCluster, AFolderThatWasThereBeforeStays) {
  state.made_folder = false;
  write();
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  ASSERT_GOOD(stop(*folder, state));
  ASSERT_TRUE(exists(path()));
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(ClusterStart, AFolderWithoutAStateIsNew) {
  ASSERT_TRUE(Folder::make(path()));
  std::ofstream(path() + "/state.json.new") << "{";  // `up` was killed while it wrote its first
  const auto claimed = claim(path());
  ASSERT_GOOD(claimed);
  EXPECT_TRUE(claimed->folder.is_new());
  EXPECT_TRUE(std::filesystem::is_empty(path()));
}

TEST_F(LeftCluster, ADamagedStateIsLeftForItsUser) {
  std::ofstream(path() + "/state.json") << "{";
  EXPECT_THAT(message_of(claim(path())), HasSubstr("state.json is damaged"));
  EXPECT_EQ(text_in(path() + "/state.json"), "{");
  EXPECT_TRUE(lives(0));
}

// A child that waits for SIGTERM, and then says whether the process lives.
pid_t start_witness(const ProcessId& of, const std::string& file) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &term, &before);
  const pid_t child = ::fork();
  if (child == 0) {
    int signal = 0;
    ::sigwait(&term, &signal);
    std::ofstream(file) << (vmem::lives(of) ? "lives" : "has ended");
    ::_exit(0);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return child;
}

TEST_F(LeftCluster, EtcdOutlivesItsDaemons) {
  const pid_t witness = start_witness(state.processes[0].id, around("said"));
  state.nodes = 2;
  state.processes.push_back({.name = "n2", .id = process_with(witness).value_or(ProcessId{}), .command = {}});
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  const auto stopped = stop(*folder, state);
  ASSERT_GOOD(stopped);
  EXPECT_EQ(stopped->ended, (std::vector<std::string>{"n1", "n2", "etcd"}));
  EXPECT_TRUE(stopped->killed.empty());
  EXPECT_EQ(text_in(around("said")), "lives");
  EXPECT_FALSE(exists(path()));
}

TEST_F(LeftCluster, ASurveyWithoutEtcdSaysWhatLives) {
  state.started = true;
  state.memory_bytes = 2 * kMiB;
  ASSERT_GOOD(end_processes(std::array{state.processes[0].id}, {}));
  const Survey found = survey(state);
  EXPECT_FALSE(found.whole());
  EXPECT_EQ(found.lent_bytes(), 0u);
  const std::string text = text_of(found);
  EXPECT_THAT(text, HasSubstr("etcd://127.0.0.1:1/local: 1 of 1 node alive and lending 0 B\n"));
  EXPECT_THAT(text, HasSubstr("  etcd  has ended          does not answer: etcd has ended\n"));
  EXPECT_THAT(text, HasSubstr(fmt::format("  n1    process {}", state.processes[1].id.pid)));
  EXPECT_EQ(json_of(found).at("processes").at(0).at("lives"), false);
  EXPECT_EQ(json_of(found).at("processes").at(1).at("lives"), true);
}

}  // namespace
}  // namespace vmem::tools::local_cluster
