#include "gpu/fingerprinter.hpp"

// Made by vmem_embed_kernels, see CMakeLists.txt.
extern "C" const unsigned char vmem_fingerprint_kernels[];
extern "C" const unsigned long vmem_fingerprint_kernels_bytes;

namespace vmem::gpu {
namespace {

constexpr const char* kEmulatedImage = "VMEMEMU";  // with its terminating zero, the eight bytes that emu.h names

}  // namespace

bool Fingerprinter::available(const Driver& driver) { return driver.emulated() || vmem_fingerprint_kernels_bytes != 0; }

Result<std::unique_ptr<Fingerprinter>> Fingerprinter::create(DriverRef driver) {
  std::unique_ptr<Fingerprinter> made(new Fingerprinter(std::move(driver)));
  VMEM_TRY(made->load());
  return made;
}

Status Fingerprinter::load() {
  VMEM_ASSIGN(stream_, Stream::create_urgent(driver_));
  const void* image = vmem_fingerprint_kernels;
  if (driver_->emulated()) image = kEmulatedImage;
  VMEM_ASSIGN(module_, Module::load(driver_, image));
  VMEM_ASSIGN(fingerprint_, module_.function(kFingerprintKernel));
  VMEM_ASSIGN(store_changed_, module_.function(kStoreChangedKernel));
  constexpr std::size_t kBytes = sizeof(FingerprintScratch) + sizeof(SlotRecord);
  VMEM_ASSIGN(scratch_, DeviceMemory::create(driver_, kBytes));
  VMEM_TRY(driver_->check((*driver_)->cuMemsetD8Async(scratch_.get(), 0, kBytes, stream_.get()), "cuMemsetD8Async"));
  // On a frame of no bytes.
  VMEM_TRY(store_changed(0, 0, 0, reinterpret_cast<SlotRecord*>(scratch_.get() + sizeof(FingerprintScratch))));
  return stream_.synchronize();
}

Status Fingerprinter::launch(CUfunction function, unsigned blocks, void** parameters) const {
  return driver_->check((*driver_)->cuLaunchKernel(function, blocks, 1, 1, kFingerprintThreads, 1, 1, 0, stream_.get(),
                                                   parameters, nullptr),
                        "cuLaunchKernel");
}

Status Fingerprinter::fingerprint(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record,
                                  std::uint32_t compare) const {
  std::uint64_t words = bytes / 8;
  CUdeviceptr scratch = scratch_.get();
  void* parameters[] = {&frame, &words, &record, &scratch, &compare};
  return launch(fingerprint_, kFingerprintBlocks, parameters);
}

Status Fingerprinter::record(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record) const {
  return fingerprint(frame, bytes, record, 0);
}

Status Fingerprinter::compare(CUdeviceptr frame, std::uint64_t bytes, SlotRecord* record) const {
  return fingerprint(frame, bytes, record, 1);
}

Status Fingerprinter::store_changed(CUdeviceptr frame, CUdeviceptr slot, std::uint64_t bytes,
                                    SlotRecord* record) const {
  VMEM_TRY(compare(frame, bytes, record));
  std::uint64_t words = bytes / 8;
  CUdeviceptr scratch = scratch_.get();
  void* store[] = {&frame, &slot, &words, &scratch};
  return launch(store_changed_, kStoreBlocks, store);
}

}  // namespace vmem::gpu
