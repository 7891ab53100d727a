// Where a RegistryServer keeps what has to outlive it: a few named files.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"

namespace vmem::cluster {

class RegistryStore {
 public:
  struct File {
    std::string name, bytes;
  };

  virtual ~RegistryStore() = default;
  // All files. For messages, `name` is what an operator finds them by.
  virtual Result<std::vector<File>> read_all() = 0;
  // Replaces the file as a whole. After success it survives a crash of the machine; after a failure
  // the file is the old one or the new one. Names: letters, digits, '-'
  virtual Status write(const std::string& name, const std::string& bytes) = 0;
};

}  // namespace vmem::cluster
