// A program that takes more memory than it has: what does not fit goes to other nodes. It writes
// pages, reads them back, and says how much other nodes stored and how many words were wrong.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "vmem/vmem.h"

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20, kPages = 64;

int failed(const char* call) {
  std::fprintf(stderr, "%s: %s\n", call, vmem_last_error());
  return 1;
}

std::vector<std::uint64_t> words_of(std::size_t page) {
  std::vector<std::uint64_t> words(kPage / sizeof(std::uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = page << 32 | i;
  return words;
}

int borrow() {
  void* memory = nullptr;
  if (vmem_malloc(&memory, kPages * kPage, 0, nullptr) != VMEM_OK) return failed("vmem_malloc");
  auto* const base = static_cast<std::byte*>(memory);
  for (std::size_t page = 0; page < kPages; ++page)
    if (vmem_write(base + page * kPage, words_of(page).data(), kPage) != VMEM_OK) return failed("vmem_write");
  std::size_t wrong = 0;
  std::vector<std::uint64_t> read(kPage / sizeof(std::uint64_t));
  for (std::size_t page = 0; page < kPages; ++page) {
    if (vmem_read(read.data(), base + page * kPage, kPage) != VMEM_OK) return failed("vmem_read");
    const std::vector<std::uint64_t> expected = words_of(page);
    for (std::size_t i = 0; i < read.size(); ++i) wrong += read[i] != expected[i] ? 1 : 0;
  }
  vmem_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  if (vmem_stats(&statistics) != VMEM_OK) return failed("vmem_stats");
  std::printf("stored %" PRIu64 " MiB on other nodes; %zu wrong words\n", statistics.remote_stored_bytes >> 20, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main() {
  if (vmem_init(nullptr, 0) != VMEM_OK) return failed("vmem_init");
  const int code = borrow();
  vmem_shutdown();
  return code;
}
