#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/commands.hpp"
#include "tools/doctor/doctor.hpp"

namespace vmem::tools {

Command add_doctor(CLI::App& app) {
  struct Flags {
    std::string driver = "auto";
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  app.add_option("--driver", flags->driver, "auto (the CUDA driver), emulated, or a path")
      ->capture_default_str()
      ->envname("VMEM_DRIVER");
  app.add_flag("--json", flags->json, "As JSON, on standard output");
  app.footer("Exit codes: 0 vmem is usable here; 1 it is not.");
  return [flags] {
    const doctor::Report report = doctor::examine(flags->driver);
    fmt::print("{}", flags->json ? report.to_json().dump(2) + "\n" : report.to_text());
    return report.usable() ? 0 : 1;
  };
}

}  // namespace vmem::tools
