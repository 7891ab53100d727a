// The seam between pages that move to a disk or another node and the ways their bytes can be made fewer. A codec works on the CPU,
// in the thread of a worker that the caller owns, on memory that the caller owns.
//
// A codec promises memory safety and exact lengths, whatever it is given; it does not promise that bytes which changed on their way are noticed
// (uncompressed bytes cannot tell). That is for the checksum in the header that the codec's id is in.
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

// As written to disks and sent to other nodes: a number never gets another meaning. registry.hpp says which there are.
enum class CodecId : std::uint8_t {};
inline constexpr CodecId kNone{0};

// What codecs need beside input and output (tables, contexts, blocks between two steps), kept from one page to the next, so that nothing is
// allocated for a page once a codec has been used at its size. Parts are made when a codec first asks for its own; one workspace
// serves all codecs. Threads: one at a time; a worker owns one.
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
  static constexpr char key = 0;  // its address stands for the type

  struct Held {
    const void* key;
    std::unique_ptr<Part> part;
  };
  std::vector<Held> held_;
};

// Threads: codecs are immutable, every call may come from any number of threads at once, each with a workspace of its own.
// Input and output must not overlap; nothing outside of them, and of the workspace, is read or written.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;  // "zstd-3"; lives as long as the codec

  // Bytes written to the front of `out`, or nothing: they do not fit into it, which is how data that does not compress is recognised, and
  // means that the page is stored as it is. What `out` holds then is undefined. `out` may have any size; no worst case is needed.
  // Errors: INVALID_VALUE (more input than the format has room for), OUT_OF_MEMORY (the workspace).
  virtual Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                      Workspace& workspace) const = 0;

  // `out` is exactly as long as what was compressed, `in` as what compress wrote. On failure `out` is undefined.
  // Errors: LOST (these bytes were not written by this codec for this length, or not all of them), OUT_OF_MEMORY (the workspace).
  virtual Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const = 0;
};

}  // namespace vmem::compress
