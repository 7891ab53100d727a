// The configuration of the emulated machine, from VMEM_EMU and vmem_emu_configure.
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

// Granularity of DEVICE and HOST_NUMA memory, as on Hopper.
inline constexpr std::size_t granule_bytes = std::size_t{2} << 20;
inline constexpr int numa_count_max = 64;
inline constexpr int device_count_max = 16;  // the capacity of a granule's access word

struct PeerLink {
  bool connected = true;
  double gbps = 0;
};

// Devices below one PCIe switch. They share its uplink for copies to and from memory not below it.
struct PcieSwitch {
  std::vector<int> devices;
  double gbps = 0;  // per direction; 0: unthrottled
};

// The data path of the machine's cuFile.
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
  std::map<std::pair<int, int>, PeerLink> peer_links;  // (lower, higher) ordinal; default: p2p_gbps
  bool nvlink = true;                                  // false: peer copies use PCIe links
  std::vector<PcieSwitch> pcie_switches;
  std::map<int, int> device_nodes;  // devices not listed are spread over the NUMA nodes in order
  double socket_gbps = 0;           // between two NUMA nodes, per direction
  bool nvml = true;
  CuFileMode cufile = CuFileMode::compat;
  double copy_us = 0;
  bool workers = true;  // false: see step_scheduler.hpp
  bool vmm = true;
  bool host_vmm = true;
#ifdef NDEBUG
  bool check_host_access = false;
#else
  bool check_host_access = true;
#endif
  int version = 13000;

  std::uint64_t identity = 0;  // hash of the configuration; distinguishes machines

  PeerLink peer_link(int a, int b) const;
  int numa_node(int device) const;
  int pcie_switch(int device) const;  // index; -1: none
};

// Overlays `spec` ("key=value,key=value") on `config`. On false, `config` is unchanged and `error`
// holds a sentence.
bool parse_config(std::string_view spec, Config& config, std::string& error);

}  // namespace vmem::emu
