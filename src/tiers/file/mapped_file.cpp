#include "tiers/file/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/sizes.hpp"
#include "tiers/io/request_size.hpp"

namespace vmem::tiers {
namespace {

bool same(const timespec& one, const timespec& other) {
  return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

constexpr const char* kWhatToDo = "pages that are in memory stay readable; free the mapping and map the file again";

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path, std::uint64_t offset,
                                                     std::uint64_t bytes) {
  std::unique_ptr<MappedFile> file(new MappedFile(path));
  VMEM_TRY(file->open_range(offset, bytes));
  return file;
}

MappedFile::~MappedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status MappedFile::open_range(std::uint64_t offset, std::uint64_t bytes) {
  // Without O_NONBLOCK, opening a FIFO would block until a writer opens it.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  descriptor_ = ::open(path_.c_str(), kFlags | O_DIRECT);
  direct_ = descriptor_ >= 0;
  if (descriptor_ < 0 && errno == EINVAL) descriptor_ = ::open(path_.c_str(), kFlags);
  struct stat status{};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{} cannot be opened to be mapped: {}", path_, std::strerror(errno)), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} is {}; only regular files can be mapped", path_,
                                                      S_ISDIR(status.st_mode) ? "a directory" : "no regular file"));
  }
  file_bytes_ = std::uint64_t(status.st_size);
  request_bytes_ = uncut_request_bytes(descriptor_, kRequestBytesMax);
  modified_ = status.st_mtim;
  status_changed_ = status.st_ctim;
  if (offset > file_bytes_ || (bytes != 0 && bytes > file_bytes_ - offset)) {
    return fail(VMEM_ERROR_INVALID_RANGE,
                fmt::format("{} from offset {} of {} asked for, which has {} bytes",
                            bytes == 0 ? "the rest" : fmt::format("{} bytes", bytes), offset, path_, file_bytes_));
  }
  if (offset == file_bytes_) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("nothing to map: {} has {} bytes, and the range begins at {}", path_, file_bytes_, offset));
  }
  begin_ = offset;
  end_ = bytes == 0 ? file_bytes_ : offset + bytes;
  return {};
}

void MappedFile::read_through_page_cache() {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  // On failure the next read fails like this one.
  if (flags >= 0) (void)::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT);
  direct_ = false;
}

std::optional<Error> MappedFile::change() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) {
    return Error{VMEM_ERROR_LOST, errno,
                 fmt::format("{}, which is mapped, cannot be looked at any more: {}", path_, std::strerror(errno))};
  }
  const auto now_bytes = std::uint64_t(status.st_size);
  if (now_bytes != file_bytes_) {
    return Error{
        VMEM_ERROR_LOST, 0,
        fmt::format("{} {} while bytes {} to {} of it were mapped: it had {} bytes and has {}; {}", path_,
                    now_bytes < file_bytes_ ? "shrank" : "grew", begin_, end_, file_bytes_, now_bytes, kWhatToDo)};
  }
  if (same(status.st_mtim, modified_)) {
    if (!same(status.st_ctim, status_changed_)) doubted_.store(true, std::memory_order_relaxed);
    return std::nullopt;
  }
  return Error{
      VMEM_ERROR_LOST, 0,
      fmt::format("{} was written to while bytes {} to {} of it were mapped (its time of change is another); {}", path_,
                  begin_, end_, kWhatToDo)};
}

Error MappedFile::other_bytes(std::uint64_t begin, std::uint64_t end) const {
  return {
      VMEM_ERROR_LOST, 0,
      fmt::format("{} was written to while bytes {} to {} of it were mapped: bytes {} to {} differ from what was read "
                  "before, though its time of change does not; {}",
                  path_, begin_, end_, begin, end, kWhatToDo)};
}

Error MappedFile::ended_at(std::uint64_t offset) const {
  return {VMEM_ERROR_LOST, 0,
          fmt::format("{} ended at {} while bytes {} to {} of it were mapped: it had {} bytes; {}", path_, offset,
                      begin_, end_, file_bytes_, kWhatToDo)};
}

}  // namespace vmem::tiers
