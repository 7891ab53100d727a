// What the emulated cuFile knows: files and memory that are registered, and what is being read into.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
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
  struct Range {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
  };

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

  bool add_memory(Range range);  // false: memory that begins there is registered
  bool remove_memory(std::uint64_t begin);
  Range memory(std::uint64_t begin) const;  // 0 bytes: none that begins there

  // Brackets a read. The range is in use for its life.
  class Use {
   public:
    Use(CuFileState& state, Range range);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    CuFileState& state_;
    std::list<Range>::iterator entry_;
  };

  void check_unused(Range range);  // before it is unmapped or freed
  void count_copied(std::size_t bytes) { copied_bytes_ += bytes; }
  std::size_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  std::size_t misuses() const { return misuses_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;  // protects what follows; leaf
  long users_ = 0;
  bool compat_allowed_ = true;
  std::map<int, std::shared_ptr<const RegisteredFile>> files_;
  std::map<std::uint64_t, std::size_t> memory_;
  std::list<Range> reads_;

  std::atomic<std::size_t> busy_{0};  // entries of memory_ and reads_: most unmaps need no lock
  std::atomic<std::size_t> misuses_{0};
  std::atomic<std::size_t> copied_bytes_{0};
};

CuFileState& cufile_state();

}  // namespace vmem::emu
