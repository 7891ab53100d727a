#include "gpu/emu/context.hpp"

#include <algorithm>

#include "gpu/emu/machine.hpp"

namespace vmem::emu {

Context::Context(std::shared_ptr<Device> device) : device_(std::move(device)), heap_(*device_) {}

Context::~Context() = default;

CUresult Context::usable() const {
  if (destroyed_.load(std::memory_order_acquire)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return fault();
}

void Context::set_fault(CUresult result) {
  CUresult none = CUDA_SUCCESS;
  fault_.compare_exchange_strong(none, result, std::memory_order_acq_rel);
}

std::shared_ptr<Stream> Context::create_stream(StreamKind kind) {
  const std::lock_guard lock(submit_mutex_);
  return add_stream(kind);
}

std::shared_ptr<Stream> Context::legacy_stream() {
  const std::lock_guard lock(submit_mutex_);
  if (!legacy_) legacy_ = add_stream(StreamKind::legacy);
  return legacy_;
}

std::shared_ptr<Stream> Context::add_stream(StreamKind kind) {
  auto stream = std::make_shared<Stream>(shared_from_this(), kind);
  streams_.push_back(stream);
  if (!machine().config().workers) machine().steps().add(stream);
  return stream;
}

void Context::forget_stream(const Stream* stream) {
  std::shared_ptr<Stream> forgotten;  // destroyed after the lock
  const std::lock_guard lock(submit_mutex_);
  const auto found = std::find_if(streams_.begin(), streams_.end(), [&](const auto& s) { return s.get() == stream; });
  if (found == streams_.end()) return;
  forgotten = std::move(*found);
  streams_.erase(found);
}

std::vector<Fence> Context::implicit_waits(const Stream& stream) const {
  std::vector<Fence> waits;
  if (!legacy_) return waits;
  if (&stream != legacy_.get()) {
    if (!legacy_->idle()) waits.push_back({legacy_, legacy_->last_ticket()});
    return waits;
  }
  for (const auto& other : streams_)
    if (other != legacy_ && !other->non_blocking() && !other->idle()) waits.push_back({other, other->last_ticket()});
  return waits;
}

std::uint64_t Context::submit(Stream& stream, Work work, AfterFault after_fault, Wait wait) {
  if (stream.non_blocking()) return stream.push(std::move(work), {}, after_fault, std::move(wait));
  const std::lock_guard lock(submit_mutex_);
  return stream.push(std::move(work), implicit_waits(stream), after_fault, std::move(wait));
}

void Context::submit_or_run(Stream& stream, const std::function<void()>& work) {
  if (stream.non_blocking()) {
    if (!stream.run_if_idle(work)) stream.push(work, {}, AfterFault::run);
    return;
  }
  const std::lock_guard lock(submit_mutex_);
  auto waits = implicit_waits(stream);
  if (!waits.empty() || !stream.run_if_idle(work)) stream.push(work, std::move(waits), AfterFault::run);
}

void Context::wait_for(Stream& stream) {
  if (stream.legacy()) {
    std::vector<Fence> waits;
    {
      const std::lock_guard lock(submit_mutex_);
      waits = implicit_waits(stream);
    }
    for (const Fence& fence : waits) fence.stream->wait(fence.ticket);
  }
  stream.wait(stream.last_ticket());
}

bool Context::is_complete(Stream& stream) {
  if (stream.legacy()) {
    const std::lock_guard lock(submit_mutex_);
    if (!implicit_waits(stream).empty()) return false;
  }
  return stream.idle();
}

std::vector<std::shared_ptr<Stream>> Context::streams() const {
  const std::lock_guard lock(submit_mutex_);
  return streams_;
}

void Context::synchronize() {
  for (const auto& stream : streams()) stream->wait(stream->last_ticket());
}

void Context::destroy() {
  destroyed_.store(true, std::memory_order_release);
  synchronize();
  for (const auto& stream : streams()) {
    stream->close();
    forget_stream(stream.get());
  }
  {
    const std::lock_guard lock(submit_mutex_);
    legacy_ = nullptr;
  }
  heap_.clear();
}

}  // namespace vmem::emu
