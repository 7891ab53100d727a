// The model's kernels: under a hold of several ranges, device code checks the memory against the
// model and writes new bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/model_worker.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kCellBytes = 512;

}  // namespace

void ModelWorker::launch_kernels() {
  const StreamUse on = pick_stream();
  const Held held = choose_ranges(on);
  if (held.ranges.empty() || !acquire(held, on)) return;
  // What is acquired twice is released twice.
  const bool twice = random_.one_in(8) && acquire(held, on);
  const std::uint64_t launches = random_.between(1, 2);
  for (std::uint64_t i = 0; i < launches; ++i) launch_on(held, on);
  if (random_.one_in(6)) refuse_while_held(held);
  // A release ignores the access and the order of the ranges.
  std::vector<vmem_range> ranges(held.ranges.rbegin(), held.ranges.rend());
  ok(vmem_release(ranges.data(), ranges.size(), on.stream));
  if (twice) ok(vmem_release(held.ranges.data(), held.ranges.size(), on.stream));
}

ModelWorker::Held ModelWorker::choose_ranges(const StreamUse& on) {
  Held held;
  for (std::uint64_t count = random_.between(1, 3); count > 0; --count) {
    random_.one_in(4) ? add_shared_range(held, on) : add_own_range(held, on);
  }
  return held;
}

void ModelWorker::add_own_range(Held& held, const StreamUse& on) {
  ModelAllocation* allocation = pick_usable(on);
  if (allocation == nullptr) return;
  // Each allocation only once, so that the model writes in the kernel's order.
  if (std::ranges::find(held.of, allocation) != held.of.end()) return;
  const Piece piece =
      random_.one_in(3) ? Piece{0, allocation->bytes} : pick_piece(allocation->bytes, allocation->bytes);
  const std::uint32_t access = random_.pick<std::uint32_t>(
      {VMEM_READ, VMEM_READ, VMEM_WRITE, VMEM_READ_WRITE, VMEM_READ_WRITE, VMEM_WRITE | VMEM_DISCARD});
  held.ranges.push_back({allocation->base + piece.offset, piece.bytes, access, 0});
  held.of.push_back(allocation);
}

void ModelWorker::add_shared_range(Held& held, const StreamUse& on) {
  if (shared_.empty()) return;
  const ModelAllocation& allocation = shared_[random_.below(shared_.size())];
  if (!reaches(on, allocation.device)) return;
  const Piece piece = random_.one_in(3) ? Piece{0, allocation.bytes} : pick_piece(allocation.bytes, allocation.bytes);
  held.ranges.push_back({allocation.base + piece.offset, piece.bytes, VMEM_READ, 0});
  held.of.push_back(&allocation);
}

bool ModelWorker::acquire(const Held& held, const StreamUse& on) {
  std::string ranges;
  for (std::size_t i = 0; i < held.ranges.size(); ++i) {
    ranges += fmt::format(" {}+{}:{}", held.ranges[i].ptr, held.ranges[i].bytes, held.ranges[i].access);
  }
  note(fmt::format("acquire{} on {}", ranges, words(on)));
  // Whether the acquire succeeds or not.
  for (const vmem_range& range : held.ranges) {
    if ((range.access & VMEM_DISCARD) == 0) continue;
    ModelAllocation* const mine = own(range);
    mine->shadow.forget(std::size_t(static_cast<std::byte*>(range.ptr) - mine->base), range.bytes);
  }
  return served(vmem_acquire(held.ranges.data(), held.ranges.size(), on.stream));
}

ModelAllocation* ModelWorker::own(const vmem_range& range) {
  const auto found = std::ranges::find_if(own_, [&](const ModelAllocation& allocation) {
    return range.ptr >= allocation.base && range.ptr < allocation.base + allocation.bytes;
  });
  return found == own_.end() ? nullptr : &*found;
}

void ModelWorker::launch_on(const Held& held, const StreamUse& on) {
  std::vector<Check> checks;
  std::vector<Store> stores;
  for (std::size_t i = 0; i < held.ranges.size(); ++i) {
    const vmem_range& range = held.ranges[i];
    const Piece part{std::size_t(static_cast<std::byte*>(range.ptr) - held.of[i]->base), range.bytes};
    ModelAllocation* mine = own(range);
    if (mine != nullptr) use(*mine, on);
    const bool discards = (range.access & VMEM_DISCARD) != 0;
    if (discards) mine->shadow.forget(part.offset, part.bytes);
    add_checks(*held.of[i], part, checks);
    if ((range.access & VMEM_WRITE) != 0) add_stores(*mine, part, stores);
  }
  const auto body = [&verdict = verdict_, checks = std::move(checks), stores = std::move(stores),
                     after = fmt::format("thread {}: in a kernel after: {}", number_, trace_.back())] {
    for (const Check& check : checks) {
      if (std::memcmp(check.at, check.expected.data(), check.expected.size()) == 0) continue;
      verdict.fail(difference(after.c_str(), check.at, check.at, check.expected.data(), check.expected.size()));
    }
    for (const Store& store : stores) std::memcpy(store.at, store.data.data(), store.data.size());
  };
  if (gpu_.launch(on.stream, on.device, body) != CUDA_SUCCESS) verdict_.fail("a launch failed");
}

// Checks some places of the range that the model knows, the first and the last included.
void ModelWorker::add_checks(const ModelAllocation& allocation, Piece part, std::vector<Check>& checks) {
  const auto pieces = allocation.shadow.defined(part.offset, part.bytes);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool taken = i == 0 || i + 1 == pieces.size() || random_.one_in(1 + pieces.size() / 8);
    if (!taken) continue;
    const std::size_t bytes = std::min(pieces[i].bytes, kCellBytes);
    const std::size_t offset = pieces[i].offset + random_.below(pieces[i].bytes - bytes + 1);
    const std::byte* expected = allocation.shadow.at(offset);
    checks.push_back({allocation.base + offset, {expected, expected + bytes}});
  }
}

// New bytes in up to eight pages of the range.
void ModelWorker::add_stores(ModelAllocation& allocation, Piece part, std::vector<Store>& stores) {
  const std::uint64_t count = std::min<std::uint64_t>(8, 1 + part.bytes / (2 * kMiB));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t bytes = random_.between(1, std::min(part.bytes, kCellBytes));
    const std::size_t offset = part.offset + random_.below(part.bytes - bytes + 1);
    stores.push_back({allocation.base + offset, noise(bytes)});
    allocation.shadow.write(offset, stores.back().data);
  }
}

void ModelWorker::refuse_while_held(const Held& held) {
  const ModelAllocation& allocation = *held.of.front();
  if (allocation.small()) return;
  note(fmt::format("free and write {} while it is held", fmt::ptr(allocation.base)));
  const std::byte byte{1};
  if (vmem_free(allocation.base, nullptr) != VMEM_ERROR_IN_USE)
    verdict_.fail("an allocation was freed while it was held");
  if (vmem_write(held.ranges.front().ptr, &byte, 1) != VMEM_ERROR_IN_USE)
    verdict_.fail("a page was written while it was held");
}

}  // namespace vmem::test
