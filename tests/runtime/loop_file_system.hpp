// A small ext4 in a file, mounted by way of a loop device, that a test can kill.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace vmem::test {

class LoopFileSystem {
 public:
  explicit LoopFileSystem(std::uint64_t bytes);
  ~LoopFileSystem();
  LoopFileSystem(const LoopFileSystem&) = delete;
  LoopFileSystem& operator=(const LoopFileSystem&) = delete;

  // Why there is none; nothing if it is mounted.
  const std::optional<std::string>& why_not() const { return why_not_; }
  std::string path() const { return folder_ + "/mounted"; }

  bool shut_down() const;         // every access fails from now on (EXT4_IOC_SHUTDOWN)
  bool make_read_only() const;    // as after an error of its journal
  bool fill_up() const;           // with a file that takes what is free
  bool lose_the_disk() const;     // the device below has no blocks any more
  bool remove_directory() const;  // files that are open live on

 private:
  std::string folder_;
  std::optional<std::string> why_not_;
};

}  // namespace vmem::test
