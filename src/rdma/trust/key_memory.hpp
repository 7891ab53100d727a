// Memory for key material: out of core dumps, zero in forked children, wiped when it ends.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace vmem::rdma {

// A few pages of its own: for keys that live long, not for many.
class KeyMemory {
 public:
  // Zeros. Lack of memory throws std::bad_alloc.
  explicit KeyMemory(std::size_t bytes);
  ~KeyMemory();
  KeyMemory(KeyMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  KeyMemory& operator=(KeyMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::span<unsigned char> bytes() noexcept { return bytes_; }
  std::span<const unsigned char> bytes() const noexcept { return bytes_; }

 private:
  std::span<unsigned char> bytes_;
};

// What a file with keys holds. Read without stdio, whose buffers are in the ordinary heap.
class KeyText {
 public:
  static constexpr std::size_t kMostBytes = 64 << 10;
  // All of an open file. Errors: INVALID_OPTION, why: it has more than kMostBytes, or what the system says.
  static Result<KeyText> read(int descriptor);
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(memory_.bytes().data()), bytes_}; }

 private:
  KeyMemory memory_{kMostBytes + 1};
  std::size_t bytes_ = 0;
};

// Has OpenSSL allocate from such memory: traffic keys, and what it decrypts. False if it has allocated already.
// Once, before any other call of OpenSSL.
bool keep_openssl_to_this_process();

// This process was forked from one that used OpenSSL, so all that OpenSSL has made is zeros: call no function
// of it. What it made need not be freed.
bool openssl_is_wiped() noexcept;

}  // namespace vmem::rdma
