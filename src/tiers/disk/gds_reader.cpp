#include "tiers/disk/gds_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/of_vmem.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"
#include "pagetable/types.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kTrialBytes = std::uint64_t{64} << 10;
constexpr std::size_t kBlockBytes = 4096;
constexpr unsigned char kNotFromTheFile = 0xa5;

// libcufile refuses files that were opened with O_TMPFILE, O_NONBLOCK and other flags (error 5019), so it gets a description of its own.
Result<FileDescriptor> open_anew(int descriptor) {
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  const int mode = ::fcntl(descriptor, F_GETFL) & O_ACCMODE;
  FileDescriptor opened(::open(path.c_str(), mode | O_DIRECT | O_CLOEXEC));
  if (!opened && errno == EINVAL) opened = FileDescriptor(::open(path.c_str(), mode | O_CLOEXEC));
  if (!opened)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("cannot be opened again: {}", std::strerror(errno)), errno);
  return opened;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

}  // namespace

class GdsReader::OpenFile final : public File {
 public:
  OpenFile(FileDescriptor descriptor, gpu::CuFile::File handle)
      : descriptor_(std::move(descriptor)), handle_(std::move(handle)) {}
  int descriptor() const { return descriptor_.get(); }
  const gpu::CuFile::File& handle() const { return handle_; }

 private:
  FileDescriptor descriptor_;
  gpu::CuFile::File handle_;  // ends first
};

Status GdsReader::start() {
  const std::lock_guard lock(start_mutex_);
  if (!started_) started_ = start_once();
  return *started_;
}

Status GdsReader::start_once() {
  const OfVmem mark;
  VMEM_ASSIGN(library_, gpu::CuFile::load(*config_.driver, config_.accept));
  VMEM_TRY(make_trial_memory());
  for (std::uint32_t i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { run(); });
  return {};
}

std::string GdsReader::describe() const {
  const std::lock_guard lock(start_mutex_);
  return library_->describe();
}

GdsReader::~GdsReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Of the kind that pages lie in: what works for other memory need not work for it.
Status GdsReader::make_trial_memory() {
  for (const Device& device : config_.devices) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device.ordinal}};
    FramePool::Config pool;
    pool.driver = config_.driver;
    pool.location = location;
    pool.accessors = {location};
    pool.budget_bytes = pagetable::kGranuleBytes;
    pool.name = fmt::format("HBM of device {}, to try files out with", device.ordinal);
    pool.rdma_capable = device.rdma_capable;
    Trial& trial = trials_.emplace_back(Trial{std::make_unique<FramePool>(std::move(pool)), 0});
    VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, device.context));
    VMEM_ASSIGN(const auto frame, trial.memory->take(pagetable::kGranuleBytes));
    if (!frame) return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("device {} has no 2 MiB left", device.ordinal));
    trial.address = trial.memory->frame(*frame).window;
  }
  return {};
}

Result<std::unique_ptr<FrameReader::File>> GdsReader::open(int descriptor) {
  VMEM_TRY(start());
  const OfVmem mark;
  VMEM_ASSIGN(FileDescriptor opened, open_anew(descriptor));
  // Files are opened by threads of the program, whose context it need not be.
  VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, config_.devices.front().context));
  VMEM_ASSIGN(gpu::CuFile::File handle, library_->open(opened.get()));
  auto file = std::make_unique<OpenFile>(std::move(opened), std::move(handle));
  const std::lock_guard lock(start_mutex_);
  for (std::size_t device = 0; device < trials_.size(); ++device) VMEM_TRY(try_out(*file, device));
  return file;
}

// REQUIRES: start_mutex_.
Status GdsReader::try_out(const OpenFile& file, std::size_t device) const {
  const auto& driver = *config_.driver;
  const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kTrialBytes)));
  std::byte *const on_disk = memory.get(), *const come = memory.get() + kTrialBytes;
  const ssize_t read = ::pread(file.descriptor(), on_disk, kTrialBytes, 0);
  if (read <= 0)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("cannot be tried out: {}", read < 0 ? std::strerror(errno) : "it is empty"));
  const std::uint64_t bytes = std::uint64_t(read);
  VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, config_.devices[device].context));
  const CUdeviceptr address = trials_[device].address;
  VMEM_ASSIGN(const gpu::Stream stream, gpu::Stream::create(config_.driver));
  VMEM_TRY(
      driver.check(driver->cuMemsetD8Async(address, kNotFromTheFile, kTrialBytes, stream.get()), "cuMemsetD8Async"));
  VMEM_TRY(driver.check(driver->cuStreamSynchronize(stream.get()), "cuStreamSynchronize"));
  VMEM_ASSIGN(const std::uint64_t arrived, file.handle().read(address, bytes, 0));
  VMEM_TRY(driver.check(driver->cuMemcpyDtoHAsync(come, address, kTrialBytes, stream.get()), "cuMemcpyDtoHAsync"));
  VMEM_TRY(driver.check(driver->cuStreamSynchronize(stream.get()), "cuStreamSynchronize"));
  const bool rest =
      std::all_of(come + bytes, come + kTrialBytes, [](std::byte each) { return each == std::byte{kNotFromTheFile}; });
  if (arrived == bytes && rest && std::memcmp(on_disk, come, bytes) == 0) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("of its first {} bytes, {} came to device {}, and not as they are on the disk", bytes,
                          arrived, config_.devices[device].ordinal));
}

void GdsReader::post(Read read) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(read));
  }
  wanted_.notify_one();
}

void GdsReader::run() {
  ::prctl(PR_SET_NAME, "vmem-gds");
  const OfVmem mark;
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Read read = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    read.done(carry_out(read));
    lock.lock();
  }
}

Status GdsReader::carry_out(const Read& read) {
  VMEM_ASSIGN(const auto context,
              gpu::ScopedContext::push(config_.driver, config_.devices[std::size_t(read.device)].context));
  register_once(read.frame, read.bytes);
  const auto& file = static_cast<const OpenFile&>(*read.file).handle();
  for (std::uint64_t arrived = 0; arrived < read.bytes;) {
    VMEM_ASSIGN(const std::uint64_t more, file.read(read.frame + arrived, read.bytes - arrived, read.offset + arrived));
    if (more == 0) {
      return fail(VMEM_ERROR_DRIVER, fmt::format("{} of {} came from offset {}: the file ends there",
                                                 format_bytes(arrived), format_bytes(read.bytes), read.offset));
    }
    arrived += more;
  }
  return {};
}

// Memory that is not registered is read into through buffers of libcufile's. Frames come again and again, so each is registered at its first
// read, for as long as it is there: that takes 25 ms for 32 MiB.
void GdsReader::register_once(CUdeviceptr frame, std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!frames_.try_emplace(frame, false).second) return;
  }
  const Status registered = library_->register_memory(frame, bytes);
  const std::lock_guard lock(mutex_);
  frames_[frame] = registered.has_value();
  if (registered || std::exchange(refusal_told_, true)) return;
  VMEM_LOG_WARN("frames cannot be registered with libcufile, which copies through buffers of its own: {}",
                registered.error().message);
}

void GdsReader::forget(CUdeviceptr frame) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = frames_.find(frame);
    if (found == frames_.end()) return;
    const bool known = found->second;
    frames_.erase(found);
    if (!known) return;
  }
  library_->deregister_memory(frame);
}

}  // namespace vmem::tiers
