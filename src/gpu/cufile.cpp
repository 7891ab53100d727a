#include "gpu/cufile.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

namespace vmem::gpu {
namespace {

constexpr const char* kInstalled = "libcufile.so.0";

const char* name_of(int code) {
  switch (code) {
#define VMEM_NAME(number, name) \
  case number:                  \
    return "CU_FILE_" #name;
    VMEM_CUFILE_CODES(VMEM_NAME)
#undef VMEM_NAME
    default:
      return "an unknown error of cuFile";
  }
}

// `code`: an errno or a cuFile code.
std::string describe_code(int code) {
  return code < CU_FILE_CODES_BEGIN ? std::string(std::strerror(code)) : fmt::format("{} ({})", name_of(code), code);
}

std::string describe_error(CuFileError error) {
  const std::string code = describe_code(error.code);
  return error.code == CU_FILE_CUDA_DRIVER_ERROR ? fmt::format("{}, CUDA error {}", code, error.driver) : code;
}

// The error code of a failed cuFileRead. The documentation says negated cuFile codes; 1.20 returns
// -1 and sets errno to the code.
int code_of_read(ssize_t result, int error) { return result == -1 ? error : static_cast<int>(-result); }

bool says_unsupported(int code) {
  switch (code) {
    case CU_FILE_PLATFORM_NOT_SUPPORTED:
    case CU_FILE_IO_NOT_SUPPORTED:
    case CU_FILE_DEVICE_NOT_SUPPORTED:
    case CU_FILE_INVALID_FILE_TYPE:
    case CU_FILE_INVALID_FILE_OPEN_FLAG:
    case CU_FILE_DIO_NOT_SET:
    case CU_FILE_IO_DISABLED:
    // 1.20 returns this if it does not recognise the file's file system, e.g. in containers without
    // udev's database.
    case CU_FILE_HANDLE_NOT_REGISTERED:
      return true;
    default:
      return false;
  }
}

// Whether libcufile's configuration file sets a log directory.
bool configuration_names_log() {
  const char* named = std::getenv("CUFILE_ENV_PATH_JSON");
  std::ifstream file(named ? named : "/etc/cufile.json");
  for (std::string line; std::getline(file, line);)
    if (line.substr(0, line.find("//")).contains("\"dir\"")) return true;
  return false;
}

// libcufile logs to cufile.log in the current folder, already while it opens. Parameters are set
// too late for that, so this uses the environment. A log location set by the user is kept.
void keep_folder_clean() {
  if (!configuration_names_log()) setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0);
}

Status check_machine() {
  // Without /proc/modules, as in some sandboxes, cuFileDriverOpen (1.20) loops forever.
  if (access("/proc/modules", R_OK) == 0) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("cuFile does not start where /proc/modules cannot be read: {}", std::strerror(errno)), errno);
}

Result<CuFileTable> resolve(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("cuFile cannot be loaded: {}; it comes with the CUDA toolkit (libcufile)",
                            reason ? reason : library));
  }
  CuFileTable table;
#define VMEM_RESOLVE(result, name, parameters) \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(handle, #name));
  VMEM_CUFILE_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  if (table.cuFileDriverClose_v2 == nullptr) table.cuFileDriverClose_v2 = table.cuFileDriverClose;
  return table;
}

// By library path. Outside tests a process has one driver.
std::mutex loading;
std::map<std::string, std::weak_ptr<CuFile>> loaded;

}  // namespace

Result<std::shared_ptr<const CuFile>> CuFile::load(const Driver& driver, Accept accept) {
  const std::string library = driver.emulated() ? driver.path() : kInstalled;
  const std::lock_guard lock(loading);
  if (auto open = loaded[library].lock()) {
    if (accept == Accept::any || open->direct()) return open;
    return fail(VMEM_ERROR_UNSUPPORTED, "cuFile is in use already, and copies through host memory");
  }
  VMEM_ASSIGN(const CuFileTable table, resolve(library));
  if (!driver.emulated()) {
    VMEM_TRY(check_machine());
    keep_folder_clean();
  }
  auto cufile = std::make_shared<CuFile>(Private{}, table, driver.emulated());
  if (!cufile->complete())
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} is no cuFile, or one that is too old", library));
  VMEM_TRY(cufile->open_driver(accept));
  loaded[library] = cufile;
  return cufile;
}

CuFile::~CuFile() {
  if (opened_) (void)table_.cuFileDriverClose_v2();
}

bool CuFile::complete() const {
  return table_.cuFileDriverOpen && table_.cuFileDriverClose_v2 && table_.cuFileDriverGetProperties &&
         table_.cuFileHandleRegister && table_.cuFileHandleDeregister && table_.cuFileRead;
}

