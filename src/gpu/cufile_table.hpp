// The part of cuFile (GPUDirect Storage) that vmem uses to read from files into GPU memory. Loaded
// at run time from libcufile.so.0 or from the emulated driver. Declared here because libcufile
// comes with the toolkit, not with the driver.
#pragma once

#include <sys/types.h>

#include <cstddef>

// X(result, name, parameters). Older versions of libcufile lack the last two.
#define VMEM_CUFILE_FUNCTIONS(X)                                                                           \
  X(vmem::gpu::CuFileError, cuFileDriverOpen, (void))                                                      \
  X(vmem::gpu::CuFileError, cuFileDriverClose, (void))                                                     \
  X(vmem::gpu::CuFileError, cuFileDriverClose_v2, (void))                                                  \
  X(vmem::gpu::CuFileError, cuFileDriverGetProperties, (vmem::gpu::CuFileProperties * properties))         \
  X(vmem::gpu::CuFileError, cuFileHandleRegister,                                                          \
    (vmem::gpu::CuFileHandle * handle, vmem::gpu::CuFileDescriptor * descriptor))                          \
  X(void, cuFileHandleDeregister, (vmem::gpu::CuFileHandle handle))                                        \
  X(ssize_t, cuFileRead,                                                                                   \
    (vmem::gpu::CuFileHandle handle, void* base, std::size_t bytes, off_t file_offset, off_t base_offset)) \
  X(vmem::gpu::CuFileError, cuFileGetVersion, (int* version))                                              \
  X(vmem::gpu::CuFileError, cuFileSetParameterBool, (int parameter, bool value))

// cuFile's own error codes. X(number, name)
#define VMEM_CUFILE_CODES(X)           \
  X(5001, DRIVER_NOT_INITIALIZED)      \
  X(5002, DRIVER_INVALID_PROPS)        \
  X(5003, DRIVER_UNSUPPORTED_LIMIT)    \
  X(5004, DRIVER_VERSION_MISMATCH)     \
  X(5005, DRIVER_VERSION_READ_ERROR)   \
  X(5006, DRIVER_CLOSING)              \
  X(5007, PLATFORM_NOT_SUPPORTED)      \
  X(5008, IO_NOT_SUPPORTED)            \
  X(5009, DEVICE_NOT_SUPPORTED)        \
  X(5010, NVFS_DRIVER_ERROR)           \
  X(5011, CUDA_DRIVER_ERROR)           \
  X(5012, CUDA_POINTER_INVALID)        \
  X(5013, CUDA_MEMORY_TYPE_INVALID)    \
  X(5014, CUDA_POINTER_RANGE_ERROR)    \
  X(5015, CUDA_CONTEXT_MISMATCH)       \
  X(5016, INVALID_MAPPING_SIZE)        \
  X(5017, INVALID_MAPPING_RANGE)       \
  X(5018, INVALID_FILE_TYPE)           \
  X(5019, INVALID_FILE_OPEN_FLAG)      \
  X(5020, DIO_NOT_SET)                 \
  X(5022, INVALID_VALUE)               \
  X(5025, PERMISSION_DENIED)           \
  X(5026, DRIVER_ALREADY_OPEN)         \
  X(5027, HANDLE_NOT_REGISTERED)       \
  X(5028, HANDLE_ALREADY_REGISTERED)   \
  X(5029, DEVICE_NOT_FOUND)            \
  X(5030, INTERNAL_ERROR)              \
  X(5031, GETNEWFD_FAILED)             \
  X(5033, NVFS_SETUP_ERROR)            \
  X(5034, IO_DISABLED)                 \
  X(5036, GPU_MEMORY_PINNING_FAILED)   \
  X(5043, NOMEM_ERROR)                 \
  X(5044, IO_ERROR)                    \
  X(5045, INTERNAL_BUF_REGISTER_ERROR) \
  X(5046, HASH_OPR_ERROR)              \
  X(5047, INVALID_CONTEXT_ERROR)       \
  X(5048, NVFS_INTERNAL_DRIVER_ERROR)

namespace vmem::gpu {

enum CuFileCode : int {
  CU_FILE_SUCCESS = 0,
  CU_FILE_CODES_BEGIN = 5000,  // above every errno
#define VMEM_DECLARE(number, name) CU_FILE_##name = number,
  VMEM_CUFILE_CODES(VMEM_DECLARE)
#undef VMEM_DECLARE
};

struct CuFileError {
  int code;
  int driver;  // the CUresult behind CU_FILE_CUDA_DRIVER_ERROR
};
static_assert(sizeof(CuFileError) == 8);

using CuFileHandle = void*;

inline constexpr int kCuFileDescriptorIsFd = 1;
struct CuFileDescriptor {
  int type;
  union {
    int fd;
    void* other;
  };
  const void* operations;  // for user-space file systems
};
static_assert(sizeof(CuFileDescriptor) == 24);

struct CuFileProperties {
  struct {
    unsigned major, minor;  // 0: no nvidia-fs
    std::size_t poll_threshold_kb, direct_io_kb_max;
    unsigned file_systems, control;
  } nvidia_fs;
  unsigned features;
  unsigned cache_kb_max, cache_kb_per_buffer, pinned_kb_max, batch_max, batch_timeout_ms;
};
static_assert(sizeof(CuFileProperties) == 56);
// Bit of `control`: compatibility mode is allowed.
inline constexpr unsigned kCuFileControlCompatBit = 1;
// Bit of `features`: PCI P2PDMA, which needs no nvidia-fs.
inline constexpr unsigned kCuFileFeatureP2pBit = 4;

inline constexpr int kCuFileAllowCompatMode = 1;  // of cuFileSetParameterBool

struct CuFileTable {
#define VMEM_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  VMEM_CUFILE_FUNCTIONS(VMEM_DECLARE)
#undef VMEM_DECLARE
};

}  // namespace vmem::gpu
