// `vmem cluster` from outside, with etcd and daemons.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "rdma/process.hpp"
#include "tools/cluster/ending.hpp"
#include "tools/cluster/state.hpp"
#include "tools/cluster_folder.hpp"

namespace vmem::tools::local_cluster {
namespace {

using std::filesystem::exists;

// Beside this test; the program may be in the bin folder of a distribution.
std::string beside(const std::string& name) {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  for (const char* const folder : {".", "bin", "../bin", "../../bin", "../../../bin"})
    if (const auto path = here / folder / name; std::filesystem::is_regular_file(path)) return path.string();
  return name;
}

class ClusterCommand : public FolderTest {
 protected:
  // Ends what a failed test has left.
  ~ClusterCommand() override {
    const auto folder = Folder::find(path());
    if (!folder || !*folder) return;
    const auto state = read_state(**folder);
    if (!state || !*state) return;
    for (const ManagedProcess& each : (*state)->processes)
      if (lives(each.id)) ::kill(each.id.pid, SIGKILL);
  }
  struct Outcome {
    int code = -1;
    std::string text;  // stdout and stderr
  };
  static Outcome shell(const std::string& line) {
    Outcome outcome;
    std::FILE* const pipe = ::popen((line + " 2>&1").c_str(), "r");
    std::array<char, 4096> buffer{};
    while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
      outcome.text.append(buffer.data(), got);
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }
  Outcome cluster(const std::string& words, const std::string& environment = "") const {
    return shell(environment + " " + beside("vmem") + " cluster " + words + " --dir " + path());
  }
  // Of a command that is to succeed.
  std::string said(const std::string& words) const {
    const Outcome outcome = cluster(words);
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.text;
    return outcome.text;
  }
  std::string address() const {
    std::string text = said("status --address");
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }
  State state() const { return parse_state(path(), text_in(path() + "/state.json")).value_or(State{}); }
  static Outcome borrow(const std::string& address) {
    return shell(
        "VMEM_EMU=devices=1,hbm=256MiB,host=1GiB VMEM_DRIVER=emulated VMEM_HBM=32MiB VMEM_HOST=32MiB "
        "VMEM_PAGE=2MiB VMEM_CLUSTER=" +
        address + " " + beside("cluster_borrower"));
  }
};

TEST_F(ClusterCommand, AClusterIsStartedUsedSurveyedAndEnded) {
  const std::string up = said("up --nodes 3 --memory 64MiB --copies 32MiB --name trial");
  const std::string trial = address();
  EXPECT_TRUE(trial.starts_with("etcd://127.0.0.1:") && trial.ends_with("/trial")) << trial;
  EXPECT_THAT(up, HasSubstr("3 nodes of " + trial + " are up, each with 64 MiB of memory and 32 MiB for copies\n"));
  EXPECT_THAT(up, HasSubstr("vmem run --cluster " + trial + " -- PROGRAM"));
  EXPECT_THAT(up, HasSubstr("export VMEM_CLUSTER=" + trial));
  EXPECT_THAT(up, HasSubstr("vmem cluster down --dir " + path()));

  const Outcome again = cluster("up");
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.text, HasSubstr(trial + " is up already, in " + path()));

  const auto nodes = nlohmann::json::parse(shell(beside("vmem") + " node list --json --cluster " + trial).text);
  ASSERT_EQ(nodes.size(), 3u);
  for (const auto& each : nodes) {
    EXPECT_EQ(each.at("memory_bytes"), 64 << 20);
    EXPECT_EQ(each.at("copies_bytes"), 32 << 20);
  }

  const Outcome program = borrow(trial);
  EXPECT_EQ(program.code, 0);
  unsigned long stored = 0;
  ASSERT_EQ(std::sscanf(program.text.c_str(), "stored %lu MiB on other nodes; 0 wrong words", &stored), 1)
      << program.text;
  EXPECT_GE(stored, 64u);

  EXPECT_THAT(said("status"), HasSubstr(trial + ": 3 of 3 nodes alive and lending 192 MiB\n"));
  const State before = state();
  ASSERT_EQ(before.processes.size(), 4u);
  for (const ManagedProcess& each : before.processes) EXPECT_EQ(::getsid(each.id.pid), each.id.pid) << each.name;

