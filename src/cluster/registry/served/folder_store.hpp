// Files in a directory. Each is replaced by a rename, and is on the disk before write() returns.
#pragma once

#include <memory>

#include "base/file_descriptor.hpp"
#include "cluster/registry/served/registry_store.hpp"

namespace vmem::cluster {

// One thread. Its calls block while the disk writes.
class FolderStore final : public RegistryStore {
 public:
  // Makes the directory if there is none, and locks it until destruction. Errors: INVALID_OPTION,
  // also if another process has it locked.
  static Result<std::unique_ptr<FolderStore>> open(const std::string& path);

  Result<std::vector<File>> read_all() override;
  Status write(const std::string& name, const std::string& bytes) override;

 private:
  FolderStore(std::string path, FileDescriptor folder, FileDescriptor lock)
      : path_(std::move(path)), folder_(std::move(folder)), lock_(std::move(lock)) {}
  std::string path_of(const std::string& file) const { return path_ + "/" + file; }

  const std::string path_;
  const FileDescriptor folder_, lock_;
};

}  // namespace vmem::cluster
