// The emulated machine's cuFile: reads from files into device memory. Error codes and the order of
// checks are those that libcufile 1.20 was seen to have in compatibility mode.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cufile_table.hpp"
#include "gpu/emu/api_copy.hpp"
#include "gpu/emu/cufile_state.hpp"

using namespace vmem::emu;
using namespace vmem::gpu;

#pragma GCC visibility push(default)
extern "C" {
#define VMEM_DECLARE(result, name, parameters) result name parameters;
VMEM_CUFILE_FUNCTIONS(VMEM_DECLARE)
#undef VMEM_DECLARE
}
#pragma GCC visibility pop

namespace {

constexpr int version = 1200;
constexpr unsigned nvidia_fs_major = 2, nvidia_fs_minor = 25;
// A handle is the descriptor with a mark, so a stale handle may name a later file.
constexpr std::uint64_t handle_mark = 0xabababab00000000;

CuFileHandle to_handle(int descriptor) {
  return reinterpret_cast<CuFileHandle>(handle_mark | static_cast<unsigned>(descriptor));
}
int to_descriptor(CuFileHandle handle) {
  const auto value = reinterpret_cast<std::uint64_t>(handle);
  return (value & handle_mark) == handle_mark ? static_cast<int>(value & 0x7fffffff) : -1;
}

CuFileError answer(int code, CUresult driver = CUDA_SUCCESS) { return {code, driver}; }

// 0: the whole range is device memory that the current context's device may write.
int check_memory(std::uint64_t begin, std::size_t bytes, int device) {
  AddressSpace& space = machine().addresses();
  if (!space.find(begin)) return CU_FILE_CUDA_POINTER_INVALID;
  const auto segments = space.segments(begin, bytes, device, Access::read_write);
  if (!segments) return CU_FILE_CUDA_POINTER_RANGE_ERROR;
  const bool host = std::ranges::any_of(*segments, [](const Segment& each) { return each.location.host; });
  return host ? CU_FILE_CUDA_MEMORY_TYPE_INVALID : CU_FILE_SUCCESS;
}

std::string path_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

// A memfd stands for files that nvidia-fs cannot read.
bool reachable(int descriptor) {
  if (machine().config().cufile != CuFileMode::direct || cufile_state().compat_allowed()) return true;
  char name[8] = {};
  return readlink(path_of(descriptor).c_str(), name, sizeof name) < 0 || std::string_view(name, 7) != "/memfd:";
}

int register_file(int descriptor) {
  struct stat status{};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return CU_FILE_INVALID_VALUE;
  if (!S_ISREG(status.st_mode)) return CU_FILE_INVALID_FILE_TYPE;
  if (!reachable(descriptor)) return CU_FILE_IO_NOT_SUPPORTED;
  auto file = std::make_shared<RegisteredFile>();
  file->own = open(path_of(descriptor).c_str(), O_RDONLY | O_CLOEXEC);
  if (file->own < 0) return CU_FILE_GETNEWFD_FAILED;
  file->device = status.st_dev;
  file->inode = status.st_ino;
  return cufile_state().add_file(descriptor, std::move(file)) ? CU_FILE_SUCCESS : CU_FILE_HANDLE_ALREADY_REGISTERED;
}

// Whether the descriptor still refers to the registered file.
bool is_alive(int descriptor, const RegisteredFile& file) {
  struct stat status{};
  return fstat(descriptor, &status) == 0 && status.st_dev == file.device && status.st_ino == file.inode;
}

ssize_t fail_with(int error) {
  errno = error;
  return -1;
}

// Reads up to the end of the file. After an error, returns the bytes read before it, or -1 if none.
ssize_t fill(const std::vector<Segment>& segments, int descriptor, off_t offset) {
  ssize_t done = 0;
  for (const Segment& segment : segments)
    for (std::size_t here = 0; here < segment.bytes;) {
      const ssize_t count = pread(descriptor, segment.data + here, segment.bytes - here, offset + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return done > 0 ? done : -1;
      if (count == 0) return done;
      here += static_cast<std::size_t>(count);
      done += count;
    }
  return done;
}

// Disks are on the host side of the device's link, so every read crosses the link.
ssize_t fill_over_link(Device& device, const std::vector<Segment>& segments, int descriptor, off_t offset,
                       std::size_t bytes) {
  ssize_t count = 0;
  const auto move = [&] { count = fill(segments, descriptor, offset); };
  Link* const link = &device.h2d;
  if (link->throttles())
    transfer(std::span(&link, 1), bytes, {}, move);
  else
    move();
  return count;
}

}  // namespace

CuFileError cuFileDriverOpen() {
  if (const CUresult result = enter(); result != CUDA_SUCCESS) return answer(CU_FILE_CUDA_DRIVER_ERROR, result);
  return answer(cufile_state().open());
}

CuFileError cuFileDriverClose() {
  return answer(cufile_state().close() ? CU_FILE_SUCCESS : CU_FILE_DRIVER_NOT_INITIALIZED);
}
CuFileError cuFileDriverClose_v2() { return cuFileDriverClose(); }

CuFileError cuFileDriverGetProperties(CuFileProperties* properties) {
  if (!properties) return answer(CU_FILE_INVALID_VALUE);
  *properties = {};
  if (cufile_state().is_open() && machine().config().cufile == CuFileMode::direct) {
    properties->nvidia_fs.major = nvidia_fs_major;
    properties->nvidia_fs.minor = nvidia_fs_minor;
  }
  if (cufile_state().compat_allowed()) properties->nvidia_fs.control |= 1U << kCuFileControlCompatBit;
  return answer(CU_FILE_SUCCESS);
}

CuFileError cuFileGetVersion(int* out) {
  if (!out) return answer(CU_FILE_INVALID_VALUE);
  *out = version;
  return answer(CU_FILE_SUCCESS);
}

CuFileError cuFileSetParameterBool(int parameter, bool value) {
  if (parameter != kCuFileAllowCompatMode) return answer(CU_FILE_INVALID_VALUE);
  return answer(cufile_state().stage_compat(value) ? CU_FILE_SUCCESS : CU_FILE_DRIVER_ALREADY_OPEN);
}

CuFileError cuFileHandleRegister(CuFileHandle* handle, CuFileDescriptor* descriptor) {
  if (!handle || !descriptor || descriptor->type != kCuFileDescriptorIsFd || descriptor->operations)
    return answer(CU_FILE_INVALID_VALUE);
  if (!cufile_state().is_open()) return answer(CU_FILE_DRIVER_NOT_INITIALIZED);
  const int code = register_file(descriptor->fd);
  if (code == CU_FILE_SUCCESS) *handle = to_handle(descriptor->fd);
  return answer(code);
}

void cuFileHandleDeregister(CuFileHandle handle) { cufile_state().remove_file(to_descriptor(handle)); }

// As in the library, errors of the call are set in errno. Errors of the memory are returned
// negated, as its documentation says. Callers must handle both.
ssize_t cuFileRead(CuFileHandle handle, void* base, std::size_t bytes, off_t file_offset, off_t base_offset) {
  if (!handle || !base) return fail_with(EINVAL);
  const int descriptor = to_descriptor(handle);
  const auto file = cufile_state().file(descriptor);
  if (!file) return fail_with(CU_FILE_HANDLE_NOT_REGISTERED);
  if (file_offset < 0 || base_offset < 0) return fail_with(CU_FILE_INVALID_VALUE);
  std::shared_ptr<Context> context;
  if (enter(context) != CUDA_SUCCESS) return fail_with(CU_FILE_CUDA_DRIVER_ERROR);
  if (bytes == 0) return 0;
  const std::uint64_t begin = as_address(base) + static_cast<std::uint64_t>(base_offset);
  const int device = context->device().ordinal;
  if (const int code = check_memory(begin, bytes, device); code != CU_FILE_SUCCESS) return -code;
  const auto segments = machine().addresses().segments(begin, bytes, device, Access::read_write);
  if (!segments) return -CU_FILE_CUDA_POINTER_RANGE_ERROR;
  if (!is_alive(descriptor, *file)) return fail_with(EBADF);
  return fill_over_link(context->device(), *segments, file->own, file_offset, bytes);
}
