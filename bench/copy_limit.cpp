#include "bench/copy_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/sizes.hpp"
#include "bench/samples.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kBufferBytesEmulated = std::uint64_t{32} << 20;

}  // namespace

Result<CopyLimit> CopyLimit::create(const Gpu& gpu) {
  CopyLimit limit(gpu);
  limit.bytes_ = gpu.emulated() ? kBufferBytesEmulated : kBufferBytes;
  limit.page_bytes_ = limit.bytes_;
  VMEM_ASSIGN(limit.host_in_, allocate_pinned(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.host_out_, allocate_pinned(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.device_in_, allocate_device(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.device_out_, allocate_device(gpu, limit.bytes_));
  VMEM_ASSIGN(limit.in_, make_stream(gpu));
  VMEM_ASSIGN(limit.out_, make_stream(gpu));
  // The kernel's zero page would be copied faster.
  std::memset(limit.host_in_.data(), 1, limit.bytes_);
  std::memset(limit.host_out_.data(), 1, limit.bytes_);
  VMEM_TRY(limit.rate(StreamMode::read_write));  // the first copies set things up
  return limit;
}

Status CopyLimit::prepare(std::uint64_t page_bytes, std::uint64_t bytes) {
  page_bytes_ = std::min(page_bytes, bytes_);
  copies_ = std::max<std::uint64_t>(bytes / page_bytes_, 1);
  return {};
}

Status CopyLimit::queue_in(std::uint64_t copy) const {
  const std::uint64_t at = copy % (bytes_ / page_bytes_) * page_bytes_;
  BENCH_CALL(*gpu_, cuMemcpyHtoDAsync, device_in_.get() + at, host_in_.data() + at, page_bytes_, in_.get());
  return {};
}

Status CopyLimit::queue_out(std::uint64_t copy) const {
  const std::uint64_t at = copy % (bytes_ / page_bytes_) * page_bytes_;
  BENCH_CALL(*gpu_, cuMemcpyDtoHAsync, host_out_.data() + at, device_out_.get() + at, page_bytes_, out_.get());
  return {};
}

Result<double> CopyLimit::rate(StreamMode mode) {
  const bool both = mode == StreamMode::read_write;
  const Stopwatch watch;
  for (std::uint64_t i = 0; i < copies_; ++i) {
    VMEM_TRY(queue_in(i));
    if (both) VMEM_TRY(queue_out(i));
  }
  VMEM_TRY(in_.synchronize());
  VMEM_TRY(out_.synchronize());
  return static_cast<double>((both ? 2 : 1) * copies_ * page_bytes_) / watch.nanoseconds();
}

std::string CopyLimit::name(StreamMode mode) const {
  return fmt::format("{} {} pinned copies", mode == StreamMode::read_write ? "two-way" : "host-to-device",
                     format_bytes(page_bytes_));
}

std::uint64_t CopyLimit::crossed(const Traffic& traffic, StreamMode mode) const {
  const std::uint64_t in = traffic.in_bytes - traffic.peer_in_bytes;
  return mode == StreamMode::read_write ? in + traffic.out_bytes - traffic.peer_out_bytes : in;
}

}  // namespace vmem::bench
