// What the emulated cuFile knows: who has it open, and the files that are registered.
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

  int own = -1;  // open without O_DIRECT, whose rules about alignment cuFile does not have
  dev_t device = 0;
  ino_t inode = 0;
};

class CuFileState {
 public:
  // As cuFileDriverOpen counts; a failed one forgets what was staged.
  bool is_open() const;
  bool stage_compat(bool allowed);  // false: it is open
  int open();
  bool close();  // false: it is not open
  long users() const;
  bool compat_allowed() const;

  bool add_file(int descriptor, std::shared_ptr<const RegisteredFile> file);  // false: it has one
  void remove_file(int descriptor);
  std::shared_ptr<const RegisteredFile> file(int descriptor) const;

 private:
  mutable std::mutex mutex_;  // protects what follows; leaf
  long users_ = 0;
  bool compat_allowed_ = true;
  std::map<int, std::shared_ptr<const RegisteredFile>> files_;
};

CuFileState& cufile_state();

}  // namespace vmem::emu