// Tries first without compatibility mode: cuFile then rejects files that it cannot read directly.
// 1.20 was seen to require nvidia-fs then, even if PCI P2PDMA is configured, and to open if
// compatibility mode is forced. The properties tell which mode is in effect.
Status CuFile::open_driver(Accept accept) {
  allow_compat(false);
  const CuFileError refused = table_.cuFileDriverOpen();
  CuFileError error = refused;
  if (refused.code != CU_FILE_SUCCESS) {
    // A failed open resets the parameters; a configuration file may still forbid compatibility
    // mode.
    allow_compat(true);
    error = table_.cuFileDriverOpen();
  }
  if (error.code != CU_FILE_SUCCESS)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("cuFileDriverOpen: {}; with CUFILE_LOGFILE_PATH set to a file, cuFile says more there",
                            describe_error(error)),
                error.code);
  opened_ = true;
  read_properties();
  if (direct_ || accept == Accept::any) return {};
  return fail(
      VMEM_ERROR_UNSUPPORTED,
      fmt::format("cuFile would copy through host memory: there is neither nvidia-fs nor PCI P2PDMA here{}",
                  refused.code == CU_FILE_SUCCESS ? std::string()
                                                  : fmt::format(" (cuFileDriverOpen: {})", describe_error(refused))),
      refused.code);
}

// Best effort: an old cuFile lacks the function, and a cuFile already opened elsewhere keeps its
// mode.
void CuFile::allow_compat(bool allowed) const {
  if (table_.cuFileSetParameterBool) (void)table_.cuFileSetParameterBool(kCuFileAllowCompatMode, allowed);
}

void CuFile::read_properties() {
  if (table_.cuFileGetVersion && table_.cuFileGetVersion(&version_).code != CU_FILE_SUCCESS) version_ = 0;
  if (table_.cuFileDriverGetProperties(&properties_).code != CU_FILE_SUCCESS) properties_ = {};
  direct_ = properties_.nvidia_fs.major != 0 || (properties_.features >> kCuFileFeatureP2pBit & 1) != 0;
}

std::string CuFile::describe() const {
  std::string text = emulated_ ? "emulated cuFile" : "libcufile";
  if (version_ > 0 && !emulated_) text += fmt::format(" {}.{}", version_ / 1000, version_ % 1000 / 10);
  if (!direct_) return text + " through host memory (compatibility mode)";
  if (!emulated_)
    text += properties_.nvidia_fs.major == 0
                ? ", PCI P2PDMA"
                : fmt::format(", nvidia-fs {}.{}", properties_.nvidia_fs.major, properties_.nvidia_fs.minor);
  const bool compat = (properties_.nvidia_fs.control >> kCuFileControlCompatBit & 1) != 0;
  return compat ? text + ", through host memory where a file system cannot" : text;
}

Result<CuFile::File> CuFile::open(int descriptor) const {
  CuFileDescriptor description{};
  description.type = kCuFileDescriptorIsFd;
  description.fd = descriptor;
  CuFileHandle handle = nullptr;
  const CuFileError error = table_.cuFileHandleRegister(&handle, &description);
  if (error.code == CU_FILE_SUCCESS) return File(shared_from_this(), handle);
  const bool unsupported = says_unsupported(error.code);
  return fail(
      unsupported ? VMEM_ERROR_UNSUPPORTED : VMEM_ERROR_DRIVER,
      fmt::format("{}cuFileHandleRegister: {}", unsupported ? "cuFile cannot read this file, or what it lies on: " : "",
                  describe_error(error)),
      error.code);
}

CuFile::File::File(File&& other) noexcept
    : cufile_(std::move(other.cufile_)), handle_(std::exchange(other.handle_, nullptr)) {}

CuFile::File& CuFile::File::operator=(File&& other) noexcept {
  if (this != &other) {
    reset();
    cufile_ = std::move(other.cufile_);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void CuFile::File::reset() noexcept {
  if (!cufile_) return;
  cufile_->table_.cuFileHandleDeregister(std::exchange(handle_, nullptr));
  cufile_ = nullptr;
}

Result<std::uint64_t> CuFile::File::read(CUdeviceptr memory, std::uint64_t bytes, std::uint64_t offset) const {
  std::uint64_t done = 0;
  while (done < bytes) {
    errno = 0;
    const ssize_t count = cufile_->table_.cuFileRead(handle_, reinterpret_cast<void*>(memory + done), bytes - done,
                                                     static_cast<off_t>(offset + done), 0);
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::uint64_t>(count);
      continue;
    }
    const int code = code_of_read(count, errno);
    if (code == EINTR) continue;
    return fail(VMEM_ERROR_DRIVER,
                fmt::format("cuFileRead of {} bytes at {} into {:#x}: {}", bytes - done, offset + done, memory + done,
                            describe_code(code)),
                code);
  }
  return done;
}

}  // namespace vmem::gpu
