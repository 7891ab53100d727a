#include "runtime/shadow.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace vmem::test {

Shadow::Shadow(std::size_t bytes) : size_(bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  bytes_ = static_cast<std::byte*>(memory);
}

Shadow::~Shadow() {
  if (bytes_ != nullptr) ::munmap(bytes_, size_);
}

Shadow::Shadow(Shadow&& other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)), size_(other.size_), defined_(std::move(other.defined_)) {}

Shadow& Shadow::operator=(Shadow&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(defined_, other.defined_);
  return *this;
}

void Shadow::write(std::size_t offset, std::span<const std::byte> data) {
  std::memcpy(bytes_ + offset, data.data(), data.size());
  define(offset, data.size());
}

void Shadow::fill(std::size_t offset, std::size_t bytes, std::byte value) {
  std::memset(bytes_ + offset, int(value), bytes);
  define(offset, bytes);
}

void Shadow::copy(std::size_t offset, const Shadow& source, std::size_t source_offset, std::size_t bytes) {
  forget(offset, bytes);
  for (const Piece& piece : source.defined(source_offset, bytes)) {
    write(offset + (piece.offset - source_offset), {source.at(piece.offset), piece.bytes});
  }
}

void Shadow::forget(std::size_t offset, std::size_t bytes) {
  const std::size_t end = offset + bytes;
  auto it = defined_.upper_bound(offset);
  if (it != defined_.begin()) --it;
  while (it != defined_.end() && it->first < end) {
    const auto [begin, stop] = *it;
    if (stop <= offset) {
      ++it;
      continue;
    }
    it = defined_.erase(it);
    if (begin < offset) defined_[begin] = offset;
    if (stop > end) defined_[end] = stop;
  }
}

void Shadow::define(std::size_t offset, std::size_t bytes) {
  forget(offset, bytes);
  std::size_t begin = offset;
  std::size_t end = offset + bytes;
  auto next = defined_.lower_bound(begin);
  if (next != defined_.end() && next->first == end) {
    end = next->second;
    next = defined_.erase(next);
  }
  if (next != defined_.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
  }
  defined_[begin] = end;
}

std::vector<Piece> Shadow::defined(std::size_t offset, std::size_t bytes) const {
  std::vector<Piece> pieces;
  const std::size_t end = offset + bytes;
  auto it = defined_.upper_bound(offset);
  if (it != defined_.begin()) --it;
  for (; it != defined_.end() && it->first < end; ++it) {
    const std::size_t first = std::max(it->first, offset);
    const std::size_t last = std::min(it->second, end);
    if (first < last) pieces.push_back({first, last - first});
  }
  return pieces;
}

}  // namespace vmem::test
