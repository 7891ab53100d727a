// A fuzz input as a file in memory, private to this user and open until destruction.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/file_descriptor.hpp"
#include "fuzz/input.hpp"

namespace vmem::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ && ::fchmod(file_.get(), 0600) == 0 &&
                ::write(file_.get(), content.data(), content.size()) == ssize_t(content.size()),
            "a file in memory can be made");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  FileDescriptor file_;
};

}  // namespace vmem::fuzz
