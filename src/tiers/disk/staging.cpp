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
  const auto fits = std::ranges::find_if(free_, [&](const Memory& each) { return each.bytes >= bytes; });
  if (fits != free_.end()) {
    Memory taken = std::move(*fits);
    free_.erase(fits);
    ++out_;
    return {*this, std::move(taken)};
  }
  // All free buffers are too small: free some to make room for a larger one.
  const std::uint64_t most = std::max(most_bytes_, kLeastBuffers * bytes);
  while (made_bytes_ + bytes > most && !free_.empty()) {
    made_bytes_ -= free_.back().bytes;
    free_.pop_back();
  }
  if (made_bytes_ + bytes > most) return {};
  const std::uint64_t alignment = bytes >= kHugePage ? kHugePage : kBlock;
  const std::uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  Memory made;
  made.begin.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (made.begin == nullptr) return {};
  // Optional: direct I/O looks up every memory page, and there are fewer huge pages.
  if (alignment == kHugePage) (void)::madvise(made.begin.get(), rounded, MADV_HUGEPAGE);
  made.bytes = bytes;
  made_bytes_ += bytes;
  ++out_;
  return {*this, std::move(made)};
}

void Staging::take_back(Memory memory) {
  --out_;
  free_.push_back(std::move(memory));
}

void StagingLine::request(std::uint64_t bytes, Then then) {
  waiting_.push_back({bytes, std::move(then)});
  serve();
}

void StagingLine::serve() {
  while (!waiting_.empty()) {
    Staging::Buffer buffer = staging_.take(waiting_.front().bytes);
    if (!buffer && staging_.out() != 0) return;
    Then then = std::move(waiting_.front().then);
    waiting_.pop_front();
    then(std::move(buffer));
  }
}

}  // namespace vmem::tiers
