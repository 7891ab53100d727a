#include "campaign/api_hostile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <shared_mutex>

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLargest = 20 * kMiB;  // allocation
constexpr std::size_t kMostHeld = 6;
constexpr std::ptrdiff_t kMostFiles = 4;

constexpr Statuses kNoPlace = any_of(VMEM_ERROR_INVALID_POINTER);

Target target_of(const vmem_range& range) { return {reinterpret_cast<std::uintptr_t>(range.ptr), range.bytes}; }

}  // namespace

Hostile::Hostile(const ApiPlan& plan, World& world, EmulatedGpu& gpu, Caller& call, std::uint64_t seed,
                 const std::string& file)
    : plan_(plan), world_(world), gpu_(gpu), call_(call), random_(seed), file_(file), host_(kLargest) {
  for (int device = 0; device < plan.devices; ++device) {
    streams_.push_back(make_stream(device, CU_STREAM_NON_BLOCKING));
    streams_.push_back(make_stream(device, CU_STREAM_DEFAULT));
    for (CUstream named : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD})
      streams_.push_back({named, device});
  }
}

void Hostile::step() {
  using Call = void (Hostile::*)();
  static constexpr std::pair<int, Call> kCalls[]{
      {10, &Hostile::allocate}, {2, &Hostile::map_file},     {8, &Hostile::free},     {14, &Hostile::acquire},
      {14, &Hostile::release},  {2, &Hostile::close_stream}, {6, &Hostile::prefetch}, {8, &Hostile::advise},
      {8, &Hostile::copy},      {6, &Hostile::fill},         {6, &Hostile::read},     {6, &Hostile::write},
      {6, &Hostile::query},     {5, &Hostile::others},       {2, &Hostile::capture}};
  int sum = 0;
  for (const auto& [weight, call] : kCalls) sum += weight;
  auto chosen = int(random_.below(std::uint64_t(sum)));
  for (const auto& [weight, call] : kCalls) {
    if (chosen < weight) return (this->*call)();
    chosen -= weight;
  }
}

void Hostile::release_all() {
  while (!held_.empty()) release_held(held_.size() - 1);
  for (const Stream& stream : streams_) {
    // Shared with the other threads.
    if (stream.handle == nullptr || stream.handle == CU_STREAM_LEGACY) continue;
    gpu_.make_current(stream.device);
    call_("stream_close at the end", any_of(VMEM_OK), {}, [&] { return vmem_stream_close(stream.handle); });
  }
}

// ---- allocations ----

// True if the allocation described by `wanted` is valid.
bool Hostile::is_right(const Wanted& wanted) const {
  return wanted.has_out && wanted.bytes != 0 && wanted.device >= 0 && wanted.device < plan_.devices;
}

Hostile::Wanted Hostile::any_wanted() {
  Wanted wanted{.has_out = !random_.one_in(16)};
  wanted.bytes = random_.one_in(2) ? random_.between(1, 9000) : random_.between(1, 9 * kMiB);
  if (random_.one_in(4)) wanted.bytes = world_.any_bytes(random_);
  wanted.device = random_.one_in(8) ? int(random_.next()) : int(random_.below(std::uint64_t(plan_.devices)));
  return wanted;
}

