// A file that is read while it is mapped. It is not ours: others may write to it, cut it off or put something in its place. What it was
// like when it was mapped is kept, and what it is like now compared with that. Where only its status has changed (chmod, ln, a rewrite that
// puts its time back), the bytes have to be compared with what was read before: doubted().
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "tiers/disk/frame_reader.hpp"

namespace vmem::tiers {

class MappedFile {
 public:
  // `bytes` of 0: to the end. Errors: INVALID_VALUE (no such file, no regular one, nothing to map), INVALID_RANGE.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint32_t request_bytes() const { return request_bytes_; }  // of one request to its disk, at most
  std::uint64_t begin() const { return begin_; }                  // of the range
  std::uint64_t end() const { return end_; }
  // Any thread. Whether reads pass by the page cache.
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  // The file system takes no direct reads after all. One thread; reads under way end as they would have.
  void read_through_page_cache();
  // Where its pages can be read straight into frames; null where not. Set before the file is shared.
  const FrameReader::File* for_frames() const { return for_frames_.get(); }
  void read_into_frames(std::unique_ptr<FrameReader::File> file) { for_frames_ = std::move(file); }
  // What became of the file since it was mapped: LOST; nothing if it is as it was. It may wait for the file system.
  std::optional<Error> change() const;
  // Any thread. Its status has changed since, as the last change() saw, and its size and time of change have not.
  bool doubted() const { return doubted_.load(std::memory_order_relaxed); }
  // Bytes [begin, end), read again, are not what they were.
  Error other_bytes(std::uint64_t begin, std::uint64_t end) const;
  // The file ended early, and may look as it did all the same: a network file system that has not heard yet.
  Error ended_at(std::uint64_t offset) const;

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}
  Status open_range(std::uint64_t offset, std::uint64_t bytes);

  const std::string path_;
  int descriptor_ = -1;
  std::uint32_t request_bytes_ = 0;
  std::uint64_t begin_ = 0, end_ = 0;
  std::uint64_t file_bytes_ = 0;
  timespec modified_{}, status_changed_{};
  mutable std::atomic<bool> doubted_{false};
  std::atomic<bool> direct_{false};
  std::unique_ptr<FrameReader::File> for_frames_;
};

}  // namespace vmem::tiers
