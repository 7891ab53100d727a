// Checks, on the GPU and in stream order, whether a frame's bytes equal its slot's, and copies the
// pieces that differ. A page that should be clean can thus be evicted without a copy, and an
// unexpected write is not lost.
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
  // False if the library was built without nvcc and the driver is not the emulated one.
  static bool available(const Driver& driver);
  // Creates the stream, loads the kernels and runs each once: a first launch may wait for other
  // kernels of the process. REQUIRES: available; the context is current, in this and in every other
  // call. Errors: the driver's.
  static Result<std::unique_ptr<Fingerprinter>> create(DriverRef driver);

  CUstream stream() const { return stream_.get(); }
  // Queues: stores the frame's fingerprint in `record`, and what each piece adds to it in `pieces`:
  // pieces_of(bytes / 8) of them, in memory shared by host and GPU; null: nowhere. `bytes` is a
  // multiple of 16.
  Status record(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record, Fingerprint* pieces = nullptr) const;
  // Queues: if the frame's fingerprint differs from the record's, stores it in the record and
  // counts a change there.
  Status compare(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record) const;
  // Queues: as compare; if the fingerprints differ, also copies the frame to `slot`: with `pieces`,
  // as `record` left them for the slot's bytes, only those that differ, and updates them.
  Status store_changed(CUdeviceptr frame, CUdeviceptr slot, std::uint64_t bytes, SlotRecord* record,
                       Fingerprint* pieces = nullptr) const;

 private:
  explicit Fingerprinter(DriverRef driver) : driver_(std::move(driver)) {}
  Status load();
  Status launch(CUfunction function, unsigned blocks, void** parameters) const;
  Status fingerprint(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record, std::uint32_t compare,
                     Fingerprint* pieces) const;

  const DriverRef driver_;
  Stream stream_;
  Module module_;
  DeviceMemory scratch_;
  CUfunction fingerprint_ = nullptr;
  CUfunction store_changed_ = nullptr;
};

}  // namespace vmem::gpu
