#include "runtime/watched_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace vmem::test {
namespace {

using std::chrono::steady_clock;
constexpr std::size_t kWords = WatchedPages::kPage / sizeof(std::uint64_t);

vmem_range range_of(std::byte* page, std::uint32_t access) { return {page, WatchedPages::kPage, access, 0}; }

}  // namespace

WatchedPages::WatchedPages(Config config) : config_(std::move(config)), pages_(config_.pages) {}

vmem_status WatchedPages::make(Call call, std::size_t page, CUstream stream, std::mt19937_64& random) {
  switch (call) {
    case Call::read:
      return read(page, stream);
    case Call::write:
      return read_only() ? read(page, stream) : write(page);
    case Call::acquire:
      return acquire(page, stream);
    case Call::copy:
      return copy(page, (page + 1 + random() % (pages_.size() - 1)) % pages_.size(), stream);
    case Call::prefetch:
      return prefetch(page);
  }
  return VMEM_ERROR_INTERNAL;
}

vmem_status WatchedPages::timed(Call call, const std::function<vmem_status()>& made) {
  const auto begun = steady_clock::now();
  const vmem_status status = made();
  const auto took = steady_clock::now() - begun;
  const std::string message = status == VMEM_OK ? "" : vmem_last_error();
  EXPECT_LT(took, config_.longest) << message;
  const std::lock_guard lock(mutex_);
  longest_ = std::max(longest_, took);
  if (status == VMEM_OK) return status;
  EXPECT_TRUE(config_.refusable(status, message)) << vmem_status_string(status) << ": " << message;
  ++refused_;
  ++refused_by_call_[static_cast<std::size_t>(call)];
  last_error_ = message;
  return status;
}

void WatchedPages::expect_bytes(std::size_t page, const std::vector<std::uint64_t>& words) const {
  for (std::size_t i = 0; i < kWords; ++i) {
    if (words[i] == pages_[page].first + i) continue;
    ADD_FAILURE() << "page " << page << " has other bytes at word " << i;
    return;
  }
}

vmem_status WatchedPages::read(std::size_t page, CUstream) {
  const std::lock_guard lock(pages_[page].mutex);
  std::vector<std::uint64_t> words(kWords);
  const vmem_status status = timed(Call::read, [&] { return vmem_read(words.data(), at(page), kPage); });
  if (status == VMEM_OK) expect_bytes(page, words);
  return status;
}

vmem_status WatchedPages::write(std::size_t page) {
  const std::lock_guard lock(pages_[page].mutex);
  const std::uint64_t first = fresh();
  std::vector<std::uint64_t> words(kWords);
  std::iota(words.begin(), words.end(), first);
  const vmem_status status = timed(Call::write, [&] { return vmem_write(at(page), words.data(), kPage); });
  // A call refused before it wrote a byte leaves the page unchanged.
  if (status == VMEM_OK) pages_[page].first = first;
  return status;
}

vmem_status WatchedPages::acquire(std::size_t page, CUstream stream) {
  const std::lock_guard lock(pages_[page].mutex);
  const vmem_range range = range_of(at(page), read_only() ? VMEM_READ : VMEM_READ_WRITE);
  const vmem_status status = timed(Call::acquire, [&] { return vmem_acquire(&range, 1, stream); });
  if (status != VMEM_OK) return status;
  const std::uint64_t after = read_only() ? pages_[page].first : fresh();
  std::vector<std::uint64_t> words(kWords);
  auto* const there = reinterpret_cast<std::uint64_t*>(at(page));
  const auto body = [this, &words, there, after] {
    std::copy_n(there, kWords, words.begin());
    if (!read_only()) std::iota(there, there + kWords, after);
  };
  EXPECT_EQ(config_.gpu->launch(stream, 0, body), CUDA_SUCCESS);
  EXPECT_EQ(vmem_release(&range, 1, stream), VMEM_OK) << vmem_last_error();
  config_.gpu->synchronize(stream);
  expect_bytes(page, words);
  pages_[page].first = after;
  return status;
}

vmem_status WatchedPages::copy(std::size_t from, std::size_t to, CUstream stream) {
  if (read_only()) return copy_away(from, stream);
  const std::scoped_lock lock(pages_[from].mutex, pages_[to].mutex);
  const vmem_status status = timed(Call::copy, [&] { return vmem_memcpy(at(to), at(from), kPage, stream); });
  config_.gpu->synchronize(stream);
  if (status == VMEM_OK) pages_[to].first = pages_[from].first;
  return status;
}

vmem_status WatchedPages::copy_away(std::size_t from, CUstream stream) {
  const std::lock_guard lock(copying_);
  const vmem_status status = timed(Call::copy, [&] { return vmem_memcpy(config_.copies_to, at(from), kPage, stream); });
  config_.gpu->synchronize(stream);
  std::vector<std::uint64_t> words(kWords);
  if (status == VMEM_OK && vmem_read(words.data(), config_.copies_to, kPage) == VMEM_OK) expect_bytes(from, words);
  return status;
}

vmem_status WatchedPages::prefetch(std::size_t page) {
  return timed(Call::prefetch, [&] { return vmem_prefetch(at(page), kPage); });
}

std::chrono::milliseconds WatchedPages::longest() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration_cast<std::chrono::milliseconds>(longest_);
}

std::string WatchedPages::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

}  // namespace vmem::test
