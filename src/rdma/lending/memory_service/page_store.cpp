#include "rdma/lending/memory_service/page_store.hpp"

#include <algorithm>
#include <iterator>

#include "base/memory_reserve.hpp"

namespace vmem::rdma {

using pagetable::kGranuleBytes;
using wire::Answer;

// Without memory to note that it is free, the room stays unused until the service ends.
Staging::~Staging() {
  if (owner_ != nullptr) (void)ran_within_memory([this] { owner_->give_back(first_, bytes_); });
}

Answer PageStore::make_room(Lease& lease, const wire::PageAt& at, std::uint64_t sequence) {
  const std::uint64_t bytes = at.page.bytes;
  const auto medium = wire::medium_of(at.offset);
  if (!medium) return Answer::refused;
  const std::uint64_t begin = at.offset - wire::first_offset(*medium), room = lease.quota(*medium).range;
  if (bytes == 0 || at.page.version == 0 || begin % kGranuleBytes != 0 || bytes % kGranuleBytes != 0 || begin > room ||
      bytes > room - begin)
    return Answer::refused;
  auto first = lease.pages.upper_bound(at.offset);
  if (first != lease.pages.begin() && std::prev(first)->first + std::prev(first)->second.page.bytes > at.offset)
    --first;
  for (auto each = first; each != lease.pages.end() && each->first < at.offset + bytes; ++each) {
    if (each->second.sequence >= sequence) return Answer::refused;
    if (each->second.state == LentPage::State::arriving || each->second.readers != 0) return Answer::again;
  }
  while (first != lease.pages.end() && first->first < at.offset + bytes) {
    const auto old = first++;
    erase(lease, old);
  }
  return Answer::done;
}

void PageStore::add(Lease& lease, const wire::PageAt& at, std::uint64_t sequence) {
  if (!is_staged(at.offset)) lease.touched = std::max(lease.touched, at.offset + at.page.bytes);
  lease.pages[at.offset] = {.page = at.page, .sequence = sequence};
}

void PageStore::hold(Lease& lease, std::uint64_t offset) {
  LentPage& page = lease.pages.find(offset)->second;
  page.state = LentPage::State::held;
  held_bytes(offset) += page.page.bytes;
  ++statistics_.pages;
  statistics_.stored_bytes += page.page.bytes;
}

void PageStore::erase(Lease& lease, Lease::Pages::iterator at) {
  const LentPage& page = at->second;
  if (page.slot) config_.tier(*wire::medium_of(at->first))->release(*page.slot);
  if (page.state == LentPage::State::held) {
    held_bytes(at->first) -= page.page.bytes;
    --statistics_.pages;
  }
  lease.pages.erase(at);
}

void PageStore::erase_all(Lease& lease) {
  while (!lease.pages.empty()) erase(lease, lease.pages.begin());
}

Staging PageStore::stage(std::uint64_t bytes) {
  const auto first = staging_.take(bytes);
  return first ? Staging(staging_, *first, bytes) : Staging();
}

}  // namespace vmem::rdma
