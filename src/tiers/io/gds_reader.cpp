#include "tiers/io/gds_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/of_vmem.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"
#include "gpu/memory_location.hpp"
#include "pagetable/types.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kTrialBytes = std::uint64_t{64} << 10;
constexpr std::size_t kBlockBytes = 4096;
constexpr unsigned char kNotFromTheFile = 0xa5;

// libcufile refuses files opened with O_TMPFILE, O_NONBLOCK and other flags (error 5019), so it
// gets its own open file description.
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
  ~OpenFile() override {
    const OfVmem mark;
    handle_.reset();
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  bool reaches(int device) const override { return (devices_ >> device & 1) != 0; }
  void reach(std::uint32_t devices) { devices_ = devices; }
  int descriptor() const { return descriptor_.get(); }
  const gpu::CuFile::File& handle() const { return handle_; }

 private:
  FileDescriptor descriptor_;
  gpu::CuFile::File handle_;  // destroyed before the descriptor
  std::uint32_t devices_ = 0;
};

GdsReader::~GdsReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  const OfVmem mark;
  library_.reset();
}

Status GdsReader::start() {
  const std::lock_guard lock(start_mutex_);
  if (!started_) started_ = start_once();
  return *started_;
}

// REQUIRES: start_mutex_.
Status GdsReader::start_once() {
  const OfVmem mark;
  const gpu::RelaxedCapture relaxed(*config_.driver);
  VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, config_.devices.front().context));
  VMEM_ASSIGN(library_, gpu::CuFile::load(*config_.driver, config_.accept));
  VMEM_TRY(make_trial_memory());
  for (std::uint32_t i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { run(); });
  return {};
}

std::string GdsReader::describe() const {
  const std::lock_guard lock(start_mutex_);
  return library_->describe();
}

// The same kind of memory as frames: success with another kind would prove nothing.
Status GdsReader::make_trial_memory() {
  for (const Device& device : config_.devices) {
    const CUmemLocation location = gpu::on_device(device.ordinal);
    FramePool::Config pool;
    pool.driver = config_.driver;
    pool.location = location;
    pool.accessors = {location};
    pool.budget_bytes = pagetable::kGranuleBytes;
    pool.name = fmt::format("HBM of device {}, to try files out with", device.ordinal);
    Trial& trial = trials_.emplace_back(Trial{std::make_unique<FramePool>(std::move(pool)), 0});
    VMEM_ASSIGN(const auto frame, trial.memory->take(pagetable::kGranuleBytes));
    if (!frame) return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("device {} has no 2 MiB left", device.ordinal));
    trial.address = trial.memory->frame(*frame).window;
  }
  return {};
}

Result<std::unique_ptr<FrameReader::File>> GdsReader::open(int descriptor) {
  auto opened = open_and_try(descriptor);
  // Only if the user requested GDS (Accept::any): else the caller logs it, at a lower level.
  if (!opened && config_.accept == gpu::CuFile::Accept::any)
    VMEM_LOG_WARN("a file cannot be read straight to HBM, and its pages come through host memory: {}",
                  opened.error().message);
  return opened;
}

Result<std::unique_ptr<FrameReader::File>> GdsReader::open_and_try(int descriptor) {
  VMEM_TRY(start());
  const OfVmem mark;
  const gpu::RelaxedCapture relaxed(*config_.driver);
  VMEM_ASSIGN(FileDescriptor opened, open_anew(descriptor));
  // Program threads open files, and may have another current context.
  VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, config_.devices.front().context));
  VMEM_ASSIGN(gpu::CuFile::File handle, library_->open(opened.get()));
  auto file = std::make_unique<OpenFile>(std::move(opened), std::move(handle));
  VMEM_ASSIGN(const std::uint32_t devices, try_once(*file));
  file->reach(devices);
  return file;
}

GdsReader::Found GdsReader::try_once(const OpenFile& file) {
  struct stat about{};
  if (::fstat(file.descriptor(), &about) != 0)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("cannot be tried out: {}", std::strerror(errno)), errno);
  if (about.st_size == 0) return fail(VMEM_ERROR_UNSUPPORTED, "cannot be tried out: it is empty");
  const std::lock_guard lock(trial_mutex_);
  const auto known = found_.find(about.st_dev);
  return known != found_.end() ? known->second : found_.try_emplace(about.st_dev, try_out(file)).first->second;
}

