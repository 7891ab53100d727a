#include "runtime/options/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/cache_folder.hpp"

namespace vmem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Given = std::vector<std::pair<std::string, std::string>>;

// Sets a variable for the life of the object.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

// Unsets options that the environment of the test may set.
class OptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& option : option_table()) ::unsetenv(option_environment(option).c_str());
  }

  static std::string refusal(const Given& given) {
    const auto options = resolve_options(given);
    if (options) return "accepted";
    EXPECT_EQ(options.error().status, VMEM_ERROR_INVALID_OPTION);
    return options.error().message;
  }
};

TEST_F(OptionsTest, TheCacheFolderIsTheUsersOrNone) {
  const Variable home("HOME", "/home/somebody");
  {
    const Variable cache("XDG_CACHE_HOME", "/var/somewhere");
    EXPECT_EQ(cache_folder(), "/var/somewhere");
  }
  {
    const Variable cache("XDG_CACHE_HOME", "relative");
    EXPECT_EQ(cache_folder(), "/home/somebody/.cache");
  }
  const Variable none("HOME", "");
  EXPECT_EQ(cache_folder(), "");
}

// Variables that Kubernetes sets for services named vmem and vmem-hbm with named ports.
TEST_F(OptionsTest, VariablesOfAKubernetesServiceNamedVmemAreNoOptions) {
  const std::pair<std::string, std::string> set[]{
      {"VMEM_SERVICE_HOST", "10.96.0.11"},
      {"VMEM_SERVICE_PORT", "7000"},
      {"VMEM_SERVICE_PORT_PAGES", "7000"},
      {"VMEM_PORT", "tcp://10.96.0.11:7000"},
      {"VMEM_PORT_7000_TCP", "tcp://10.96.0.11:7000"},
      {"VMEM_PORT_7000_TCP_PROTO", "tcp"},
      {"VMEM_PORT_7000_TCP_PORT", "7000"},
      {"VMEM_PORT_7000_TCP_ADDR", "10.96.0.11"},
      {"VMEM_HBM_SERVICE_HOST", "10.96.0.12"},
      {"VMEM_HBM_SERVICE_PORT", "53"},
      {"VMEM_HBM_SERVICE_PORT_DNS", "53"},
      {"VMEM_HBM_PORT", "udp://10.96.0.12:53"},
      {"VMEM_HBM_PORT_53_UDP", "udp://10.96.0.12:53"},
      {"VMEM_HBM_PORT_53_UDP_PROTO", "udp"},
      {"VMEM_HBM_PORT_38412_SCTP", "sctp://10.96.0.12:38412"},
      {"VMEM_HBM_PORT_38412_SCTP_ADDR", "10.96.0.12"},
  };
  std::vector<std::unique_ptr<Variable>> variables;
  for (const auto& [name, value] : set) variables.push_back(std::make_unique<Variable>(name, value));
  const Variable hbm("VMEM_HBM", "1GiB");
  const auto options = resolve_options({});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->hbm_bytes, std::uint64_t{1} << 30);
}

TEST_F(OptionsTest, VariablesThatOnlyResembleThoseOfKubernetesAreRefused) {
  for (const auto& [name, value] :
       std::initializer_list<std::pair<std::string, std::string>>{{"VMEM_HMB", "1GiB"},
                                                                  {"VMEM_HMB", "tcp://10.96.0.11:7000"},
                                                                  {"VMEM_PORT", "7000"},
                                                                  {"VMEM_PORT_X_TCP", "tcp://10.96.0.11:7000"},
                                                                  {"VMEM_PORT_7000", "tcp://10.96.0.11:7000"},
                                                                  {"VMEM_PORT_7000_TCP_SPEED", "1"},
                                                                  {"VMEM_PORT__TCP", "1"},
                                                                  {"VMEM_SERVICE", "10.96.0.11"}}) {
    const Variable variable(name, value);
    EXPECT_THAT(refusal({}), HasSubstr(name));
  }
}

