// The `vmem` program: one subcommand per file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/option.hpp"
#include "base/printable.hpp"
#include "bench/build_info.hpp"
#include "bench/exit_code.hpp"
#include "tools/commands.hpp"
#include "vmem/vmem.h"

namespace vmem::tools {

std::string quote(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace vmem::tools

namespace {

using vmem::printable;
using vmem::tools::quote;

constexpr std::size_t kMostBytes = 4000;  // of a message

std::string join_command_line(int argc, char** argv) {
  std::string line = "vmem";
  for (int i = 1; i < argc; ++i) line += " " + quote(argv[i]);
  return line;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::string nearest_flag(const CLI::App& app, const std::string& flag) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    // Hidden options are known only to be refused with a reason.
    if (!option->get_group().empty())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return vmem::nearest_name(flag, known);
}

std::string explain_extras(const CLI::App& app, const std::vector<std::string>& extras, bool program_given) {
  const std::string& first = extras.front();
  if (first.starts_with('-')) {
    const std::string flag = first.substr(0, first.find('='));
    return fmt::format("there is no option {}; the nearest is {}", quote(flag), nearest_flag(app, flag));
  }
  if (app.get_name() != "run" && app.get_name() != "record") return fmt::format("{} was not expected", quote(first));
  if (program_given)
    return fmt::format("{} is neither an option nor an option's value; the program and its arguments follow --",
                       quote(first));
  std::string words;
  for (const std::string& word : extras) words += " " + quote(word);
  return fmt::format("put the program after --: {} [OPTIONS] --{}", full_name(app), words);
}

// The argument parser's errors in this program's words.
std::string in_words(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string kind = error.get_name();
  const auto before = [&](std::string_view mark) { return text.substr(0, text.find(mark)); };
  // "--hbm: 1 required SIZE missing", "--hbm: At Most 1 required but received 2".
  if (kind == "ArgumentMismatch")
    return before(":") + (text.contains("received") ? " is given more than once" : " needs a value");
  if (kind == "ConversionError") {  // "Could not convert: --ratio = abc"
    const std::size_t name = text.find("--"), equals = text.find(" = ", name);
    if (name == std::string::npos || equals == std::string::npos) return text;
    const std::string flag = text.substr(name, equals - name);
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option != nullptr && option->get_items_expected_max() == 0) return flag + " takes no value";
    return fmt::format("{} takes a number, and '{}' is none, or too large", flag, text.substr(equals + 3));
  }
  if (kind == "ExcludesError") return before(" excludes") + " cannot be used with" + text.substr(text.find(" --", 1));
  if (kind == "RequiredError" && !app.get_subcommands(nullptr).empty()) {
    std::string names;
    for (const CLI::App* each : app.get_subcommands(nullptr)) names += (names.empty() ? "" : ", ") + each->get_name();
    return fmt::format("name a command: {}", names);
  }
  if (kind == "RequiredError") return before(" is required") + " is missing";
  return text;
}

int refuse(const CLI::App& app, const std::string& why) {
  fmt::print(stderr, "{}: {}\n", full_name(app), printable(why, kMostBytes));
  return vmem::bench::kExitBadOptions;
}

int explain(const CLI::App& app, const CLI::ParseError& error, bool program_given) {
  const CLI::App* innermost = &app;
  while (!innermost->get_subcommands().empty() && innermost->remaining_size(false) == 0)
    innermost = innermost->get_subcommands().front();
  const CLI::App& command = *innermost;
  const std::string help = fmt::format("`{} --help` lists what there is", full_name(command));
  const auto extras = command.remaining();
  // Report an extra word first: it may be why something else is missing.
  if (extras.empty()) return refuse(command, fmt::format("{}; {}", in_words(command, error), help));
  return refuse(command, fmt::format("{}; {}", explain_extras(command, extras, program_given), help));
}

bool starts_programs(int argc, char** argv) {
  const std::string_view command = argv[1], what = argc > 2 ? argv[2] : "";
  return command == "run" || (command == "trace" && what == "record");
}

int run(int argc, char** argv) {
  // The words after -- belong to another program.
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
      [&](CLI::App& command) { return vmem::tools::add_run(command, program, vmem::tools::Runs::plainly); });
  add("trace", "Record what a program's launches name and what vmem does for them, and look at it",
      [&](CLI::App& command) { return vmem::tools::add_trace(command, program); });
  add("plan", "Say what a recorded program takes with less HBM, or another link", vmem::tools::add_plan);
  add("bench", "Measure this machine against its own limits, and verify the data",
      [&](CLI::App& command) { return vmem::tools::add_bench(command, join_command_line(argc, argv)); });
  add("daemon", "Lend this machine's memory and disks to programs on other nodes", vmem::tools::add_daemon);
  add("cluster", "Start a cluster on this machine for trying it out, look at it, and end it", vmem::tools::add_cluster);
  add("node", "List the nodes of a cluster; have one leave, or lend less HBM", vmem::tools::add_node);
  add("region", "List the published regions of a cluster, and remove one", vmem::tools::add_region);
  add("secret", "Make the secrets that nodes prove to each other", vmem::tools::add_secret);
  add("doctor", "Say what this machine can do, and what to fix", vmem::tools::add_doctor);
  add("topo", "Show memories, links and their measured rates", vmem::tools::add_topo);
  add("options", "List every option of the runtime", vmem::tools::add_options);

  const auto named = [&](const auto& entry) { return entry.first->get_name() == argv[1]; };
  if (argc < 2 || (argv[1][0] != '-' && std::ranges::none_of(commands, named))) {
    std::string known;
    for (const auto& [command, body] : commands) known += (known.empty() ? "" : ", ") + command->get_name();
    return refuse(
        app, fmt::format("{}; choose one of {}",
                         argc < 2 ? "no command was given" : fmt::format("there is no command '{}'", argv[1]), known));
  }
  for (const auto& [command, body] : commands)
    if (argc > 1 && command->get_name() == argv[1] && !program.empty() && !starts_programs(argc, argv))
      return refuse(*command, fmt::format("nothing may follow --, and {} does; only `vmem run` and `vmem trace record` "
                                          "start a program",
                                          quote(program.front())));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 reports help and version as exceptions too.
    if (error.get_exit_code() == 0) return app.exit(error);
    return explain(app, error, !program.empty());
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
