// The program's subcommands. Each adds its flags to the application and returns its body, whose
// result is the program's exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace vmem::tools {

using Command = std::function<int()>;

// Quotes the word for a shell if necessary.
std::string quote(const std::string& word);

// `command_line` is the whole quoted command line, for the records.
Command add_bench(CLI::App& app, const std::string& command_line);
Command add_cluster(CLI::App& app);
Command add_daemon(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_node(CLI::App& app);
Command add_options(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_region(CLI::App& app);
Command add_secret(CLI::App& app);
Command add_topo(CLI::App& app);
// recorded: to the file of the option trace, by default vmem.trace.
enum class Runs : std::uint8_t { plainly, recorded };
// `program`: the words after --, which the application does not parse.
Command add_run(CLI::App& app, std::vector<std::string> program, Runs runs);
Command add_trace(CLI::App& app, const std::vector<std::string>& program);

// Leaves the rate as it is where none is given (0).
inline void take_rate(std::uint64_t& bytes_per_s, double gb_per_s) {
  if (gb_per_s > 0) bytes_per_s = std::uint64_t(gb_per_s * 1e9);
}

}  // namespace vmem::tools
