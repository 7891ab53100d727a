#include "migration/place/devices.hpp"

#include "gpu/memory_location.hpp"

namespace vmem::migration {
namespace {

tiers::FramePool::Config hbm_pool(const MoverConfig& config, const MoverDevice& device) {
  tiers::FramePool::Config pool;
  pool.driver = config.driver;
  pool.location = gpu::on_device(device.ordinal);
  pool.accessors = {pool.location};
  for (const CUdevice copier : device.copiers) pool.accessors.push_back(gpu::on_device(copier));
  pool.budget_bytes = pool.largest_budget_bytes = device.hbm_bytes;
  pool.name = "HBM";
  return pool;
}

}  // namespace

Devices::Devices(const MoverConfig& config) {
  for (const MoverDevice& device : config.devices)
    devices_.push_back(std::make_unique<Device>(count(), device, hbm_pool(config, device)));
}

void Devices::keep_awaited_frames() {
  for (auto& device : devices_) {
    if (device->arriving_bytes != 0) (void)device.release();
  }
}

}  // namespace vmem::migration
