// vmem run: starts a program under vmem without changing its libraries and scripts. The dynamic
// loader loads libvmem_preload.so; Python's start-up loads what PyTorch needs.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/run_board.hpp"
#include "bench/exit_code.hpp"
#include "gpu/driver.hpp"
#include "runtime/options/options.hpp"
#include "tools/commands.hpp"
#include "tools/run_report.hpp"
#include "tools/supervise.hpp"

namespace vmem::tools {
namespace {

namespace fs = std::filesystem;

// As a shell reports them.
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

// Options without an environment variable have another group.
constexpr const char* kRuntimeGroup = "Options that are environment variables too (--acquire-wait: VMEM_ACQUIRE_WAIT)";

struct Arguments {
  Runs runs = Runs::plainly;
  std::map<std::string, std::string> options;  // name → value, as given
  // The same; "true" for the bare flag, "" if not given.
  std::map<std::string, std::string> switches;
  bool python = true;
  bool check_only = false;
  std::vector<std::string> command;
};

constexpr const char* kTraceFile = "vmem.trace";

int refuse(const std::string& why) {
  fmt::print(stderr, "vmem run: {}\n", printable(why, 4000));
  return bench::kExitBadOptions;
}

// Looks beside this program: in an installation, a build folder, or a Python package.
fs::path find_beside(const std::vector<fs::path>& candidates) {
  std::error_code code;
  const fs::path here = fs::canonical("/proc/self/exe", code).parent_path();
  for (const fs::path& candidate : candidates) {
    if (const fs::path found = fs::weakly_canonical(here / candidate, code); fs::exists(found, code)) return found;
  }
  return {};
}

void prepend(const char* variable, const std::string& value, const char* separator) {
  const char* before = getenv(variable);
  const std::string all = before == nullptr || *before == '\0' ? value : value + separator + before;
  setenv(variable, all.c_str(), 1);
}

// Replaces the usage text by one line.
class RunFormatter : public CLI::Formatter {
 public:
  explicit RunFormatter(Runs runs) : runs_(runs) {}
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("Usage: vmem {} [OPTIONS] -- PROGRAM [ARGUMENTS]\n",
                       runs_ == Runs::plainly ? "run" : "trace record");
  }

 private:
  const Runs runs_;
};

// Runtime options that make no sense here are not offered, and are refused with the reason.
bool is_offered(const OptionDefinition& option) { return option.name != "protect"; }

constexpr const char* kDriverHelp =
    "auto: the program's own, libcuda.so.1; emulated: one over host memory, for machines without a GPU, on which the "
    "program's own GPU code does not run";
const std::string& help_of(const OptionDefinition& option) {
  static const std::string driver = kDriverHelp;
  return option.name == "driver" ? driver : option.help;
}

// The folder where the emulated driver is named libcuda.so.1.
constexpr const char* kEmulated = "vmem/emulated";

Status check_not_offered(const Options& options, const Arguments& arguments) {
  const auto named = [&](const char* name) {
    const auto found = arguments.options.find(name);
    if (found != arguments.options.end()) return "--" + found->first;
    const auto option = std::ranges::find(option_table(), name, &OptionDefinition::name);
    return "the environment variable " + option_environment(*option);
  };
  if (options.driver != "auto" && options.driver != "emulated")
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is '{}', and under `vmem run` the program loads its own driver, libcuda.so.1: leave it "
                            "out, and begin LD_LIBRARY_PATH with a folder in which libcuda.so.1 is a link to it",
                            named("driver"), options.driver));
  if (options.protect)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is for programs that say what they write, by vmem_acquire; under `vmem run` nobody "
                            "says it: leave it out; --strict checks what a program reaches",
                            named("protect")));
  return {};
}

// A machine without a driver may run programs without CUDA. A driver that lacks what vmem needs is
// refused now, because it would fail the program later.
Status check_driver(const Options& options) {
  if (options.driver == "auto" && !gpu::Driver::installed()) return {};
  const auto loaded = gpu::Driver::load(options.driver);
  if (!loaded) {
    // No GPU, or none visible to this process, is not an error here.
    return loaded.error().native == CUDA_ERROR_NO_DEVICE ? Status{} : std::unexpected(loaded.error());
  }
  const auto& driver = *loaded;
  int devices = 0;
  VMEM_TRY(driver->check((*driver)->cuDeviceGetCount(&devices), "cuDeviceGetCount"));
  for (const int named : options.devices) {
    if (named < devices) continue;
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--devices names device {}, and there are {} (0 to {})", named, devices, devices - 1));
  }
  for (int i = 0; i < devices; ++i) {
    CUdevice device = 0;
    int managed = 0, host = 0;
    VMEM_TRY(driver->check((*driver)->cuDeviceGet(&device, i), "cuDeviceGet"));
    (void)(*driver)->cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    (void)(*driver)->cuDeviceGetAttribute(&host, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          device);
    if (managed != 0 && host != 0) continue;
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("device {} and its driver cannot map memory as vmem needs; see `vmem doctor`", i));
  }
  return {};
}

