// The emulated machine of the runtime's tests. Each test configures it anew and has its own
// contexts and streams; a kernel runs any function of the test as device code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/driver.hpp"

namespace vmem::test {

class EmulatedGpu {
 public:
  // Ends the test program if the machine cannot be configured: an earlier test left something in
  // the driver.
  explicit EmulatedGpu(const std::string& spec);
  ~EmulatedGpu();
  EmulatedGpu(const EmulatedGpu&) = delete;
  EmulatedGpu& operator=(const EmulatedGpu&) = delete;

  const std::shared_ptr<const gpu::Driver>& driver() const { return driver_; }
  const gpu::DriverTable& cu() const { return driver_->table(); }
  int devices() const { return int(contexts_.size()); }
  CUcontext context(int device) const { return contexts_[std::size_t(device)]; }
  void make_current(int device) const;

  // Destroyed with the machine, or by destroy_stream.
  CUstream create_stream(int device, unsigned flags = CU_STREAM_NON_BLOCKING);
  void destroy_stream(CUstream stream);
  void synchronize(CUstream stream) const;
  // Orders work queued on `later` after this call behind work queued on `earlier` now. `device`: of
  // `earlier`.
  void order(CUstream earlier, int device, CUstream later) const;

  // Queues `body` as a kernel: it runs on the stream's worker and may dereference device addresses.
  // For the default streams, the context of `device` must be current.
  CUresult launch(CUstream stream, int device, std::function<void()> body) const;

 private:
  std::shared_ptr<const gpu::Driver> driver_;
  std::vector<CUcontext> contexts_;
  std::vector<CUmodule> modules_;
  std::vector<CUfunction> run_;  // by device
  std::vector<CUstream> streams_;
};

// Configures the emulated driver. Returns "", or the obstacle: contexts, frames or reservations in
// use.
std::string configure_emulated(const std::string& spec);

}  // namespace vmem::test
