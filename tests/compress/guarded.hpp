// Memory next to an unmapped page. An access past the edge faults, also in code without a
// sanitizer, such as a library.
#pragma once

#include <cstddef>
#include <span>

namespace vmem::compress {

enum class Edge { end, start };

class Guarded {
 public:
  Guarded(std::size_t bytes, Edge edge);
  Guarded(std::span<const std::byte> contents, Edge edge);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  // The first `bytes` (Edge::start) or the last `bytes` (Edge::end) of the memory.
  std::span<std::byte> bytes(std::size_t bytes) const;
  std::span<std::byte> bytes() const { return bytes(bytes_); }

 private:
  std::size_t bytes_, mapped_;
  Edge edge_;
  std::byte* base_ = nullptr;
};

}  // namespace vmem::compress
