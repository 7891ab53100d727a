#include "compress/guarded.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace vmem::compress {
namespace {

std::size_t page() { return std::size_t(::sysconf(_SC_PAGESIZE)); }

}  // namespace

Guarded::Guarded(std::size_t bytes, Edge edge)
    : bytes_(bytes), mapped_((bytes + page() - 1) / page() * page() + 2 * page()), edge_(edge) {
  void* const mapped = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(mapped);
  const std::size_t usable = mapped_ - 2 * page();
  if (usable > 0 && ::mprotect(base_ + page(), usable, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

Guarded::Guarded(std::span<const std::byte> contents, Edge edge) : Guarded(contents.size(), edge) {
  std::ranges::copy(contents, bytes().begin());
}

Guarded::~Guarded() { ::munmap(base_, mapped_); }

std::span<std::byte> Guarded::bytes(std::size_t bytes) const {
  EXPECT_LE(bytes, bytes_);
  return {edge_ == Edge::start ? base_ + page() : base_ + mapped_ - page() - bytes, bytes};
}

TEST(Guarded, EndsAndBeginsWhereNothingIsMapped) {
  const Guarded end(5000, Edge::end), start(5000, Edge::start), none(0, Edge::end);
  std::ranges::fill(end.bytes(), std::byte{1});
  std::ranges::fill(start.bytes(), std::byte{1});
  EXPECT_DEATH(*(end.bytes(7).data() + 7) = std::byte{1}, "");
  EXPECT_DEATH(*(start.bytes().data() - 1) = std::byte{1}, "");
  EXPECT_DEATH(*none.bytes().data() = std::byte{1}, "");
}

}  // namespace vmem::compress
