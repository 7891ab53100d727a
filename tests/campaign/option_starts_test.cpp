// Random options through vmem_init and the environment, each start in its own process. A start must
// end soon and never by a signal. A refusal must name the option and the error, and leave nothing;
// a successful start must work and end.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/printable.hpp"
#include "campaign/child.hpp"
#include "campaign/option_values.hpp"
#include "campaign/seeds.hpp"
#include "runtime/emulated_gpu.hpp"
#include "vmem/vmem.h"

namespace vmem::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kMost = 20s;  // per start
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 80;
#else
constexpr std::uint64_t kSeeds = 400;
#endif
constexpr const char* kMachine = "devices=2,hbm=256MiB,host=512MiB";
constexpr std::size_t kLongestMessage = 1023;

struct Start {
  std::vector<OptionValue> given, environment;  // by the options' names
  bool good = false;                            // must succeed
  std::string words() const;
};

std::string shown(const std::string& text) {
  std::string all;
  for (const unsigned char c : text.substr(0, 300))
    all += std::isprint(c) != 0 ? std::string(1, char(c)) : fmt::format("\\x{:02x}", c);
  return text.size() > 300 ? fmt::format("{}... ({} bytes)", all, text.size()) : all;
}

std::string variable_of(const std::string& option) {
  std::string name = "VMEM_";
  for (const unsigned char c : option) name += char(std::toupper(c));
  return name;
}

std::string Start::words() const {
  std::string all;
  for (const auto& [name, value] : environment) all += fmt::format(" {}='{}'", variable_of(name), shown(value));
  for (const auto& [name, value] : given) all += fmt::format(" {}='{}'", shown(name), shown(value));
  return all;
}

bool names(const std::vector<OptionValue>& all, const std::string& name) {
  return std::ranges::find(all, name, &OptionValue::name) != all.end();
}

// Adds options that make a start small and quick, unless they are given.
void complete(Start& start) {
  const OptionValue usual[]{{"driver", "emulated"}, {"hbm", "64MiB"}, {"host", "64MiB"},
                            {"space", "1GiB"},      {"log", "off"},   {"topology", "off"}};
  for (const OptionValue& each : usual) {
    const bool given = names(start.given, each.name) || names(start.environment, each.name);
    if (!given) start.given.push_back(each);
  }
}

Start good_start(OptionValues& values, Random& random) {
  static const std::vector<std::string> kAlone{
      "base",     "space",   "hbm",     "host",   "page",       "call_wait", "acquire_wait",
      "prefetch", "window",  "peers",   "lend",   "nvme",       "devices",   "gds",
      "compress", "protect", "drained", "strict", "call_times", "topology",  "log"};
  const std::string& name = random.pick(kAlone);
  Start start{.given = {}, .environment = {}, .good = true};
  const OptionValue chosen{name, values.good(name)};
  if (random.one_in(2)) {
    start.environment.push_back(chosen);
  } else {
    start.given.push_back(chosen);
  }
  // Keeps small the address space to be reserved at the base.
  if (name == "base") start.given.push_back({"space", "1GiB"});
  return start;
}

Start any_start(OptionValues& values, Random& random) {
  Start start;
  const auto table = option_table();
  for (std::uint64_t left = random.between(1, random.one_in(4) ? 8 : 2); left > 0; --left) {
    const OptionDefinition& option = table[random.below(table.size())];
    const std::string name = random.one_in(10) ? values.any_name() : option.name;
    const std::string value = values.any(option);
    const bool can_be_variable = !value.contains('\0') && !name.contains('=');
    if (can_be_variable && random.one_in(3)) {
      start.environment.push_back({name, value});
    } else {
      start.given.push_back({name, value});
    }
  }
  if (random.one_in(10) && !start.given.empty()) start.given.push_back(start.given.front());
  return start;
}

// ---- in the child ----

int complain(const std::string& why) {
  fmt::print("{}\n", why);
  std::fflush(stdout);
  return 1;
}

// The driver must hold no objects of a refused or ended runtime.
std::string leftovers() { return configure_emulated(kMachine); }