  ASSERT_EQ(::kill(before.processes[2].id.pid, SIGKILL), 0);
  ASSERT_TRUE(end_processes(std::array{before.processes[2].id}, {}));
  const Outcome without = cluster("status");
  EXPECT_EQ(without.code, 1);
  EXPECT_THAT(without.text, HasSubstr("2 of 3 nodes alive and lending 128 MiB\n"));
  EXPECT_THAT(without.text, HasSubstr("n2    has ended          "));
  const auto json = nlohmann::json::parse(cluster("status --json").text);
  EXPECT_EQ(json.at("whole"), false);
  EXPECT_EQ(json.at("cluster"), trial);
  EXPECT_EQ(json.at("lent_bytes"), 128 << 20);
  EXPECT_EQ(json.at("processes").at(2).at("lives"), false);
  EXPECT_EQ(json.at("processes").at(3).at("lives"), true);
  const Outcome where = cluster("status --address");
  EXPECT_EQ(where.code, 1) << "not all of it is up";
  EXPECT_EQ(where.text, trial + "\n");

  auto another = std::make_unique<rdma::Process>(std::vector<std::string>{
      beside("vmem"), "daemon", "--lend", "16MiB", "--listen", "127.0.0.1:0", "--cluster", trial});
  while (!shell(beside("vmem") + " node list --cluster " + trial).text.contains("lends 16 MiB")) ::usleep(20'000);
  EXPECT_THAT(cluster("status").text, HasSubstr("2 of 3 nodes alive and lending 128 MiB; and 1 daemon that it did not "
                                                "start, lending 16 MiB\n"));
  another.reset();

  EXPECT_EQ(said("down"), "vmem cluster: 3 processes have ended\n");
  EXPECT_FALSE(exists(path()));
  for (const ManagedProcess& each : before.processes) EXPECT_FALSE(lives(each.id)) << each.name;
  EXPECT_THAT(said("down"), HasSubstr("no cluster is up in " + path()));
  const Outcome gone = cluster("status");
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.text, HasSubstr("no cluster is up in " + path()));
}

TEST_F(ClusterCommand, ItsDaemonsLendHbmToo) {
  const std::string gpus = "VMEM_DRIVER=emulated VMEM_EMU=devices=2,hbm=256MiB,host=1GiB";
  const Outcome up = cluster("up --nodes 2 --memory 16MiB --hbm 0:64MiB,1:128MiB", gpus);
  EXPECT_EQ(up.code, 0) << up.text;
  EXPECT_THAT(up.text, HasSubstr("each with 16 MiB of memory and 64 MiB of HBM of GPU 0 or 128 MiB of HBM of GPU 1 "
                                 "and 256 MiB for copies\n"));
  const std::string status = said("status");
  EXPECT_THAT(status, HasSubstr("2 of 2 nodes alive and lending 224 MiB\n"));
  EXPECT_THAT(status, HasSubstr(" lends 16 MiB and 64 MiB of HBM\n"));
  EXPECT_THAT(status, HasSubstr(" lends 16 MiB and 128 MiB of HBM\n"));
  const std::string listed = shell(beside("vmem") + " node list --cluster " + address()).text;
  EXPECT_THAT(listed, HasSubstr("64 MiB of HBM (GPU 0, "));
  EXPECT_THAT(listed, HasSubstr("128 MiB of HBM (GPU 1, "));
  const Outcome program = borrow(address());
  EXPECT_EQ(program.code, 0) << program.text;
  EXPECT_THAT(program.text, HasSubstr("0 wrong words"));
  EXPECT_EQ(said("down"), "vmem cluster: 3 processes have ended\n");
}

TEST_F(ClusterCommand, AGpuThatIsNotThereTakesAllDownAgain) {
  const Outcome outcome = cluster("up --nodes 1 --memory 16MiB --hbm 7:64MiB",
                                  "VMEM_DRIVER=emulated VMEM_EMU=devices=1,hbm=256MiB,host=1GiB");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.text, HasSubstr("--hbm 7:64 MiB names GPU 7, and there is 1"));
  EXPECT_FALSE(exists(path()));
}

