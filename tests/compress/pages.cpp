#include "compress/pages.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

namespace vmem::compress {
namespace {

template <class Next>
Bytes fill(std::size_t bytes, Next next) {
  Bytes page(bytes);
  for (std::size_t at = 0; at < bytes;) {
    const auto element = next();
    const std::size_t part = std::min(sizeof element, bytes - at);
    std::memcpy(page.data() + at, &element, part);
    at += part;
  }
  return page;
}

Bytes half(std::size_t bytes, std::mt19937_64& random) {
  Bytes page = fill(bytes, random);
  for (std::size_t at = 64; at + 64 <= bytes; at += 128) std::memcpy(&page[at], &page[at % 1024 - 64], 64);
  return page;
}

}  // namespace

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, kKinds.size()> kNames{"zeros", "noise", "half",    "bf16",
                                                               "fp32",  "fp64",  "counters"};
  return kNames[std::size_t(kind)];
}

Bytes make_page(Kind kind, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> weight(0, 0.02);
  switch (kind) {
    case Kind::zeros:
      return Bytes(bytes);
    case Kind::noise:
      return fill(bytes, random);
    case Kind::half:
      return half(bytes, random);
    case Kind::bf16:
      return fill(
          bytes, [&] { return std::uint16_t(std::bit_cast<std::uint32_t>(static_cast<float>(weight(random))) >> 16); });
    case Kind::fp32:
      return fill(bytes, [&] { return static_cast<float>(weight(random)); });
    case Kind::fp64:
      return fill(bytes, [&] { return weight(random); });
    case Kind::counters:
      return fill(bytes, [next = seed]() mutable { return next++; });
  }
  return {};
}

}  // namespace vmem::compress
