// The part of NVML that vmem uses: GPU links. Loaded at run time from libnvidia-ml.so.1 or from the
// emulated driver. Declared here because the driver ships the library, but only the toolkit ships
// the header. vmem works without NVML, with unknown values.
#pragma once

// X(result, name, parameters)
#define VMEM_NVML_FUNCTIONS(X)                                                                               \
  X(int, nvmlInit_v2, (void))                                                                                \
  X(const char*, nvmlErrorString, (int result))                                                              \
  X(int, nvmlDeviceGetHandleByPciBusId_v2, (const char* bus_id, vmem::gpu::NvmlDevice* device))              \
  X(int, nvmlDeviceGetTopologyCommonAncestor,                                                                \
    (vmem::gpu::NvmlDevice device, vmem::gpu::NvmlDevice other, unsigned* level))                            \
  X(int, nvmlDeviceGetP2PStatus,                                                                             \
    (vmem::gpu::NvmlDevice device, vmem::gpu::NvmlDevice other, unsigned what, unsigned* status))            \
  X(int, nvmlDeviceGetMaxPcieLinkGeneration, (vmem::gpu::NvmlDevice device, unsigned* generation))           \
  X(int, nvmlDeviceGetMaxPcieLinkWidth, (vmem::gpu::NvmlDevice device, unsigned* lanes))                     \
  X(int, nvmlDeviceGetNvLinkState, (vmem::gpu::NvmlDevice device, unsigned link, unsigned* active))          \
  X(int, nvmlDeviceGetNvLinkRemotePciInfo_v2,                                                                \
    (vmem::gpu::NvmlDevice device, unsigned link, vmem::gpu::NvmlPciInfo* remote))                           \
  X(int, nvmlDeviceGetNvLinkRemoteDeviceType, (vmem::gpu::NvmlDevice device, unsigned link, unsigned* type)) \
  X(int, nvmlDeviceGetFieldValues, (vmem::gpu::NvmlDevice device, int count, vmem::gpu::NvmlFieldValue* values))

namespace vmem::gpu {

using NvmlDevice = struct NvmlDeviceTag*;

struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(NvmlPciInfo) == 68);

struct NvmlFieldValue {
  unsigned field, scope;
  long long time_us, latency_us;
  unsigned type;
  int result;
  union {
    unsigned value;
    unsigned long long wide;
  };
};
static_assert(sizeof(NvmlFieldValue) == 40);

inline constexpr int kNvmlSuccess = 0, kNvmlInvalidArgument = 2, kNvmlNotSupported = 3, kNvmlNotFound = 6,
                     kNvmlDriverNotLoaded = 9;
// Levels of nvmlDeviceGetTopologyCommonAncestor: where the PCIe paths of two devices meet.
// kNvmlNumaNode and above lie beyond the host bridges.
inline constexpr unsigned kNvmlSameBoard = 0, kNvmlOneSwitch = 10, kNvmlSeveralSwitches = 20, kNvmlHostBridge = 30,
                          kNvmlNumaNode = 40, kNvmlSystem = 50;
inline constexpr unsigned kNvmlP2pOverNvlink = 2;  // for nvmlDeviceGetP2PStatus; 0 means yes
inline constexpr unsigned kNvmlRemoteGpu = 0, kNvmlRemoteSwitch = 2;
inline constexpr unsigned kNvmlFieldNvlinkSpeed = 164;  // MB/s (10^6) per direction of link `scope`
inline constexpr unsigned kNvmlMostLinks = 18;

struct NvmlTable {
#define VMEM_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  VMEM_NVML_FUNCTIONS(VMEM_DECLARE)
#undef VMEM_DECLARE
};

}  // namespace vmem::gpu
