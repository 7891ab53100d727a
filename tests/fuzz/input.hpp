// Shared by the fuzz targets: reads an input piece by piece and checks invariants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace vmem::fuzz {

using ConstBytes = std::span<const std::byte>;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  // Reads zeros past the end, so every prefix of an input is an input.
  template <class T>
  T take() {
    T value{};
    const ConstBytes part = bytes(sizeof(T));
    if (!part.empty()) std::memcpy(&value, part.data(), part.size());
    return value;
  }
  // 0 to count - 1.
  std::size_t below(std::size_t count) { return take<std::uint8_t>() % count; }
  bool flag() { return below(2) != 0; }
  ConstBytes bytes(std::size_t most) {
    const ConstBytes part = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }
  ConstBytes rest() { return bytes(rest_.size()); }
  std::string_view text() {
    const ConstBytes all = rest();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }

 private:
  ConstBytes rest_;
};

// Aborts if `holds` is false, in every build type.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

inline bool equal(ConstBytes a, ConstBytes b) { return std::ranges::equal(a, b); }

}  // namespace vmem::fuzz
