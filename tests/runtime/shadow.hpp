// The reference model's memory: an allocation's required contents, where defined. Bytes never
// written, or discarded by an acquire, are undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace vmem::test {

struct Piece {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Shadow {
 public:
  explicit Shadow(std::size_t bytes);
  ~Shadow();
  Shadow(Shadow&& other) noexcept;
  Shadow& operator=(Shadow&& other) noexcept;

  const std::byte* at(std::size_t offset) const { return bytes_ + offset; }
  void write(std::size_t offset, std::span<const std::byte> data);
  void fill(std::size_t offset, std::size_t bytes, std::byte value);
  // Makes [offset, offset + bytes) equal to `source` at source_offset, defined where `source` is.
  void copy(std::size_t offset, const Shadow& source, std::size_t source_offset, std::size_t bytes);
  void forget(std::size_t offset, std::size_t bytes);
  // The defined parts of [offset, offset + bytes), in order.
  std::vector<Piece> defined(std::size_t offset, std::size_t bytes) const;
  std::vector<Piece> defined() const { return defined(0, size_); }

 private:
  void define(std::size_t offset, std::size_t bytes);

  std::byte* bytes_;  // uses memory only where written
  std::size_t size_;
  std::map<std::size_t, std::size_t> defined_;  // begin → end, disjoint
};

}  // namespace vmem::test
