#include "gpu/emu/machine.hpp"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/fault_handler.hpp"

namespace vmem::emu {

Device::Device(int number, const Config& config)
    : ordinal(number),
      memory(std::make_shared<PhysicalMemory>(config.hbm_bytes)),
      h2d(config.h2d_gbps),
      d2h(config.d2h_gbps),
      host_duplex(config.duplex_gbps),
      limits_duplex(config.duplex_gbps > 0) {
  for (int peer = 0; peer < config.devices; ++peer) {
    const PeerLink link = config.peer_link(ordinal, peer);
    if (peer != ordinal && link.connected) to_peer[static_cast<std::size_t>(peer)] = std::make_unique<Link>(link.gbps);
  }
}

bool PinnedRanges::insert(const Range& range) {
  const std::lock_guard lock(mutex_);
  const auto next = ranges_.lower_bound(range.begin);
  if (next != ranges_.end() && next->first < range.begin + range.bytes) return false;
  if (next != ranges_.begin()) {
    const Range& previous = std::prev(next)->second;
    if (range.begin - previous.begin < previous.bytes) return false;
  }
  ranges_.emplace(range.begin, range);
  return true;
}

PinnedRanges::Range PinnedRanges::erase(std::uint64_t begin, bool registered) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(begin);
  if (found == ranges_.end() || found->second.registered != registered) return {};
  const Range range = found->second;
  ranges_.erase(found);
  return range;
}

std::vector<PinnedRanges::Range> PinnedRanges::erase_owned_by(const Context* owner) {
  std::vector<Range> erased;
  const std::lock_guard lock(mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->second.owner != owner) {
      ++it;
      continue;
    }
    erased.push_back(it->second);
    it = ranges_.erase(it);
  }
  return erased;
}

PinnedRanges::Range PinnedRanges::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return {};
  const Range& range = std::prev(next)->second;
  return address - range.begin < range.bytes ? range : Range{};
}

bool PinnedRanges::empty() const {
  const std::lock_guard lock(mutex_);
  return ranges_.empty();
}

Machine& machine() {
  static auto* instance = new Machine;
  return *instance;
}

namespace {

// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

// The defaults, overlaid by VMEM_EMU, overlaid by `spec`.
bool Machine::read_config(const char* spec, std::string& error) {
  Config config;
  const char* environment = std::getenv("VMEM_EMU");
  if (environment && !parse_config(environment, config, error)) {
    error += " (in VMEM_EMU)";
    return false;
  }
  if (!parse_config(spec, config, error)) return false;
  config.identity = hash_of(std::string(environment ? environment : "") + ';' + spec);
  config_ = config;
  configured_ = true;
  return true;
}

CUresult Machine::initialize() {
  const std::lock_guard lock(setup_mutex_);
  if (initialized_) return CUDA_SUCCESS;
  std::string error;
  if (!configured_ && !read_config("", error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  pthread_atfork(nullptr, nullptr, mark_forked_child);
  build();
  if (!protection::start(config_.check_host_access)) return CUDA_ERROR_OUT_OF_MEMORY;
  install_fault_handler();
  initialized_ = true;
  return CUDA_SUCCESS;
}

bool Machine::configure(const char* spec, std::string& error) {
  const std::lock_guard lock(setup_mutex_);
  if (initialized_ && in_use()) {
    error =
        "emulated driver: contexts, allocations or reservations are in use; configure before them or after they are "
        "gone";
    return false;
  }
  if (!read_config(spec ? spec : "", error)) return false;
  if (initialized_) {
    build();
    protection::start(config_.check_host_access);
  }
  return true;
}

void Machine::build() {
  devices_.clear();
  pools.erase_if([](const Pool&) { return true; });
  for (int i = 0; i < config_.devices; ++i) {
    devices_.push_back(std::make_shared<Device>(i, config_));
    devices_.back()->default_pool = pools.insert(std::make_shared<Pool>(Pool{i, true}));
  }
  host_memory_ = std::make_shared<PhysicalMemory>(config_.host_bytes);
  uplinks_.clear();
  for (const PcieSwitch& each : config_.pcie_switches) uplinks_.push_back(std::make_unique<SharedLink>(each.gbps));
  sockets_.clear();
  for (int node = 0; node < config_.numa_nodes; ++node)
    for (int other = 0; other < node; ++other)
      sockets_[{other, node}] = std::make_unique<SharedLink>(config_.socket_gbps);
}

SharedLink* Machine::uplink(int device) const {
  const int index = config_.pcie_switch(device);
  return index < 0 ? nullptr : uplinks_[static_cast<std::size_t>(index)].get();
}

SharedLink& Machine::socket(int node, int other) { return *sockets_.at(std::minmax(node, other)); }

bool Machine::in_use() const { return !contexts.empty() || !frames.empty() || !addresses_.empty() || !pinned_.empty(); }

void Machine::synchronize_all() const {
  for (const auto& device : devices_)
    if (const auto context = device->primary_context()) context->synchronize();
}

Device* Machine::device(int ordinal) const {
  const auto index = static_cast<std::size_t>(ordinal);
  return ordinal >= 0 && index < devices_.size() ? devices_[index].get() : nullptr;
}

}  // namespace vmem::emu

int vmem_emu_configure(const char* spec, char* error, std::size_t error_bytes) {
  std::string message;
  if (vmem::emu::machine().configure(spec, message)) return 0;
  if (error && error_bytes > 0) {
    const std::size_t length = std::min(message.size(), error_bytes - 1);
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return -1;
}
