// The frame around a trace's bytes: a mark, a version, the header, and compressed chunks of events,
// each with a checksum. Reading is here; writer.hpp writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "trace/events.hpp"

namespace vmem::trace {

// All integers of the frame are little-endian.
inline constexpr std::string_view kMark = "vmemtrac";
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint32_t kChunkBytes = 1u << 20;  // of events, at most and before compression

// Before each chunk, the header's included.
struct ChunkFrame {
  std::uint32_t stored_bytes = 0;
  std::uint32_t raw_bytes = 0;
  std::uint64_t sum = 0;  // XXH3 of the stored bytes
};

// A chunk as a file stores it, with its frame.
std::vector<std::byte> pack(const std::vector<std::byte>& raw);

struct Trace {
  Header header;
  std::vector<Event> events;       // by time
  std::vector<std::string> names;  // by Name::id
  End::Why ended = End::Why::finished;
  // Empty: the file is whole. Else what is missing, in words: the program was killed, or the disk
  // was full.
  std::string cut_short;
};

// Reads a whole trace into memory. Errors: INVALID_VALUE (cannot be read, no trace, of another
// version, damaged).
// A file that ends early is no error (Trace::cut_short).
Result<Trace> read(const std::string& path);

}  // namespace vmem::trace