void Hostile::allocate() {
  const Stream stream = any_stream();
  const Wanted wanted = any_wanted();
  const bool full = world_.victim_bytes() + wanted.bytes > plan_.working_mib * kMiB / 2 || wanted.bytes > kLargest;
  if (is_right(wanted) && full && wanted.bytes <= ApiPlan::kSpaceBytes) return;
  // Skips small allocations on fake streams: the suballocator believes its caller and would cache
  // blocks for such a stream forever.
  if (wanted.bytes <= kMiB && !stream.real) return;
  Statuses allowed = any_of(VMEM_ERROR_INVALID_VALUE);
  if (is_right(wanted)) {
    allowed = any_of(VMEM_ERROR_ADDRESS_SPACE, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_TIMEOUT) | stream_errors(stream);
    if (wanted.bytes <= ApiPlan::kSpaceBytes) allowed |= any_of(VMEM_OK);
  }
  void* const untouched = this;
  void* memory = untouched;
  std::unique_lock alone(world_.reuse, std::defer_lock);
  if (!plan_.wild) alone.lock();
  const std::string device = fmt::format("device {}", wanted.device), bytes = fmt::format("{} bytes", wanted.bytes);
  const vmem_status status = call_(
      fmt::format("malloc({}, {}, {}, {})", wanted.has_out ? "out" : "NULL", bytes, device, words(stream)), allowed,
      {bytes, "out", device, words(stream)},
      [&] { return vmem_malloc(wanted.has_out ? &memory : nullptr, wanted.bytes, wanted.device, stream.handle); });
  if (status == VMEM_OK)
    world_.add({reinterpret_cast<std::uintptr_t>(memory), wanted.bytes, Block::Kind::victim});
  else if (memory != untouched)
    call_("malloc that failed and changed out", kNoStatus, {}, [] { return VMEM_ERROR_INTERNAL; });
}

bool Hostile::has_room_for_files() const {
  return std::ranges::count(world_.victims(), Block::Kind::file, &Block::kind) < kMostFiles;
}

void Hostile::map_file() {
  const char* const bad[]{nullptr, "", ".", "/dev/zero", "/nowhere/file", "/proc/self/mem"};
  const bool good = random_.one_in(3);
  const char* const path = good ? file_.c_str() : bad[random_.below(std::size(bad))];
  const std::uint64_t offset = random_.one_in(4) ? random_.next() : random_.below(3 * kMiB);
  const std::uint64_t bytes = random_.one_in(4) ? world_.any_bytes(random_) : random_.below(kMiB);
  const int device = random_.one_in(8) ? int(random_.next()) : 0;
  const bool inside = good && device == 0 && offset < kFileBytes && bytes <= kFileBytes - offset;
  if (inside && !has_room_for_files()) return;
  Statuses allowed = any_of(VMEM_ERROR_INVALID_VALUE, VMEM_ERROR_INVALID_RANGE);
  if (inside) allowed = any_of(VMEM_OK, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_ADDRESS_SPACE, VMEM_ERROR_UNSUPPORTED);
  void* memory = nullptr;
  std::unique_lock alone(world_.reuse, std::defer_lock);
  if (!plan_.wild) alone.lock();
  const std::string name = path == nullptr ? "path is NULL" : path;
  const vmem_status status = call_(fmt::format("map_file({}, {}, {}, device {})", name, offset, bytes, device), allowed,
                                   {name, fmt::format("device {}", device)},
                                   [&] { return vmem_map_file(&memory, path, offset, bytes, device); });
  if (status != VMEM_OK) return;
  const std::size_t mapped = bytes == 0 ? kFileBytes - offset : std::size_t(bytes);
  world_.add({reinterpret_cast<std::uintptr_t>(memory), mapped, Block::Kind::file});
}

void Hostile::free() {
  const Stream stream = any_stream();
  const Target target = random_.one_in(2) ? world_.victim_target(random_) : any_target();
  const std::shared_lock shared(world_.reuse);
  const Where where = world_.where({target.address, 1});
  const bool base = world_.is_base(target.address);
  if (base && where == Where::honest) return;
  if (!stream.real && (plan_.wild || (base && world_.where({target.address, kMiB + 1}) == Where::leaves))) return;
  Statuses allowed = kNoPlace | any_of(VMEM_ERROR_IN_USE) | stream_errors(stream);
  if (base || target.address == 0 || plan_.wild) allowed |= any_of(VMEM_OK);
  // In wild mode remove before the call: after it, the entry might belong to a new allocation at
  // the same address.
  const auto gone = plan_.wild ? world_.remove(target.address) : std::nullopt;
  const vmem_status status = call_(fmt::format("free({}, {})", hex(target.address), words(stream)), allowed,
                                   {hex(target.address), "was freed already", words(stream)},
                                   [&] { return vmem_free(target.pointer(), stream.handle); });
  if (status == VMEM_OK && !plan_.wild) world_.remove(target.address);
  // After INVALID_POINTER the block is not ours to restore: another thread freed it.
  if (gone && status != VMEM_OK && status != VMEM_ERROR_INVALID_POINTER) world_.add(*gone);
}

