// Memory where pages are in compressed form, with the header before them: aligned for direct I/O, made when first needed and kept. One
// thread takes and gives back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace vmem::tiers {

class Staging {
 public:
  class Buffer {
   public:
    Buffer() = default;
    explicit operator bool() const { return memory_ != nullptr; }
    std::byte* data() const { return memory_.get(); }
    std::uint64_t bytes() const { return bytes_; }

   private:
    friend class Staging;
    struct Free {
      void operator()(std::byte* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte, Free> memory_;
    std::uint64_t bytes_ = 0;
  };

  // Makes no more than `most_bytes`, but four buffers of the size that is asked for in any case.
  explicit Staging(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Empty: all are taken, or there is no memory; only the latter while none is out.
  Buffer take(std::uint64_t bytes);
  void give_back(Buffer buffer);
  std::uint64_t out() const { return out_; }
  std::uint64_t made_bytes() const { return made_bytes_; }

 private:
  static constexpr std::uint64_t kLeastBuffers = 4;
  const std::uint64_t most_bytes_;
  std::uint64_t made_bytes_ = 0;
  std::uint64_t out_ = 0;  // buffers
  std::vector<Buffer> free_;
};

}  // namespace vmem::tiers
