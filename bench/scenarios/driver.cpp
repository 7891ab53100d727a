// driver: cost of single driver calls on this machine. The page sizes, stream epochs and background
// growth of host memory are designed after these figures; docs/decisions quotes them.
#include <fmt/format.h>

#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "base/sizes.hpp"
#include "bench/context.hpp"
#include "bench/samples.hpp"
#include "gpu/memory_location.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kPageSizes[] = {std::uint64_t{2} << 20, std::uint64_t{32} << 20};
constexpr int kPages = 24;      // of each size: 768 MiB at most
constexpr int kCalls = 20'000;  // of calls that take well below a microsecond
constexpr int kCallBatch = 50;
constexpr unsigned kThreads = 8;

void add(Context& context, std::string variant, const char* unit, const Samples& samples) {
  Record record;
  record.scenario = "driver";
  record.variant = std::move(variant);
  record.options = nlohmann::json::object();
  record.unit = unit;
  record.achieved = samples.median();
  record.verified = true;  // every call succeeded
  record.details["p99"] = samples.quantile(0.99);
  record.details["samples"] = samples.count();
  context.records.push_back(std::move(record));
}

// Times of the calls over a page's lifetime.
struct PageCalls {
  Samples create, map, set_access, unmap, release;
};

CUmemAllocationProp page_location(CUmemLocationType type, int id) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = gpu::memory_location(type, id);
  return prop;
}

// Runs `call` and records its microseconds.
template <class Call>
Status timed(Samples& samples, Call&& call) {
  const Stopwatch watch;
  VMEM_TRY(call());
  samples.add(watch.nanoseconds() / 1e3);
  return {};
}

Status page_life(const Gpu& gpu, CUdeviceptr address, std::uint64_t bytes, const CUmemAllocationProp& prop,
                 PageCalls& calls) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{};
  access.location = gpu::on_device(gpu.ordinal());
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const auto& driver = gpu.table();
  VMEM_TRY(timed(calls.create, [&] { return gpu.check(driver.cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate"); }));
  Status status =
      timed(calls.map, [&] { return gpu.check(driver.cuMemMap(address, bytes, 0, handle, 0), "cuMemMap"); });
  if (status) {
    status = timed(calls.set_access,
                   [&] { return gpu.check(driver.cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess"); });
    const Status unmapped =
        timed(calls.unmap, [&] { return gpu.check(driver.cuMemUnmap(address, bytes), "cuMemUnmap"); });
    if (status) status = unmapped;
  }
  const Status released = timed(calls.release, [&] { return gpu.check(driver.cuMemRelease(handle), "cuMemRelease"); });
  VMEM_TRY(status);
  return released;
}

Status measure_pages(Context& context, std::uint64_t bytes, const CUmemAllocationProp& prop, const char* where) {
  const Gpu& gpu = context.gpu;
  CUdeviceptr address = 0;
  BENCH_CALL(gpu, cuMemAddressReserve, &address, bytes, bytes, 0, 0);
  PageCalls calls;
  Status status;
  for (int i = 0; i < kPages && status; ++i) status = page_life(gpu, address, bytes, prop, calls);
  const Status freed = gpu.check(gpu.table().cuMemAddressFree(address, bytes), "cuMemAddressFree");
  VMEM_TRY(status);
  VMEM_TRY(freed);
  const auto name = [&](const char* call) { return fmt::format("{}, {} {}", call, format_bytes(bytes), where); };
  add(context, name("cuMemCreate"), "us", calls.create);
  add(context, name("cuMemMap"), "us", calls.map);
  add(context, name("cuMemSetAccess"), "us", calls.set_access);
  add(context, name("cuMemUnmap"), "us", calls.unmap);
  add(context, name("cuMemRelease"), "us", calls.release);
  return {};
}

// Nanoseconds of a call, one sample per batch. Call: () -> CUresult.
template <class Call>
Result<Samples> time_calls(const Gpu& gpu, const char* name, Call&& call) {
  Samples samples;
  for (int done = 0; done < kCalls; done += kCallBatch) {
    const Stopwatch watch;
    for (int i = 0; i < kCallBatch; ++i) VMEM_TRY(gpu.check(call(), name));
    samples.add(watch.nanoseconds() / kCallBatch);
  }
  return samples;
}

// Nanoseconds of an event record on the thread's own stream. Every thread reaches the latch, even
// after a failure.
Result<Samples> time_records(const Gpu& gpu, std::latch& start) {
  const Status current = gpu.make_current();
  auto stream = gpu::Stream::create(gpu.driver_ref());
  auto event = gpu::Event::create(gpu.driver_ref());
  start.arrive_and_wait();
  VMEM_TRY(current);
  if (!stream) return std::unexpected(std::move(stream).error());
  if (!event) return std::unexpected(std::move(event).error());
  return time_calls(gpu, "cuEventRecord", [&] { return gpu.table().cuEventRecord(event->get(), stream->get()); });
}

Status measure_records(Context& context, unsigned count) {
  std::vector<std::optional<Result<Samples>>> each(count);
  std::latch start(count);
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    for (auto& samples : each) threads.emplace_back([&] { samples = time_records(context.gpu, start); });
  }
  Samples medians;
  for (auto& samples : each) {
    if (!*samples) return std::unexpected(std::move(*samples).error());
    medians.add((*samples)->median());
  }
  add(context, fmt::format("cuEventRecord, {} thread{} at once", count, count == 1 ? "" : "s"), "ns", medians);
  return {};
}

Status measure_queries(Context& context) {
  const Gpu& gpu = context.gpu;
  const auto& driver = gpu.table();
  VMEM_ASSIGN(const gpu::Stream stream, gpu::Stream::create(gpu.driver_ref()));
  VMEM_ASSIGN(const gpu::Event event, gpu::Event::create(gpu.driver_ref()));
  BENCH_CALL(gpu, cuEventRecord, event.get(), stream.get());
  VMEM_TRY(stream.synchronize());
  VMEM_ASSIGN(const Samples queries, time_calls(gpu, "cuEventQuery", [&] { return driver.cuEventQuery(event.get()); }));
  add(context, "cuEventQuery, complete", "ns", queries);
  VMEM_ASSIGN(const Samples waits, time_calls(gpu, "cuStreamWaitEvent",
                                              [&] { return driver.cuStreamWaitEvent(stream.get(), event.get(), 0); }));
  add(context, "cuStreamWaitEvent, complete", "ns", waits);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  VMEM_ASSIGN(const Samples captures, time_calls(gpu, "cuStreamIsCapturing",
                                                 [&] { return driver.cuStreamIsCapturing(stream.get(), &status); }));
  add(context, "cuStreamIsCapturing", "ns", captures);
  return {};
}

}  // namespace

Status run_driver(Context& context) {
  for (const std::uint64_t bytes : kPageSizes) {
    VMEM_TRY(
        measure_pages(context, bytes, page_location(CU_MEM_LOCATION_TYPE_DEVICE, context.gpu.ordinal()), "of HBM"));
    VMEM_TRY(measure_pages(context, bytes, page_location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0), "of host memory"));
  }
  for (const unsigned threads : {1u, kThreads}) VMEM_TRY(measure_records(context, threads));
  return measure_queries(context);
}

}  // namespace vmem::bench
