#include "replay/virtual_gpu.hpp"

#include <algorithm>
#include <type_traits>

namespace vmem::replay {
namespace {

thread_local VirtualGpu* active = nullptr;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(std::uintptr_t(device) + 1); }
int device_of(CUcontext context) { return int(reinterpret_cast<std::uintptr_t>(context)) - 1; }

template <class Function>
struct NotSupported;
template <class... Arguments>
struct NotSupported<CUresult(Arguments...)> {
  static CUresult call(Arguments...) { return CUDA_ERROR_NOT_SUPPORTED; }
};

}  // namespace

// The driver's functions that a mover and its threads call.
struct VirtualGpu::Calls {
  static CUresult init(unsigned) { return CUDA_SUCCESS; }
  static CUresult version(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
  }
  static CUresult error_text(CUresult, const char** text) {
    *text = "an error of the virtual driver";
    return CUDA_SUCCESS;
  }
  static CUresult device_count(int* count) {
    *count = active->shape_.devices;
    return CUDA_SUCCESS;
  }
  static CUresult device(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
    *value = 1;
    return CUDA_SUCCESS;
  }
  static CUresult can_access_peer(int* can, CUdevice, CUdevice) {
    *can = 0;
    return CUDA_SUCCESS;
  }
  static CUresult retain(CUcontext* context, CUdevice device) {
    *context = context_of(device);
    return CUDA_SUCCESS;
  }
  static CUresult release(CUdevice) { return CUDA_SUCCESS; }
  static CUresult current(CUcontext* context) {
    *context = context_of(active->current_);
    return CUDA_SUCCESS;
  }
  static CUresult set_current(CUcontext context) {
    active->current_ = device_of(context);
    return CUDA_SUCCESS;
  }
  static CUresult push(CUcontext context) {
    active->contexts_.push_back(active->current_);
    return set_current(context);
  }
  static CUresult pop(CUcontext* context) {
    if (active->contexts_.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = context_of(active->current_);
    active->current_ = active->contexts_.back();
    active->contexts_.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult current_device(CUdevice* device) {
    *device = active->current_;
    return CUDA_SUCCESS;
  }
  static CUresult memory(std::size_t* free, std::size_t* total) {
    *free = *total = active->shape_.hbm_bytes;
    return CUDA_SUCCESS;
  }
  static CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t align, CUdeviceptr wanted,
                          unsigned long long) {
    const std::uint64_t unit = std::max<std::uint64_t>(align, std::uint64_t{2} << 20);
    active->next_address_ = (active->next_address_ + unit - 1) / unit * unit;
    *address = wanted != 0 ? wanted : active->next_address_;
    if (wanted == 0) active->next_address_ += bytes;
    return CUDA_SUCCESS;
  }
  static CUresult free_address(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
  static CUresult create(CUmemGenericAllocationHandle* handle, std::size_t, const CUmemAllocationProp*,
                         unsigned long long) {
    active->spend(active->shape_.costs.create);
    *handle = active->next_handle_++;
    return CUDA_SUCCESS;
  }
  static CUresult release_handle(CUmemGenericAllocationHandle) {
    active->spend(active->shape_.costs.release);
    return CUDA_SUCCESS;
  }
  static CUresult map(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long) {
    active->spend(active->shape_.costs.map);
    return CUDA_SUCCESS;
  }
  static CUresult unmap(CUdeviceptr, std::size_t) {
    active->spend(active->shape_.costs.unmap);
    return CUDA_SUCCESS;
  }
  static CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
    const CallCosts& costs = active->shape_.costs;
    const auto& to_host = active->devices_[std::size_t(active->current_)].links[std::size_t(Far::host)];
    const bool stores = to_host[std::size_t(Direction::out)].end_ns > active->now_ns_;
    active->spend(stores ? costs.set_access_beside_stores : costs.set_access);
    return CUDA_SUCCESS;
  }
  static CUresult create_stream(CUstream* stream, unsigned) {
    *stream = active->create_stream(active->current_);
    return CUDA_SUCCESS;
  }
  static CUresult create_urgent(CUstream* stream, unsigned flags, int) { return create_stream(stream, flags); }
  static CUresult destroy_stream(CUstream) { return CUDA_SUCCESS; }
  static CUresult synchronize(CUstream stream) {
    active->set_now(std::max(active->now_ns(), active->end_of(stream)));
    return CUDA_SUCCESS;
  }
  static CUresult wait(CUstream stream, CUevent event, unsigned) {
    active->spend(active->shape_.costs.event);
    Stream& waits = active->stream_of(stream);
    waits.end_ns = std::max(waits.end_ns, active->time_of(event));
    return CUDA_SUCCESS;
  }
  static CUresult context_of_stream(CUstream stream, CUcontext* context) {
    *context = context_of(active->stream_of(stream).device);
    return CUDA_SUCCESS;
  }
  static CUresult is_capturing(CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static CUresult exchange_mode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
  static CUresult create_event(CUevent* event, unsigned) {
    *event = active->new_event(0);
    return CUDA_SUCCESS;
  }
  static CUresult destroy_event(CUevent event) {
    active->forget(event);
    return CUDA_SUCCESS;
  }
  static CUresult record(CUevent event, CUstream stream) {
    active->spend(active->shape_.costs.event);
    reinterpret_cast<Event*>(event)->at_ns = active->end_of(stream);
    return CUDA_SUCCESS;
  }
  static CUresult query(CUevent event) {
    active->spend(active->shape_.costs.event);
    return active->time_of(event) <= active->now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static gpu::DriverTable table();
};

gpu::DriverTable VirtualGpu::Calls::table() {
  gpu::DriverTable table;
#define VMEM_REFUSE(name) table.name = &NotSupported<std::remove_pointer_t<decltype(table.name)>>::call;
  VMEM_DRIVER_REQUIRED(VMEM_REFUSE)
#undef VMEM_REFUSE
  table.cuInit = init;
  table.cuDriverGetVersion = version;
  table.cuGetErrorName = table.cuGetErrorString = error_text;
  table.cuDeviceGetCount = device_count;
  table.cuDeviceGet = device;
  table.cuDeviceGetAttribute = attribute;
  table.cuDeviceCanAccessPeer = can_access_peer;
  table.cuDevicePrimaryCtxRetain = retain;
  table.cuDevicePrimaryCtxRelease = release;
  table.cuCtxGetCurrent = current;
  table.cuCtxSetCurrent = set_current;
  table.cuCtxPushCurrent = push;
  table.cuCtxPopCurrent = pop;
  table.cuCtxGetDevice = current_device;
  table.cuMemGetInfo = memory;
  table.cuMemAddressReserve = reserve;
  table.cuMemAddressFree = free_address;
  table.cuMemCreate = create;
  table.cuMemRelease = release_handle;
  table.cuMemMap = map;
  table.cuMemUnmap = unmap;
  table.cuMemSetAccess = set_access;
  table.cuStreamCreate = create_stream;
  table.cuStreamCreateWithPriority = create_urgent;
  table.cuStreamDestroy = destroy_stream;
  table.cuStreamSynchronize = synchronize;
  table.cuStreamWaitEvent = wait;
  table.cuStreamGetCtx = context_of_stream;
  table.cuStreamIsCapturing = is_capturing;
  table.cuThreadExchangeStreamCaptureMode = exchange_mode;
  table.cuEventCreate = create_event;
  table.cuEventDestroy = destroy_event;
  table.cuEventRecord = record;
  table.cuEventQuery = query;
  return table;
}

VirtualGpu::VirtualGpu(const Shape& shape) : shape_(shape), devices_(std::size_t(shape.devices)) {
  active = this;
  for (int i = 0; i < shape.devices; ++i) devices_[std::size_t(i)].default_stream.device = i;
  driver_ = gpu::Driver::over(Calls::table(), true, "virtual");
}

VirtualGpu::~VirtualGpu() { active = nullptr; }

VirtualGpu::Stream& VirtualGpu::stream_of(CUstream handle) {
  const bool named = handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
  return named ? *reinterpret_cast<Stream*>(handle) : devices_[std::size_t(current_)].default_stream;
}

CUstream VirtualGpu::create_stream(int device) {
  return reinterpret_cast<CUstream>(
      &streams_.emplace_back(Stream{.number = std::uint32_t(streams_.size() + 1), .device = device}));
}

std::uint64_t VirtualGpu::run(CUstream stream, std::uint64_t takes_ns) {
  Stream& queue = stream_of(stream);
  const std::uint64_t begin_ns = std::max(queue.end_ns, now_ns_);
  queue.end_ns = begin_ns + takes_ns;
  note({Track::computing, queue.number, begin_ns, queue.end_ns});
  return queue.end_ns;
}

std::uint64_t VirtualGpu::end_of(CUstream stream) const {
  return const_cast<VirtualGpu*>(this)->stream_of(stream).end_ns;
}

void VirtualGpu::hold_until(CUstream stream, std::uint64_t at_ns) {
  Stream& held = stream_of(stream);
  held.end_ns = std::max(held.end_ns, at_ns);
}

std::uint64_t VirtualGpu::after_all(std::span<const CUevent> events) const {
  std::uint64_t at = now_ns_;
  for (CUevent event : events) {
    if (event != nullptr) at = std::max(at, time_of(event));
  }
  return at;
}

CUevent VirtualGpu::copy(int device, Direction direction, std::uint64_t bytes, std::span<const CUevent> after,
                         Far far) {
  auto& links = devices_[std::size_t(device)].links[std::size_t(far)];
  Link& link = links[std::size_t(direction)];
  const Link& other = links[1 - std::size_t(direction)];
  const LinkRates& rates = far == Far::host ? shape_.link : shape_.peer_link;
  const std::uint64_t rate = direction == Direction::in ? rates.in_bytes_per_s : rates.out_bytes_per_s;
  const std::uint64_t begin = std::max(link.end_ns, after_all(after)) + rates.start_ns;
  // Bytes move at the slower rate for as long as the other direction is known to be busy.
  const double alone = double(rate) / 1e9, shared = alone * rates.both;
  const double beside = other.end_ns > begin ? double(other.end_ns - begin) : 0;
  const double moved = std::min(double(bytes), beside * shared);
  const std::uint64_t pauses = direction == Direction::out ? bytes / rates.piece_bytes : 0;
  const auto takes = std::uint64_t(moved / shared + (double(bytes) - moved) / alone) + pauses * rates.pause_ns;
  link.end_ns = begin + takes;
  link.busy_ns += takes;
  constexpr std::array kTracks{Track::link_in, Track::link_out, Track::peer_in, Track::peer_out};
  note({kTracks[2 * std::size_t(far) + std::size_t(direction)], 0, begin, link.end_ns});
  return new_event(link.end_ns);
}

CUevent VirtualGpu::beside(std::uint64_t takes_ns, std::span<const CUevent> after) {
  return new_event(after_all(after) + takes_ns);
}

CUevent VirtualGpu::new_event(std::uint64_t at_ns) {
  Event* event = nullptr;
  if (spare_events_.empty()) {
    event = &events_.emplace_back();
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  event->at_ns = at_ns;
  return reinterpret_cast<CUevent>(event);
}

std::uint64_t VirtualGpu::time_of(CUevent event) const { return reinterpret_cast<const Event*>(event)->at_ns; }

void VirtualGpu::forget(CUevent event) { spare_events_.push_back(reinterpret_cast<Event*>(event)); }

}  // namespace vmem::replay
