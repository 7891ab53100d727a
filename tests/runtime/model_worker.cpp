#include "runtime/model_worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace vmem::test {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kTraceLines = 24;

}  // namespace

std::string words(const StreamUse& on) { return fmt::format("stream {} of device {}", fmt::ptr(on.stream), on.device); }

ModelWorker::ModelWorker(const ModelPlan& plan, EmulatedGpu& gpu, Verdict& verdict,
                         const std::deque<ModelAllocation>& shared, int number)
    : plan_(plan),
      gpu_(gpu),
      verdict_(verdict),
      shared_(shared),
      number_(number),
      random_(plan.seed * 8 + std::uint64_t(number) + 1) {}

void ModelWorker::run() {
  for (int device = 0; device < plan_.devices; ++device) {
    streams_.push_back({gpu_.create_stream(device), device});
    streams_.push_back({gpu_.create_stream(device, CU_STREAM_DEFAULT), device});
    streams_.push_back({CU_STREAM_PER_THREAD, device});
    streams_.push_back({nullptr, device});
  }
  for (int i = 0; i < plan_.steps && !verdict_.failed(); ++i) step();
  while (!own_.empty() && !verdict_.failed()) verify_and_free(own_.size() - 1);
  // Not the legacy stream, which the threads share.
  for (const StreamUse& each : streams_) {
    if (each.stream == nullptr) continue;
    gpu_.make_current(each.device);
    ok(vmem_stream_close(each.stream));
  }
}

std::string ModelWorker::trace() const {
  std::string all;
  for (const auto& line : trace_) all += fmt::format("  thread {}: {}\n", number_, line);
  return all;
}

void ModelWorker::note(std::string what) {
  if (trace_.size() == kTraceLines) trace_.pop_front();
  trace_.push_back(std::move(what));
}

bool ModelWorker::ok(vmem_status status, std::initializer_list<vmem_status> allowed) {
  if (status == VMEM_OK) return true;
  if (!trace_.empty()) trace_.back() += fmt::format(" -> {}", vmem_status_string(status));
  if (std::ranges::find(allowed, status) == allowed.end()) {
    verdict_.fail(fmt::format("thread {}: {}: {}", number_, trace_.empty() ? "" : trace_.back(), vmem_last_error()));
  }
  return false;
}

// With protect, a page that is still being read does not become writable. With files or another
// node, pages are loaded into host memory before use, and the threads may hold all of it: the
// refusal then tells how much was in use.
bool ModelWorker::served(vmem_status status) {
  if (status == VMEM_ERROR_IN_USE && plan_.protect) return ok(status, {VMEM_ERROR_IN_USE});
  if (status != VMEM_ERROR_OUT_OF_MEMORY || plan_.below_mib() == 0) return ok(status);
  const std::string why = vmem_last_error();
  ok(status, {VMEM_ERROR_OUT_OF_MEMORY});
  const std::size_t host = why.find("host: ");
  unsigned long used = 0, budget = 0;
  if (host == std::string::npos || std::sscanf(why.c_str() + host, "host: %lu MiB of %lu MiB", &used, &budget) != 2 ||
      2 * used < budget)
    verdict_.fail("out of memory, with half of host memory free: " + why);
  return false;
}

void ModelWorker::step() {
  if (own_.empty()) return allocate();
  const std::uint64_t what = random_.below(100);
  if (what < 12) return allocate();
  if (what < 17) return free_one();
  if (what < 57) return launch_kernels();
  if (what < 62) return fill();
  if (what < 68) return copy();
  if (what < 73) return copy_host();
  if (what < 79) return read();
  if (what < 85) return write();
  if (what < 94) return advise();
  if (what < 98) return query();
  replace_stream();
}

// ---- allocation ----

