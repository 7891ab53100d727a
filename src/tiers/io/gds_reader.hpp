// GPUDirect Storage through libcufile: blocking threads, one per read in flight. The first open or
// start loads libcufile, which can take 0.4 s.
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
#include "tiers/frame_pool.hpp"
#include "tiers/io/frame_reader.hpp"

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
    std::vector<Device> devices;  // at most 32
    std::uint32_t threads = 8;
  };
  explicit GdsReader(Config config) : config_(std::move(config)) {}
  ~GdsReader() override;
  GdsReader(const GdsReader&) = delete;
  GdsReader& operator=(const GdsReader&) = delete;

  // Loads libcufile, once. Errors: UNSUPPORTED, which names what is missing; OUT_OF_MEMORY and the
  // driver's, for the memory to try files out with.
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
  // The result for all files of a file system: the reached devices as bits, or why there is none.
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
  mutable std::mutex start_mutex_;  // guards started_
  std::optional<Status> started_;
  std::shared_ptr<const gpu::CuFile> library_;  // constant once started
  std::vector<Trial> trials_;                   // by device; constant once started

  std::mutex trial_mutex_;  // guards the trials' memory and found_
  std::map<dev_t, Found> found_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable wanted_;
  std::deque<Read> posted_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vmem::tiers
