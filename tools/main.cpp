// The `vmem` program: one subcommand a file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "bench/build_info.hpp"
#include "bench/exit_code.hpp"
#include "tools/commands.hpp"
#include "vmem/vmem.h"

namespace {

std::string quote(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string join_command_line(int argc, char** argv) {
  std::string line = "vmem";
  for (int i = 1; i < argc; ++i) line += " " + quote(argv[i]);
  return line;
}

int run(int argc, char** argv) {
  // What follows -- is another program's.
  char** const end = std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  const std::vector<std::string> program(end == argv + argc ? end : end + 1, argv + argc);
  argc = int(end - argv);
  CLI::App app("vmem: more GPU memory than the GPU has", "vmem");
  app.set_version_flag("--version", fmt::format("vmem {} (commit {})", vmem_version(), vmem::bench::kCommit));
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, vmem::tools::Command>> commands;
  const auto add = [&](const char* name, const char* what, auto&& add_command) {
    CLI::App* command = app.add_subcommand(name, what);
    commands.emplace_back(command, add_command(*command));
  };
  add("run", "Run a program with vmem under it: vmem run --hbm 16GiB -- python train.py",
      [&](CLI::App& command) { return vmem::tools::add_run(command, program); });
  add("bench", "Measure this machine against its own limits, and verify the data",
      [&](CLI::App& command) { return vmem::tools::add_bench(command, join_command_line(argc, argv)); });
  add("doctor", "Say what this machine can do, and what to fix", vmem::tools::add_doctor);
  add("options", "List every option of the runtime", vmem::tools::add_options);

  const auto named = [&](const auto& entry) { return entry.first->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::ranges::none_of(commands, named)) {
    std::string known;
    for (const auto& [command, body] : commands) known += (known.empty() ? "" : ", ") + command->get_name();
    fmt::print(stderr, "vmem: there is no command '{}'; choose one of {}\n", argv[1], known);
    return vmem::bench::kExitBadOptions;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive this way too, with exit code 0.
    return app.exit(error) == 0 ? vmem::bench::kExitOk : vmem::bench::kExitBadOptions;
  }
  for (const auto& [command, body] : commands)
    if (command->parsed()) return body();
  return vmem::bench::kExitBadOptions;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {  // third parties throw: out of memory, JSON
    fmt::print(stderr, "vmem: {}\n", error.what());
    return vmem::bench::kExitFailed;
  }
}
