// GPUDirect Storage by libcufile: threads that wait, one for each read under way. Libcufile is loaded when the first file is opened: that can
// take 0.4 s.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
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
  };
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    gpu::CuFile::Accept accept = gpu::CuFile::Accept::direct;
    std::vector<Device> devices;  // 32 at most
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
  std::string describe() const override;  // REQUIRES: a file was opened

 private:
  class OpenFile;
  struct Trial {
    std::unique_ptr<FramePool> memory;
    CUdeviceptr address = 0;
  };
  // What files of one file system were found to be: the devices that they reach, as bits; or why none.
  using Found = Result<std::uint32_t>;
  Result<std::unique_ptr<File>> open_and_try(int descriptor);
  Status start_once();
  Status make_trial_memory();
  Found try_once(const OpenFile& file);
  Found try_out(const OpenFile& file) const;
  Status try_out(const OpenFile& file, std::size_t device) const;
  void run();
  Status carry_out(const Read& read) const;

  const Config config_;
  mutable std::mutex start_mutex_;  // of the next one
  std::optional<Status> started_;
  std::shared_ptr<const gpu::CuFile> library_;  // constant once started, as the next one
  std::vector<Trial> trials_;                   // by device

  std::mutex trial_mutex_;  // of the trials' memory, and of the next one
  std::map<dev_t, Found> found_;

  std::mutex mutex_;  // below
  std::condition_variable wanted_;
  std::deque<Read> posted_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vmem::tiers