TEST_F(OptionsTest, AFabricIsNamedWithItsKindAndItsDevices) {
  const auto fabric_of = [](const std::string& text) {
    const auto options = resolve_options(Given{{"fabric", text}});
    return options ? options->fabric : options.error().message;
  };
  EXPECT_EQ(resolve_options({})->fabric, "") << "no fabric by default";
  EXPECT_EQ(fabric_of("off"), "");
  EXPECT_EQ(fabric_of("ucx:mlx5_0:1"), "mlx5_0:1");
  EXPECT_EQ(fabric_of("ucx:mlx5_0:1,mlx5_1:1"), "mlx5_0:1,mlx5_1:1");
  for (const char* const no_fabric : {"ucx:", "ucx", "mlx5_0:1", "tcp:eth0", "UCX:mlx5_0:1", "on"})
    EXPECT_THAT(fabric_of(no_fabric), HasSubstr("ucx:DEVICES")) << no_fabric;
  const auto& row = *std::ranges::find(option_table(), "fabric", &OptionDefinition::name);
  Options options;
  EXPECT_EQ(row.print(options), "off");
  options.fabric = "mlx5_0:1";
  EXPECT_EQ(row.print(options), "ucx:mlx5_0:1") << "and is accepted as it is printed";
}

TEST_F(OptionsTest, DefaultsAreThoseOfTheStruct) {
  const auto options = resolve_options({});
  ASSERT_TRUE(options) << options.error().message;
  for (const auto& option : option_table()) {
    EXPECT_EQ(option.print(*options), option.print(Options{})) << option.name;
    Options parsed;
    ASSERT_TRUE(option.parse(parsed, option.default_value())) << option.name;
    EXPECT_EQ(option.print(parsed), option.print(Options{})) << option.name;
    EXPECT_EQ(option.print(parsed), option.default_value()) << option.name;
  }
}

TEST_F(OptionsTest, EveryOptionIsDocumentedAndNamedOnce) {
  std::set<std::string> names;
  for (const auto& option : option_table()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_FALSE(option.values.empty()) << option.name;
  }
}

TEST_F(OptionsTest, FlagAndVariableFollowTheName) {
  for (const auto& option : option_table()) {
    if (option.name != "acquire_wait") continue;
    EXPECT_EQ(option_flag(option), "--acquire-wait");
    EXPECT_EQ(option_environment(option), "VMEM_ACQUIRE_WAIT");
    return;
  }
  FAIL() << "no option acquire_wait";
}

TEST_F(OptionsTest, GivenOverridesEnvironmentOverridesDefault) {
  const Variable hbm("VMEM_HBM", "2GiB");
  const Variable host("VMEM_HOST", "3GiB");
  const auto options = resolve_options(Given{{"hbm", "1GiB"}});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->hbm_bytes, 1ull << 30);
  EXPECT_EQ(options->host_bytes, 3ull << 30);
  EXPECT_EQ(options->prefetch_pages, Options{}.prefetch_pages);
}

TEST_F(OptionsTest, AClusterHasRoomForAThousandSlicesUnlessTheSpaceIsGiven) {
  EXPECT_THAT(refusal({{"cluster", ""}}), AllOf(HasSubstr("empty"), HasSubstr("vmem cluster status --address")));
  const std::string cluster = "etcd://127.0.0.1:1/lab";
  const auto joint = resolve_options(Given{{"cluster", cluster}});
  ASSERT_TRUE(joint) << joint.error().message;
  EXPECT_EQ(joint->base, kClusterBase);
  EXPECT_EQ(joint->space_bytes, 64ull << 40);
  const auto given = resolve_options(Given{{"cluster", cluster}, {"space", "64GiB"}});
  ASSERT_TRUE(given) << given.error().message;
  EXPECT_EQ(given->base, Options{}.base);
  EXPECT_EQ(given->space_bytes, 64ull << 30);
  const auto alone = resolve_options({});
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_EQ(alone->space_bytes, Options{}.space_bytes);
}

TEST_F(OptionsTest, EveryValueIsStored) {
  const auto options = resolve_options(Given{{"base", "0x100000000000"},
                                             {"space", "64GiB"},
                                             {"hbm", "1.5GiB"},
                                             {"host", "8GiB"},
                                             {"page", "32MiB"},
                                             {"devices", "3,0"},
                                             {"driver", "emulated"},
                                             {"acquire_wait", "2s"},
                                             {"prefetch", "0"},
                                             {"log", "debug"}});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->base, 0x100000000000u);
  EXPECT_EQ(options->space_bytes, 64ull << 30);
  EXPECT_EQ(options->hbm_bytes, 3ull << 29);
  EXPECT_EQ(options->host_bytes, 8ull << 30);
  EXPECT_EQ(options->page_bytes, 32ull << 20);
  EXPECT_THAT(options->devices, ElementsAre(3, 0));
  EXPECT_EQ(options->driver, "emulated");
  EXPECT_EQ(options->acquire_wait_us, 2'000'000u);
  EXPECT_EQ(options->prefetch_pages, 0u);
  EXPECT_EQ(options->log_level, "debug");
  for (const auto& option : option_table()) {
    Options again;
    ASSERT_TRUE(option.parse(again, option.print(*options))) << option.name;
    EXPECT_EQ(option.print(again), option.print(*options));
  }
}

