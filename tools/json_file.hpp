// The option --json FILE, with one meaning in every command: FILE gets the JSON; - is standard
// output, which then gets nothing else. `vmem bench` writes its records itself, as they come.
#pragma once

#include <string>

#include "base/status.hpp"

namespace CLI {
class App;
}

namespace vmem::tools {

void add_json(CLI::App& app, std::string& path, const char* what);
inline bool is_standard_output(const std::string& path) { return path == "-"; }
// Errors: INVALID_OPTION, naming the file and the failure.
Status check_json_file(const std::string& path);  // before the work; makes the file
// The same, and the file must not be the one that is read.
Status check_json_file(const std::string& path, const std::string& read);
Status write_json_file(const std::string& path, const std::string& text);

}  // namespace vmem::tools
