// Calls on ranges, and calls without a range.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <shared_mutex>

#include "campaign/api_hostile.hpp"

namespace vmem::test {
namespace {

// Host buffer for calls that must be refused; a refused call may not touch it.
std::byte few_bytes[64];

}  // namespace

std::string hex(std::uintptr_t address) { return fmt::format("{:#x}", address); }

std::vector<std::string> names_of(const Target& target) {
  return {hex(target.address), fmt::format("{} bytes", target.bytes), "NULL", "freed"};
}

void Hostile::prefetch() {
  const Target target = any_target();
  const std::shared_lock shared(world_.reuse);
  call_(fmt::format("prefetch({}, {})", hex(target.address), target.bytes), allowed(target, any_of(VMEM_OK)),
        names_of(target), [&] { return vmem_prefetch(target.pointer(), target.bytes); });
}

void Hostile::advise() {
  const Target target = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  auto advice = vmem_advice(random_.below(7));
  if (random_.one_in(6)) advice = vmem_advice(random_.next() & 0x7fffffff);
  const bool known = advice <= VMEM_ADVISE_EVICT;
  const std::shared_lock shared(world_.reuse);
  Statuses served = any_of(VMEM_OK, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_UNSUPPORTED);
  if (!known) served = any_of(VMEM_ERROR_INVALID_VALUE);
  auto names = names_of(target);
  names.push_back(fmt::format("{} is no advice", int(advice)));
  call_(fmt::format("advise({}, {}, {})", hex(target.address), target.bytes, int(advice)), allowed(target, served),
        names, [&] { return vmem_advise(target.pointer(), target.bytes, advice); });
}

bool Hostile::in_space(const Target& target) { return target.address - ApiPlan::kBase < ApiPlan::kSpaceBytes; }

// CUDA believes the caller about foreign memory, so foreign addresses are replaced by a real host
// buffer of sufficient size.
void Hostile::copy() {
  const Stream stream = any_stream();
  Target to = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  Target from = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  std::size_t bytes = random_.one_in(2) ? to.bytes : from.bytes;
  const auto host = reinterpret_cast<std::uintptr_t>(host_.data());
  const bool null = to.address == 0 || from.address == 0;
  if (!null && !in_space(to)) to.address = host;
  if (!null && !in_space(from)) from.address = host + 1;
  const bool foreign = !in_space(to) || !in_space(from);
  if (!null && foreign) bytes = std::min(bytes, host_.size() - 1);
  to.bytes = from.bytes = bytes;
  const std::shared_lock shared(world_.reuse);
  if (!writable(to)) std::swap(to, from);
  if (!writable(to)) return;
  constexpr Statuses kRefusals = any_of(VMEM_ERROR_INVALID_POINTER, VMEM_ERROR_INVALID_RANGE, VMEM_ERROR_INVALID_VALUE);
  Statuses statuses = kServed | kRefusals | stream_errors(stream);
  const auto wrong = [&](const Target& side) {
    return in_space(side) && (world_.where(side) == Where::nowhere || world_.where(side) == Where::leaves);
  };
  if (!plan_.wild && bytes != 0 && (wrong(to) || wrong(from))) statuses = kRefusals;
  if (null) statuses = any_of(VMEM_ERROR_INVALID_VALUE);
  if (!in_space(to) && !in_space(from) && !stream.real)
    statuses |= any_of(VMEM_ERROR_DRIVER);  // the driver itself refuses it
  auto names = names_of(to);
  std::ranges::copy(names_of(from), std::back_inserter(names));
  for (const char* each : {"mapped", "overlap"}) names.emplace_back(each);
  names.push_back(words(stream));
  call_(fmt::format("memcpy({}, {}, {}, {})", hex(to.address), hex(from.address), bytes, words(stream)), statuses,
        names, [&] { return vmem_memcpy(to.pointer(), from.pointer(), bytes, stream.handle); });
}

void Hostile::fill() {
  const Stream stream = any_stream();
  const Target target = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  const std::shared_lock shared(world_.reuse);
  if (!writable(target)) return;
  Statuses statuses = allowed(target, kServed | stream_errors(stream) | any_of(VMEM_ERROR_INVALID_VALUE));
  if (target.bytes == 0) statuses = any_of(VMEM_OK);
  auto names = names_of(target);
  names.insert(names.end(), {"mapped", words(stream)});
  call_(fmt::format("memset({}, {}, {})", hex(target.address), target.bytes, words(stream)), statuses, names,
        [&] { return vmem_memset(target.pointer(), int(random_.next()), target.bytes, stream.handle); });
}

void Hostile::read() {
  const Target target = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  const bool null = random_.one_in(20);
  const std::shared_lock shared(world_.reuse);
  // A range larger than the host buffer cannot be served, so no host byte is touched.
  void* const to = null ? nullptr : target.bytes <= host_.size() ? host_.data() : few_bytes;
  Statuses statuses = allowed(target, kServed);
  if (null) statuses = any_of(VMEM_ERROR_INVALID_VALUE);
  call_(fmt::format("read({}, {}, {})", null ? "NULL" : "host", hex(target.address), target.bytes), statuses,
        names_of(target), [&] { return vmem_read(to, target.pointer(), target.bytes); });
}

void Hostile::write() {
  const Target target = random_.one_in(2) ? any_target() : world_.victim_target(random_);
  const bool null = random_.one_in(20);
  const std::shared_lock shared(world_.reuse);
  if (!writable(target)) return;
  const void* const from = null ? nullptr : target.bytes <= host_.size() ? host_.data() : few_bytes;
  // INVALID_VALUE: a mapped file. IN_USE: a held small allocation, refused before the range is
  // checked.
  Statuses statuses = allowed(target, kServed | any_of(VMEM_ERROR_INVALID_VALUE)) | any_of(VMEM_ERROR_IN_USE);
  if (null) statuses = any_of(VMEM_ERROR_INVALID_VALUE);
  auto names = names_of(target);
  names.emplace_back("mapped");
  call_(fmt::format("write({}, {}, {})", hex(target.address), null ? "NULL" : "host", target.bytes), statuses, names,
        [&] { return vmem_write(target.pointer(), from, target.bytes); });
}

void Hostile::query() {
  const Target target{any_target().address, 1};
  const bool null = random_.one_in(10);
  const std::shared_lock shared(world_.reuse);
  vmem_pointer_info info{};
  Statuses statuses = allowed(target, any_of(VMEM_OK));
  if (null) statuses = any_of(VMEM_ERROR_INVALID_VALUE);
  call_(fmt::format("query({}, {})", hex(target.address), null ? "NULL" : "info"), statuses, names_of(target),
        [&] { return vmem_query(target.pointer(), null ? nullptr : &info); });
}

void Hostile::others() {
  vmem_statistics stats{};
  stats.struct_bytes = random_.one_in(2) ? std::uint32_t(sizeof stats) : std::uint32_t(random_.next());
  const bool right = stats.struct_bytes == sizeof stats;
  const vmem_option nonsense[]{{"nonsense", "1"}, {nullptr, nullptr}};
  switch (random_.below(7)) {
    case 0:
      call_("stats(NULL)", any_of(VMEM_ERROR_INVALID_VALUE), {"out"}, [] { return vmem_stats(nullptr); });
      return;
    case 1:
      call_(fmt::format("stats(struct_bytes={})", stats.struct_bytes),
            any_of(right ? VMEM_OK : VMEM_ERROR_INVALID_VALUE), {std::to_string(stats.struct_bytes)},
            [&] { return vmem_stats(&stats); });
      return;
    case 2:
      call_("init again", any_of(VMEM_ERROR_ALREADY_INITIALIZED), {},
            [&] { return vmem_init(nonsense, random_.below(3)); });
      return;
    case 3:
      call_("acquire(NULL, 0)", any_of(VMEM_OK), {}, [] { return vmem_acquire(nullptr, 0, nullptr); });
      call_("acquire(NULL, 3)", any_of(VMEM_ERROR_INVALID_VALUE), {"ranges"},
            [] { return vmem_acquire(nullptr, 3, nullptr); });
      return;
    case 4:
      call_("status_string", any_of(VMEM_OK), {}, [&] {
        const bool said = vmem_status_string(vmem_status(random_.below(20)))[0] != '\0' && vmem_version()[0] != '\0';
        return said ? VMEM_OK : VMEM_ERROR_INTERNAL;
      });
      return;
    case 5:
      call_("release(NULL, 0)", any_of(VMEM_OK), {}, [] { return vmem_release(nullptr, 0, nullptr); });
      return;
    default:
      if (!random_.one_in(4)) return;
      call_("quiesce", any_of(VMEM_OK, VMEM_ERROR_TIMEOUT), {}, [] { return vmem_quiesce(); });
  }
}

void Hostile::close_stream() {
  Stream& stream = streams_[random_.below(streams_.size())];
  // Closes only streams that no other thread uses.
  if (stream.handle == nullptr || stream.handle == CU_STREAM_LEGACY) return;
  gpu_.make_current(stream.device);
  call_(fmt::format("stream_close({})", words(stream)), any_of(VMEM_OK), {},
        [&] { return vmem_stream_close(stream.handle); });
  call_("stream_close(unknown)", any_of(VMEM_OK), {},
        [] { return vmem_stream_close(reinterpret_cast<CUstream>(std::uintptr_t{0x123450})); });
  // A closed stream can be used again; a destroyed one is replaced.
  if (stream.handle == CU_STREAM_PER_THREAD || random_.one_in(2)) return;
  gpu_.destroy_stream(stream.handle);
  stream = make_stream(stream.device, CU_STREAM_NON_BLOCKING);
}

// A call refused during capture must add nothing to the graph and leave the stream usable.
void Hostile::capture() {
  const Stream stream = make_stream(0, CU_STREAM_NON_BLOCKING);
  const Target target = world_.victim_target(random_);
  CUgraph graph = nullptr;
  if (gpu_.cu().cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) return;
  {
    const std::shared_lock shared(world_.reuse);
    const vmem_range range{target.pointer(), target.bytes, VMEM_READ, 0};
    const Statuses refused = allowed(target, kNoStatus) | any_of(VMEM_ERROR_UNSUPPORTED);
    call_(fmt::format("acquire({}, {}) while capturing", hex(target.address), target.bytes), refused, names_of(target),
          [&] { return vmem_acquire(&range, 1, stream.handle); });
    if (writable(target) && target.bytes != 0) {
      call_(fmt::format("memset({}, {}) while capturing", hex(target.address), target.bytes), refused, names_of(target),
            [&] { return vmem_memset(target.pointer(), 1, target.bytes, stream.handle); });
    }
  }
  (void)gpu_.cu().cuStreamEndCapture(stream.handle, &graph);
  if (graph != nullptr) (void)gpu_.cu().cuGraphDestroy(graph);
  call_("stream_close after capture", any_of(VMEM_OK), {}, [&] { return vmem_stream_close(stream.handle); });
  gpu_.destroy_stream(stream.handle);
}

void Hostile::expect_refused_everywhere(Caller& call, Target target, vmem_status status) {
  void* const pointer = target.pointer();
  void* out = nullptr;
  vmem_pointer_info info{};
  vmem_statistics stats{};
  stats.struct_bytes = sizeof stats;
  const vmem_range range{pointer, 10, VMEM_READ, 0};
  const std::pair<const char*, std::function<vmem_status()>> all[]{
      {"malloc", [&] { return vmem_malloc(&out, 100, 0, nullptr); }},
      {"map_file", [&] { return vmem_map_file(&out, "/dev/null", 0, 0, 0); }},
      {"free", [&] { return vmem_free(pointer, nullptr); }},
      {"acquire", [&] { return vmem_acquire(&range, 1, nullptr); }},
      {"release", [&] { return vmem_release(&range, 1, nullptr); }},
      {"stream_close", [] { return vmem_stream_close(nullptr); }},
      {"prefetch", [&] { return vmem_prefetch(pointer, 10); }},
      {"advise", [&] { return vmem_advise(pointer, 10, VMEM_ADVISE_PIN); }},
      {"memcpy", [&] { return vmem_memcpy(pointer, few_bytes, 10, nullptr); }},
      {"memset", [&] { return vmem_memset(pointer, 1, 10, nullptr); }},
      {"read", [&] { return vmem_read(few_bytes, pointer, 10); }},
      {"write", [&] { return vmem_write(pointer, few_bytes, 10); }},
      {"query", [&] { return vmem_query(pointer, &info); }},
      {"stats", [&] { return vmem_stats(&stats); }},
      {"quiesce", [] { return vmem_quiesce(); }},
      {"shutdown", [] { return vmem_shutdown(); }}};
  for (const auto& [name, function] : all)
    call(fmt::format("{} without a runtime", name), any_of(status), {}, function);
}

}  // namespace vmem::test