GdsReader::Found GdsReader::try_out(const OpenFile& file) const {
  std::uint32_t devices = 0;
  std::optional<Error> failed;
  for (std::size_t device = 0; device < trials_.size(); ++device) {
    const Status tried = try_out(file, device);
    if (tried) devices |= 1u << device;
    if (!tried && !failed) failed = tried.error();
  }
  if (devices == 0) return fail(VMEM_ERROR_UNSUPPORTED, failed->message, failed->native);
  if (failed) VMEM_LOG_WARN("not all devices can be read into straight from files: {}", failed->message);
  return devices;
}

// Uses only copies, which wait for no kernel: a kernel of the program may wait for the thread that
// maps the file.
Status GdsReader::try_out(const OpenFile& file, std::size_t device) const {
  const auto& driver = *config_.driver;
  const int ordinal = config_.devices[device].ordinal;
  const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kTrialBytes)));
  if (!memory) return fail(VMEM_ERROR_OUT_OF_MEMORY, "cannot be tried out: no memory for a buffer", ENOMEM);
  std::byte *const on_disk = memory.get(), *const come = memory.get() + kTrialBytes;
  const ssize_t read = ::pread(file.descriptor(), on_disk, kTrialBytes, 0);
  if (read <= 0)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("cannot be tried out: {}", read < 0 ? std::strerror(errno) : "it has become empty"));
  const std::uint64_t bytes = std::uint64_t(read);
  VMEM_ASSIGN(const auto context, gpu::ScopedContext::push(config_.driver, config_.devices[device].context));
  VMEM_ASSIGN(const gpu::Stream stream, gpu::Stream::create(config_.driver));
  const auto copied = [&](CUresult result, const char* call) -> Status {
    VMEM_TRY(driver.check(result, call));
    return stream.synchronize();
  };
  const CUdeviceptr address = trials_[device].address;
  std::memset(come, kNotFromTheFile, kTrialBytes);
  VMEM_TRY(copied(driver->cuMemcpyHtoDAsync(address, come, kTrialBytes, stream.get()), "cuMemcpyHtoDAsync"));
  VMEM_ASSIGN(const std::uint64_t arrived, file.handle().read(address, bytes, 0));
  VMEM_TRY(copied(driver->cuMemcpyDtoHAsync(come, address, kTrialBytes, stream.get()), "cuMemcpyDtoHAsync"));
  const bool rest =
      std::all_of(come + bytes, come + kTrialBytes, [](std::byte each) { return each == std::byte{kNotFromTheFile}; });
  if (arrived == bytes && rest && std::memcmp(on_disk, come, bytes) == 0) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("of its first {} bytes, {} came to device {}, and not as they are on the disk", bytes,
                          arrived, ordinal));
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
  const gpu::RelaxedCapture relaxed(*config_.driver);
  MemoryReserve reserve;
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Read read = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    (void)reserve.refill();
    read.done(carry_out(read));
    lock.lock();
  }
}

// Frames are not registered: libcufile reads into its own buffers on the same device, and copies at
// HBM speed. Registering a frame takes 25 ms, undoing it 5 ms, and needs other handles, which map
// more slowly (32 MiB, H200, by hand).
Status GdsReader::carry_out(const Read& read) const {
  VMEM_ASSIGN(const auto context,
              gpu::ScopedContext::push(config_.driver, config_.devices[std::size_t(read.device)].context));
  const auto& file = static_cast<const OpenFile&>(*read.file).handle();
  VMEM_ASSIGN(const std::uint64_t arrived, file.read(read.frame, read.bytes, read.offset));
  if (arrived == read.bytes) return {};
  return fail(VMEM_ERROR_DRIVER, fmt::format("{} of {} came from offset {}: the file ends there", format_bytes(arrived),
                                             format_bytes(read.bytes), read.offset));
}

}  // namespace vmem::tiers