void ModelWorker::allocate() {
  const std::size_t share = plan_.working_mib * kMiB / std::size_t(plan_.threads);
  const StreamUse on = pick_stream();
  const int device = int(random_.below(std::uint64_t(plan_.devices)));
  std::size_t bytes = random_.between(kMiB + 1, std::min<std::size_t>(share, 12 * kMiB) + kMiB + 1);
  if (random_.one_in(6)) bytes = random_.between(2, 2 * plan_.hbm_mib) * kMiB;
  if (plan_.small && random_.one_in(2)) bytes = random_.between(1, random_.one_in(3) ? kMiB : 20 * kKiB);
  if (own_bytes_ + bytes > share) return free_one();
  note(fmt::format("malloc {} on device {}", bytes, device));
  void* memory = nullptr;
  // Other threads' allocations may have exhausted the plan.
  if (!ok(vmem_malloc(&memory, bytes, device, on.stream), {VMEM_ERROR_OUT_OF_MEMORY})) return;
  if (reinterpret_cast<std::uintptr_t>(memory) % 256 != 0) verdict_.fail("an allocation is not aligned to 256 bytes");
  own_.emplace_back(memory, bytes, device);
  own_bytes_ += bytes;
  trace_.back() += fmt::format(" at {}", memory);
}

void ModelWorker::free_one() {
  if (own_.empty()) return;
  const std::size_t index = random_.below(own_.size());
  if (random_.one_in(2)) return verify_and_free(index);
  // Work on any stream may still use it. Only a small allocation's free is ordered by its own
  // stream alone.
  ModelAllocation& allocation = own_[index];
  const StreamUse on = allocation.small() && allocation.used ? allocation.last : pick_stream();
  note(fmt::format("free {}", fmt::ptr(allocation.base)));
  gpu_.make_current(on.device);
  ok(vmem_free(allocation.base, on.stream));
  own_bytes_ -= allocation.bytes;
  std::swap(own_[index], own_.back());
  own_.pop_back();
}

void ModelWorker::verify_and_free(std::size_t index) {
  ModelAllocation& allocation = own_[index];
  for (const Piece& piece : allocation.shadow.defined()) verify(allocation, piece);
  note(fmt::format("verified, free {}", fmt::ptr(allocation.base)));
  const StreamUse on = pick_stream();
  if (allocation.used) use(allocation, on);
  ok(vmem_free(allocation.base, on.stream));
  own_bytes_ -= allocation.bytes;
  std::swap(own_[index], own_.back());
  own_.pop_back();
}

// ---- copies ----

void ModelWorker::fill() {
  const StreamUse on = pick_stream();
  ModelAllocation* allocation = pick_usable(on);
  if (allocation == nullptr) return;
  const Piece piece = pick_piece(allocation->bytes, random_.one_in(4) ? 3 * kMiB : 30 * kKiB);
  const int value = int(random_.below(256));
  note(fmt::format("memset {} {} on {}", fmt::ptr(allocation->base + piece.offset), piece.bytes, words(on)));
  use(*allocation, on);
  // A failed memset of several pieces may have done some of them.
  allocation->shadow.forget(piece.offset, piece.bytes);
  if (!served(vmem_memset(allocation->base + piece.offset, value, piece.bytes, on.stream))) return;
  allocation->shadow.fill(piece.offset, piece.bytes, std::byte(value));
}

void ModelWorker::copy() {
  const StreamUse on = pick_stream();
  ModelAllocation* to = pick_usable(on);
  ModelAllocation* from = pick_usable(on);
  if (to == nullptr || from == nullptr || to == from) return;
  const std::size_t most = std::min({from->bytes, to->bytes, random_.one_in(4) ? 3 * kMiB : 30 * kKiB});
  const Piece source = pick_piece(from->bytes, most);
  const std::size_t bytes = std::min(source.bytes, to->bytes);
  const std::size_t offset = random_.below(to->bytes - bytes + 1);
  note(fmt::format("memcpy {} <- {} {} on {}", fmt::ptr(to->base + offset), fmt::ptr(from->base + source.offset), bytes,
                   words(on)));
  use(*to, on);
  use(*from, on);
  to->shadow.forget(offset, bytes);
  if (!served(vmem_memcpy(to->base + offset, from->base + source.offset, bytes, on.stream))) return;
  to->shadow.copy(offset, from->shadow, source.offset, bytes);
}

