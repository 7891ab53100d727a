// The seam to what reads files straight into frames of HBM, past host memory and the processors: GPUDirect Storage, and what tests put
// in its place.
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
  // One that can be read so. It outlives its reads, and not its reader.
  class File {
   public:
    virtual ~File() = default;
    virtual bool reaches(int device) const = 0;  // into the device's frames
  };
  struct Read {
    const File* file = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    CUdeviceptr frame = 0;  // window address of a frame that is at least as large
    int device = 0;
    // Once, by a thread of the reader's, which serves others too: all bytes have come, or why not.
    std::move_only_function<void(Status)> done;
  };
  virtual ~FrameReader() = default;

  // Tries it out: the file's beginning is read both ways and compared, once for each file system. The descriptor's file is opened anew, and may
  // be closed. It waits for copies, and for no kernel. Errors: UNSUPPORTED, saying what stands in the way of every device.
  virtual Result<std::unique_ptr<File>> open(int descriptor) = 0;
  virtual void post(Read read) = 0;
  virtual std::string describe() const = 0;  // which way bytes take, for people
};

// Never destroyed from now on: a thread that was given up uses it whenever the file system lets it go on.
void keep_for_good(std::shared_ptr<FrameReader> reader);

// FrameReader::open in a thread of its own; nothing if the file system did not answer within `limit`. The reader is kept for good then.
std::optional<Result<std::unique_ptr<FrameReader::File>>> open_within(std::chrono::microseconds limit,
                                                                      const std::shared_ptr<FrameReader>& reader,
                                                                      int descriptor);

}  // namespace vmem::tiers
