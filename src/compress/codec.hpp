// The interface of codecs for pages that move to a disk or another node. A codec runs on the CPU,
// in the caller's thread and memory.
//
// A codec guarantees memory safety and exact lengths for any input. It need not detect corruption
// (uncompressed bytes have no redundancy): the checksum in the header with the codec's id does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace vmem::compress {

// Written to disks and sent to other nodes: the meaning of a number never changes. registry.hpp
// lists them.
enum class CodecId : std::uint8_t {};
inline constexpr CodecId kNone{0};

// Scratch memory of codecs (tables, contexts, intermediate blocks), kept between pages: after a
// codec's first use at a page size, a page allocates nothing. A codec's part is created on first
// use; one workspace serves all codecs. Threads: one at a time; each worker owns a workspace.
class Workspace {
 public:
  class Part {
   public:
    virtual ~Part() = default;
  };

  // The workspace's part of type T, a default-constructible Part.
  template <class T>
  T& part() {
    for (const Held& held : held_) {
      if (held.key == &key<T>) return static_cast<T&>(*held.part);
    }
    auto made = std::make_unique<T>();
    T& found = *made;
    held_.push_back({&key<T>, std::move(made)});
    return found;
  }

 private:
  template <class T>
  static constexpr char key = 0;  // its address identifies the type

  struct Held {
    const void* key;
    std::unique_ptr<Part> part;
  };
  std::vector<Held> held_;
};

// Threads: codecs are immutable; any number of threads may call concurrently, each with its own
// workspace.
// REQUIRES: input and output do not overlap. A codec accesses only input, output and workspace.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;  // "zstd-3"; lives as long as the codec

  // Returns the bytes written to the front of `out`, or nothing if the output does not fit: the
  // caller then stores the page uncompressed, and `out` is undefined. `out` may have any size.
  // Errors: INVALID_VALUE (more input than the format supports), OUT_OF_MEMORY (the workspace).
  virtual Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                      Workspace& workspace) const = 0;

  // REQUIRES: `out` is as long as the compressed page was, `in` as long as compress's output. On
  // failure `out` is undefined.
  // Errors: LOST (`in` is not the complete output of this codec for this length), OUT_OF_MEMORY
  // (the workspace).
  virtual Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const = 0;
};

}  // namespace vmem::compress