void ModelWorker::copy_host() {
  const StreamUse on = pick_stream();
  ModelAllocation* allocation = pick_usable(on);
  if (allocation == nullptr) return;
  const Piece piece = pick_piece(allocation->bytes, random_.one_in(4) ? 3 * kMiB : 30 * kKiB);
  const bool out = random_.one_in(2);
  note(fmt::format("memcpy {} {} {} on {}", out ? "from" : "to", fmt::ptr(allocation->base + piece.offset), piece.bytes,
                   words(on)));
  use(*allocation, on);
  std::vector<std::byte> host = noise(piece.bytes);
  std::byte* device = allocation->base + piece.offset;
  if (!out) {
    allocation->shadow.forget(piece.offset, piece.bytes);
    const vmem_status status = vmem_memcpy(device, host.data(), piece.bytes, on.stream);
    if (served(status)) allocation->shadow.write(piece.offset, host);
    return;
  }
  if (!served(vmem_memcpy(host.data(), device, piece.bytes, on.stream))) return;
  for (const Piece& part : allocation->shadow.defined(piece.offset, piece.bytes)) {
    const std::byte* found = host.data() + (part.offset - piece.offset);
    const std::byte* expected = allocation->shadow.at(part.offset);
    if (std::memcmp(found, expected, part.bytes) == 0) continue;
    verdict_.fail(difference("copied out", allocation->base + part.offset, found, expected, part.bytes));
  }
}

void ModelWorker::read() {
  const bool others = !shared_.empty() && random_.one_in(3);
  const ModelAllocation& allocation =
      others ? shared_[random_.below(shared_.size())] : own_[random_.below(own_.size())];
  const auto pieces = allocation.shadow.defined();
  for (std::size_t i = 0; i < std::min<std::size_t>(pieces.size(), 3); ++i) verify(allocation, random_.pick(pieces));
}

// Waits for the work released before, on any stream.
void ModelWorker::verify(const ModelAllocation& allocation, Piece piece) {
  note(fmt::format("read {} {}", fmt::ptr(allocation.base + piece.offset), piece.bytes));
  std::vector<std::byte> found(piece.bytes);
  if (!served(vmem_read(found.data(), allocation.base + piece.offset, piece.bytes))) return;
  const std::byte* expected = allocation.shadow.at(piece.offset);
  if (std::memcmp(found.data(), expected, piece.bytes) == 0) return;
  verdict_.fail(difference("read", allocation.base + piece.offset, found.data(), expected, piece.bytes));
}

void ModelWorker::write() {
  ModelAllocation& allocation = own_[random_.below(own_.size())];
  const Piece piece = pick_piece(allocation.bytes, random_.one_in(8) ? 3 * kMiB : 30 * kKiB);
  note(fmt::format("write {} {}", fmt::ptr(allocation.base + piece.offset), piece.bytes));
  const auto data = noise(piece.bytes);
  // Host memory may be full.
  allocation.shadow.forget(piece.offset, piece.bytes);
  const vmem_status status = vmem_write(allocation.base + piece.offset, data.data(), piece.bytes);
  if (ok(status, {VMEM_ERROR_OUT_OF_MEMORY})) allocation.shadow.write(piece.offset, data);
}

// ---- hints and figures ----

