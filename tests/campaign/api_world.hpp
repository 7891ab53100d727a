// State shared by all API fuzzer threads: current and former allocations and their owners. Chooses
// pointers for hostile calls and decides the allowed answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "runtime/model_plan.hpp"

namespace vmem::test {

struct Block {
  enum class Kind : std::uint8_t {
    honest,  // its owner knows every byte: nobody else writes
    victim,  // anybody may use, write and free it
    file,    // a victim that cannot be written
  };
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  Kind kind = Kind::victim;
};

// Where a range lies.
enum class Where : std::uint8_t { nowhere, leaves, honest, victim, file };

// A range as passed to the API.
struct Target {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  bool operator==(const Target&) const = default;
  void* pointer() const { return reinterpret_cast<void*>(address); }
};

class World {
 public:
  void add(const Block& block);
  std::optional<Block> remove(std::uintptr_t base);  // if there is one
  std::vector<Block> victims() const;
  std::size_t victim_bytes() const;

  Where where(const Target& target) const;
  bool is_base(std::uintptr_t address) const;
  // A range that may be valid or hostile in some way.
  Target any_target(Random& random) const;
  Target victim_target(Random& random) const;  // inside a victim, if there is one
  std::size_t any_bytes(Random& random) const;

  // Ranges that some thread holds or held.
  void remember_hold(const Target& target);
  std::optional<Target> any_hold(Random& random) const;

  // Locked exclusively while addresses are allocated or an honest owner frees them. Locked shared
  // while a possibly stale pointer is used, which must not become another allocation meanwhile.
  std::shared_mutex reuse;

 private:
  std::uintptr_t any_address(Random& random) const;
  std::uintptr_t near(const Block& block, Random& random) const;
  std::size_t bytes_at(std::uintptr_t address, Random& random) const;
  const Block* containing(std::uintptr_t address) const;
  const Block* any_block(Random& random) const;

  mutable std::mutex mutex_;                // protects all below
  std::map<std::uintptr_t, Block> blocks_;  // by base
  std::deque<std::uintptr_t> stale_;        // bases of freed blocks
  std::deque<Target> holds_;
};

}  // namespace vmem::test
