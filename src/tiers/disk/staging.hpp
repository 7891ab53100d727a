// Buffers for a header and a page in compressed form, aligned for direct I/O; allocated on first
// need and kept. One thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace vmem::tiers {

class Staging {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> begin;
    std::uint64_t bytes = 0;
  };

 public:
  // Gives its memory back when destroyed. REQUIRES: the Staging outlives it.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Staging& owner, Memory memory) : owner_(&owner), memory_(std::move(memory)) {}
    Buffer(Buffer&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), memory_(std::move(other.memory_)) {}
    Buffer& operator=(Buffer&& other) noexcept {
      reset();
      owner_ = std::exchange(other.owner_, nullptr);
      memory_ = std::move(other.memory_);
      return *this;
    }
    ~Buffer() { reset(); }
    void reset() {
      if (auto* const owner = std::exchange(owner_, nullptr)) owner->take_back(std::move(memory_));
    }
    explicit operator bool() const { return owner_ != nullptr; }
    std::byte* data() const { return memory_.begin.get(); }

   private:
    Staging* owner_ = nullptr;
    Memory memory_;
  };

  // Allocates at most `most_bytes`, or four buffers of the requested size if that is more.
  explicit Staging(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Empty: all buffers are taken, or the host is out of memory. With out() == 0, always the latter.
  Buffer take(std::uint64_t bytes);
  std::uint64_t out() const { return out_; }
  std::uint64_t made_bytes() const { return made_bytes_; }

 private:
  static constexpr std::uint64_t kLeastBuffers = 4;
  void take_back(Memory memory);

  const std::uint64_t most_bytes_;
  std::uint64_t made_bytes_ = 0;
  std::uint64_t out_ = 0;  // buffers
  std::vector<Memory> free_;
};

// Transfers that wait for a staging buffer, in order: if all are taken, the path is busy.
class StagingLine {
 public:
  using Then = std::move_only_function<void(Staging::Buffer)>;  // empty: the host is out of memory
  explicit StagingLine(std::uint64_t most_bytes) : staging_(most_bytes) {}

  // `then` runs in this call, or in a later `serve`.
  void request(std::uint64_t bytes, Then then);
  // Call it after buffers were given back.
  void serve();

 private:
  struct Waiting {
    std::uint64_t bytes;
    Then then;
  };
  Staging staging_;
  std::deque<Waiting> waiting_;
};

}  // namespace vmem::tiers