std::string work() {
  void* memory = nullptr;
  std::byte written{7}, found{};
  if (vmem_malloc(&memory, 3 << 20, vmem_statistics{}.device_count, nullptr) != VMEM_OK) {
    // Device 0 may not be in use.
    if (vmem_malloc(&memory, 3 << 20, 1, nullptr) != VMEM_OK) return fmt::format("malloc: {}", vmem_last_error());
  }
  if (vmem_write(memory, &written, 1) != VMEM_OK) return fmt::format("write: {}", vmem_last_error());
  if (vmem_memset(memory, 1, 3 << 20, nullptr) != VMEM_OK) return fmt::format("memset: {}", vmem_last_error());
  if (vmem_read(&found, memory, 1) != VMEM_OK) return fmt::format("read: {}", vmem_last_error());
  if (found != std::byte{1}) return "a wrong byte";
  if (vmem_free(memory, nullptr) != VMEM_OK) return fmt::format("free: {}", vmem_last_error());
  return "";
}

bool is_line(const std::string& text) {
  return std::ranges::none_of(text, [](unsigned char c) { return std::iscntrl(c) != 0; });
}

// As an option, a variable or a flag, because many a name is also a word.
bool mentions(const std::string& message, const std::string& name) {
  std::string flag = "--" + name;
  std::ranges::replace(flag, '_', '-');
  const std::string said = printable(name);
  for (const std::string& form : {flag, said + "=", "'" + said + "'", "option " + said, variable_of(said)})
    if (message.contains(form)) return true;
  return message.contains(printable(variable_of(name))) || (name.size() > 200 && message.contains(name.substr(0, 100)));
}

std::string judge_refusal(const Start& start, vmem_status status, const std::string& message) {
  constexpr vmem_status kAllowed[]{VMEM_ERROR_INVALID_OPTION, VMEM_ERROR_NO_DRIVER, VMEM_ERROR_UNSUPPORTED,
                                   VMEM_ERROR_ADDRESS_SPACE};
  if (start.good) return "refuses what is right";
  if (std::ranges::find(kAllowed, status) == std::end(kAllowed)) return "a status that vmem_init must not have";
  if (message.empty()) return "says nothing";
  if (!is_line(message)) return "is no line of text";
  if (message.size() >= kLongestMessage && !message.contains(" [...] "))
    return "is cut off, so that the reason is missing";
  const auto named = [&](const OptionValue& each) { return mentions(message, each.name); };
  if (std::ranges::none_of(start.given, named) && std::ranges::none_of(start.environment, named))
    return "names no option that was given";
  return "";
}

int start_once(const Start& start) {
  for (const auto& [name, value] : start.environment) ::setenv(variable_of(name).c_str(), value.c_str(), 1);
  if (const std::string wrong = leftovers(); !wrong.empty()) return complain(wrong);
  std::vector<vmem_option> options;
  for (const auto& [name, value] : start.given) options.push_back({name.c_str(), value.c_str()});
  const auto began = std::chrono::steady_clock::now();
  const vmem_status status = vmem_init(options.data(), options.size());
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  const std::string message = vmem_last_error();
  fmt::print("{} after {} ms: {}\n", vmem_status_string(status), took.count(), status == VMEM_OK ? "" : message);
  std::fflush(stdout);
  if (status != VMEM_OK) {
    if (const std::string wrong = judge_refusal(start, status, message); !wrong.empty()) return complain(wrong);
    if (const std::string left = leftovers(); !left.empty()) return complain("left in the driver: " + left);
    return 0;
  }
  if (const std::string wrong = work(); !wrong.empty()) return complain(wrong);
  if (vmem_shutdown() != VMEM_OK) return complain(fmt::format("shutdown: {}", vmem_last_error()));
  if (const std::string left = leftovers(); !left.empty()) return complain("left in the driver: " + left);
  return 0;
}

class OptionFuzz : public ::testing::TestWithParam<std::uint64_t> {};

void run_start(std::uint64_t seed) {
  const Places places;
  Random random(seed * 9176263);
  OptionValues values(places, random);
  for (int i = 0; i < 4; ++i) {
    Start start = random.one_in(4) ? good_start(values, random) : any_start(values, random);
    complete(start);
    const ChildOutcome outcome = run_child([&] { return start_once(start); }, kMost);
    ASSERT_TRUE(outcome.exited() && outcome.code() == 0)
        << "start " << i << " " << outcome.words() << ":" << start.words() << "\n"
        << outcome.out << outcome.err;
  }
}

TEST_P(OptionFuzz, StartsEndSoonWithWhatIsWrongOrWork) {
  ::unsetenv("VMEM_EMU");
  run_seeds(GetParam(), kSeeds, run_start);
}

INSTANTIATE_TEST_SUITE_P(Seeds, OptionFuzz, ::testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace vmem::test
