#include "topology/host_tree.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <utility>

namespace vmem::topology {
namespace {

constexpr const char* kLibrary = "libhwloc.so.15";  // hwloc 2
constexpr const char* kAdvice = "install hwloc 2 (Debian, Ubuntu: libhwloc15)";
constexpr unsigned kMajorVersion = 2;
constexpr double kBytesPerMegabit = 1e6 / 8;

#define VMEM_HWLOC_FUNCTIONS(X)         \
  X(hwloc_get_api_version)              \
  X(hwloc_topology_init)                \
  X(hwloc_topology_load)                \
  X(hwloc_topology_destroy)             \
  X(hwloc_topology_set_components)      \
  X(hwloc_topology_set_io_types_filter) \
  X(hwloc_topology_set_xml)             \
  X(hwloc_get_nbobjs_by_depth)          \
  X(hwloc_get_obj_by_depth)             \
  X(hwloc_bitmap_first)                 \
  X(hwloc_bitmap_weight)

struct Hwloc {
#define VMEM_DECLARE(name) decltype(&::name) name = nullptr;
  VMEM_HWLOC_FUNCTIONS(VMEM_DECLARE)
#undef VMEM_DECLARE
};

Result<Hwloc> load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("hwloc cannot be loaded ({}); {}", reason ? reason : kLibrary, kAdvice));
  }
  Hwloc hwloc;
  const char* missing = nullptr;
#define VMEM_RESOLVE(name)                                                    \
  hwloc.name = reinterpret_cast<decltype(hwloc.name)>(dlsym(library, #name)); \
  if (hwloc.name == nullptr) missing = #name;
  VMEM_HWLOC_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  if (missing != nullptr) return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("hwloc lacks {}; {}", missing, kAdvice));
  if (hwloc.hwloc_get_api_version() >> 16 != kMajorVersion)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} has version {:#x} of hwloc's interface; {}", kLibrary,
                                                    hwloc.hwloc_get_api_version(), kAdvice));
  return hwloc;
}

// From /sys, because hwloc has no rates of network cards.
std::optional<double> card_rate(const std::string& name) {
  std::ifstream in("/sys/class/net/" + name + "/speed");
  double megabits_per_s = 0;
  if (in >> megabits_per_s && megabits_per_s > 0) return megabits_per_s * kBytesPerMegabit;
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(const Hwloc& hwloc) : hwloc_(hwloc) {}
  ~Reader() {
    if (topology_ != nullptr) hwloc_.hwloc_topology_destroy(topology_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Status load(const std::string& xml) {
    if (hwloc_.hwloc_topology_init(&topology_) != 0) return refuse("starts no topology");
    // hwloc's GPU components would start the GPUs' drivers.
    for (const char* component : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"})
      (void)hwloc_.hwloc_topology_set_components(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    if (hwloc_.hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
      return refuse("does not look at PCIe");
    if (!xml.empty() && hwloc_.hwloc_topology_set_xml(topology_, xml.c_str()) != 0) return refuse("cannot read " + xml);
    if (hwloc_.hwloc_topology_load(topology_) != 0) return refuse("cannot look at this machine");
    return {};
  }

  HostTree read(bool this_machine) {
    each(HWLOC_TYPE_DEPTH_NUMANODE, [&](hwloc_obj_t object) {
      tree_.numa_nodes.push_back({int(object->os_index), object->attr->numanode.local_memory});
    });
    std::ranges::sort(tree_.numa_nodes, {}, &HostTree::NumaNode::number);
    each(HWLOC_TYPE_DEPTH_BRIDGE, [&](hwloc_obj_t object) { (void)pci_of(object); });
    each(HWLOC_TYPE_DEPTH_PCI_DEVICE, [&](hwloc_obj_t object) { (void)pci_of(object); });
    each(HWLOC_TYPE_DEPTH_OS_DEVICE, [&](hwloc_obj_t object) { add_os_device(object, this_machine); });
    return std::move(tree_);
  }

 private:
  static Status refuse(const std::string& what) { return fail(VMEM_ERROR_UNSUPPORTED, "hwloc " + what); }

  template <class Visit>
  void each(int depth, Visit visit) {
    const unsigned count = hwloc_.hwloc_get_nbobjs_by_depth(topology_, depth);
    for (unsigned i = 0; i < count; ++i) visit(hwloc_.hwloc_get_obj_by_depth(topology_, depth, i));
  }

  // The index of a bridge or device on the bus; adds it after its parents. No value: a host bridge,
  // or no PCI object.
  std::optional<std::size_t> pci_of(hwloc_obj_t object) {
    const bool bridge = object->type == HWLOC_OBJ_BRIDGE;
    if (!bridge && object->type != HWLOC_OBJ_PCI_DEVICE) return std::nullopt;
    if (bridge && object->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI) return std::nullopt;
    if (const auto known = known_.find(object); known != known_.end()) return known->second;
    const auto parent = object->parent != nullptr ? pci_of(object->parent) : std::nullopt;
    const auto& pci = bridge ? object->attr->bridge.upstream.pci : object->attr->pcidev;
    tree_.pci.push_back({{pci.domain, pci.bus, pci.dev, pci.func}, parent, numa_node_of(object), bridge});
    return known_[object] = tree_.pci.size() - 1;
  }

  // The NUMA node of the nearest ancestor with a nodeset, if the nodeset has exactly one node.
  std::optional<int> numa_node_of(hwloc_obj_t object) const {
    while (object != nullptr && object->nodeset == nullptr) object = object->parent;
    if (object == nullptr || hwloc_.hwloc_bitmap_weight(object->nodeset) != 1) return std::nullopt;
    return hwloc_.hwloc_bitmap_first(object->nodeset);
  }

  void add_os_device(hwloc_obj_t object, bool this_machine) {
    if (object->name == nullptr || object->parent == nullptr) return;
    const auto pci = pci_of(object->parent);
    if (!pci) return;
    const std::string name = object->name;
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_BLOCK) tree_.drives.push_back({name, *pci});
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK)
      tree_.cards.push_back({name, *pci, this_machine ? card_rate(name) : std::nullopt});
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_ = nullptr;
  HostTree tree_;
  std::map<hwloc_obj_t, std::size_t> known_;
};

}  // namespace

std::optional<PciAddress> PciAddress::parse(const std::string& text) {
  PciAddress address;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (const auto& [field, separator] : {std::pair{&address.domain, ':'}, std::pair{&address.bus, ':'},
                                         std::pair{&address.device, '.'}, std::pair{&address.function, '\0'}}) {
    const auto [stop, code] = std::from_chars(at, end, *field, 16);
    if (code != std::errc()) return std::nullopt;
    at = stop;
    if (separator == '\0') break;
    if (at == end || *at != separator) return std::nullopt;
    ++at;
  }
  if (at != end) return std::nullopt;
  return address;
}

std::string PciAddress::text() const { return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function); }

std::optional<std::size_t> HostTree::find(const PciAddress& address) const {
  const auto found = std::ranges::find(pci, address, &Pci::address);
  if (found == pci.end()) return std::nullopt;
  return std::size_t(found - pci.begin());
}

Result<HostTree> read_host_tree(const std::string& xml) {
  VMEM_ASSIGN(const Hwloc hwloc, load());
  Reader reader(hwloc);
  VMEM_TRY(reader.load(xml));
  return reader.read(xml.empty());
}

}  // namespace vmem::topology
