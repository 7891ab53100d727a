// vmem run: starts a program with vmem under it. The program's own libraries and scripts stay as they are: the dynamic loader brings in
// libvmem_preload.so, Python's start-up brings in what PyTorch needs.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "base/options.hpp"
#include "base/printable.hpp"
#include "bench/exit_code.hpp"
#include "gpu/driver.hpp"
#include "tools/commands.hpp"
#include "tools/supervise.hpp"

namespace vmem::tools {
namespace {

namespace fs = std::filesystem;

// As a shell reports them.
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

// Those without a name in the environment stand in another.
constexpr const char* kRuntimeGroup = "Options that are environment variables too (--acquire-wait: VMEM_ACQUIRE_WAIT)";

struct Arguments {
  std::map<std::string, std::string> options;   // name → value, as given
  std::map<std::string, std::string> switches;  // the same, "true" for the bare flag; "" where it is not given
  bool python = true;
  std::vector<std::string> command;
};

int refuse(const std::string& why) {
  fmt::print(stderr, "vmem run: {}\n", printable(why, 4000));
  return bench::kExitBadOptions;
}

// Beside this program: in an installation, where it was built, or in a Python package.
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

// Help has one usage line.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: vmem run [OPTIONS] -- PROGRAM [ARGUMENTS]\n";
  }
};

// Options of the runtime that have no place here: they are not offered, and refused with the reason.
bool is_offered(const OptionDefinition& option) { return option.name != "driver" && option.name != "protect"; }

// What libcuda.so.1 has to be for the program to find that driver.
std::string library_of(const std::string& driver) {
  if (driver != "emulated") return driver;
  const fs::path found = find_beside({"../lib/libvmem_emu.so", "libvmem_emu.so"});
  return found.empty() ? "libvmem_emu.so" : found.string();
}

Status check_not_offered(const Options& options, const Arguments& arguments) {
  const auto named = [&](const char* name) {
    const auto found = arguments.options.find(name);
    if (found != arguments.options.end()) return "--" + found->first;
    const auto option = std::ranges::find(option_table(), name, &OptionDefinition::name);
    return "the environment variable " + option_environment(*option);
  };
  if (options.driver != "auto")
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is '{}', and under `vmem run` the program loads its own driver, libcuda.so.1: leave it "
                            "out, and begin LD_LIBRARY_PATH with a folder in which libcuda.so.1 is a link to {}",
                            named("driver"), options.driver, library_of(options.driver)));
  if (options.protect)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is for programs that say what they write, by vmem_acquire; under `vmem run` nobody "
                            "says it: leave it out; --strict checks what a program reaches",
                            named("protect")));
  return {};
}

// A machine without a driver runs programs without CUDA; one whose driver cannot do what vmem needs would fail them later.
Status check_driver(const Options& options) {
  if (options.driver == "auto" && !gpu::Driver::installed()) return {};
  const auto loaded = gpu::Driver::load(options.driver);
  if (!loaded) {
    // No GPU, or none that this process may see: nothing of this program's concern.
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

int run(Arguments arguments) {
  for (const auto& [name, value] : arguments.switches)
    if (!value.empty()) arguments.options[name] = value == "true" ? "on" : value;
  if (arguments.command.empty())
    return refuse("name the program to run, after --: vmem run --hbm 16GiB -- python train.py");
  if (arguments.command[0].empty())
    return refuse("the first word after --, the program's name, is empty; is a variable of the shell unset?");
  std::vector<std::pair<std::string, std::string>> given(arguments.options.begin(), arguments.options.end());
  const auto options = resolve_options(given, GivenBy::flags);
  if (!options) return refuse(options.error().message);
  if (const auto offered = check_not_offered(*options, arguments); !offered) return refuse(offered.error().message);
  if (auto able = check_driver(*options); !able) {
    if (able.error().status == VMEM_ERROR_INVALID_OPTION) return refuse(able.error().message);
    fmt::print(stderr, "vmem run: {}\n", able.error().message);
    return bench::kExitFailed;
  }
  const fs::path library = find_beside({"../lib/libvmem_preload.so", "libvmem_preload.so"});
  if (library.empty()) return refuse("libvmem_preload.so is not beside this program; install vmem as a whole");
  if (library.string().find_first_of(" :") != std::string::npos)
    return refuse(fmt::format(
        "{} has a space or a colon in its path, which LD_PRELOAD cannot hold; move vmem elsewhere", library.string()));
  for (const OptionDefinition& option : option_table()) {
    if (const auto found = arguments.options.find(option.name); found != arguments.options.end())
      setenv(option_environment(option).c_str(), found->second.c_str(), 1);
  }
  prepend("LD_PRELOAD", library.string(), ":");
  if (arguments.python) {
    const fs::path startup =
        find_beside({"../share/vmem/python/vmem/startup", "../../../python/vmem/startup", "../../startup"});
    if (!startup.empty()) prepend("PYTHONPATH", startup.string(), ":");
  }
  std::vector<char*> words;
  for (const std::string& word : arguments.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  // A program that borrows over TLS: its lenders cannot see its end themselves.
  const bool over_network = !options->secret.empty() || !options->certificates.empty() || !options->fabric.empty();
  if (!options->remote.empty() && over_network) return supervise(words.data(), cannot_run);
  execvp(words[0], words.data());
  return cannot_run(words[0], errno);
}

}  // namespace

Command add_run(CLI::App& app, std::vector<std::string> program) {
  const auto arguments = std::make_shared<Arguments>();
  arguments->command = std::move(program);
  app.formatter(std::make_shared<RunFormatter>());
  for (const OptionDefinition& option : option_table()) {
    CLI::Option* added = nullptr;
    if (option.is_switch) {
      added = app.add_flag(option_flag(option), arguments->switches[option.name], option.help);
    } else {
      added = app.add_option_function<std::string>(
                     option_flag(option),
                     [arguments, name = option.name](const std::string& value) { arguments->options[name] = value; },
                     option.help)
                  ->type_name("VALUE")
                  ->default_str(option.default_value);
    }
    added->group(is_offered(option) ? kRuntimeGroup : "");
  }
  app.add_flag_callback(
      "--no-python", [arguments] { arguments->python = false; },
      "Leave Python programs alone: PyTorch then allocates through its own caching allocator");
  app.footer(
      "With --remote and --secret, --certificates or --fabric it stays beside the program, so that the nodes that lend "
      "hear of its end at once.\n"
      "Exit code: the program's; 2 bad options; 3 the driver cannot do what vmem needs; 126, 127 the program cannot be "
      "run.");
  return [arguments] { return run(*arguments); };
}

}  // namespace vmem::tools
