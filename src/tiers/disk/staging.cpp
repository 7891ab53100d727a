#include "tiers/disk/staging.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kBlock = 4096;

}  // namespace

Staging::Buffer Staging::take(std::uint64_t bytes) {
  const auto fits = std::ranges::find_if(free_, [&](const Buffer& each) { return each.bytes_ >= bytes; });
  if (fits != free_.end()) {
    Buffer taken = std::move(*fits);
    free_.erase(fits);
    ++out_;
    return taken;
  }
  // What lies here is too small: its room goes to one that is not.
  const std::uint64_t most = std::max(most_bytes_, kLeastBuffers * bytes);
  while (made_bytes_ + bytes > most && !free_.empty()) {
    made_bytes_ -= free_.back().bytes_;
    free_.pop_back();
  }
  Buffer made;
  if (made_bytes_ + bytes > most) return made;
  const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : kBlock;
  const std::uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  made.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (made.memory_ == nullptr) return made;
  // Direct I/O looks up every page of memory: large ones are fewer. Without them it works the same.
  if (alignment == kHugePage) (void)::madvise(made.memory_.get(), rounded, MADV_HUGEPAGE);
  made.bytes_ = bytes;
  made_bytes_ += bytes;
  ++out_;
  return made;
}

void Staging::give_back(Buffer buffer) {
  if (!buffer) return;
  --out_;
  free_.push_back(std::move(buffer));
}

}  // namespace vmem::tiers
