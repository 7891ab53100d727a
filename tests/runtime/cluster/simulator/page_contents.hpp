// What the pages of published regions contain: a function of region, version and page.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cluster/directory/region_record.hpp"

namespace vmem::runtime::simulator {

class PageContents {
 public:
  using Serial = cluster::directory::Serial;
  static constexpr std::uint64_t kPageBytes = 4096;
  static constexpr std::uint64_t kUnwritten = 0;  // the word of a page that reads as zeros

  // A version, with the word that each of its pages repeats.
  void add(Serial serial, std::vector<std::uint64_t> words) { words_[serial] = std::move(words); }
  // REQUIRES: it was added.
  const std::vector<std::uint64_t>& words(Serial serial) const { return words_.at(serial); }
  std::vector<std::byte> bytes(Serial serial, std::uint32_t page) const {
    std::vector<std::byte> bytes(kPageBytes);
    const std::uint64_t word = words(serial)[page];
    for (std::size_t at = 0; at < bytes.size(); at += sizeof word) std::memcpy(&bytes[at], &word, sizeof word);
    return bytes;
  }
  bool are(std::span<const std::byte> bytes, Serial serial, std::uint32_t page) const {
    const std::vector<std::byte> right = this->bytes(serial, page);
    return bytes.size() == right.size() && std::memcmp(bytes.data(), right.data(), right.size()) == 0;
  }

 private:
  std::map<Serial, std::vector<std::uint64_t>> words_;
};

}  // namespace vmem::runtime::simulator
