// Saved measurements are loaded for the same machine only, and any damage to the file is detected.
#include "topology/cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gpu/driver_fixture.hpp"
#include "topology/discover.hpp"
#include "topology/known.hpp"
#include "topology/machines.hpp"
#include "topology/placement.hpp"

namespace vmem::topology {
namespace {

namespace fs = std::filesystem;
using gpu::emulated_driver;
using gpu::must;
using testing::HasSubstr;

class Cache : public testing::Test {
 protected:
  Cache() {
    std::string name = (fs::temp_directory_path() / "vmem-topology-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }
  ~Cache() override { fs::remove_all(folder); }

  std::string file() const { return folder / "vmem" / "topology.json"; }
  std::string text() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }
  void save_one() const {
    const Status done = save(file(), saved);
    ASSERT_TRUE(done) << done.error().message;
  }

  fs::path folder;
  const MachineKey key{"host with 8 processors", "CUDA 13000, 580.1", {"0000:01:00.0 GPU-1 H200"}};
  const Saved saved{key, "2026-01-31 12:00:00 UTC", uneven_nvlinks()};
};

TEST_F(Cache, WhatWasSavedIsReadAgain) {
  save_one();
  const auto loaded = load_saved(file(), key);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->topology, saved.topology);
  EXPECT_EQ(loaded->measured_at, saved.measured_at);
}

TEST_F(Cache, RandomMachinesAreReadAgain) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Saved machine{key, "", random_machine(random, 4)};
    ASSERT_TRUE(save(file(), machine));
    const auto loaded = load_saved(file(), key);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->topology, machine.topology);
  }
}

TEST_F(Cache, AbsentIsSaid) {
  const auto loaded = load_saved(file(), key);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().reason, Miss::Reason::absent);
  EXPECT_THAT(loaded.error().message, HasSubstr(file()));
}

TEST_F(Cache, AnotherMachineDriverOrDeviceIsStale) {
  save_one();
  for (const MachineKey& other : {MachineKey{"other", key.driver, key.devices},
                                  MachineKey{key.machine, "x", key.devices}, MachineKey{key.machine, key.driver, {}}}) {
    const auto loaded = load_saved(file(), other);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().reason, Miss::Reason::stale);
    EXPECT_THAT(loaded.error().message, HasSubstr("measured"));
  }
}

TEST_F(Cache, CutShortAnywhereIsDamaged) {
  save_one();
  const std::string whole = text();
  for (std::size_t length = 0; length + 2 < whole.size(); length += 97) {
    write(whole.substr(0, length));
    const auto loaded = load_saved(file(), key);
    ASSERT_FALSE(loaded) << length;
    EXPECT_EQ(loaded.error().reason, Miss::Reason::damaged);
  }
}

TEST_F(Cache, ValuesThatCannotBeAreDamage) {
  save_one();
  const std::string whole = text();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    const auto at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    write(changed);
    const auto loaded = load_saved(file(), key);
    EXPECT_FALSE(loaded) << to;
    return loaded ? "" : loaded.error().message;
  };
  EXPECT_THAT(with("\"a\": 0", "\"a\": 4000"), HasSubstr("node 4000"));
  for (const char* id : {"4294967296", "-1", "1e300", "0.5", "true"})
    EXPECT_THAT(with("\"a\": 0", std::string("\"a\": ") + id), HasSubstr("out of range")) << id;
  EXPECT_THAT(with("\"measured\"", "\"guessed\""), HasSubstr("'guessed' is not known"));
  EXPECT_THAT(with("\"bytes_per_s\": 12000000000.0", "\"bytes_per_s\": -1"), HasSubstr("a rate of -1"));
  EXPECT_THAT(with("\"format\": 1", "\"format\": 2"), HasSubstr("format is 2"));
  EXPECT_THAT(with("\"links\"", "\"lynx\""), HasSubstr("links"));
}

TEST_F(Cache, WhatIsNoRegularFileOrTooLargeForOneIsRefusedAtOnce) {
  const std::string fifo = folder / "fifo", large = folder / "large";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(large) << "{";
  fs::resize_file(large, std::uintmax_t{1} << 40);  // a sparse file
  const std::pair<std::string, std::string> cases[]{{"/dev/zero", "no regular file"},
                                                    {folder, "is a directory"},
                                                    {fifo, "no regular file"},
                                                    {large, "more than 64 MiB"}};
  for (const auto& [path, why] : cases) {
    const auto loaded = load_saved(path, key);
    ASSERT_FALSE(loaded) << path;
    EXPECT_EQ(loaded.error().reason, Miss::Reason::damaged);
    EXPECT_THAT(loaded.error().message, testing::AllOf(HasSubstr(path), HasSubstr(why), HasSubstr("--topology")));
  }
}

TEST_F(Cache, AFileThatCannotBeWrittenIsNamedAndWhatWasThereStays) {
  save_one();
  // A file is no folder.
  const std::string beside = (folder / "vmem" / "topology.json" / "inside.json").string();
  const Status done = save(beside, saved);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr(beside));
  EXPECT_TRUE(load_saved(file(), key));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "vmem"), {}), 1) << "something was left behind";
}

TEST_F(Cache, TheOptionNamesTheFile) {
  EXPECT_EQ(cache_path("off", false), "");
  EXPECT_EQ(cache_path("/a/b.json", true), "/a/b.json");
  EXPECT_NE(cache_path("auto", true), cache_path("auto", false));
}

TEST_F(Cache, AnEmulatedMachineOfAnotherShapeIsAnotherMachine) {
  const MachineKey one = must(machine_key(*emulated_driver("devices=2,h2d=5")));
  EXPECT_EQ(must(machine_key(*emulated_driver("devices=2,h2d=5"))), one);
  EXPECT_NE(must(machine_key(*emulated_driver("devices=2,h2d=6"))), one);
}

// A program starts with the file's rates, or with the driver's answers if no file fits.
TEST_F(Cache, ProgramsStartWithTheFileWhereItFits) {
  const auto driver = emulated_driver("devices=2,numa=2");
  Topology measured_before = must(discover(*driver));
  for (Link& link : measured_before.links) link.forward = link.backward = measured(7);
  ASSERT_TRUE(save(file(), {must(machine_key(*driver)), "", measured_before}));
  EXPECT_EQ(must(known_topology(*driver, file())), measured_before);
  const Topology other = must(known_topology(*emulated_driver("devices=3,numa=3"), file()));
  EXPECT_EQ(other.all(NodeKind::device).size(), 3u);
  EXPECT_EQ(host_node(other, std::vector{2}), 2);
}

}  // namespace
}  // namespace vmem::topology
