#include "tiers/disk/disk_job.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/sizes.hpp"

namespace vmem::tiers {

static_assert(kHeaderBytes % kBlockBytes == 0);

PageIo::Page DiskJob::io(Io::Kind kind, std::uint32_t most_request_bytes) const {
  PageIo::Page io{.kind = kind, .file = place.file, .offset = place.header};
  io.bytes = io.needed_bytes = io_bytes();
  io.most_request_bytes = most_request_bytes;
  if (staged) {
    io.memory = staged.data();
  } else {
    io.head = header.get();
    io.head_bytes = kHeaderBytes;
    io.memory = transfer.host;
  }
  return io;
}

Error io_error(const PageIo::Failure& failure, const std::string& path) {
  if (failure.cause == PageIo::Failure::Cause::queue) return failure.queue;
  const bool read = failure.io.kind == Io::Kind::read;
  const bool ended = failure.cause == PageIo::Failure::Cause::file_ended;
  const int error = !ended ? failure.error : read ? ENODATA : ENOSPC;
  const bool full = error == ENOSPC || error == EDQUOT;
  return {full ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_DRIVER, error,
          fmt::format("{} {} at {} of the file in {}: {}", read ? "reading" : "writing", format_bytes(failure.io.bytes),
                      failure.io.offset, path, std::strerror(error))};
}

}  // namespace vmem::tiers
