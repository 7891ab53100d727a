// The honest half of an API fuzzer thread: allocations with known bytes, whatever other threads do.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "campaign/api_caller.hpp"
#include "campaign/api_plan.hpp"
#include "campaign/api_world.hpp"
#include "gpu/driver.hpp"
#include "runtime/shadow.hpp"

namespace vmem::test {

class Honest {
 public:
  // `stream`: the only stream that it uses, of the device whose context is current.
  Honest(const ApiPlan& plan, World& world, Verdict& verdict, Caller& call, std::uint64_t seed, CUstream stream);
  void step();
  // Verifies and frees everything. REQUIRES: no thread holds ranges any more.
  void finish();
  // The same without frees.
  void verify_all();

 private:
  struct Owned {
    Owned(void* at, std::size_t count) : base(static_cast<std::byte*>(at)), bytes(count), shadow(count) {}
    std::byte* base;
    std::size_t bytes;
    Shadow shadow;
  };
  void allocate();
  void free(std::size_t index);
  void write();
  void fill();
  void copy();
  void read();
  void verify(const Owned& owned, const Piece& piece);
  Owned& any() { return owned_[random_.below(owned_.size())]; }
  Piece any_piece(std::size_t bytes);

  const ApiPlan& plan_;
  World& world_;
  Verdict& verdict_;
  Caller& call_;
  Random random_;
  const CUstream stream_;
  std::vector<Owned> owned_;
  std::size_t owned_bytes_ = 0;
};

}  // namespace vmem::test
