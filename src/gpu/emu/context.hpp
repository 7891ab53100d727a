// A device's primary context: its streams, fault state and cuMemAlloc memory. A reset destroys the
// context for good. Retaining the device again makes a new context under the same handle, which is
// then current wherever the old one was.
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

  // CUDA_SUCCESS, or the error of every call on the context: it was destroyed, or its work faulted.
  CUresult usable() const;
  CUresult fault() const { return fault_.load(std::memory_order_acquire); }
  void set_fault(CUresult result);

  std::shared_ptr<Stream> create_stream(StreamKind kind);
  std::shared_ptr<Stream> legacy_stream();
  void forget_stream(const Stream* stream);

  // Queues work with the default stream's implicit synchronisation. Work on the legacy stream waits
  // for all earlier work on blocking streams, and vice versa.
  std::uint64_t submit(Stream& stream, Work work, AfterFault after_fault = AfterFault::skip, Wait wait = {});
  // Runs `work` in the caller if all work before it is finished; otherwise queues it.
  void submit_or_run(Stream& stream, const std::function<void()>& work);

  // For the legacy stream, wait_for and is_complete include the blocking streams.
  void wait_for(Stream& stream);
  bool is_complete(Stream& stream);
  void synchronize();
  void destroy();

 private:
  // REQUIRES: submit_mutex_.
  std::shared_ptr<Stream> add_stream(StreamKind kind);
  std::vector<Fence> implicit_waits(const Stream& stream) const;
  std::vector<std::shared_ptr<Stream>> streams() const;

  const std::shared_ptr<Device> device_;
  Heap heap_;  // its own lock
  std::atomic<CUresult> fault_{CUDA_SUCCESS};
  std::atomic<bool> destroyed_{false};

  // Orders submissions to streams that synchronise implicitly; taken before Stream's lock.
  mutable std::mutex submit_mutex_;
  // Open, or closed with work left; protected by submit_mutex_.
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> legacy_;  // protected by submit_mutex_
};

}  // namespace vmem::emu