TEST_F(OptionsTest, AutoInTheCallTakesBackASizeOfTheEnvironment) {
  const Variable hbm("VMEM_HBM", "2GiB");
  const auto options = resolve_options(Given{{"hbm", "auto"}, {"headroom", "2GiB"}});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_FALSE(options->hbm_bytes);
  EXPECT_EQ(options->headroom_bytes, 2ull << 30);
}

TEST_F(OptionsTest, UnknownNameSuggestsTheNearest) {
  EXPECT_THAT(refusal({{"hmb", "1GiB"}}), AllOf(HasSubstr("'hmb'"), HasSubstr("nearest is hbm")));
  EXPECT_THAT(refusal({{"acquire-wait", "1s"}}), HasSubstr("nearest is acquire_wait"));
  EXPECT_THAT(refusal({{"", "1"}}), HasSubstr("no option ''"));
}

TEST_F(OptionsTest, UnknownVariableSuggestsTheNearest) {
  const Variable wrong("VMEM_PREFECH", "4");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("VMEM_PREFECH"), HasSubstr("nearest is VMEM_PREFETCH")));
}

TEST_F(OptionsTest, VariablesOfTheEmulatorAndOfTestsAreNotOptions) {
  const Variable emulator("VMEM_EMU", "devices=2");
  const Variable test("VMEM_TEST_SEED", "1");
  EXPECT_TRUE(resolve_options({}));
}

TEST_F(OptionsTest, MalformedVariableIsNamedEvenWhenOverridden) {
  const Variable hbm("VMEM_HBM", "lots");
  EXPECT_THAT(refusal({{"hbm", "1GiB"}}),
              AllOf(HasSubstr("VMEM_HBM"), HasSubstr("hbm='lots'"), HasSubstr("accepted: auto")));
}

TEST_F(OptionsTest, EmptyVariableIsMalformed) {
  const Variable space("VMEM_SPACE", "");
  EXPECT_THAT(refusal({}), HasSubstr("VMEM_SPACE"));
}

TEST_F(OptionsTest, SameOptionGivenTwiceIsRefused) {
  EXPECT_THAT(refusal({{"hbm", "1GiB"}, {"log", "off"}, {"hbm", "2GiB"}}),
              AllOf(HasSubstr("twice"), HasSubstr("'1GiB'"), HasSubstr("'2GiB'")));
}

TEST_F(OptionsTest, AWrongFlagIsNamedAsTheSourceAndOtherOptionsAreNoPartOfWhatIsAccepted) {
  const auto refused = resolve_options(Given{{"acquire_wait", "long"}}, GivenBy::flags);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("(from --acquire-wait)"));
  EXPECT_THAT(refusal({{"remote_wait", "1ms"}}),
              AllOf(HasSubstr("accepted: a duration"), ::testing::Not(HasSubstr("only with"))));
}

TEST_F(OptionsTest, TheEnvironmentSaysNothingOrAnEmptyValue) {
  const auto& secret = *std::ranges::find(option_table(), "secret", &OptionDefinition::name);
  EXPECT_FALSE(option_in_environment(secret));
  const Variable variable("VMEM_SECRET", "");
  EXPECT_EQ(option_in_environment(secret), "");
}