// ---- holds ----

vmem_range Hostile::any_range() {
  const Target target = random_.one_in(3) ? any_target() : world_.victim_target(random_);
  std::uint32_t access = random_.pick<std::uint32_t>({VMEM_READ, VMEM_WRITE, VMEM_READ_WRITE, VMEM_READ_WRITE});
  if (random_.one_in(10)) access = std::uint32_t(random_.one_in(2) ? random_.below(16) : random_.next());
  if (random_.one_in(6)) access = VMEM_WRITE | VMEM_DISCARD;
  return {target.pointer(), target.bytes, access, random_.one_in(20) ? std::uint32_t(random_.below(3)) : 0};
}

bool Hostile::is_right(const vmem_range& range) const {
  const Where where = world_.where(target_of(range));
  const bool access = (range.access >= 1 && range.access <= 3) || range.access == (VMEM_WRITE | VMEM_DISCARD);
  const bool held = where != Where::nowhere && where != Where::leaves;
  return access && held && range.bytes != 0 && range.reserved == 0 &&
         (where != Where::file || range.access == VMEM_READ);
}

// Discard may destroy bytes of an honest owner, so those ranges are only read.
std::vector<vmem_range> Hostile::any_ranges() {
  std::vector<vmem_range> ranges(random_.one_in(8) ? random_.below(40) : random_.between(1, 3));
  for (vmem_range& range : ranges) {
    range = any_range();
    if (world_.where(target_of(range)) == Where::honest) range.access = VMEM_READ;
  }
  return ranges;
}

Statuses Hostile::allowed(const std::vector<vmem_range>& ranges) const {
  Statuses statuses = any_of(VMEM_OK);
  bool right = true;
  for (const vmem_range& range : ranges) {
    statuses |= allowed(target_of(range), kServed);
    if (!is_right(range)) statuses |= any_of(VMEM_ERROR_INVALID_VALUE);
    right = right && is_right(range);
  }
  return right || plan_.wild ? statuses : statuses & ~any_of(VMEM_OK);
}

void Hostile::acquire() {
  if (random_.one_in(30)) return acquire_absurdly();
  const Stream stream = any_stream();
  const std::shared_lock shared(world_.reuse);
  std::vector<vmem_range> ranges = any_ranges();
  // The refusal of a file mapping names "mapped".
  std::vector<std::string> names{words(stream), "access", "reserved", "mapped"};
  std::string all;
  for (const vmem_range& range : ranges) {
    std::ranges::copy(names_of(target_of(range)), std::back_inserter(names));
    all += fmt::format(" {}+{}:{}", fmt::ptr(range.ptr), range.bytes, range.access);
  }
  const vmem_status status = call_(fmt::format("acquire({}:{}, {})", ranges.size(), all, words(stream)),
                                   allowed(ranges) | stream_errors(stream), names,
                                   [&] { return vmem_acquire(ranges.data(), ranges.size(), stream.handle); });
  if (status != VMEM_OK) return;
  for (const vmem_range& range : ranges) world_.remember_hold(target_of(range));
  held_.push_back(std::move(ranges));
}

// The API must not read beyond the first range.
void Hostile::acquire_absurdly() {
  const vmem_range range = any_range();
  const auto count = random_.pick<std::size_t>({~std::size_t{0}, std::size_t{1} << 60, 0xffffffff, (1 << 20) + 1});
  call_(fmt::format("acquire({} ranges)", count), any_of(VMEM_ERROR_INVALID_VALUE), {std::to_string(count)},
        [&] { return vmem_acquire(&range, count, nullptr); });
  call_(fmt::format("release({} ranges)", count), any_of(VMEM_ERROR_INVALID_VALUE), {std::to_string(count)},
        [&] { return vmem_release(&range, count, nullptr); });
}

