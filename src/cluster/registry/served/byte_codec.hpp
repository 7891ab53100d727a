// Numbers and texts as bytes: little-endian, without padding; a text has its length first.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace vmem::cluster::served {

class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  std::size_t size() const noexcept { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads zeros once the bytes are too short or something was out of its range; then ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T number(T most = static_cast<T>(-1)) {
    T value = 0;
    const std::string_view part = bytes(sizeof(T));
    for (std::size_t i = 0; i < part.size(); ++i)
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(part[i])) << (8 * i)));
    return require(value <= most) ? value : T{0};
  }
  bool flag() { return number<std::uint8_t>(1) != 0; }
  std::string text(std::size_t most) {
    const auto size = number<std::uint32_t>();
    return require(size <= most) ? std::string(bytes(size)) : std::string();
  }
  // Makes ok() false unless it holds.
  bool require(bool holds) {
    if (!holds) fail();
    return ok_;
  }
  bool ok() const noexcept { return ok_; }
  bool done() const noexcept { return ok_ && rest_.empty(); }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::string_view bytes(std::size_t size) {
    if (!require(size <= rest_.size())) return {};
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace vmem::cluster::served
