// The interface below the disk and file tiers: asynchronous reads and writes of pieces of files.
// One thread uses a queue. Implementations: io_uring, blocking threads as a fallback, and
// decorators that inject faults.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace vmem::tiers {

struct Io {
  enum class Kind : std::uint8_t { read, write };
  Kind kind = Kind::read;
  std::uint32_t file = 0;    // index into the queue's files; a descriptor if it has none
  std::uint64_t offset = 0;  // offset, memory and bytes: multiples of the files' block size
  std::byte* memory = nullptr;
  std::uint32_t bytes = 0;  // in all
  std::uint64_t tag = 0;    // the caller's
  // The first head_bytes of the request are at `head`, the rest at `memory`.
  std::byte* head = nullptr;
  std::uint32_t head_bytes = 0;

  std::byte* at(std::uint32_t offset_in_request) const {
    return offset_in_request < head_bytes ? head + offset_in_request : memory + (offset_in_request - head_bytes);
  }
  // Reduces the request to its rest after `moved` bytes.
  void advance(std::uint32_t moved) {
    const std::uint32_t of_head = std::min(moved, head_bytes);
    offset += moved;
    bytes -= moved;
    head += of_head;
    head_bytes -= of_head;
    memory += moved - of_head;
  }
};

struct IoResult {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes moved, possibly fewer than requested, or a negative errno
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Maximum number of requests in flight.
  virtual std::uint32_t depth() const = 0;
  // REQUIRES: fewer than depth() in flight. The request may not start before the next wait.
  virtual void push(const Io& io) = 0;
  // Appends the results of ended requests. If none, waits for one, for wake, or at most `longest`.
  virtual Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) = 0;
  // Any thread. Ends the current wait, or else the next.
  virtual void wake() = 0;
  // For messages: "io_uring, registered files".
  virtual std::string describe() const = 0;
};

}  // namespace vmem::tiers
