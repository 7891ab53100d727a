// A set of pages of one region: one bit a page. Pure: no threads.
#pragma once

#include <cstdint>
#include <vector>

namespace vmem::cluster::directory {

class PageSet {
 public:
  explicit PageSet(std::uint32_t pages) : pages_(pages), words_((std::size_t{pages} + 63) / 64) {}

  bool empty() const noexcept { return count_ == 0; }
  std::uint32_t count() const noexcept { return count_; }
  bool contains(std::uint32_t page) const { return (words_[page / 64] >> (page % 64) & 1) != 0; }
  void insert(std::uint32_t page);
  void erase(std::uint32_t page);
  void fill();
  // Moves all pages of the other set into this one. Both are of one region.
  void take(PageSet& other);
  // The first member from a page on, or else the first of all. REQUIRES: not empty
  std::uint32_t next(std::uint32_t from) const;

 private:
  std::uint32_t pages_, count_ = 0;
  std::vector<std::uint64_t> words_;
};

// Calls each(page) for the members in order, until it returns false. Returns whether none did.
template <class Each>
bool for_each_until(const PageSet& set, Each&& each) {
  std::uint32_t page = 0;
  for (std::uint32_t left = set.count(); left > 0; --left) {
    page = set.next(page);
    if (!each(page)) return false;
    ++page;
  }
  return true;
}

}  // namespace vmem::cluster::directory
