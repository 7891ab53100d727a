// The emulated machine's shape: what VMEM_EMU and vmem_emu_configure say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vmem::emu {

inline constexpr std::size_t granule_bytes = std::size_t{2} << 20;  // of DEVICE and HOST_NUMA memory, as on Hopper
inline constexpr int numa_count_max = 64;
inline constexpr int device_count_max = 16;  // what a granule's access word has room for

struct PeerLink {
  bool connected = true;
  double gbps = 0;
};

// Devices below one PCIe switch: their copies to and from whatever is not below it share its way up.
struct PcieSwitch {
  std::vector<int> devices;
  double gbps = 0;  // in each direction; 0: unthrottled
};

// How the machine's cuFile moves bytes.
enum class CuFileMode { none, compat, direct };

struct Config {
  int devices = 1;
  std::uint64_t hbm_bytes = std::uint64_t{8} << 30;
  std::uint64_t host_bytes = std::uint64_t{8} << 30;
  int numa_nodes = 1;
  double h2d_gbps = 0;  // 0: unthrottled
  double d2h_gbps = 0;
  double p2p_gbps = 0;
  double duplex_gbps = 0;
  std::map<std::pair<int, int>, PeerLink> peer_links;  // (lower, higher) ordinal; pairs not listed use p2p_gbps
  bool nvlink = true;  // what joins peers; otherwise their copies take the devices' PCIe links
  std::vector<PcieSwitch> pcie_switches;
  std::map<int, int> device_nodes;  // devices not listed are spread over the NUMA nodes in order
  double socket_gbps = 0;           // between two NUMA nodes, in each direction
  bool nvml = true;
  CuFileMode cufile = CuFileMode::compat;
  double copy_us = 0;
  bool vmm = true;
  bool host_vmm = true;
#ifdef NDEBUG
  bool check_host_access = false;
#else
  bool check_host_access = true;
#endif
  int version = 13000;

  std::uint64_t identity = 0;  // of what the machine was configured with: two that differ are two machines

  PeerLink peer_link(int a, int b) const;
  int numa_node(int device) const;
  int pcie_switch(int device) const;  // an index; -1: below none
};

// Overlays `spec` ("key=value,key=value") on `config`. False, with a sentence in `error`, leaves `config` as it was.
bool parse_config(std::string_view spec, Config& config, std::string& error);

}  // namespace vmem::emu
