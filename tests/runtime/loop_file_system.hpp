// A small ext4 in a file, mounted through a loop device, that a test can break.
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

  // The reason that it is not mounted; nothing if it is.
  const std::optional<std::string>& why_not() const { return why_not_; }
  std::string path() const { return folder_ + "/mounted"; }

  bool shut_down() const;         // all accesses fail from now on (EXT4_IOC_SHUTDOWN)
  bool make_read_only() const;    // as after a journal error
  bool fill_up() const;           // with a file that takes all free space
  bool lose_the_disk() const;     // the backing device has no blocks any more
  bool remove_directory() const;  // open files stay usable

 private:
  std::string folder_;
  std::optional<std::string> why_not_;
};

}  // namespace vmem::test