struct Malformed {
  const char* name;
  const char* value;
  const char* why;
};
class MalformedOption : public OptionsTest, public testing::WithParamInterface<Malformed> {};
TEST_P(MalformedOption, IsRefusedWithItsReason) {
  const auto& [name, value, why] = GetParam();
  EXPECT_THAT(refusal({{name, value}}),
              AllOf(HasSubstr(std::string(name) + "='" + value + "'"), HasSubstr(why), HasSubstr("accepted: ")));
}
INSTANTIATE_TEST_SUITE_P(
    Options, MalformedOption,
    testing::Values(
        Malformed{"base", "0x7d0000100000", "not aligned to 2 MiB"}, Malformed{"base", "0x0", "below 4 GiB"},
        Malformed{"base", "0x800000000000", "47-bit"}, Malformed{"base", "0xffffffffffe00000", "47-bit"},
        Malformed{"base", "0x10000000000000000", "not a hexadecimal"}, Malformed{"base", "0x", "not a hexadecimal"},
        Malformed{"base", "137438953472", "not a hexadecimal"},
        Malformed{"base", "0x7d00000000zz", "not a hexadecimal"}, Malformed{"base", "0x-200000", "not a hexadecimal"},
        Malformed{"space", "32MiB", "less than 64 MiB"}, Malformed{"space", "128TiB", "more than 64 TiB"},
        Malformed{"space", "65MiB", "not a multiple of 2 MiB"},
        Malformed{"space", "auto", "does not start with a digit"}, Malformed{"space", "16EiB", "64 bits"},
        Malformed{"hbm", "31MiB", "less than 32 MiB"}, Malformed{"hbm", "1EiB", "more than 64 TiB"},
        Malformed{"hbm", "Auto", "not a size"}, Malformed{"headroom", "-1GiB", "negative"},
        Malformed{"lend", "0:20GiB", "does not end with the path of a socket"}, Malformed{"lend", "x:/run/a", "x"},
        Malformed{"lend", "0:1MiB:/run/a", "less than"},
        Malformed{"lend", "0:/run/a,0:/run/b", "device 0 is named twice"},
        Malformed{"peers", "/run/a,/run/a:1GiB", "/run/a is named twice"},
        Malformed{"host", "15MiB", "less than 16 MiB"}, Malformed{"nvme", "", "a directory without a name"},
        Malformed{"nvme", "/a,/b,/a:1GiB", "/a is named twice"}, Malformed{"nvme", "/a:1MiB", "less than 16 MiB"},
        Malformed{"nvme", ":1GiB", "a directory without a name"}, Malformed{"compress", "", "no codec is named"},
        Malformed{"page", "3MiB", "not a power of two"}, Malformed{"page", "1MiB", "less than 2 MiB"},
        Malformed{"page", "512MiB", "more than 256 MiB"}, Malformed{"page", "2MB", "less than 2 MiB"},
        Malformed{"devices", "", "not a whole number"}, Malformed{"devices", "0,0", "device 0 is named twice"},
        Malformed{"devices", "0,00", "named twice"}, Malformed{"devices", "-1", "negative"},
        Malformed{"devices", "0,-1", "negative"}, Malformed{"devices", "0,", "not a whole number"},
        Malformed{"devices", ",", "not a whole number"}, Malformed{"devices", "0 1", "not a whole number"},
        Malformed{"devices", "all,0", "not a whole number"}, Malformed{"devices", "256", "more than 255"},
        Malformed{"devices", "99999999999999999999", "more than 255"}, Malformed{"driver", "emulatd", "neither"},
        Malformed{"driver", "", "neither"}, Malformed{"acquire_wait", "100", "the unit is missing"},
        Malformed{"acquire_wait", "61min", "longer than an hour"}, Malformed{"prefetch", "-8", "negative"},
        Malformed{"prefetch", "70000", "more than 65536"}, Malformed{"prefetch", "8 pages", "not a whole number"},
        Malformed{"prefetch", "4294967304", "more than 65536"}, Malformed{"log", "warning", "no log level"},
        Malformed{"log", "", "no log level"}, Malformed{"node_lease", "4s", "too short"},
        Malformed{"node_lease", "6500ms", "not whole seconds"}, Malformed{"node_lease", "61min", "longer than an hour"},
        Malformed{"node_lease", "off", "not"}, Malformed{"published_cache", "101%", "more than 100"},
        Malformed{"published_cache", "-1%", "negative"}, Malformed{"published_cache", "%", "not a whole number"},
        Malformed{"published_cache", "1.5%", "not a whole number"},
        Malformed{"published_cache", "half", "does not start with a digit"},
        Malformed{"published_cache", "65TiB", "more than 64 TiB"},
        Malformed{"published_cache", "", "does not start with a digit"}));

