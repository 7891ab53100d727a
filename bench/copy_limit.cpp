#include "bench/copy_limit.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/options.hpp"
#include "bench/samples.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kCopyBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kCopyBytesEmulated = std::uint64_t{32} << 20;
constexpr int kCopies = 8;  // a sample

}  // namespace

Result<CopyLimit> CopyLimit::create(const Gpu& gpu) {
  CopyLimit limit(gpu);
  limit.bytes_ = gpu.emulated() ? kCopyBytesEmulated : kCopyBytes;
  VMEM_ASSIGN(limit.host_in_, allocate_pinned(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.host_out_, allocate_pinned(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.device_in_, allocate_device(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.device_out_, allocate_device(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.in_, make_stream(gpu));
  VMEM_ASSIGN(limit.out_, make_stream(gpu));
  std::memset(limit.host_in_.data(), 1, limit.bytes_);  // the kernel's zero page would be copied faster
  std::memset(limit.host_out_.data(), 1, limit.bytes_);
  VMEM_TRY(limit.both_ways());  // the first copies set things up
  return limit;
}

Status CopyLimit::queue_in() const {
  BENCH_CALL(*gpu_, cuMemcpyHtoDAsync, device_in_.get(), host_in_.data(), bytes_, in_.get());
  return {};
}

Status CopyLimit::queue_out() const {
  BENCH_CALL(*gpu_, cuMemcpyDtoHAsync, host_out_.data(), device_out_.get(), bytes_, out_.get());
  return {};
}

Result<double> CopyLimit::host_to_device() const {
  const Stopwatch watch;
  for (int i = 0; i < kCopies; ++i) VMEM_TRY(queue_in());
  VMEM_TRY(in_.synchronize());
  return static_cast<double>(kCopies * bytes_) / watch.nanoseconds();
}

Result<double> CopyLimit::both_ways() const {
  const Stopwatch watch;
  for (int i = 0; i < kCopies; ++i) {
    VMEM_TRY(queue_in());
    VMEM_TRY(queue_out());
  }
  VMEM_TRY(in_.synchronize());
  VMEM_TRY(out_.synchronize());
  return static_cast<double>(2 * kCopies * bytes_) / watch.nanoseconds();
}

Result<double> CopyLimit::rate(StreamMode mode) {
  return mode == StreamMode::read_write ? both_ways() : host_to_device();
}

std::string CopyLimit::name(StreamMode mode) const {
  return fmt::format("{} {} pinned copies", mode == StreamMode::read_write ? "two-way" : "host-to-device",
                     format_bytes(bytes_));
}

}  // namespace vmem::bench
