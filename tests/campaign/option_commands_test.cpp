// Random option values as program arguments: the program must end soon, with an exit code and one
// line about the error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "campaign/child.hpp"
#include "campaign/option_values.hpp"
#include "campaign/seeds.hpp"

namespace vmem::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kMost = 20s;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 20;
// The loader puts the sanitizer's library behind the one that `vmem run` preloads.
constexpr bool kRuns = false;
#else
constexpr std::uint64_t kSeeds = 160;
constexpr bool kRuns = true;
#endif

std::string program() { return std::filesystem::canonical("/proc/self/exe").parent_path() / "vmem"; }

std::string flag_of(const std::string& option) {
  std::string flag = "--" + option;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

class Commands {
 public:
  Commands(OptionValues& values, Random& random) : values_(values), random_(random) {}

  std::vector<std::string> any() {
    switch (random_.below(kRuns ? 8 : 5)) {
      case 0:
        return with_junk({"options"});
      case 1:
        return with_junk({"doctor", "--driver", values_.any(option("driver"))});
      case 2:
      case 3:
      case 4:
        return daemon();
      default:
        return run();
    }
  }

 private:
  static const OptionDefinition& option(const std::string& name) {
    return *std::ranges::find(option_table(), name, &OptionDefinition::name);
  }
  std::vector<std::string> with_junk(std::vector<std::string> words) {
    if (random_.one_in(2)) words.insert(words.end(), {"--json", "-"});
    if (random_.one_in(3)) words.push_back(values_.mutated("--json"));
    return words;
  }
  // A daemon that lends nothing, or little.
  std::vector<std::string> daemon() {
    std::vector<std::string> words{"daemon", "--listen",
                                   random_.one_in(2) ? "127.0.0.1:0" : values_.any(option("remote"))};
    static const std::vector<std::pair<std::string, std::string>> kFlags{{"--lend", "host"},
                                                                         {"--nvme", "nvme"},
                                                                         {"--secret", "secret"},
                                                                         {"--certificates", "certificates"},
                                                                         {"--fabric", "fabric"},
                                                                         {"--id", "prefetch"},
                                                                         {"--per-node", "borrow"},
                                                                         {"--grace", "call_wait"},
                                                                         {"--channels", "remote_channels"},
                                                                         {"--node-lease", "node_lease"},
                                                                         {"--log", "log"}};
    for (std::uint64_t left = random_.between(1, 3); left > 0; --left) {
      const auto& [flag, like] = random_.pick(kFlags);
      words.push_back(random_.one_in(12) ? values_.mutated(flag) : flag);
      words.push_back(values_.any(option(like)));
    }
    return words;
  }
  std::vector<std::string> run() {
    std::vector<std::string> words{"run"};
    const auto table = option_table();
    for (std::uint64_t left = random_.between(1, 3); left > 0; --left) {
      const OptionDefinition& chosen = table[random_.below(table.size())];
      const std::string flag = random_.one_in(10) ? values_.mutated(flag_of(chosen.name)) : flag_of(chosen.name);
      words.push_back(random_.one_in(2) ? flag : flag + "=" + values_.any(chosen));
      if (words.back() == flag) words.push_back(values_.any(chosen));
    }
    words.insert(words.end(), {"--", "/bin/true"});
    return words;
  }

  OptionValues& values_;
  Random& random_;
};

std::string shown(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) {
    all += " '";
    for (const unsigned char c : word.substr(0, 200))
      all += std::isprint(c) != 0 ? std::string(1, char(c)) : fmt::format("\\x{:02x}", c);
    all += word.size() > 200 ? fmt::format("...' ({} bytes)", word.size()) : "'";
  }
  return all;
}

// A warning of the log, which may precede the line that says what is wrong.
bool is_logged(std::string_view line) {
  constexpr std::string_view kTime = "00:00:00.000 ";
  return line.size() > kTime.size() && line.substr(kTime.size()).starts_with("[vmem ");
}

std::string judge(const ChildOutcome& outcome) {
  if (!outcome.exited()) return outcome.words();
  if (outcome.code() == 0) return "";
  // vmem run took a random value for the name of the program, which does not exist.
  const bool no_program =
      (outcome.code() == 126 || outcome.code() == 127) && outcome.err.starts_with("vmem run: cannot run ");
  if (outcome.code() > 3 && !no_program) return fmt::format("an exit code that is not documented: {}", outcome.code());
  // The doctor's answer.
  if (outcome.out.contains("PROBLEM") || outcome.out.contains("\"usable\": false")) return "";
  std::istringstream lines(outcome.err);
  int said = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!is_logged(line) && !line.starts_with("vmem")) return "a line that is not the program's";
    if (std::ranges::any_of(line, [](unsigned char c) { return std::iscntrl(c) != 0; }))
      return "a line with control characters";
    said += is_logged(line) ? 0 : 1;
  }
  return said == 1 ? "" : fmt::format("{} lines where one says what is wrong", said);
}

class CommandFuzz : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(CommandFuzz, EveryCommandEndsWithOneLineOrWorks) {
  if (!std::filesystem::exists(program())) GTEST_SKIP() << "this build has no vmem program";
  run_seeds(GetParam(), kSeeds, [](std::uint64_t seed) {
    const Places places;
    Random random(seed * 6364136223846793005u);
    OptionValues values(places, random);
    for (int i = 0; i < 3; ++i) {
      std::vector<std::string> words = Commands(values, random).any();
      words.insert(words.begin(), program());
      const ChildOutcome outcome =
          run_program(words, {"VMEM_EMU=devices=2,hbm=256MiB,host=512MiB"}, kMost, "listens on ");
      const std::string wrong = judge(outcome);
      ASSERT_EQ(wrong, "") << shown(words) << "\nexit " << outcome.code() << "\n"
                           << outcome.out.substr(0, 2000) << outcome.err.substr(0, 4000);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, CommandFuzz, ::testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace vmem::test
