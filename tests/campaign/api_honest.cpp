#include "campaign/api_honest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMost = 4;  // allocations per thread
// Other threads may hold the pages, or use all of the memory.
constexpr Statuses kTolerated = any_of(VMEM_OK, VMEM_ERROR_IN_USE, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_TIMEOUT);

}  // namespace

Honest::Honest(const ApiPlan& plan, World& world, Verdict& verdict, Caller& call, std::uint64_t seed, CUstream stream)
    : plan_(plan), world_(world), verdict_(verdict), call_(call), random_(seed), stream_(stream) {}

void Honest::step() {
  if (owned_.empty()) return allocate();
  switch (random_.below(12)) {
    case 0:
    case 1:
      return allocate();
    case 2:
      return free(random_.below(owned_.size()));
    case 3:
    case 4:
    case 5:
      return write();
    case 6:
    case 7:
      return fill();
    case 8:
      return copy();
    default:
      return read();
  }
}

void Honest::allocate() {
  const std::size_t share = plan_.working_mib * kMiB / 2 / std::size_t(plan_.threads);
  const std::size_t bytes = random_.one_in(2) ? random_.between(1, 20'000) : random_.between(kMiB, 7 * kMiB);
  if (owned_.size() == kMost || owned_bytes_ + bytes > share) return;
  void* memory = nullptr;
  const std::lock_guard lock(world_.reuse);
  const vmem_status status =
      call_(fmt::format("honest malloc({})", bytes), any_of(VMEM_OK, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_TIMEOUT), {},
            [&] { return vmem_malloc(&memory, bytes, 0, stream_); });
  if (status != VMEM_OK) return;
  world_.add({reinterpret_cast<std::uintptr_t>(memory), bytes, Block::Kind::honest});
  owned_.emplace_back(memory, bytes);
  owned_bytes_ += bytes;
}

void Honest::free(std::size_t index) {
  Owned& owned = owned_[index];
  for (const Piece& piece : owned.shadow.defined()) verify(owned, piece);
  const std::lock_guard lock(world_.reuse);
  const vmem_status status =
      call_(fmt::format("honest free({})", fmt::ptr(owned.base)), any_of(VMEM_OK, VMEM_ERROR_IN_USE), {},
            [&] { return vmem_free(owned.base, stream_); });
  if (status != VMEM_OK) return;
  world_.remove(reinterpret_cast<std::uintptr_t>(owned.base));
  owned_bytes_ -= owned.bytes;
  std::swap(owned, owned_.back());
  owned_.pop_back();
}

void Honest::write() {
  Owned& owned = any();
  const Piece piece = any_piece(owned.bytes);
  const std::vector<std::byte> data(piece.bytes, std::byte(random_.below(256)));
  const vmem_status status =
      call_(fmt::format("honest write({}, {})", fmt::ptr(owned.base + piece.offset), piece.bytes), kTolerated, {},
            [&] { return vmem_write(owned.base + piece.offset, data.data(), data.size()); });
  // A failed write may have written some pages.
  status == VMEM_OK ? owned.shadow.write(piece.offset, data) : owned.shadow.forget(piece.offset, piece.bytes);
}

void Honest::fill() {
  Owned& owned = any();
  const Piece piece = any_piece(owned.bytes);
  const int value = int(random_.below(256));
  const vmem_status status =
      call_(fmt::format("honest memset({}, {})", fmt::ptr(owned.base + piece.offset), piece.bytes), kTolerated, {},
            [&] { return vmem_memset(owned.base + piece.offset, value, piece.bytes, stream_); });
  if (status == VMEM_OK) return owned.shadow.fill(piece.offset, piece.bytes, std::byte(value));
  owned.shadow.forget(piece.offset, piece.bytes);
}

void Honest::copy() {
  Owned& to = any();
  Owned& from = any();
  if (&to == &from) return;
  const Piece source = any_piece(std::min(from.bytes, to.bytes));
  const std::size_t offset = random_.below(to.bytes - source.bytes + 1);
  const vmem_status status = call_(
      fmt::format("honest memcpy({}, {}, {})", fmt::ptr(to.base + offset), fmt::ptr(from.base + source.offset),
                  source.bytes),
      kTolerated, {}, [&] { return vmem_memcpy(to.base + offset, from.base + source.offset, source.bytes, stream_); });
  if (status == VMEM_OK) return to.shadow.copy(offset, from.shadow, source.offset, source.bytes);
  to.shadow.forget(offset, source.bytes);
}

void Honest::read() {
  const Owned& owned = any();
  const auto pieces = owned.shadow.defined();
  if (!pieces.empty()) verify(owned, random_.pick(pieces));
}

void Honest::verify(const Owned& owned, const Piece& piece) {
  std::vector<std::byte> found(piece.bytes);
  std::byte* const at = owned.base + piece.offset;
  const vmem_status status = call_(fmt::format("honest read({}, {})", fmt::ptr(at), piece.bytes),
                                   any_of(VMEM_OK, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_TIMEOUT), {},
                                   [&] { return vmem_read(found.data(), at, found.size()); });
  const std::byte* const expected = owned.shadow.at(piece.offset);
  if (status != VMEM_OK || std::memcmp(found.data(), expected, piece.bytes) == 0) return;
  verdict_.fail(difference("honest bytes", at, found.data(), expected, piece.bytes));
}

void Honest::verify_all() {
  for (const Owned& owned : owned_)
    for (const Piece& piece : owned.shadow.defined()) verify(owned, piece);
}

void Honest::finish() {
  for (std::size_t left = owned_.size(); left > 0 && !verdict_.failed(); --left) free(left - 1);
  if (!owned_.empty() && !verdict_.failed()) verdict_.fail("an allocation that nobody holds cannot be freed");
}

Piece Honest::any_piece(std::size_t bytes) {
  const std::size_t count = random_.between(1, std::min(bytes, random_.one_in(4) ? 3 * kMiB : 30'000));
  return {random_.below(bytes - count + 1), count};
}

}  // namespace vmem::test
