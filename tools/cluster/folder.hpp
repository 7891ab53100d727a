// The folder of a local cluster: what runs, its logs, and etcd's data. It is its user's alone, so
// that nobody else can name the processes that `down` ends.
//
// Commands that change the cluster hold a lock of the folder. It ends with their process.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem::tools::local_cluster {

inline constexpr const char* kNewSuffix = ".new";  // of a file that is to replace another

class Folder {
 public:
  // $XDG_RUNTIME_DIR/vmem-cluster, or /tmp/vmem-cluster-UID where there is no such folder.
  static std::string usual_path();
  // Makes the folder if it is not there, and locks it. Errors: INVALID_OPTION if it cannot be made,
  // is a link, or is another user's or open to others; IN_USE while another command holds the lock.
  static Result<Folder> make(const std::string& path);
  // None if there is no folder. Errors: as of make().
  static Result<std::optional<Folder>> find(const std::string& path);         // for reading
  static Result<std::optional<Folder>> find_locked(const std::string& path);  // for changes

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  bool is_new() const { return is_new_; }  // made by this process

  bool has(const std::string& name) const;
  // None if there is no such file. Errors: INVALID_OPTION.
  Result<std::optional<std::string>> read(const std::string& name) const;
  // Replaces the file as a whole. Errors: INVALID_OPTION.
  Status write(const std::string& name, const std::string& text) const;
  // A new file for a log. Errors: INVALID_OPTION, also if there is a file of this name.
  Result<FileDescriptor> make_log(const std::string& name) const;
  // The file's last lines, at most `most`; none if it is empty or cannot be read.
  std::vector<std::string> last_lines(const std::string& name, std::size_t most) const;
  // A file, or a folder with all that is in it; nothing if it is not there. Errors: INVALID_OPTION.
  Status remove(const std::string& name) const;
  // The folder itself, unless there is something in it.
  void remove_itself() const;

 private:
  Folder(std::string path, FileDescriptor folder) : path_(std::move(path)), folder_(std::move(folder)) {}
  static Result<std::optional<Folder>> open(const std::string& path);
  Status lock() const;
  bool is_at_its_path() const;

  std::string path_;
  FileDescriptor folder_;
  bool is_new_ = false;
};

}  // namespace vmem::tools::local_cluster
