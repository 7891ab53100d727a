#include "compress/fill.hpp"

#include <cstring>

namespace vmem::compress {

std::optional<std::uint64_t> repeated_word(std::span<const std::byte> page) {
  std::uint64_t word = 0;
  if (page.size() < sizeof word || page.size() % sizeof word != 0) return std::nullopt;
  // Equal to itself shifted by one word.
  if (std::memcmp(page.data(), page.data() + sizeof word, page.size() - sizeof word) != 0) return std::nullopt;
  std::memcpy(&word, page.data(), sizeof word);
  return word;
}

void fill(std::span<std::byte> page, std::uint64_t word) {
  for (std::size_t at = 0; at < page.size(); at += sizeof word) std::memcpy(page.data() + at, &word, sizeof word);
}

}  // namespace vmem::compress
