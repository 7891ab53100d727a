// Runs a fuzz target over kept inputs, in builds without libFuzzer: replay FILE_OR_FOLDER...
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "fuzz/input.hpp"

namespace {

namespace fs = std::filesystem;

std::set<fs::path> files_of(int count, char** arguments) {
  std::set<fs::path> files;
  for (int i = 1; i < count; ++i) {
    const fs::path path = arguments[i];
    if (!fs::is_directory(path)) {
      files.insert(path);
      continue;
    }
    for (const fs::directory_entry& each : fs::directory_iterator(path)) files.insert(each.path());
  }
  return files;
}

void run(const fs::path& path) {
  // Printed before the run, so that the last name is the input that failed.
  std::fprintf(stderr, "%s\n", path.c_str());
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> read{std::istreambuf_iterator<char>(file), {}};
  // A copy of exact size, so that AddressSanitizer detects reads past the end.
  const std::vector<std::uint8_t> input(read.begin(), read.end());
  (void)LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int count, char** arguments) {
  const std::set<fs::path> files = files_of(count, arguments);
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FILE_OR_FOLDER...: there is no input\n", arguments[0]);
    return 2;
  }
  for (const fs::path& each : files) run(each);
  std::printf("%zu inputs\n", files.size());
  return 0;
}