void Hostile::release() {
  if (held_.empty() || (held_.size() < kMostHeld && random_.one_in(3))) return release_wrongly();
  release_held(random_.below(held_.size()));
}

void Hostile::release_held(std::size_t index) {
  const std::vector<vmem_range> ranges = std::move(held_[index]);
  held_.erase(held_.begin() + std::ptrdiff_t(index));
  Stream stream = any_stream();
  while (!stream.real) stream = any_stream();
  call_(fmt::format("release(what is held, {} ranges)", ranges.size()), any_of(VMEM_OK), {},
        [&] { return vmem_release(ranges.data(), ranges.size(), stream.handle); });
}

// Releases ranges that are not held, held by another thread, or already released.
void Hostile::release_wrongly() {
  const Stream stream = any_stream();
  Target target = world_.any_hold(random_).value_or(any_target());
  if (random_.one_in(2)) target = any_target();
  if (holds(target)) return;
  const vmem_range range{target.pointer(), target.bytes, VMEM_READ, 0};
  const bool null = random_.one_in(20);
  const Statuses refused = any_of(VMEM_ERROR_NOT_ACQUIRED) | stream_errors(stream);
  call_(fmt::format("release({}, {} + {})", null ? "NULL" : "range", hex(target.address), target.bytes),
        null ? any_of(VMEM_ERROR_INVALID_VALUE) : refused, {hex(target.address), "ranges", words(stream)},
        [&] { return vmem_release(null ? nullptr : &range, 1, stream.handle); });
}

bool Hostile::holds(const Target& target) const {
  const auto same = [&](const vmem_range& range) { return target_of(range) == target; };
  return std::ranges::any_of(held_, [&](const auto& ranges) { return std::ranges::any_of(ranges, same); });
}

// ---- choices ----

Statuses Hostile::allowed(const Target& target, Statuses served) const {
  constexpr Statuses kAnyRefusal = kNoPlace | any_of(VMEM_ERROR_INVALID_RANGE, VMEM_ERROR_INVALID_VALUE);
  if (plan_.wild) return served | kAnyRefusal;
  Statuses statuses = target.bytes == 0 ? any_of(VMEM_ERROR_INVALID_VALUE) : kNoStatus;
  switch (world_.where(target)) {
    case Where::nowhere:
      return statuses | kNoPlace;
    case Where::leaves:
      return statuses | kNoPlace | any_of(VMEM_ERROR_INVALID_RANGE);
    case Where::honest:
      return target.bytes == 0 ? statuses : served;
    case Where::victim:
    case Where::file:
      return target.bytes == 0 ? statuses | kNoPlace : served | kNoPlace;
  }
  return kNoStatus;
}

// Only wild mode may write to an honest owner's bytes.
bool Hostile::writable(const Target& target) const { return plan_.wild || world_.where(target) != Where::honest; }

Target Hostile::any_target() { return world_.any_target(random_); }

Hostile::Stream Hostile::make_stream(int device, unsigned flags) { return {gpu_.create_stream(device, flags), device}; }

Hostile::Stream Hostile::any_stream() {
  Stream stream = random_.pick(streams_);
  if (random_.one_in(20)) stream = {reinterpret_cast<CUstream>(std::uintptr_t{0x123450}), stream.device, false};
  gpu_.make_current(stream.device);
  return stream;
}

std::string Hostile::words(const Stream& stream) { return fmt::format("{}", fmt::ptr(stream.handle)); }

Statuses Hostile::stream_errors(const Stream& stream) {
  return stream.real ? kNoStatus : any_of(VMEM_ERROR_INVALID_VALUE);
}

}  // namespace vmem::test
