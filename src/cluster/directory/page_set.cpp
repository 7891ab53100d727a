#include "cluster/directory/page_set.hpp"

#include <algorithm>
#include <bit>

namespace vmem::cluster::directory {

void PageSet::insert(std::uint32_t page) {
  count_ += contains(page) ? 0 : 1;
  words_[page / 64] |= std::uint64_t{1} << (page % 64);
}

void PageSet::erase(std::uint32_t page) {
  count_ -= contains(page) ? 1 : 0;
  words_[page / 64] &= ~(std::uint64_t{1} << (page % 64));
}

void PageSet::fill() {
  std::ranges::fill(words_, UINT64_MAX);
  if (pages_ % 64 != 0) words_.back() = (std::uint64_t{1} << (pages_ % 64)) - 1;
  count_ = pages_;
}

void PageSet::take(PageSet& other) {
  if (other.empty()) return;
  count_ = 0;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    words_[i] |= other.words_[i];
    count_ += std::uint32_t(std::popcount(words_[i]));
  }
  std::ranges::fill(other.words_, 0);
  other.count_ = 0;
}

std::uint32_t PageSet::next(std::uint32_t from) const {
  const std::size_t begin = from < pages_ ? from / 64 : 0;
  const std::uint64_t here = from < pages_ ? words_[begin] & (UINT64_MAX << (from % 64)) : words_[0];
  if (here != 0) return std::uint32_t(begin * 64) + std::uint32_t(std::countr_zero(here));
  for (std::size_t i = 1; i <= words_.size(); ++i) {
    const std::size_t word = (begin + i) % words_.size();
    if (words_[word] != 0) return std::uint32_t(word * 64) + std::uint32_t(std::countr_zero(words_[word]));
  }
  return pages_;
}

}  // namespace vmem::cluster::directory
