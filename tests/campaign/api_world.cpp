#include "campaign/api_world.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "campaign/api_plan.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kRemembered = 64;
std::array<std::byte, 4096> host_bytes;

}  // namespace

void World::add(const Block& block) {
  const std::lock_guard lock(mutex_);
  blocks_.insert_or_assign(block.base, block);
}

std::optional<Block> World::remove(std::uintptr_t base) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(base);
  if (found == blocks_.end()) return std::nullopt;
  const Block block = found->second;
  blocks_.erase(found);
  stale_.push_back(base);
  if (stale_.size() > kRemembered) stale_.pop_front();
  return block;
}

std::vector<Block> World::victims() const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> all;
  for (const auto& [base, block] : blocks_)
    if (block.kind != Block::Kind::honest) all.push_back(block);
  return all;
}

std::size_t World::victim_bytes() const {
  std::size_t sum = 0;
  for (const Block& block : victims()) sum += block.kind == Block::Kind::victim ? block.bytes : 0;
  return sum;
}

const Block* World::containing(std::uintptr_t address) const {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  const Block& block = std::prev(after)->second;
  return address - block.base < block.bytes ? &block : nullptr;
}

const Block* World::any_block(Random& random) const {
  if (blocks_.empty()) return nullptr;
  return &std::next(blocks_.begin(), std::ptrdiff_t(random.below(blocks_.size())))->second;
}

Where World::where(const Target& target) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = containing(target.address);
  if (block == nullptr) return Where::nowhere;
  if (target.bytes > block->bytes - (target.address - block->base)) return Where::leaves;
  if (block->kind == Block::Kind::honest) return Where::honest;
  return block->kind == Block::Kind::file ? Where::file : Where::victim;
}

bool World::is_base(std::uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  return blocks_.contains(address);
}

std::uintptr_t World::near(const Block& block, Random& random) const {
  switch (random.below(8)) {
    case 0:
      return block.base + 1;
    case 1:
      return block.base + block.bytes - 1;
    case 2:
      return block.base + block.bytes;
    case 3:
      return block.base - 1;
    case 4:
      return block.base + random.below(block.bytes);
    case 5:
      return block.base + 256;
    default:
      return block.base;
  }
}

std::uintptr_t World::any_address(Random& random) const {
  constexpr std::uintptr_t kEnd = ApiPlan::kBase + ApiPlan::kSpaceBytes;
  const Block* const block = any_block(random);
  if (block != nullptr && !random.one_in(3)) return near(*block, random);
  if (!stale_.empty() && random.one_in(3)) return stale_[random.below(stale_.size())] + (random.one_in(3) ? 100 : 0);
  switch (random.below(7)) {
    case 0:
      return 0;
    case 1:
      return reinterpret_cast<std::uintptr_t>(host_bytes.data()) + random.below(16);
    case 2:
      return random.pick<std::uintptr_t>(
          {ApiPlan::kBase - 1, ApiPlan::kBase, kEnd - 2 * kMiB, kEnd - 1, kEnd, kEnd + 1});
    case 3:
      return random.pick<std::uintptr_t>(
          {std::uintptr_t{1} << 47, 0x8000000000000000, 0xdead000000000000, ~std::uintptr_t{0}});
    case 4:
      return random.next();
    default:
      return ApiPlan::kBase + random.below(ApiPlan::kSpaceBytes);
  }
}

std::size_t World::any_bytes(Random& random) const {
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return random.pick<std::size_t>(
          {~std::size_t{0}, ~std::size_t{0} / 2, std::size_t{1} << 47, std::size_t{1} << 63});
    case 3:
      return random.next();
    case 4:
      return ApiPlan::kSpaceBytes + random.below(3) - 1;
    default:
      return random.between(1, 5 * kMiB);
  }
}

std::size_t World::bytes_at(std::uintptr_t address, Random& random) const {
  const Block* const block = containing(address);
  if (block == nullptr || random.one_in(4)) {
    // Includes sizes whose end wraps around.
    return random.one_in(4) ? std::size_t{0} - address + random.below(3) : any_bytes(random);
  }
  const std::size_t rest = block->bytes - (address - block->base);
  if (random.one_in(6)) return rest + random.between(1, 2);
  return random.one_in(3) ? rest : random.between(1, rest);
}

Target World::any_target(Random& random) const {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t address = any_address(random);
  return {address, bytes_at(address, random)};
}

Target World::victim_target(Random& random) const {
  const auto all = victims();
  if (all.empty()) return any_target(random);
  const Block& block = random.pick(all);
  const std::size_t offset = random.one_in(2) ? 0 : random.below(block.bytes);
  const std::size_t rest = block.bytes - offset;
  return {block.base + offset, random.one_in(2) ? rest : random.between(1, rest)};
}

void World::remember_hold(const Target& target) {
  const std::lock_guard lock(mutex_);
  holds_.push_back(target);
  if (holds_.size() > kRemembered) holds_.pop_front();
}

std::optional<Target> World::any_hold(Random& random) const {
  const std::lock_guard lock(mutex_);
  if (holds_.empty()) return std::nullopt;
  return holds_[random.below(holds_.size())];
}

}  // namespace vmem::test
