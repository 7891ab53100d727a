// A file that is read while it is mapped. Other processes may write to it, truncate it or replace
// it. So its status at mapping time is kept and compared with the current one. If only the status
// change time differs (chmod, ln, a rewrite that restores the modification time), the bytes are
// unverified and must be compared with those read before: doubted().
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "tiers/io/frame_reader.hpp"

namespace vmem::tiers {

class MappedFile {
 public:
  // `bytes` of 0: to the end. Errors: INVALID_VALUE (no such file, no regular one, nothing to map),
  // INVALID_RANGE.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint32_t request_bytes() const { return request_bytes_; }  // maximum per request to its disk
  std::uint64_t begin() const { return begin_; }                  // of the range
  std::uint64_t end() const { return end_; }
  // Any thread. Whether reads bypass the page cache.
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  // For file systems that refuse direct reads. One thread; does not affect reads in flight.
  void read_through_page_cache();
  // For reads straight into frames; null: impossible. Set before the file is shared.
  const FrameReader::File* for_frames() const { return for_frames_.get(); }
  void read_into_frames(std::unique_ptr<FrameReader::File> file) { for_frames_ = std::move(file); }
  // LOST if the file changed since it was mapped, with the reason; else nothing. May block on the
  // file system.
  std::optional<Error> change() const;
  // Any thread. A call of change() saw another status change time, but the same size and
  // modification time.
  bool doubted() const { return doubted_.load(std::memory_order_relaxed); }
  // The error for bytes [begin, end) that differ from those read before.
  Error other_bytes(std::uint64_t begin, std::uint64_t end) const;
  // The error for a file that ended early. Its status may look unchanged: a network file system may
  // not know yet.
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
