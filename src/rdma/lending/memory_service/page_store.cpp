#include "rdma/lending/memory_service/page_store.hpp"

#include <iterator>

#include "base/memory_reserve.hpp"

namespace vmem::rdma {

using pagetable::kGranuleBytes;
using wire::Answer;

// Without memory to note that it is free, the room stays unused until the service ends.
Staging::~Staging() {
  if (owner_ != nullptr) (void)ran_within_memory([this] { owner_->give_back(first_, bytes_); });
}

wire::MediumBytes PageStore::budgets(const ServiceConfig& config) {
  wire::MediumBytes bytes;
  for (const wire::Medium medium : wire::kMedia) bytes[medium] = config.budget_bytes(medium);
  return bytes;
}

bool PageStore::is_within(const Lease& lease, std::uint64_t offset, std::uint64_t bytes) const {
  const auto medium = wire::medium_of(offset);
  if (!medium || bytes == 0) return false;
  const bool in_memory = *medium == wire::Medium::memory;
  const std::uint64_t begin = offset - wire::first_offset(*medium);
  const std::uint64_t end = in_memory ? capacity_.memory : lease.quota(*medium).granted;
  if (begin % kGranuleBytes != 0 || bytes % kGranuleBytes != 0 || begin > end || bytes > end - begin) return false;
  return !in_memory || lease.memory.contains(lease.in_memory(begin, bytes));
}

Answer PageStore::make_room(Lease& lease, const wire::PageAt& at, std::uint64_t sequence) {
  const std::uint64_t bytes = at.page.bytes;
  if (at.page.version == 0 || !is_within(lease, at.offset, bytes)) return Answer::refused;
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
  if (!is_staged(at.offset)) lease.memory.touch(lease.in_memory(at.offset, at.page.bytes));
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

std::uint64_t PageStore::erase_released(Lease& lease, std::uint64_t first, std::uint64_t end, std::uint64_t sequence) {
  auto page = lease.pages.lower_bound(end);
  while (page != lease.pages.begin()) {
    --page;
    const std::uint64_t page_end = page->first + page->second.page.bytes;
    if (page_end <= first) break;
    const bool in_use = page->second.state == LentPage::State::arriving || page->second.readers != 0;
    if (in_use || page->first < first || page_end > end || page->second.sequence > sequence) return page_end;
    const auto old = page++;
    erase(lease, old);
  }
  return first;
}

void PageStore::erase_all(Lease& lease) {
  while (!lease.pages.empty()) erase(lease, lease.pages.begin());
}

Staging PageStore::stage(std::uint64_t bytes) {
  const auto first = staging_.take(bytes);
  return first ? Staging(staging_, *first, bytes) : Staging();
}

}  // namespace vmem::rdma
