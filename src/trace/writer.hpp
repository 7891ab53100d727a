// Writes a trace's file. One thread adds events; another compresses and writes them, so that the
// first never waits for a disk. What goes wrong with the file ends the trace, not the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "trace/encoding.hpp"
#include "trace/events.hpp"

namespace vmem::trace {

class Writer {
 public:
  // A new file at `path`. Where there is one already, at `path`.PID: each process of a program has
  // its own; null, with a warning, if that cannot be made. `limit_bytes`: of the file; the trace
  // ends before that. Errors: INVALID_OPTION, OUT_OF_MEMORY (no thread), with errno.
  static Result<std::unique_ptr<Writer>> create(const std::string& path, std::uint64_t limit_bytes,
                                                const Header& header);
  ~Writer();  // finishes
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // One thread. Ignored once the trace has ended. Hands the events to the writing thread when a
  // chunk is full, or its first event is a second older. Allocates only for chunks above their
  // usual size.
  void add(std::uint64_t at_ns, const Body& body) noexcept;
  // Ends the trace early, and logs why. The first reason counts.
  void end(End::Why why) noexcept;
  // Waits until all is written, at most ten seconds.
  void finish() noexcept;
  bool ended() const;
  const std::string& path() const;

 private:
  class File;
  explicit Writer(std::shared_ptr<File> file);
  void hand_over() noexcept;

  // Shared with the writing thread, which may outlive the writer if the disk does not answer.
  const std::shared_ptr<File> file_;
  EventEncoder encoder_;
  std::uint64_t first_ns_ = 0, last_ns_ = 0;  // of the chunk's events
  bool finished_ = false;
};

}  // namespace vmem::trace
