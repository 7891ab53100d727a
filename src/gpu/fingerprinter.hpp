// Finds out, on the GPU and in stream order, whether a frame's bytes are still those of a slot, and copies them if not: so a page
// that nobody should have written can leave HBM without a copy, and without losing what was written all the same.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "gpu/handles.hpp"
#include "gpu/kernels/fingerprint.hpp"

namespace vmem::gpu {

// For one stream of one context. Not thread-safe.
class Fingerprinter {
 public:
  // False: the library was built without nvcc, and the driver is not the emulated one.
  static bool available(const Driver& driver);
  // Creates the stream, loads the kernels and runs each once, because a first launch may wait for other kernels of the process.
  // REQUIRES: available; the context is current, here and in every call. Errors: the driver's.
  static Result<std::unique_ptr<Fingerprinter>> create(DriverRef driver);

  CUstream stream() const { return stream_.get(); }
  // Queues: `record` learns the fingerprint of the frame. `bytes` is a multiple of 16.
  Status record(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record) const;
  // Queues: if the frame's fingerprint is not the record's, that is counted in the record, which then has the new one.
  Status compare(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record) const;
  // Queues: if the frame's fingerprint is not the record's, the frame is copied to `slot` and counted in the record, which then has
  // the new one.
  Status store_changed(CUdeviceptr frame, CUdeviceptr slot, std::uint64_t bytes, SlotRecord* record) const;

 private:
  explicit Fingerprinter(DriverRef driver) : driver_(std::move(driver)) {}
  Status load();
  Status launch(CUfunction function, unsigned blocks, void** parameters) const;
  Status fingerprint(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record, std::uint32_t compare) const;

  const DriverRef driver_;
  Stream stream_;
  Module module_;
  DeviceMemory scratch_;
  CUfunction fingerprint_ = nullptr;
  CUfunction store_changed_ = nullptr;
};

}  // namespace vmem::gpu