TEST_F(OptionsTest, TheCacheOfPublishedPagesIsASizeOrAPartOfHostMemoryInACluster) {
  EXPECT_THAT(refusal({{"published_cache", "10%"}}),
              AllOf(HasSubstr("published_cache=10%"), HasSubstr("give cluster")));
  const auto share = [](const char* value) {
    const auto resolved = resolve_options(Given{{"published_cache", value}, {"cluster", "etcd://127.0.0.1:1/lab"}});
    EXPECT_TRUE(resolved);
    return resolved->published_cache.of(std::uint64_t{1} << 30);
  };
  EXPECT_EQ(share("25%"), std::uint64_t{256} << 20);
  EXPECT_EQ(share("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(share("100%"), std::uint64_t{1} << 30);
  EXPECT_EQ(share("0%"), 0u);
  EXPECT_EQ(share("0"), 0u);
  EXPECT_EQ(Options{}.published_cache.of(1000), 500u);
}

TEST_F(OptionsTest, TheCacheOfPublishedPagesOnDisksNeedsDisksInACluster) {
  EXPECT_THAT(refusal({{"published_cache_disk", "1GiB"}, {"nvme", "/tmp"}}),
              AllOf(HasSubstr("published_cache_disk=1GiB"), HasSubstr("give cluster")));
  EXPECT_THAT(refusal({{"published_cache_disk", "1GiB"}, {"cluster", "etcd://127.0.0.1:1/lab"}}),
              AllOf(HasSubstr("published_cache_disk=1GiB"), HasSubstr("give nvme")));
  const auto bytes = [](const char* value) {
    const auto resolved = resolve_options(
        Given{{"published_cache_disk", value}, {"cluster", "etcd://127.0.0.1:1/lab"}, {"nvme", "/tmp:1GiB"}});
    EXPECT_TRUE(resolved);
    return resolved->published_cache_disk;
  };
  EXPECT_EQ(bytes("64MiB"), std::uint64_t{64} << 20);
  EXPECT_EQ(bytes("0"), 0u);
  EXPECT_EQ(bytes("auto"), std::nullopt);
  EXPECT_EQ(Options{}.published_cache_disk, std::nullopt);
}

TEST_F(OptionsTest, ALeaseIsForMembersOfACluster) {
  EXPECT_THAT(refusal({{"node_lease", "6s"}}), AllOf(HasSubstr("node_lease=6s"), HasSubstr("give cluster")));
  const auto resolved = resolve_options(Given{{"node_lease", "1min"}, {"cluster", "etcd://127.0.0.1:1/lab"}});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->node_lease_s, 60u);
}

TEST_F(OptionsTest, SpaceBeyondTheAddressLimitIsAContradiction) {
  EXPECT_THAT(refusal({{"space", "64TiB"}}),
              AllOf(HasSubstr("space=64TiB (from the caller)"), HasSubstr("(from its default)"),
                    HasSubstr("from base 0x400000000000 down")));
  EXPECT_TRUE(resolve_options(Given{{"space", "64TiB"}, {"base", "0x400000000000"}}));
  EXPECT_THAT(refusal({{"space", "64TiB"}, {"base", "0x400000200000"}}), HasSubstr("47-bit"));
}

TEST_F(OptionsTest, PoolSmallerThanAPageIsAContradiction) {
  const Variable page("VMEM_PAGE", "256MiB");
  EXPECT_THAT(refusal({{"hbm", "128MiB"}}),
              AllOf(HasSubstr("hbm=128MiB (from the caller)"), HasSubstr("page=256MiB (from VMEM_PAGE)")));
  EXPECT_THAT(refusal({{"host", "128MiB"}}), HasSubstr("smaller than one page"));
  EXPECT_THAT(refusal({{"space", "128MiB"}}), HasSubstr("smaller than one page"));
  EXPECT_TRUE(resolve_options(Given{{"hbm", "2GiB"}, {"host", "256MiB"}, {"space", "256MiB"}}));
}

TEST_F(OptionsTest, PageAboveAnEighthOfTheBudgetIsAContradiction) {
  EXPECT_TRUE(resolve_options(Given{{"page", "8MiB"}, {"hbm", "64MiB"}}));
  EXPECT_THAT(refusal({{"page", "16MiB"}, {"hbm", "64MiB"}}),
              AllOf(HasSubstr("page=16MiB (from the caller)"), HasSubstr("more than 8MiB"), HasSubstr("hbm=64MiB")));
}

TEST_F(OptionsTest, StrictAndDrainedAreAContradiction) {
  const Variable strict("VMEM_STRICT", "on");
  EXPECT_THAT(refusal({{"drained", "on"}}), AllOf(HasSubstr("strict=on (from VMEM_STRICT)"),
                                                  HasSubstr("drained=on (from the caller)"), HasSubstr("choose one")));
  EXPECT_TRUE(resolve_options(Given{{"drained", "on"}, {"strict", "off"}}));
}

TEST_F(OptionsTest, DirectoriesForPagesHaveSizesOrNone) {
  const auto options = resolve_options(Given{{"nvme", "/mnt/a:200GiB,/mnt/b,./c:d"}});
  ASSERT_TRUE(options) << options.error().message;
  ASSERT_EQ(options->nvme.size(), 3u);
  EXPECT_EQ(options->nvme[0].path, "/mnt/a");
  EXPECT_EQ(options->nvme[0].bytes, 200ull << 30);
  EXPECT_EQ(options->nvme[1].path, "/mnt/b");
  EXPECT_FALSE(options->nvme[1].bytes);
  EXPECT_EQ(options->nvme[2].path, "./c:d");
}

TEST_F(OptionsTest, GpusAreLentAtASocketAndBorrowedThere) {
  const auto options = resolve_options(
      Given{{"peers", "1:40GiB,/run/gpu 2:8GiB,/run/gpu3"}, {"lend", "0:20GiB:/run/gpu:0,3:/run/gpu3"}});
  ASSERT_TRUE(options) << options.error().message;
  ASSERT_EQ(options->peers.size(), 3u);
  EXPECT_EQ(options->peers[0].device, 1);
  EXPECT_EQ(options->peers[0].socket, "");
  EXPECT_EQ(options->peers[1].socket, "/run/gpu 2");
  EXPECT_EQ(options->peers[1].bytes, 8ull << 30);
  EXPECT_EQ(options->peers[2].socket, "/run/gpu3");
  EXPECT_FALSE(options->peers[2].bytes);
  ASSERT_EQ(options->lend.size(), 2u);
  EXPECT_EQ(options->lend[0].device, 0);
  EXPECT_EQ(options->lend[0].bytes, 20ull << 30);
  EXPECT_EQ(options->lend[0].socket, "/run/gpu:0");
  EXPECT_EQ(options->lend[1].device, 3);
  EXPECT_FALSE(options->lend[1].bytes);
  for (const auto& option : option_table()) {
    const std::string printed = option.print(*options);
    if (option.name == "lend") {
      EXPECT_EQ(printed, "0:20GiB:/run/gpu:0,3:/run/gpu3");
    }
    if (option.name == "peers") {
      EXPECT_EQ(printed, "1:40GiB,/run/gpu 2:8GiB,/run/gpu3");
    }
  }
}

TEST_F(OptionsTest, FilesAndOtherNodesAreNotInReachOfADrainedProgram) {
  EXPECT_THAT(refusal({{"drained", "on"}, {"nvme", "/mnt/a"}}), HasSubstr("drop nvme=/mnt/a (from the caller)"));
  EXPECT_THAT(refusal({{"drained", "on"}, {"remote", "a:1"}}), HasSubstr("drop remote=a:1 (from the caller)"));
  EXPECT_THAT(refusal({{"replicas", "2"}, {"remote", "a:1"}}), HasSubstr("name another one"));
  EXPECT_THAT(refusal({{"nvme_poll", "on"}}), HasSubstr("no directory is named"));
  EXPECT_THAT(refusal({{"secret", "/file"}}), HasSubstr("no node is named"));
  EXPECT_THAT(refusal({{"remote", "a:1,a:1"}}), HasSubstr("a:1 is named twice"));
  EXPECT_THAT(refusal({{"remote", "a"}}), HasSubstr("'a' is not HOST:PORT"));
}

TEST_F(OptionsTest, HeadroomWithAFixedBudgetIsAContradiction) {
  const Variable hbm("VMEM_HBM", "2GiB");
  EXPECT_THAT(refusal({{"headroom", "1GiB"}}),
              AllOf(HasSubstr("headroom=1GiB (from the caller)"), HasSubstr("hbm=2GiB (from VMEM_HBM)")));
}

TEST_F(OptionsTest, DriverMayBeAPath) {
  const auto options = resolve_options(Given{{"driver", "/opt/x/libcuda.so.1"}});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->driver, "/opt/x/libcuda.so.1");
  EXPECT_TRUE(resolve_options(Given{{"driver", "libcuda.so.1"}}));
}

}  // namespace
}  // namespace vmem
