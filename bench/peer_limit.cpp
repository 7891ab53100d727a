#include "bench/peer_limit.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/options.hpp"
#include "bench/samples.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 30;  // each; copies go round in it
constexpr std::uint64_t kBufferBytesEmulated = std::uint64_t{32} << 20;
constexpr std::uint64_t kRounds = 16;  // a sample

}  // namespace

Result<PeerLimit> PeerLimit::create(const Gpu& gpu, int peer) {
  PeerLimit limit(gpu, peer);
  CUdevice own = 0, other = 0;
  BENCH_CALL(gpu, cuDeviceGet, &own, gpu.ordinal());
  BENCH_CALL(gpu, cuDeviceGet, &other, peer);
  int can = 0;
  BENCH_CALL(gpu, cuDeviceCanAccessPeer, &can, own, other);
  if (can == 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("device {} cannot access the memory of device {}: no peer access between them; `vmem topo` "
                            "shows between which there is",
                            gpu.ordinal(), peer));
  VMEM_ASSIGN(limit.there_, gpu::PrimaryContext::retain(gpu.driver_ref(), other));
  VMEM_TRY(limit.allow_access());
  VMEM_ASSIGN(limit.in_stream_, make_stream(gpu));
  VMEM_ASSIGN(limit.out_stream_, make_stream(gpu));
  return limit;
}

// Else the driver sends copies through host memory.
Status PeerLimit::allow_access() {
  BENCH_CALL(*gpu_, cuCtxGetCurrent, &here_);
  const CUresult result = gpu_->table().cuCtxEnablePeerAccess(there_.context(), 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
  return gpu_->check(result, "cuCtxEnablePeerAccess");
}

Status PeerLimit::prepare(std::uint64_t page_bytes) {
  if (page_bytes == page_bytes_) return {};
  page_bytes_ = page_bytes;
  const std::uint64_t buffer = gpu_->emulated() ? kBufferBytesEmulated : kBufferBytes;
  pages_ = std::max<std::uint64_t>(buffer / page_bytes, 2);
  VMEM_ASSIGN(in_, allocate_device(*gpu_, pages_ * page_bytes));
  VMEM_ASSIGN(out_, allocate_device(*gpu_, pages_ * page_bytes));
  {
    VMEM_ASSIGN(const auto on_peer, gpu::ScopedContext::push(gpu_->driver_ref(), there_.context()));
    VMEM_ASSIGN(in_there_, allocate_device(*gpu_, pages_ * page_bytes));
    VMEM_ASSIGN(out_there_, allocate_device(*gpu_, pages_ * page_bytes));
  }
  VMEM_TRY(rate(StreamMode::read_write));  // the first copies set things up
  return {};
}

Status PeerLimit::queue(const Stream& stream, bool in, std::uint64_t copy) const {
  const std::uint64_t at = copy % pages_ * page_bytes_;
  if (in)
    BENCH_CALL(*gpu_, cuMemcpyPeerAsync, in_.get() + at, here_, in_there_.get() + at, there_.context(), page_bytes_,
               stream.get());
  else
    BENCH_CALL(*gpu_, cuMemcpyPeerAsync, out_there_.get() + at, there_.context(), out_.get() + at, here_, page_bytes_,
               stream.get());
  return {};
}

Result<double> PeerLimit::rate(StreamMode mode) {
  const bool both = mode == StreamMode::read_write;
  const std::uint64_t copies = (gpu_->emulated() ? 1 : kRounds) * pages_;
  const Stopwatch watch;
  for (std::uint64_t i = 0; i < copies; ++i) {
    VMEM_TRY(queue(in_stream_, true, i));
    if (both) VMEM_TRY(queue(out_stream_, false, i));
  }
  VMEM_TRY(in_stream_.synchronize());
  VMEM_TRY(out_stream_.synchronize());
  return static_cast<double>((both ? 2 : 1) * copies * page_bytes_) / watch.nanoseconds();
}

std::string PeerLimit::name(StreamMode mode) const {
  return fmt::format("{} copies of {} {} device {}", mode == StreamMode::read_write ? "two-way" : "peer",
                     format_bytes(page_bytes_), mode == StreamMode::read_write ? "to and from" : "from", peer_);
}

}  // namespace vmem::bench
