#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/folder_store.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

class ServedFolderTest : public ::testing::Test {
 protected:
  ~ServedFolderTest() override {
    end();
    std::filesystem::remove_all(path);
  }

  // The error of a server's start in the directory; "" if it starts.
  std::string start() {
    daemon.server.reset();
    store.reset();
    auto opened = FolderStore::open(path);
    if (!opened) return opened.error().message;
    store = *std::move(opened);
    auto created = RegistryServer::create(daemon.clock, {.store = store.get(),
                                                         .started_us = ServedDaemon::kStartedUs + daemon.clock.now_us(),
                                                         .before = RegistryServer::Before::nothing});
    if (!created) return created.error().message;
    daemon.server = *std::move(created);
    return "";
  }
  auto asker(Registry& registry) {
    return Asker(registry, [this] { daemon.clock.advance(kSecondUs / 10); });
  }
  void end() {
    daemon.server.reset();
    store.reset();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& each : std::filesystem::directory_iterator(path))
      if (each.path().extension() == ".registry") found.push_back(each.path().string());
    return found;
  }
  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string path = new_folder();
  std::unique_ptr<FolderStore> store;
  ServedDaemon daemon;
};

TEST_F(ServedFolderTest, AnotherProcessFindsWhatWasAcknowledged) {
  ASSERT_EQ(start(), "");
  GoodChannel channel(daemon);
  const auto client = served_client(daemon.clock, channel, 1);
  auto asking = asker(*client);
  ASSERT_TRUE(asking.commit({put("a", std::string(100'000, '\0')), put("b", "2")}));
  const std::vector<Record> before = asking.read();
  ASSERT_EQ(start(), "");
  EXPECT_EQ(asking.read(), before);
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(ServedFolderTest, AFileThatIsCutOrChangedIsNamed) {
  ASSERT_EQ(start(), "");
  GoodChannel channel(daemon);
  const auto client = served_client(daemon.clock, channel, 1);
  ASSERT_TRUE(asker(*client).commit({put("a", "1"), put("b", "2")}));
  end();
  for (const std::string& file : files()) {
    const std::string bytes = bytes_of(file), name = std::filesystem::path(file).stem().string();
    ASSERT_GT(bytes.size(), 16u);
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
      write(file, bytes.substr(0, size));
      EXPECT_THAT(start(), ::testing::AllOf(HasSubstr(name), HasSubstr("is damaged"), HasSubstr("restore"))) << size;
    }
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
      write(file, flipped);
      EXPECT_THAT(start(), HasSubstr("is damaged")) << at;
    }
    end();
    write(file, bytes);
  }
  EXPECT_EQ(start(), "");
  EXPECT_EQ(asker(*client).read().size(), 2u);
}

TEST_F(ServedFolderTest, AMissingIncarnationIsNamed) {
  ASSERT_EQ(start(), "");
  GoodChannel channel(daemon);
  const auto client = served_client(daemon.clock, channel, 1);
  ASSERT_TRUE(asker(*client).commit({put("a", "1")}));
  end();
  std::filesystem::remove(path + "/incarnation.registry");
  EXPECT_THAT(start(), HasSubstr("'incarnation' is missing"));
}

TEST_F(ServedFolderTest, WhatACrashLeftBesideAFileIsNotRead) {
  ASSERT_EQ(start(), "");
  write(path + "/incarnation.registry.new", "half");
  EXPECT_EQ(start(), "");
  EXPECT_EQ(start(), "");
}

TEST_F(ServedFolderTest, ADirectoryHasOneServer) {
  ASSERT_EQ(start(), "");
  const auto other = FolderStore::open(path);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(other.error().message, HasSubstr("another process keeps its registry in"));
  end();
  EXPECT_TRUE(FolderStore::open(path));
}

TEST_F(ServedFolderTest, ADirectoryThatCannotBeMadeIsNamed) {
  for (const std::string& each : {path + "/none/inner", std::string("/dev/null/x")}) {
    const auto opened = FolderStore::open(each);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(opened.error().message, HasSubstr(each));
  }
  EXPECT_TRUE(FolderStore::open(path + "/new"));
  EXPECT_TRUE(std::filesystem::is_directory(path + "/new"));
}

TEST_F(ServedFolderTest, AFileThatCannotBeWrittenIsNamedAndTheOldOneStays) {
  auto opened = FolderStore::open(path);
  ASSERT_TRUE(opened);
  ASSERT_TRUE((*opened)->write("a", "old"));
  ASSERT_EQ(::mkdir((path + "/a.registry.new").c_str(), 0700), 0);
  const Status written = (*opened)->write("a", "new");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, HasSubstr("a.registry.new"));
  const auto all = (*opened)->read_all();
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ(all->at(0).bytes, "old");
}

}  // namespace
}  // namespace vmem::cluster
