// The program from outside: exit codes, and messages that name the request, the available resources
// and the remedy.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

// Next to this test in the build tree; in the bin folder of a distribution.
std::string program() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {".", "bin", "../bin", "../../bin", "../../../bin"})
    if (const auto path = here / folder / "vmem"; std::filesystem::is_regular_file(path)) return path.string();
  return "vmem";
}

struct Outcome {
  int code = -1;
  std::string text;  // stdout and stderr
};

// `environment`: "NAME=value" before the program. An emulated machine is configured once per
// process.
Outcome run(const std::string& arguments, const std::string& environment = "") {
  Outcome outcome;
  std::FILE* pipe = popen((environment + " " + program() + " " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.text.append(buffer.data(), got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

void expect_refused(const std::string& arguments, std::initializer_list<const char*> words,
                    const std::string& environment = "") {
  const Outcome outcome = run(arguments, environment);
  EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.text;
  for (const char* word : words)
    EXPECT_NE(outcome.text.find(word), std::string::npos) << word << " in:\n" << outcome.text;
}

TEST(Program, SaysItsVersionAndCommit) {
  const Outcome outcome = run("--version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.text.rfind("vmem ", 0), 0u) << outcome.text;
  EXPECT_NE(outcome.text.find("commit"), std::string::npos);
}

TEST(Program, HelpListsWhatThereIsOnly) {
  const Outcome outcome = run("--help");
  EXPECT_EQ(outcome.code, 0);
  for (const char* command : {"bench", "doctor", "options"}) EXPECT_NE(outcome.text.find(command), std::string::npos);
}

TEST(Program, BenchHelpListsScenariosAndExitCodes) {
  const Outcome outcome = run("bench --help");
  EXPECT_EQ(outcome.code, 0);
  for (const char* word : {"stream", "matmul", "lookup", "Exit codes"})
    EXPECT_NE(outcome.text.find(word), std::string::npos);
}

TEST(Program, BenchHelpListsTheRowsOfCluster) {
  const Outcome outcome = run("bench --help");
  for (const char* word : {"--rows", "published, page, fanout, overflow, drain", "--page-server"})
    EXPECT_NE(outcome.text.find(word), std::string::npos) << word;
  EXPECT_EQ(outcome.text.find("reader   "), std::string::npos) << "it is cluster's own";
  expect_refused("bench cluster --driver emulated --rows fan-out", {"--rows fan-out", "fanout, overflow, drain"});
  expect_refused("bench net --driver emulated --rows page", {"--rows", "cluster", "net"});
}

TEST(Program, RefusesUnknownScenariosAndNamesTheKnown) { expect_refused("bench swim", {"swim", "stream", "matmul"}); }
TEST(Program, RefusesNoCommandAndUnknownFlags) {
  expect_refused("", {});
  expect_refused("bench stream --speed 9", {"--speed"});
}
TEST(Program, RefusesUnknownCommandsAndNamesTheKnown) {
  expect_refused("benchh", {"benchh", "bench, daemon, cluster, node, region, secret, doctor, topo, options"});
}
TEST(Program, AsksForACommand) {
  expect_refused("", {"vmem: no command was given",
                      "run, trace, plan, bench, daemon, cluster, node, region, secret, doctor, topo, options"});
}
TEST(Program, UnknownOptionsAreAnsweredByTheNearest) {
  expect_refused("bench stream --ration 4", {"vmem bench: there is no option --ration", "the nearest is --ratio"});
  expect_refused("doctor --jsno", {"vmem doctor: ", "--jsno", "--json"});
  expect_refused("--verson", {"vmem: ", "--version"});
  expect_refused("options everything", {"vmem options: everything was not expected"});
}
TEST(Program, OnlyRunTakesAProgram) {
  for (const char* command : {"options", "doctor --driver emulated", "bench stream"})
    expect_refused(std::string(command) + " -- ls", {"vmem ", "nothing may follow --", "ls", "vmem run"});
}
TEST(Program, RefusesAnUnwritableResultFileBeforeItMeasures) {
  expect_refused("bench lookup --driver emulated --json /nowhere/results.json", {"/nowhere/results.json", "writable"});
}
TEST(Program, RefusesMalformedSizes) {
  expect_refused("bench stream --hbm 4gigs", {"--hbm", "4gigs"});
  expect_refused("bench stream --hbm 0", {"--hbm"});
}
TEST(Program, RefusesMoreHbmThanTheDeviceHas) {
  expect_refused("bench stream --driver emulated --hbm 512GiB", {"512 GiB", "8 GiB", "lower --hbm"});
}
TEST(Program, RefusesSizesThatCannotWorkBeforeItMeasures) {
  expect_refused("bench tier --driver emulated --nvme .:64MiB", {"tier stores 1 GiB", "64 MiB", "give it 1088MiB"});
  expect_refused("bench compress --driver emulated --nvme .:64MiB", {"compress stores 512 MiB", "give it 544MiB"});
  expect_refused("bench tier --driver emulated --nvme .:900TiB --working-set 800TiB", {"tier needs", "--working-set"});
  expect_refused("bench net --driver emulated --working-set 800TiB", {"net needs", "are available"});
}
TEST(Program, RefusesAWorkingSetAboveHbmPlusHost) {
  expect_refused("bench stream --driver emulated --hbm 16MiB --host 16MiB --ratio 4",
                 {"64 MiB", "32 MiB", "raise --host"});
}
TEST(Program, RefusesAnUnreadableFile) {
  expect_refused("bench file --driver emulated --input /nonexistent/file", {"/nonexistent/file", "No such file"});
}
TEST(Program, RefusesADeviceThatIsNotThere) {
  expect_refused("bench stream --driver emulated --device 7", {"device 7"});
}

TEST(Program, DoctorExplainsTheEmulatedMachine) {
  const Outcome outcome = run("doctor --driver emulated");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("vmem is usable"), std::string::npos);
}

TEST(Program, DoctorRefusesAMachineWithoutMappableHostMemory) {
  const Outcome outcome = run("doctor --driver emulated", "VMEM_EMU=host_vmm=0");
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_NE(outcome.text.find("PROBLEM  host tier"), std::string::npos) << outcome.text;
}

TEST(Program, DoctorListsThePeersOfEachDevice) {
  const Outcome outcome = run("doctor --driver emulated", "VMEM_EMU=devices=3,p2p=0-2:0,p2p=1-2:0,p2p=0-1:100");
  EXPECT_NE(outcome.text.find("reaches the memory of device 1 directly"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("reaches no other GPU"), std::string::npos) << outcome.text;
}

TEST(Program, DoctorAndBenchTakeTheDriverOfTheEnvironment) {
  const Outcome doctor = run("doctor", "VMEM_DRIVER=emulated");
  EXPECT_EQ(doctor.code, 0) << doctor.text;
  EXPECT_NE(doctor.text.find("this is the emulated driver"), std::string::npos) << doctor.text;
  EXPECT_EQ(run("doctor", "VMEM_DRIVER=/nonexistent").code, 1);
  EXPECT_EQ(run("doctor --driver emulated", "VMEM_DRIVER=/nonexistent").code, 0) << "--driver comes first";
  const Outcome bench = run("bench hit", "VMEM_DRIVER=/nonexistent");
  EXPECT_NE(bench.code, 0);
  EXPECT_NE(bench.text.find("/nonexistent"), std::string::npos) << bench.text;
}

TEST(Program, DoctorFailsWithoutADriver) {
  const Outcome outcome = run("doctor --driver /nonexistent --json -");
  EXPECT_EQ(outcome.code, 1);
  const auto json = nlohmann::json::parse(outcome.text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.text;
  EXPECT_EQ(json["usable"], false);
}

TEST(Program, TheArgumentParsersErrorsAreInWords) {
  expect_refused("bench stream --ratio abc", {"vmem bench: --ratio takes a number, and 'abc' is none"});
  expect_refused("bench stream --hbm", {"vmem bench: --hbm needs a value"});
  expect_refused("bench stream --hbm 1GiB --hbm 2GiB", {"vmem bench: --hbm is given more than once"});
  expect_refused("bench stream --check=maybe", {"vmem bench: --check takes no value"});
  expect_refused("bench", {"vmem bench: SCENARIO is missing"});
  expect_refused("secret", {"vmem secret: name a command: new"});
  expect_refused("cluster", {"vmem cluster: name a command: up, down, status"});
  expect_refused("daemon --lend 64MiB --channels 99", {"'99' is no number of connections", "1 to 8"});
  expect_refused("options --emulated --json -", {"cannot be used with"});
}

TEST(Program, JsonGoesToTheFileThatIsNamedInEveryCommand) {
  const auto file = std::filesystem::temp_directory_path() / ("vmem-json-" + std::to_string(::getpid()));
  for (const std::string command : {"options", "doctor --driver emulated", "topo --driver emulated --topology off",
                                    "bench lookup --driver emulated"}) {
    const Outcome to_file = run(command + " --json " + file.string());
    EXPECT_EQ(to_file.code, 0) << command << "\n" << to_file.text;
    std::ifstream in(file);
    EXPECT_FALSE(nlohmann::json::parse(in, nullptr, false).is_discarded()) << command;
    EXPECT_GT(to_file.text.size(), 100u) << command << ": no text beside the file";
    const Outcome to_output = run(command + " --json - 2>/dev/null | cat; true");
    EXPECT_FALSE(nlohmann::json::parse(to_output.text, nullptr, false).is_discarded()) << to_output.text;
    expect_refused(command + " --json /nowhere/x.json", {"/nowhere/x.json"});
    std::filesystem::remove(file);
  }
}

TEST(Program, OptionsListsEveryOptionWithItsVariable) {
  const Outcome outcome = run("options");
  EXPECT_EQ(outcome.code, 0);
  for (const char* word : {"hbm", "VMEM_HBM", "acquire_wait", "VMEM_ACQUIRE_WAIT"})
    EXPECT_NE(outcome.text.find(word), std::string::npos) << word;
}

TEST(Program, ADaemonTakesItsTrustFromTheEnvironmentAsProgramsDo) {
  const std::string daemon = "daemon --lend 64MiB", secret = "VMEM_SECRET=/nonexistent/secret";
  expect_refused(daemon, {"/nonexistent/secret"}, secret);
  expect_refused(daemon, {"option secret='': a file without a name", "(from VMEM_SECRET)"}, "VMEM_SECRET=");
  expect_refused(daemon + " --secret /other/secret", {"/other/secret"}, secret);
  expect_refused(daemon, {"/nonexistent/folder"}, "VMEM_CERTIFICATES=/nonexistent/folder");
  expect_refused(daemon + " --certificates /nonexistent/folder", {"cannot be used together", "VMEM_SECRET"}, secret);
  expect_refused(daemon, {"option fabric='foo'", "(from VMEM_FABRIC)"}, "VMEM_FABRIC=foo");
}

TEST(Program, TheDoctorSaysWhetherTheRegistryOfAConfiguredClusterAnswers) {
  const Outcome without = run("doctor --driver emulated");
  EXPECT_EQ(without.text.find("registry"), std::string::npos) << without.text;
  const Outcome with = run("doctor --driver emulated", "VMEM_CLUSTER=etcd://127.0.0.1:1/lab");
  EXPECT_NE(with.text.find("127.0.0.1:1"), std::string::npos) << with.text;
  EXPECT_NE(with.text.find("start the cluster's etcd, or correct --cluster (VMEM_CLUSTER)"), std::string::npos);
  EXPECT_EQ(with.code, 1);
}

TEST(Program, ADrainsOptionsAreRefusedWithWhatIsAccepted) {
  expect_refused("node drain", {"vmem node drain: ID is missing"});
  expect_refused("node drain one --cluster etcd://127.0.0.1:1/lab", {"'one' is no node's number", "vmem node list"});
  for (const char* id : {"-1", "0", "18446744073709551616"})
    expect_refused(fmt::format("node drain {} --cluster etcd://127.0.0.1:1/lab", id), {"no node's number"});
  expect_refused("node drain 1", {"vmem node drain: no cluster is named", "--cluster"});
  expect_refused("node drain 1 --rate 4gigs --cluster etcd://127.0.0.1:1/lab", {"--rate", "4gigs"});
  expect_refused("node drain 1 --rate 0/s --cluster etcd://127.0.0.1:1/lab", {"--rate", "0 moves nothing"});
  expect_refused("node undrain 1", {"vmem node undrain: no cluster is named", "VMEM_CLUSTER"});
  expect_refused("node list", {"VMEM_CLUSTER is empty", "vmem cluster up"}, "VMEM_CLUSTER=");
  expect_refused("node limit 1 --cluster etcd://127.0.0.1:1/lab", {"--hbm is missing"});
  expect_refused("node limit 1 --hbm much --cluster etcd://127.0.0.1:1/lab", {"--hbm", "much"});
  expect_refused("node limit 1 --hbm 1GiB", {"vmem node limit: no cluster is named", "--cluster"});
  for (const char* word : {"--rate", "--wait", "--exit", "--force"})
    EXPECT_NE(run("node drain --help").text.find(word), std::string::npos) << word;
}

// UCX says nothing of its own beside it.
TEST(Program, AFabricThatIsNotThereIsRefusedInOneLine) {
  const Outcome outcome = run("daemon --listen 127.0.0.1:0 --lend 64MiB --fabric ucx:mlx5_9:1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(std::ranges::count(outcome.text, '\n'), 1) << outcome.text;
  EXPECT_TRUE(outcome.text.starts_with("vmem daemon: ")) << outcome.text;
  EXPECT_NE(outcome.text.find("mlx5_9:1"), std::string::npos) << outcome.text;
}

TEST(Program, ADaemonsOptionsAreRefusedWithWhatIsAccepted) {
  expect_refused("daemon", {"nothing to lend", "--lend SIZE"});
  expect_refused("daemon --lend 1MiB", {"--lend 1MiB", "in units of 2 MiB"});
  expect_refused("daemon --lend 64MiB --per-node 1MiB", {"--per-node 1MiB", "in units of 2 MiB"});
  expect_refused("daemon --lend 64MiB --secret ''", {"option secret='': a file without a name", "(from --secret)"});
  expect_refused("daemon --lend 64MiB --node-lease 1s", {"option node_lease='1s'", "too short", "(from --node-lease)"});
  expect_refused("daemon --lend 64MiB --log loud", {"'loud' is no log level", "accepted: trace, debug"});
  expect_refused("daemon --lend 64MiB --id -1", {"--id", "'-1'", "up to 4294967295"});
  expect_refused("daemon --lend 64MiB --id 7 --cluster etcd://127.0.0.1:1/lab",
                 {"--id 7", "a cluster numbers its nodes"});
  expect_refused("daemon --lend 64MiB --label rack=a", {"--label is for nodes of a cluster", "give --cluster"});
  expect_refused("daemon --lend 64MiB --advertise 127.0.0.1:1", {"--advertise is for nodes of a cluster"});
  expect_refused("daemon --lend 64MiB --copies 64MiB", {"--copies is for nodes of a cluster"});
  const char* const gpu = "VMEM_DRIVER=emulated VMEM_EMU=devices=2,hbm=256MiB";
  expect_refused("daemon --hbm 64MiB", {"--hbm", "'64MiB' names no GPU and size", "0:40GiB"});
  expect_refused("daemon --hbm x:64MiB", {"--hbm", "'x:64MiB' names no GPU and size"});
  expect_refused("daemon --hbm 0:1MiB", {"--hbm", "1MiB is too little", "units of 2 MiB"});
  expect_refused("daemon --hbm 2:64MiB", {"--hbm 2:64 MiB names GPU 2", "there are 2 (0 to 1)"}, gpu);
  expect_refused("daemon --hbm 1:512MiB", {"--hbm 1:512 MiB asked for, GPU 1 has", "lower --hbm"}, gpu);
  expect_refused("daemon --lend 64MiB --hbm-mapped 64MiB",
                 {"--hbm-mapped 64MiB is a part of the HBM that --hbm GPU:SIZE lends", "give that, too"}, gpu);
  expect_refused("daemon --hbm 1:64MiB --hbm-mapped 65MiB",
                 {"--hbm-mapped 65MiB", "more than that", "give at most 64 MiB"}, gpu);
  expect_refused("daemon --hbm 1:64MiB --hbm-mapped 1MiB", {"--hbm-mapped 1MiB", "in units of 2 MiB"}, gpu);
  expect_refused("daemon --hbm 1:64MiB --hbm-mapped some", {"--hbm-mapped", "'some'"}, gpu);
  expect_refused("daemon --hbm 1:512MiB --hbm-mapped 500MiB", {"--hbm 1:512 MiB asked for, GPU 1 has"}, gpu);
  const Outcome none = run("daemon --hbm 0:64MiB --driver /nonexistent/libcuda.so");
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.text.find("--hbm 0:64 MiB needs a CUDA driver: "), std::string::npos) << none.text;
  const std::string fabric = run("daemon --lend 64MiB --fabric foo").text;
  const auto accepted = fabric.find("accepted: off, or ucx:DEVICES");
  ASSERT_NE(accepted, std::string::npos) << fabric;
  EXPECT_EQ(fabric.find("accepted", accepted + 1), std::string::npos) << "once: " << fabric;
  EXPECT_EQ(fabric.find("only with"), std::string::npos) << fabric;
}

// A temporary folder for the cache of `vmem topo`.
class TopoProgram : public testing::Test {
 protected:
  TopoProgram() {
    std::string name = (std::filesystem::temp_directory_path() / "vmem-topo-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TopoProgram() override { std::filesystem::remove_all(folder_); }
  std::string file() const { return folder_ / "topology.json"; }
  Outcome topo(const std::string& more, const std::string& machine = "devices=3,p2p=0-1:4,p2p=0-2:1,p2p=1-2:0") const {
    return run("topo --driver emulated --topology " + file() + " " + more, "VMEM_EMU=" + machine);
  }
  std::filesystem::path folder_;
};

TEST_F(TopoProgram, PrintsTiersAndLinksAndSaysThatTheyAreEmulated) {
  const Outcome outcome = topo("");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  for (const char* word : {"Emulated", "Tiers of device 2", "its own HBM", "host node 0", "NVLink x1", "Links", "GB/s"})
    EXPECT_NE(outcome.text.find(word), std::string::npos) << word << " in:\n" << outcome.text;
}

TEST_F(TopoProgram, MeasuresOnceUnlessAskedToOrTheMachineHasChanged) {
  EXPECT_NE(topo("").text.find("Kept in"), std::string::npos);
  EXPECT_NE(topo("").text.find("Measured on"), std::string::npos);
  EXPECT_EQ(topo("--measure").text.find("Measured on"), std::string::npos);
  const Outcome other = topo("", "devices=2");
  EXPECT_NE(other.text.find("measured with other GPUs"), std::string::npos) << other.text;
}

TEST_F(TopoProgram, ADamagedFileIsSaidAndMeasuredAnew) {
  std::ofstream(file()) << "{\"format\": 1";
  const Outcome outcome = topo("");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.text.find(file() + ": damaged"), std::string::npos) << outcome.text;
  EXPECT_NE(topo("").text.find("Measured on"), std::string::npos);
}

TEST_F(TopoProgram, WritesJson) {
  const std::string path = folder_ / "out.json";
  EXPECT_EQ(topo("--json " + path).code, 0);
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  EXPECT_TRUE(json["topology"]["emulated"].get<bool>());
  EXPECT_EQ(json["topology"]["links"].size(), 5u + 1u);  // memory, three of PCIe, two NVLinks
}

TEST_F(TopoProgram, MeasuresDisksWithoutAGpu) {
  const std::string environment = "VMEM_DRIVER=auto LD_LIBRARY_PATH=";
  if (run("doctor", environment).text.find("no CUDA driver") == std::string::npos)
    GTEST_SKIP() << "this machine has a driver";
  const Outcome disks = run("topo --topology " + file() + " --disk .", environment);
  EXPECT_EQ(disks.code, 0) << disks.text;
  for (const char* word : {"Disks, GB/s", "GPUs and their links: no CUDA driver", "Nothing is kept"})
    EXPECT_NE(disks.text.find(word), std::string::npos) << word << " in:\n" << disks.text;
  EXPECT_FALSE(std::filesystem::exists(file()));
  const Outcome none = run("topo --topology " + file(), environment);
  EXPECT_EQ(none.code, 0);
  EXPECT_NE(none.text.find("--disk DIRECTORY"), std::string::npos) << none.text;
}

TEST_F(TopoProgram, SaysWhatIsNotKnownWithoutNvml) {
  const Outcome outcome = topo("", "devices=2,nvml=0");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.text.find("Not known"), std::string::npos);
  EXPECT_NE(outcome.text.find("Driver Not Loaded"), std::string::npos) << outcome.text;
}

TEST_F(TopoProgram, RefusesWhatItCannotMeasureOrWrite) {
  expect_refused("topo --driver emulated --topology off --disk /nonexistent", {"/nonexistent", "No such file"});
  expect_refused("topo --driver emulated --topology off --json /nowhere/x.json", {"/nowhere/x.json", "not writable"});
  expect_refused("topo --driver emulated --topology /proc/x/y.json", {"/proc/x/y.json", "--topology"});
}

}  // namespace
