// State of the emulated cuFile: its open count and the registered files.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>

namespace vmem::emu {

struct RegisteredFile {
  RegisteredFile() = default;
  ~RegisteredFile();
  RegisteredFile(const RegisteredFile&) = delete;
  RegisteredFile& operator=(const RegisteredFile&) = delete;

  int own = -1;  // opened without O_DIRECT: cuFile has no alignment rules
  dev_t device = 0;
  ino_t inode = 0;
};

class CuFileState {
 public:
  // Counts opens, as cuFileDriverOpen does. A failed open() resets compat_allowed to true.
  bool is_open() const;
  bool stage_compat(bool allowed);  // false: already open
  int open();
  bool close();  // false: not open
  long users() const;
  bool compat_allowed() const;

  // False if the descriptor is registered already.
  bool add_file(int descriptor, std::shared_ptr<const RegisteredFile> file);
  void remove_file(int descriptor);
  std::shared_ptr<const RegisteredFile> file(int descriptor) const;

 private:
  mutable std::mutex mutex_;  // protects the members below; leaf
  long users_ = 0;
  bool compat_allowed_ = true;
  std::map<int, std::shared_ptr<const RegisteredFile>> files_;
};

CuFileState& cufile_state();

}  // namespace vmem::emu
