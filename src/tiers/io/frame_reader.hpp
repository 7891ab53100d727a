// The interface for reading files straight into frames of HBM, bypassing host memory and the CPU:
// GPUDirect Storage, and its replacements in tests.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.hpp"

namespace vmem::tiers {

class FrameReader {
 public:
  // A file for reads straight into frames. It must outlive its reads, and not outlive its reader.
  class File {
   public:
    virtual ~File() = default;
    virtual bool reaches(int device) const = 0;  // its frames can be read into
  };
  struct Read {
    const File* file = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    CUdeviceptr frame = 0;  // window address of a frame of at least `bytes`
    int device = 0;
    // Called once, on a thread of the reader that also serves other reads. OK: all bytes arrived.
    std::move_only_function<void(Status)> done;
  };
  virtual ~FrameReader() = default;

  // Tries the file out: reads its beginning through host memory and directly, and compares; once
  // per file system. Reopens the descriptor's file, so the caller may close it. Waits for copies,
  // not for kernels. Errors: UNSUPPORTED, if no device can be reached, with the reason.
  virtual Result<std::unique_ptr<File>> open(int descriptor) = 0;
  virtual void post(Read read) = 0;
  virtual std::string describe() const = 0;  // the data path, for messages
};

// Keeps the reader alive until the process ends: an abandoned thread uses it if its file system
// call ever returns. Any thread.
void keep_for_good(std::shared_ptr<FrameReader> reader);

// FrameReader::open on a separate thread; nothing if it takes longer than `limit`. The reader is
// then kept for good.
std::optional<Result<std::unique_ptr<FrameReader::File>>> open_within(std::chrono::microseconds limit,
                                                                      const std::shared_ptr<FrameReader>& reader,
                                                                      int descriptor);

}  // namespace vmem::tiers
