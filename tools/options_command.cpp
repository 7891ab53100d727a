#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/exit_code.hpp"
#include "runtime/options/options.hpp"
#include "tools/commands.hpp"
#include "tools/json_file.hpp"

namespace vmem::tools {
namespace {

std::string as_json() {
  auto options = nlohmann::json::array();
  for (const OptionDefinition& option : option_table())
    options.push_back({{"name", option.name},
                       {"flag", option_flag(option)},
                       {"environment", option_environment(option)},
                       {"default", option.default_value()},
                       {"values", option_values(option)},
                       {"switch", option.is_switch},
                       {"help", option.help}});
  return options.dump(2) + "\n";
}

void print_text() {
  fmt::print("Options of the runtime: for vmem_init by name, or as environment variables.\n\n");
  for (const OptionDefinition& option : option_table())
    fmt::print("{:<14} {}\n{:<14}   {}; default {}\n{:<14}   {}\n", option.name, option.help, "", option_values(option),
               option.default_value(), "", option_environment(option));
}

// Which settings there are is said by the emulated driver's parser (src/gpu/emu/config.cpp), too.
constexpr const char* kEmulatedSettings =
    R"(Settings of the emulated driver, in the variable VMEM_EMU: VMEM_EMU=devices=2,hbm=1GiB,p2p=50
Sizes are multiples of 2MiB such as 8GiB. Rates are GB/s for each direction; 0: as fast as the machine copies.

  devices=1            GPUs
  hbm=8GiB             memory of each GPU
  host=8GiB            limit of host memory that GPUs can reach
  numa=1               NUMA nodes
  h2d=0, d2h=0         rate of a GPU's host link, to the GPU and from it
  duplex=0             rate of both directions of a host link together; 0: no extra limit
  p2p=0, p2p=0-1:50    rate between two GPUs, of all pairs and of one; of one pair 0 means that they do not reach each other
  nvlink=1             0: GPUs copy to each other over their host links
  switch=0+1:25        GPUs below one PCIe switch, and the rate that they share; may be given several times
  near=0:1             a GPU and its NUMA node
  socket=0             rate between two NUMA nodes
  copy_us=0            fixed time of a copy
  nvml=1               0: NVML finds no driver
  cufile=compat        GPUDirect Storage: none, compat (through host memory) or direct
  vmm=1, host_vmm=1    0: the driver cannot map memory, or not host memory
  check_host_access=0  1: a thread of the processor that touches GPU memory gets a SIGSEGV
  workers=1            0: a stream has no thread of its own; its work runs where the program waits for it
  version=13000        the CUDA version that the driver says it is for
)";

}  // namespace

Command add_options(CLI::App& app) {
  struct Flags {
    std::string json_path;
    bool emulated = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_json(app, flags->json_path, "the options");
  app.add_flag("--emulated", flags->emulated, "The settings of the emulated driver instead")
      ->excludes(app.get_option("--json"));
  return [flags] {
    if (flags->emulated) {
      fmt::print("{}", kEmulatedSettings);
    } else if (!is_standard_output(flags->json_path)) {
      print_text();
    }
    if (const Status written = write_json_file(flags->json_path, as_json()); !written) {
      fmt::print(stderr, "vmem options: {}\n", written.error().message);
      return int{bench::kExitBadOptions};
    }
    return int{bench::kExitOk};
  };
}

}  // namespace vmem::tools
