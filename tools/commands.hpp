// The program's subcommands. Each adds its flags to the application and returns what runs it; the result is the program's
// exit code.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace vmem::tools {

using Command = std::function<int()>;

// For a shell: in quotes where it must be.
std::string quote(const std::string& word);

// `command_line` is the whole of it, quoted, for the records.
Command add_bench(CLI::App& app, const std::string& command_line);
Command add_daemon(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_options(CLI::App& app);
Command add_secret(CLI::App& app);
Command add_topo(CLI::App& app);
// `program`: the words after --, which are not the application's to parse.
Command add_run(CLI::App& app, std::vector<std::string> program);

}  // namespace vmem::tools