int cannot_run(const char* program, int error) {
  if (error == ENOENT && std::strchr(program, '/') == nullptr) {
    const char* path = getenv("PATH");
    fmt::print(stderr,
               "vmem run: cannot run {0}: no folder of PATH ({1}) has it; one elsewhere takes its path: ./{0}\n",
               program, path == nullptr ? "which is not set" : path);
  } else {
    fmt::print(stderr, "vmem run: cannot run {}: {}\n", program, std::strerror(error));
  }
  return error == ENOENT ? kExitNotFound : kExitCannotRun;
}

// Both variables hold lists that are separated by colons, and spaces separate LD_PRELOAD's too.
Status check_path(const fs::path& path, const char* variable, const char* separators) {
  if (path.string().find_first_of(separators) == std::string::npos) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} has a space or a colon in its path, which {} cannot hold; move vmem elsewhere",
                          path.string(), variable));
}

// Lets the program find the emulated driver as its own libcuda.so.1.
Status use_emulated_driver() {
  const fs::path folder = find_beside({fs::path("../lib") / kEmulated, kEmulated});
  if (folder.empty())
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("lib/{} with the emulated driver is not beside this program; install vmem as a whole", kEmulated));
  VMEM_TRY(check_path(folder, "LD_LIBRARY_PATH", ":"));
  prepend("LD_LIBRARY_PATH", folder.string(), ":");
  unsetenv("VMEM_DRIVER");
  return {};
}

// Sets the variables through which the program and its children find vmem and its options.
Status prepare_environment(const Arguments& arguments, const Options& options) {
  const fs::path library = find_beside({"../lib/libvmem_preload.so", "libvmem_preload.so"});
  if (library.empty())
    return fail(VMEM_ERROR_INVALID_OPTION, "libvmem_preload.so is not beside this program; install vmem as a whole");
  VMEM_TRY(check_path(library, "LD_PRELOAD", " :"));
  for (const OptionDefinition& option : option_table()) {
    if (const auto found = arguments.options.find(option.name); found != arguments.options.end())
      setenv(option_environment(option).c_str(), found->second.c_str(), 1);
  }
  if (options.driver == "emulated") VMEM_TRY(use_emulated_driver());
  prepend("LD_PRELOAD", library.string(), ":");
  if (!arguments.python) return {};
  const fs::path startup =
      find_beside({"../share/vmem/python/vmem/startup", "../../../python/vmem/startup", "../../startup"});
  if (startup.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                "share/vmem/python is not beside this program, without which PyTorch allocates through its own caching "
                "allocator, several times slower beyond HBM; install vmem as a whole, or pass --no-python");
  prepend("PYTHONPATH", startup.string(), ":");
  return {};
}

// The flag, else the environment, else for `vmem trace record` a default. The path is made
// absolute: the program may go to another folder before it begins.
Status name_trace(Arguments& arguments) {
  const auto option = std::ranges::find(option_table(), "trace", &OptionDefinition::name);
  auto& given = arguments.options;
  if (const auto set = option_in_environment(*option)) given.try_emplace("trace", *set);
  if (arguments.runs == Runs::recorded) given.try_emplace("trace", kTraceFile);
  const auto trace = given.find("trace");
  if (trace == given.end() || trace->second.empty()) return {};
  if (trace->second != "off") trace->second = fs::absolute(trace->second);
  if (trace->second == "off" && arguments.runs == Runs::recorded)
    return fail(VMEM_ERROR_INVALID_OPTION,
                "the option trace is 'off', and `vmem trace record` needs a file to record to");
  return {};
}

// A trace is not written over, and neither is anything else.
Status check_trace(const std::string& path) {
  std::error_code code;
  if (!fs::exists(fs::symlink_status(path, code))) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} exists, and is left as it is; remove it, or name another file with --trace", path));
}

bool reports_end(const Options& options) {
  const auto level = log::parse_level(options.log_level);
  return level && *level <= log::Level::warn;
}