TEST_F(ClusterCommand, DaemonsThatRefuseTheirOptionsAreQuotedAndNothingIsLeft) {
  const Outcome outcome = cluster("up --nodes 2 --memory 64MiB", "VMEM_SECRET=/nonexistent/secret");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.text, HasSubstr("vmem cluster up: n1 has ended; the last lines of its log:\n"));
  EXPECT_THAT(outcome.text, HasSubstr("/nonexistent/secret: No such file"));
  EXPECT_FALSE(exists(path()));
}

// The signal comes from an etcd that never answers.
TEST_F(ClusterCommand, SigintWhileItStartsTakesAllDownAgain) {
  std::filesystem::create_directory(around("bin"));
  script("bin/etcd", "echo $$ > " + around("etcd.pid") + "; kill -INT $(cat " + around("pid") + "); exec sleep 1000");
  const Outcome outcome = shell("echo $$ > " + around("pid") + "; PATH=" + around("bin") + ":$PATH exec " +
                                beside("vmem") + " cluster up --memory 2MiB --dir " + path());
  EXPECT_EQ(outcome.code, 3) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("vmem cluster up: ended by SIGINT"));
  EXPECT_FALSE(exists(path()));
  int pid = 0;
  std::ifstream(around("etcd.pid")) >> pid;
  EXPECT_FALSE(pid == 0 || process_with(pid)) << pid;
}

TEST_F(ClusterCommand, WhatAKilledStartLeftIsRemovedByDown) {
  ASSERT_TRUE(Folder::make(path()));
  std::ofstream(path() + "/state.json.new") << "{";
  EXPECT_THAT(said("down"), HasSubstr("no cluster is up in " + path()));
  EXPECT_FALSE(exists(path()));
}

TEST_F(ClusterCommand, WhatCannotBeIsRefusedBeforeAnythingIsMade) {
  const auto refused = [&](const std::string& words, const char* why, const std::string& environment = "",
                           int code = 2) {
    const Outcome outcome = cluster(words, environment);
    EXPECT_EQ(outcome.code, code) << words;
    EXPECT_THAT(outcome.text, HasSubstr(why)) << words;
    EXPECT_FALSE(exists(path())) << words;
  };
  refused("up --nodes 0", "vmem cluster up: --nodes 0: accepted: 1 to 16");
  refused("up --nodes 17", "accepted: 1 to 16");
  refused("up --nodes many", "--nodes takes a number, and 'many' is none");
  refused("up --memory lots", "--memory: 'lots' is not a size");
  refused("up --memory 1MiB", "--memory 1MiB: memory is lent in units of 2 MiB");
  refused("up --hbm 4GiB", "--hbm: '4GiB' names no GPU and size");
  refused("up --memory 900TiB", "for each of 3 nodes asked for");
  refused("up --name a/b", "--name 'a/b': accepted: letters");
  refused("status --json --address", "cannot be used with");
  refused("up", "apt install etcd-server", "PATH=" + around("none"), 3);
  EXPECT_THAT(shell(beside("vmem") + " cluster up --dir ''").text, HasSubstr("--dir: '' is a folder without a name"));
}

TEST_F(ClusterCommand, AStateThatCannotBeReadIsLeftAsItIs) {
  ASSERT_TRUE(Folder::make(path()));
  const std::string file = path() + "/state.json";
  for (const std::string text : {R"({"version": 7})", "{", ""}) {
    std::ofstream(file) << text;
    for (const char* const command : {"up --memory 2MiB", "down", "status"}) {
      const Outcome outcome = cluster(command);
      EXPECT_EQ(outcome.code, 2) << command;
      EXPECT_THAT(outcome.text, HasSubstr(text.size() > 5 ? "is of version 7" : "is damaged")) << command;
      EXPECT_EQ(text_in(file), text) << command;
    }
  }
}

}  // namespace
}  // namespace vmem::tools::local_cluster
