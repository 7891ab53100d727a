#include "bench/peer_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/samples.hpp"
#include "peer/borrower.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 30;  // each
constexpr std::uint64_t kBufferBytesEmulated = std::uint64_t{32} << 20;

// The device that the process at `socket` lends.
Result<int> device_at(const Gpu& gpu, const std::string& socket) {
  VMEM_ASSIGN(const auto borrower, peer::Borrower::connect({.driver = gpu.driver_ref(), .path = socket}));
  int count = 0;
  BENCH_CALL(gpu, cuDeviceGetCount, &count);
  for (int each = 0; each < count; ++each) {
    CUdevice device = 0;
    CUuuid id{};
    BENCH_CALL(gpu, cuDeviceGet, &device, each);
    BENCH_CALL(gpu, cuDeviceGetUuid, &id, device);
    if (std::memcmp(id.bytes, borrower->device().data(), sizeof(id.bytes)) == 0) return each;
  }
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--peers: at {} process {} lends a GPU that is not visible here; "
                                                     "add it to CUDA_VISIBLE_DEVICES",
                                                     socket, borrower->lender()));
}

}  // namespace

Result<std::vector<int>> lending_devices(const Gpu& gpu, std::span<const PeerSpec> peers) {
  std::vector<int> devices;
  for (const PeerSpec& each : peers) {
    int device = each.device;
    if (!each.socket.empty()) {
      VMEM_ASSIGN(device, device_at(gpu, each.socket));
    }
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

Result<PeerLimit> PeerLimit::create(const Gpu& gpu, std::span<const int> lenders) {
  PeerLimit limit(gpu);
  BENCH_CALL(gpu, cuCtxGetCurrent, &limit.here_);
  for (const int each : lenders) VMEM_TRY(limit.add(each));
  return limit;
}

Status PeerLimit::add(int device) {
  CUdevice own = 0, other = 0;
  BENCH_CALL(*gpu_, cuDeviceGet, &own, gpu_->ordinal());
  BENCH_CALL(*gpu_, cuDeviceGet, &other, device);
  int can = 0;
  BENCH_CALL(*gpu_, cuDeviceCanAccessPeer, &can, own, other);
  if (can == 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("device {} cannot access the memory of device {}: no peer access between them; `vmem topo` "
                            "shows between which there is",
                            gpu_->ordinal(), device));
  Lender lender;
  lender.device = device;
  VMEM_ASSIGN(lender.context, gpu::PrimaryContext::retain(gpu_->driver_ref(), other));
  VMEM_TRY(allow_access(lender));
  VMEM_ASSIGN(lender.in_stream, make_stream(*gpu_));
  VMEM_ASSIGN(lender.out_stream, make_stream(*gpu_));
  lenders_.push_back(std::move(lender));
  return {};
}

// Without peer access the driver routes copies through host memory.
Status PeerLimit::allow_access(const Lender& lender) const {
  const CUresult result = gpu_->table().cuCtxEnablePeerAccess(lender.context.context(), 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
  return gpu_->check(result, "cuCtxEnablePeerAccess");
}

Status PeerLimit::prepare(std::uint64_t page_bytes, std::uint64_t bytes) {
  copies_ = std::max<std::uint64_t>(bytes / page_bytes / lenders_.size(), 1);
  if (page_bytes == page_bytes_) return {};
  page_bytes_ = page_bytes;
  const std::uint64_t buffer = gpu_->emulated() ? kBufferBytesEmulated : kBufferBytes;
  pages_ = std::max<std::uint64_t>(buffer / lenders_.size() / page_bytes, 2);
  for (Lender& each : lenders_) VMEM_TRY(make_buffers(each));
  VMEM_TRY(rate(StreamMode::read_write));  // the first copies set things up
  return {};
}

Status PeerLimit::make_buffers(Lender& lender) const {
  VMEM_ASSIGN(lender.in, allocate_device(*gpu_, pages_ * page_bytes_));
  VMEM_ASSIGN(lender.out, allocate_device(*gpu_, pages_ * page_bytes_));
  VMEM_ASSIGN(const auto there, gpu::ScopedContext::push(gpu_->driver_ref(), lender.context.context()));
  VMEM_ASSIGN(lender.in_there, allocate_device(*gpu_, pages_ * page_bytes_));
  VMEM_ASSIGN(lender.out_there, allocate_device(*gpu_, pages_ * page_bytes_));
  return {};
}

Status PeerLimit::queue_in(const Lender& lender, std::uint64_t at) const {
  BENCH_CALL(*gpu_, cuMemcpyPeerAsync, lender.in.get() + at, here_, lender.in_there.get() + at,
             lender.context.context(), page_bytes_, lender.in_stream.get());
  return {};
}

Status PeerLimit::queue_out(const Lender& lender, std::uint64_t at) const {
  BENCH_CALL(*gpu_, cuMemcpyPeerAsync, lender.out_there.get() + at, lender.context.context(), lender.out.get() + at,
             here_, page_bytes_, lender.out_stream.get());
  return {};
}

Status PeerLimit::synchronize() const {
  for (const Lender& each : lenders_) {
    VMEM_TRY(each.in_stream.synchronize());
    VMEM_TRY(each.out_stream.synchronize());
  }
  return {};
}

Result<double> PeerLimit::rate(StreamMode mode) {
  const bool both = mode == StreamMode::read_write;
  const Stopwatch watch;
  for (std::uint64_t i = 0; i < copies_; ++i) {
    const std::uint64_t at = i % pages_ * page_bytes_;
    for (const Lender& each : lenders_) {
      VMEM_TRY(queue_in(each, at));
      if (both) VMEM_TRY(queue_out(each, at));
    }
  }
  VMEM_TRY(synchronize());
  return static_cast<double>((both ? 2 : 1) * copies_ * lenders_.size() * page_bytes_) / watch.nanoseconds();
}

std::string PeerLimit::name(StreamMode mode) const {
  std::string devices = lenders_.size() == 1 ? "device" : "devices";
  for (const Lender& each : lenders_)
    devices += fmt::format("{}{}", &each == &lenders_.front() ? " " : ", ", each.device);
  return fmt::format("{} copies of {} {} {}", mode == StreamMode::read_write ? "two-way" : "peer",
                     format_bytes(page_bytes_), mode == StreamMode::read_write ? "to and from" : "from", devices);
}

}  // namespace vmem::bench