// Runs the program, and says at its end what vmem did; inside of another `vmem run` that one does.
int run_to_end(char** words, const Options& options) {
  const bool nested = RunBoard::of_environment().has_value();
  auto board = RunBoard::create();
  if (!board) {
    fmt::print(stderr, "vmem run: {}\n", board.error().message);
    return bench::kExitFailed;
  }
  if (!nested) setenv(kRunVariable, board->path().c_str(), 1);
  const bool over_network = !options.secret.empty() || !options.certificates.empty() || !options.fabric.empty();
  const bool driver = options.driver == "emulated" || gpu::Driver::installed();
  Supervised program;
  program.words = words;
  program.lenders = !options.remote.empty() && over_network ? Lenders::to_be_told : Lenders::none;
  program.cannot_run = [&](int error) {
    if (RunBoard::Entry* entry = board->claim()) entry->state = RunBoard::State::refused;
    return cannot_run(words[0], error);
  };
  program.at_end = [&] {
    if (!nested && reports_end(options))
      fmt::print(stderr, "{}", run_report(board->summary(), driver ? CudaDriver::installed : CudaDriver::absent));
    std::error_code code;
    if (!nested && !options.trace.empty() && reports_end(options) && fs::exists(options.trace, code))
      fmt::print(stderr, "vmem run: recorded {}; `vmem trace show {}` says what is in it\n", quote(options.trace),
                 quote(options.trace));
  };
  return supervise(program);
}

int run(Arguments arguments) {
  for (const auto& [name, value] : arguments.switches)
    if (!value.empty()) arguments.options[name] = value == "true" ? "on" : value;
  if (arguments.command.empty() && !arguments.check_only)
    return refuse("name the program to run, after --: vmem run --hbm 16GiB -- python train.py");
  if (!arguments.command.empty() && arguments.command[0].empty())
    return refuse("the first word after --, the program's name, is empty; is a variable of the shell unset?");
  if (auto named = name_trace(arguments); !named) return refuse(named.error().message);
  std::vector<std::pair<std::string, std::string>> given(arguments.options.begin(), arguments.options.end());
  const auto options = resolve_options(given, GivenBy::flags);
  if (!options) return refuse(options.error().message);
  if (const auto offered = check_not_offered(*options, arguments); !offered) return refuse(offered.error().message);
  if (auto able = check_driver(*options); !able) {
    if (able.error().status == VMEM_ERROR_INVALID_OPTION) return refuse(able.error().message);
    fmt::print(stderr, "vmem run: {}\n", able.error().message);
    return bench::kExitFailed;
  }
  if (const auto free = check_trace(options->trace); !options->trace.empty() && !free)
    return refuse(free.error().message);
  if (const auto prepared = prepare_environment(arguments, *options); !prepared)
    return refuse(prepared.error().message);
  if (arguments.check_only) return bench::kExitOk;
  std::vector<char*> words;
  for (const std::string& word : arguments.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  return run_to_end(words.data(), *options);
}

}  // namespace

Command add_run(CLI::App& app, std::vector<std::string> program, Runs runs) {
  const auto arguments = std::make_shared<Arguments>();
  arguments->runs = runs;
  arguments->command = std::move(program);
  app.formatter(std::make_shared<RunFormatter>(runs));
  for (const OptionDefinition& option : option_table()) {
    CLI::Option* added = nullptr;
    if (option.is_switch) {
      added = app.add_flag(option_flag(option), arguments->switches[option.name], help_of(option));
    } else {
      added = app.add_option_function<std::string>(
                     option_flag(option),
                     [arguments, name = option.name](const std::string& value) { arguments->options[name] = value; },
                     help_of(option))
                  ->type_name("VALUE")
                  ->default_str(runs == Runs::recorded && option.name == "trace" ? kTraceFile : option.default_value());
    }
    added->group(is_offered(option) ? kRuntimeGroup : "");
  }
  app.add_flag_callback(
      "--no-python", [arguments] { arguments->python = false; },
      "Leave Python programs alone: PyTorch then allocates through its own caching allocator");
  app.add_flag("--check", arguments->check_only, "Check the options and the driver, and run nothing");
  app.footer(
      "It stays beside the program, passes signals on to it, and says in two lines at its end what vmem did (not with "
      "--log error or off). With --remote and --secret, --certificates or --fabric the nodes that lend hear of the "
      "program's end at once.\n"
      "The emulated driver takes its settings from the variable VMEM_EMU, as in VMEM_EMU=devices=2,hbm=1GiB; "
      "`vmem options --emulated` lists them.\n"
      "Exit code: the program's; 2 bad options; 3 the driver cannot do what vmem needs, or vmem could not start; 126, "
      "127 the program cannot be run.");
  return [arguments] { return run(*arguments); };
}

}  // namespace vmem::tools