void ModelWorker::advise() {
  const bool others = !shared_.empty() && random_.one_in(4);
  const ModelAllocation& allocation =
      others ? shared_[random_.below(shared_.size())] : own_[random_.below(own_.size())];
  const Piece piece = pick_piece(allocation.bytes, allocation.bytes);
  const std::byte* at = allocation.base + piece.offset;
  const auto advice = vmem_advice(random_.between(VMEM_ADVISE_NORMAL, VMEM_ADVISE_EVICT + 1));
  if (advice > VMEM_ADVISE_EVICT) {
    note(fmt::format("prefetch {} {}", fmt::ptr(at), piece.bytes));
    ok(vmem_prefetch(at, piece.bytes));
    return;
  }
  note(fmt::format("advise {} {} {}", fmt::ptr(at), piece.bytes, int(advice)));
  const vmem_status status = vmem_advise(at, piece.bytes, advice);
  if (advice == VMEM_ADVISE_PIN) {
    ok(status, {VMEM_ERROR_OUT_OF_MEMORY});
  } else if (advice == VMEM_ADVISE_IN_PLACE && allocation.small()) {
    ok(status, {VMEM_ERROR_UNSUPPORTED});
  } else {
    ok(status);
  }
}

void ModelWorker::query() {
  const ModelAllocation& allocation = own_[random_.below(own_.size())];
  note(fmt::format("query {}", fmt::ptr(allocation.base)));
  vmem_pointer_info info{};
  if (!ok(vmem_query(allocation.base + random_.below(allocation.bytes), &info))) return;
  const std::size_t everywhere = info.bytes_hbm + info.bytes_peer + info.bytes_host_mapped + info.bytes_host +
                                 info.bytes_below_host + info.bytes_file + info.bytes_unbacked + info.bytes_lost;
  const bool known = info.base == allocation.base && info.bytes == allocation.bytes && info.device == allocation.device;
  const bool whole = everywhere % info.page_bytes == 0 && everywhere >= info.bytes && info.bytes_lost == 0;
  if (!known || !whole) verdict_.fail(fmt::format("query of {} answers nonsense", fmt::ptr(allocation.base)));
  vmem_statistics stats{};
  stats.struct_bytes = sizeof stats;
  if (!ok(vmem_stats(&stats))) return;
  const bool within =
      stats.hbm_used_bytes <= stats.hbm_budget_bytes && stats.host_used_bytes <= stats.host_budget_bytes;
  if (!within) verdict_.fail("more memory is used than the budgets allow");
}

void ModelWorker::replace_stream() {
  // Only the first of each device's four streams is replaced.
  StreamUse& old = streams_[4 * random_.below(std::uint64_t(plan_.devices))];
  note(fmt::format("close stream {}", fmt::ptr(old.stream)));
  for (ModelAllocation& allocation : own_) {
    if (allocation.used && allocation.last == old) use(allocation, {nullptr, old.device});
  }
  ok(vmem_stream_close(old.stream));
  gpu_.destroy_stream(old.stream);
  old.stream = gpu_.create_stream(old.device);
}

// ---- choices ----

StreamUse ModelWorker::pick_stream() {
  const StreamUse on = random_.pick(streams_);
  gpu_.make_current(on.device);
  return on;
}

// The program's part of the contract: events order uses on different streams.
void ModelWorker::use(ModelAllocation& allocation, const StreamUse& on) {
  gpu_.make_current(on.device);
  if (allocation.used && allocation.last != on) gpu_.order(allocation.last.stream, allocation.last.device, on.stream);
  allocation.used = true;
  allocation.last = on;
}

ModelAllocation* ModelWorker::pick_usable(const StreamUse& on) {
  ModelAllocation& allocation = own_[random_.below(own_.size())];
  return reaches(on, allocation.device) ? &allocation : nullptr;
}

Piece ModelWorker::pick_piece(std::size_t bytes, std::size_t most) {
  const std::size_t count = random_.between(1, std::min(bytes, most));
  std::size_t offset = random_.below(bytes - count + 1);
  // Often crosses the end of a page.
  if (bytes > 2 * kMiB && random_.one_in(3)) offset = std::min(2 * kMiB - count / 2 % kMiB - 1, bytes - count);
  return {offset, count};
}

std::vector<std::byte> ModelWorker::noise(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  Random fast(random_.next());
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = fast.next();
    std::memcpy(data.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return data;
}

}  // namespace vmem::test
