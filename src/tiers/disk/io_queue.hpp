// The seam below the disk tier: reads and writes of pieces of files, many at a time, none of which the thread that asks for them
// waits for. One thread uses a queue. Implementations: io_uring, threads that wait where there is none, and decorators that make faults.
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
  std::uint32_t file = 0;    // index into the files the queue was made with; if it was made with none, a descriptor
  std::uint64_t offset = 0;  // all three multiples of the files' block size
  std::byte* memory = nullptr;
  std::uint32_t bytes = 0;  // in all
  std::uint64_t tag = 0;    // the caller's
  // The first bytes may be elsewhere: so many of them at `head`, and what follows at `memory`.
  std::byte* head = nullptr;
  std::uint32_t head_bytes = 0;

  std::byte* at(std::uint32_t offset_in_request) const {
    return offset_in_request < head_bytes ? head + offset_in_request : memory + (offset_in_request - head_bytes);
  }
  // What is left to do when so much was moved.
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
  std::int64_t result = 0;  // bytes moved, fewer than asked for, or a negative errno
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // How many may be under way.
  virtual std::uint32_t depth() const = 0;
  // REQUIRES: fewer than depth() under way. The request may begin only with the next wait or reap.
  virtual void push(const Io& io) = 0;
  // Appends what has ended. Where nothing has, waits until something does or wake is called, at most `longest`.
  virtual Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) = 0;
  // Any thread: ends a wait, or the next one.
  virtual void wake() = 0;
  // Which way it takes, for people: "io_uring, registered files".
  virtual std::string describe() const = 0;
};

}  // namespace vmem::tiers
