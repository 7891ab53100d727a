#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/exit_code.hpp"
#include "tools/commands.hpp"
#include "tools/doctor/doctor.hpp"
#include "tools/json_file.hpp"

namespace vmem::tools {

Command add_doctor(CLI::App& app) {
  struct Flags {
    std::string driver = "auto";
    std::string json_path;
  };
  const auto flags = std::make_shared<Flags>();
  app.add_option("--driver", flags->driver, "auto (the CUDA driver), emulated, or a path")
      ->capture_default_str()
      ->envname("VMEM_DRIVER");
  add_json(app, flags->json_path, "the findings");
  app.footer("Exit codes: 0 vmem is usable here; 1 it is not; 2 bad options.");
  return [flags] {
    const auto refuse = [](const Status& why) {
      fmt::print(stderr, "vmem doctor: {}\n", why.error().message);
      return int{bench::kExitBadOptions};
    };
    if (const Status able = check_json_file(flags->json_path); !able) return refuse(able);
    const doctor::Report report = doctor::examine(flags->driver);
    if (!is_standard_output(flags->json_path)) fmt::print("{}", report.to_text());
    if (const Status written = write_json_file(flags->json_path, report.to_json().dump(2) + "\n"); !written)
      return refuse(written);
    return report.usable() ? 0 : 1;
  };
}

}  // namespace vmem::tools
