// Memory for key material: not in core dumps, zeroed in forked children, wiped by the destructor.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace vmem::rdma {

// Occupies whole pages: for few, long-lived keys.
class KeyMemory {
 public:
  // Zero-filled. Throws std::bad_alloc on lack of memory.
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

// The content of a key file, read without stdio, whose buffers are in the ordinary heap.
class KeyText {
 public:
  static constexpr std::size_t kMostBytes = 64 << 10;
  // Reads an open file to its end. Errors: INVALID_OPTION if the file exceeds kMostBytes, or with
  // the system's message.
  static Result<KeyText> read(int descriptor);
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(memory_.bytes().data()), bytes_}; }

 private:
  KeyMemory memory_{kMostBytes + 1};
  std::size_t bytes_ = 0;
};

// Makes OpenSSL allocate from such memory: traffic keys and decrypted data. False on failure, as
// when OpenSSL has allocated already. Call once, before any other call of OpenSSL.
bool keep_openssl_to_this_process();

// True if this process was forked from one that used OpenSSL: all OpenSSL objects are zeros. Then
// call no OpenSSL function; its objects need not be freed.
bool openssl_is_wiped() noexcept;

}  // namespace vmem::rdma
