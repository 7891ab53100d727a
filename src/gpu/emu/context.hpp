// A device's primary context: its streams, its fault, its cuMemAlloc memory. A reset ends the context for good;
// retaining the device again makes a new one under the same handle, which is then current where the old one was.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/heap.hpp"
#include "gpu/emu/stream.hpp"

namespace vmem::emu {

class Device;

class Context : public std::enable_shared_from_this<Context> {
 public:
  explicit Context(std::shared_ptr<Device> device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device& device() const { return *device_; }
  Heap& heap() { return heap_; }

  // CUDA_SUCCESS; or what every call on the context fails with: it was destroyed, or some work faulted.
  CUresult usable() const;
  CUresult fault() const { return fault_.load(std::memory_order_acquire); }
  void set_fault(CUresult result);

  std::shared_ptr<Stream> create_stream(StreamKind kind);
  std::shared_ptr<Stream> legacy_stream();
  void forget_stream(const Stream* stream);

  // Queues work with what the default stream's implicit synchronisation asks for: work on the legacy stream waits for
  // all earlier work on blocking streams, and theirs for all earlier work on it.
  std::uint64_t submit(Stream& stream, Work work, AfterFault after_fault = AfterFault::skip);
  // Runs `work` at once if nothing that it would have to wait for is unfinished; otherwise queues it.
  void submit_or_run(Stream& stream, const std::function<void()>& work);

  // For the legacy stream both include the blocking streams.
  void wait_for(Stream& stream);
  bool is_complete(Stream& stream);
  void synchronize();
  void destroy();

 private:
  std::vector<Fence> implicit_waits(const Stream& stream) const;  // REQUIRES: submit_mutex_
  std::vector<std::shared_ptr<Stream>> streams() const;

  const std::shared_ptr<Device> device_;
  Heap heap_;  // its own lock
  std::atomic<CUresult> fault_{CUDA_SUCCESS};
  std::atomic<bool> destroyed_{false};

  mutable std::mutex submit_mutex_;  // orders submissions to streams that synchronise implicitly; before Stream's lock
  std::vector<std::shared_ptr<Stream>> streams_;  // open, or closed with work left; protected by submit_mutex_
  std::shared_ptr<Stream> legacy_;                // protected by submit_mutex_
};

}  // namespace vmem::emu
