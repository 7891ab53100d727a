// The composition root: the only place that names concrete tiers. Puts driver, address space, streams, tiers, policy and mover together
// and offers the operations of the public API. Calls on resident memory stay in the calling thread; the rest goes to the mover.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/options.hpp"
#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "pagetable/address_space.hpp"
#include "pagetable/holds.hpp"
#include "runtime/suballocator.hpp"
#include "tiers/host_tier.hpp"

namespace vmem::runtime {

class Runtime final : private SlabSource {
 public:
  static Result<std::unique_ptr<Runtime>> create(const Options& options);
  // On a driver made by the caller (tests: a decorated one).
  static Result<std::unique_ptr<Runtime>> create(const Options& options, std::shared_ptr<const gpu::Driver> driver);
  ~Runtime() override;

  // Ends all allocations when their last uses are complete. Errors: IN_USE; a lost device is not an error here.
  Status shut_down();

  Result<void*> allocate(std::size_t bytes, int device, vmem_stream stream);
  Status free(void* pointer, vmem_stream stream);
  Status acquire(std::span<const vmem_range> ranges, vmem_stream stream);
  Status release(std::span<const vmem_range> ranges, vmem_stream stream);
  Status close_stream(vmem_stream stream);
  Status prefetch(const void* pointer, std::size_t bytes);
  Status advise(const void* pointer, std::size_t bytes, vmem_advice advice);
  Status copy(void* to, const void* from, std::size_t bytes, vmem_stream stream);
  Status fill(void* pointer, int value, std::size_t bytes, vmem_stream stream);
  Status read(void* host, const void* pointer, std::size_t bytes);
  Status write(void* pointer, const void* host, std::size_t bytes);
  Status query(const void* pointer, vmem_pointer_info& info);
  Status statistics(vmem_statistics& out);
  Status quiesce();
  // A thread's own call found the device lost. True if it is: from now on every thread hears so.
  bool report_loss(const Error& error);

 private:
  struct Device {
    int ordinal = 0;
    CUdevice handle = 0;
    CUcontext context = nullptr;
    CUstream io = nullptr;  // vmem_read and vmem_write
    std::mutex io_mutex;
  };
  // A range of one allocation, in pages.
  struct Located {
    pagetable::Region* region = nullptr;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  enum class Reach { hit, attention, miss };

  Runtime(Options options, std::shared_ptr<const gpu::Driver> driver);
  Status start();
  Status open_devices();
  Status open_device(int ordinal);
  Status reserve_space();
  Result<std::uint64_t> hbm_budget(const Device& device) const;
  Result<std::uint64_t> host_budget() const;
  Status start_host_tier();
  Status start_mover();
  std::vector<migration::MoverDevice> mover_devices() const;
  void unmap_what_is_left();
  void wake_mover();

  Result<pagetable::ThreadSlot*> thread_slot();
  Result<Located> locate(const void* pointer, std::size_t bytes) const;
  Result<pagetable::Region*> live_region(std::uintptr_t address) const;
  Result<int> device_index(int ordinal) const;
  // acquire.cpp
  static Reach reach(const Located& located, pagetable::Access access);
  const pagetable::ThreadSlot* known_slot() const;
  Status ensure_context() const;
  static Status check_device(const migration::StreamRecord& record);
  Status check_stream(const migration::StreamRecord& record, CUstream stream) const;
  Status acquire_published(std::span<const vmem_range> ranges, std::span<const Located> located, bool miss,
                           const migration::StreamRecord& record, CUstream stream);
  Status bring_in(std::span<const vmem_range> ranges, std::span<const Located> located);
  Status wait_until_ready(const Located& located, CUstream stream);
  Status open_to(const Located& located, const migration::StreamRecord& record);
  // copy.cpp
  Status copy_piece(void* to, const void* from, std::size_t bytes, CUstream stream);
  Status fill_piece(CUdeviceptr address, unsigned char value, std::size_t bytes, CUstream stream);
  std::size_t piece_bytes(const void* pointer, std::size_t bytes) const;
  template <class Copy>
  Status each_page(const void* pointer, std::size_t bytes, bool write, Copy&& copy);
  Status copy_device(pagetable::Region& region, void* host, CUdeviceptr window, std::size_t bytes, bool write);

  // SlabSource
  Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) override;
  Status free_slabs(std::uintptr_t address) override;
  std::uintptr_t context() noexcept override;
  Result<std::uint64_t> mark(const StreamId& stream) override;
  bool complete(std::uint64_t mark) override;
  Status refuse_held_block(std::uintptr_t base);
  Result<pagetable::Region*> allocate_region(std::size_t bytes, int device, bool shared);
  Status free_region(pagetable::Region& region, std::uint32_t first_granule, vmem_stream stream);

  const Options options_;
  const std::shared_ptr<const gpu::Driver> driver_;
  std::vector<std::unique_ptr<Device>> devices_;
  CUdeviceptr reserved_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::unique_ptr<pagetable::AddressSpace> space_;
  std::shared_ptr<pagetable::ThreadRegistry> threads_ = std::make_shared<pagetable::ThreadRegistry>();
  std::unique_ptr<migration::StreamTable> streams_;
  std::unique_ptr<tiers::HostTier> host_;
  std::mutex mover_life_;  // protects mover_ from its creation's and destruction's side, for the host tier's thread
  std::unique_ptr<migration::Mover> mover_;
  std::unique_ptr<Suballocator> small_;
  bool ended_ = false;  // by shut_down; only the suballocator's end follows
};

}  // namespace vmem::runtime
