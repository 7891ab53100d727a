// The folder of a local cluster, and what its state file says.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tools/cluster/etcd.hpp"
#include "tools/cluster/state.hpp"
#include "tools/cluster_folder.hpp"

namespace vmem::tools::local_cluster {
namespace {

using std::filesystem::exists;

class ClusterFolderTest : public FolderTest {};

TEST_F(ClusterFolderTest, IsMadeForItsUserAlone) {
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  EXPECT_TRUE(folder->is_new());
  struct stat found{};
  ASSERT_EQ(::stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700u);
}

TEST_F(ClusterFolderTest, ALinkIsRefusedHoweverItIsWritten) {
  std::filesystem::create_directory(around("real"));
  ::chmod(around("real").c_str(), 0700);
  std::filesystem::create_symlink("real", path());
  for (const std::string& each : {path(), path() + "/", path() + "//"}) {
    EXPECT_THAT(message_of(Folder::make(each)), HasSubstr(path() + " is a link")) << each;
    EXPECT_THAT(message_of(Folder::find(each)), HasSubstr("is a link")) << each;
  }
}

TEST_F(ClusterFolderTest, WhatIsOpenToOthersOrNoFolderIsRefused) {
  std::filesystem::create_directory(path());
  for (const mode_t mode : {0750, 0707, 0701}) {
    ::chmod(path().c_str(), mode);
    EXPECT_THAT(message_of(Folder::make(path())), HasSubstr(fmt::format("open to other users (mode {:04o})", mode)));
  }
  std::ofstream(around("file")) << "text";
  EXPECT_THAT(message_of(Folder::make(around("file"))), HasSubstr("is not a folder"));
  EXPECT_THAT(message_of(Folder::make(around("no/where"))), HasSubstr("cannot be made: No such file"));
}

TEST_F(ClusterFolderTest, AnotherUsersIsRefused) {
  std::filesystem::create_directory(path());
  ::chmod(path().c_str(), 0700);
  if (::chown(path().c_str(), 65534, 65534) != 0) GTEST_SKIP() << "only root gives a folder to another user";
  EXPECT_THAT(message_of(Folder::make(path())), HasSubstr("belongs to user 65534"));
  EXPECT_THAT(message_of(Folder::find(path())), HasSubstr("belongs to user 65534"));
}

TEST_F(ClusterFolderTest, OneCommandChangesItAtATimeAndOthersRead) {
  auto first = std::optional(Folder::make(path()));
  ASSERT_GOOD(*first);
  EXPECT_THAT(message_of(Folder::make(path()), VMEM_ERROR_IN_USE), HasSubstr("another `vmem cluster` command"));
  EXPECT_THAT(message_of(Folder::find_locked(path()), VMEM_ERROR_IN_USE), HasSubstr(path()));
  const auto read = Folder::find(path());
  ASSERT_GOOD(read);
  EXPECT_TRUE(*read);
  first.reset();
  EXPECT_TRUE(Folder::make(path()));
}

TEST_F(ClusterFolderTest, NoneIsFoundWhereThereIsNone) {
  const auto found = Folder::find(path()), locked = Folder::find_locked(path());
  ASSERT_GOOD(found);
  EXPECT_FALSE(*found);
  ASSERT_GOOD(locked);
  EXPECT_FALSE(*locked);
}

TEST_F(ClusterFolderTest, FilesAreReplacedAndLinksAreNotFollowed) {
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  ASSERT_GOOD(folder->write("a", "first"));
  ASSERT_GOOD(folder->write("a", "second"));
  EXPECT_EQ(folder->read("a").value().value(), "second");
  EXPECT_FALSE(exists(folder->file("a.new")));
  EXPECT_FALSE(folder->read("b").value());
  std::ofstream(around("outside")) << "outside";
  std::filesystem::create_symlink(around("outside"), folder->file("b"));
  EXPECT_THAT(message_of(folder->read("b")), HasSubstr(folder->file("b") + " cannot be read"));
  EXPECT_TRUE(folder->has("b"));
  ASSERT_GOOD(folder->write("b", "inside"));
  EXPECT_EQ(text_in(around("outside")), "outside");
  std::filesystem::create_symlink(around("outside"), folder->file("c.log"));
  EXPECT_THAT(message_of(folder->make_log("c.log")), HasSubstr("cannot be made: File exists"));
}

TEST_F(ClusterFolderTest, OnlyTheLastLinesOfALogAreRead) {
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  EXPECT_TRUE(folder->last_lines("log", 3).empty());
  ASSERT_GOOD(folder->write("log", std::string(100'000, 'x') + "\none\n\ntwo\nthree"));
  EXPECT_EQ(folder->last_lines("log", 2), (std::vector<std::string>{"two", "three"}));
  EXPECT_EQ(folder->last_lines("log", 9).size(), 4u);
  EXPECT_LT(folder->last_lines("log", 9)[0].size(), 20'000u);
}

TEST_F(ClusterFolderTest, StaysWhileThereIsSomethingInIt) {
  const auto folder = Folder::make(path());
  ASSERT_GOOD(folder);
  ASSERT_GOOD(folder->write("a", ""));
  folder->remove_itself();
  EXPECT_TRUE(exists(folder->file("a")));
  ASSERT_GOOD(folder->remove("a"));
  ASSERT_GOOD(folder->remove("a"));
  folder->remove_itself();
  EXPECT_FALSE(exists(path()));
}

TEST_F(ClusterFolderTest, TheUsualOneIsInTheRuntimeFolderIfThereIsOne) {
  ::setenv("XDG_RUNTIME_DIR", around("").c_str(), 1);
  EXPECT_EQ(Folder::usual_path(), around("vmem-cluster"));
  for (const std::string& unusable : {around("missing"), std::string("relative"), std::string()}) {
    ::setenv("XDG_RUNTIME_DIR", unusable.c_str(), 1);
    EXPECT_EQ(Folder::usual_path(), fmt::format("/tmp/vmem-cluster-{}", ::geteuid()));
  }
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(Folder::usual_path(), fmt::format("/tmp/vmem-cluster-{}", ::geteuid()));
}

State example() {
  return {.boot = this_boot(),
          .address = "etcd://127.0.0.1:4000/local",
          .client_port = 4000,
          .peer_port = 4001,
          .nodes = 1,
          .memory_bytes = 1 << 30,
          .made_folder = true,
          .started = true,
          .processes = {{.name = "etcd", .id = {100, 200}, .command = {"/usr/bin/etcd", "--name", "etcd"}},
                        {.name = "n1", .id = {101, 201}, .command = {"vmem", "daemon"}}}};
}

// The state as text, with one of its fields changed.
std::string with(const nlohmann::json::json_pointer& field, nlohmann::json value) {
  auto fields = nlohmann::json::parse(text_of(example()));
  fields[field] = std::move(value);
  return fields.dump();
}

TEST(ClusterState, IsReadAsWritten) {
  const auto read = parse_state("F", text_of(example()));
  ASSERT_GOOD(read);
  EXPECT_EQ(*read, example());
}

TEST(ClusterState, OneOfANewerVersionIsRefused) {
  const std::string message = message_of(parse_state("F", R"({"version": 2, "new": []})"));
  EXPECT_THAT(message, HasSubstr("F is of version 2, and this vmem knows version 1 only"));
}

TEST(ClusterState, ADamagedOneIsRefused) {
  const std::string text = text_of(example());
  for (const std::string& each : {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("{}"),
                                  with("/version"_json_pointer, "1"), with("/nodes"_json_pointer, -1),
                                  with("/client_port"_json_pointer, 70'000), with("/started"_json_pointer, 1),
                                  with("/processes"_json_pointer, 5), with("/processes/1/command"_json_pointer, {1})})
    EXPECT_THAT(message_of(parse_state("F", each)), HasSubstr("F is damaged")) << each;
}

// What these would signal or remove is not the cluster's.
TEST(ClusterState, NamesAndPidsThatAreNoneOfAClustersAreRefused) {
  for (const std::int64_t pid : {-1L, 0L, 1L, std::int64_t{1} << 33})
    EXPECT_THAT(message_of(parse_state("F", with("/processes/1/pid"_json_pointer, pid))), HasSubstr("F is damaged"))
        << pid;
  for (const char* const name : {"../../x", "", "etcd", "n2"})
    EXPECT_THAT(message_of(parse_state("F", with("/processes/1/name"_json_pointer, name))), HasSubstr("damaged"))
        << name;
  EXPECT_THAT(message_of(parse_state("F", with("/nodes"_json_pointer, 0))), HasSubstr("2 processes for 0 nodes"));
  EXPECT_THAT(message_of(parse_state("F", with("/nodes"_json_pointer, 17))), HasSubstr("damaged"));
}

TEST(ClusterState, ProcessesOfAnEarlierBootDoNotLive) {
  State state = example();
  state.processes[1].id = process_with(::getpid()).value();
  EXPECT_TRUE(lives(state, state.processes[1]));
  state.boot = "another";
  EXPECT_FALSE(lives(state, state.processes[1]));
}

class ClusterEtcd : public FolderTest {
 protected:
  ~ClusterEtcd() override { ::setenv("PATH", path_.c_str(), 1); }
  const std::string path_ = std::getenv("PATH");
};

TEST_F(ClusterEtcd, IsTheFirstOnThePathThatCanBeRun) {
  for (const char* const folder : {"a", "b", "c", "d"}) std::filesystem::create_directory(around(folder));
  std::filesystem::create_directory(around("a/etcd"));
  std::ofstream(around("b/etcd")) << "not executable";
  script("c/etcd", "");
  script("d/etcd", "");
  ::setenv("PATH", fmt::format(":{}::{}:{}:{}", around("a"), around("b"), around("c"), around("d")).c_str(), 1);
  EXPECT_EQ(find_etcd().value(), around("c/etcd"));
}

TEST_F(ClusterEtcd, WithoutOneThePackageIsNamed) {
  ::setenv("PATH", around("").c_str(), 1);
  EXPECT_THAT(message_of(find_etcd(), VMEM_ERROR_UNSUPPORTED), HasSubstr("apt install etcd-server"));
  ::unsetenv("PATH");
  EXPECT_THAT(message_of(find_etcd(), VMEM_ERROR_UNSUPPORTED), HasSubstr("apt install etcd-server"));
}

TEST_F(ClusterEtcd, GetsNoOptionsFromTheEnvironment) {
  ::setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379", 1);
  ::setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 1);
  const auto variables = environment_of_etcd();
  ::unsetenv("ETCD_LISTEN_CLIENT_URLS");
  ::unsetenv("ETCD_UNSUPPORTED_ARCH");
  EXPECT_THAT(variables, ::testing::Contains("ETCD_UNSUPPORTED_ARCH=arm64"));
  EXPECT_THAT(variables, ::testing::Contains("PATH=" + path_));
  EXPECT_THAT(variables, ::testing::Not(::testing::Contains(HasSubstr("LISTEN_CLIENT_URLS"))));
}

}  // namespace
}  // namespace vmem::tools::local_cluster
