// GPUDirect Storage by libcufile: threads that wait, one for each read under way. Libcufile is loaded when the first file is opened: that can
// take 0.4 s.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gpu/cufile.hpp"
#include "gpu/driver.hpp"
#include "tiers/disk/frame_reader.hpp"
#include "tiers/frame_pool.hpp"

namespace vmem::tiers {

class GdsReader final : public FrameReader {
 public:
  struct Device {
    CUcontext context = nullptr;
    CUdevice ordinal = 0;
    bool rdma_capable = false;  // its frames are: MoverDevice::rdma_capable
  };
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    gpu::CuFile::Accept accept = gpu::CuFile::Accept::direct;
    std::vector<Device> devices;
    std::uint32_t threads = 8;
  };
  explicit GdsReader(Config config) : config_(std::move(config)) {}
  ~GdsReader() override;
  GdsReader(const GdsReader&) = delete;
  GdsReader& operator=(const GdsReader&) = delete;

  // Loads libcufile if it is not loaded. Errors: UNSUPPORTED, saying what is missing; the driver's, for want of memory to try files out with.
  Status start();
  Result<std::unique_ptr<File>> open(int descriptor) override;
  void post(Read read) override;
  void forget(CUdeviceptr frame) override;
  std::string describe() const override;  // REQUIRES: a file was opened

 private:
  class OpenFile;
  struct Trial {
    std::unique_ptr<FramePool> memory;
    CUdeviceptr address = 0;
  };
  Status start_once();
  Status make_trial_memory();
  Status try_out(const OpenFile& file, std::size_t device) const;
  void run();
  Status carry_out(const Read& read);
  void register_once(CUdeviceptr frame, std::uint64_t bytes);

  const Config config_;
  mutable std::mutex start_mutex_;  // below, up to the next one; who opens files uses the trials' memory
  std::optional<Status> started_;
  std::shared_ptr<const gpu::CuFile> library_;
  std::vector<Trial> trials_;  // by device

  std::mutex mutex_;  // below
  std::condition_variable wanted_;
  std::deque<Read> posted_;
  std::unordered_map<CUdeviceptr, bool> frames_;  // that were read into, and whether they are registered
  bool refusal_told_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vmem::tiers
