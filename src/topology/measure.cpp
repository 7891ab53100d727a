#include "topology/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "gpu/memory_location.hpp"
#include "topology/paths.hpp"

namespace vmem::topology {
namespace {

using Clock = std::chrono::steady_clock;

// Physical memory mapped at its own address, accessible to the given devices.
class Buffer {
 public:
  static Result<Buffer> create(const gpu::DriverRef& driver, std::uint64_t bytes, const CUmemAllocationProp& where,
                               std::span<const int> devices) {
    Buffer buffer(driver);
    VMEM_ASSIGN(buffer.handle_, gpu::VmmHandle::create(driver, bytes, where));
    VMEM_ASSIGN(buffer.range_, gpu::Reservation::create(driver, bytes));
    VMEM_TRY(driver->check((*driver)->cuMemMap(buffer.address(), bytes, 0, buffer.handle_.get(), 0), "cuMemMap"));
    buffer.mapped_ = true;
    std::vector<CUmemAccessDesc> access;
    for (const int device : devices) access.push_back({gpu::on_device(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    VMEM_TRY(driver->check((*driver)->cuMemSetAccess(buffer.address(), bytes, access.data(), access.size()),
                           "cuMemSetAccess"));
    return buffer;
  }
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : driver_(std::move(other.driver_)),
        handle_(std::move(other.handle_)),
        range_(std::move(other.range_)),
        mapped_(std::exchange(other.mapped_, false)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    std::swap(range_, other.range_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~Buffer() {
    if (mapped_) (void)(*driver_)->cuMemUnmap(address(), range_.bytes());
  }
  CUdeviceptr address() const { return range_.begin(); }
  explicit operator bool() const { return mapped_; }

 private:
  explicit Buffer(gpu::DriverRef driver) : driver_(std::move(driver)) {}
  gpu::DriverRef driver_;
  gpu::VmmHandle handle_;
  gpu::Reservation range_;
  bool mapped_ = false;
};

// A measured device: its context, a stream for each direction, two buffers of its memory.
struct Device {
  NodeIndex node;
  int ordinal = 0;
  gpu::PrimaryContext context;
  gpu::Stream in, out;
  Buffer memory, other;
};

// A copy repeated throughout one measurement.
struct Flow {
  const Device* device;  // its context is used
  const gpu::Stream* stream;
  CUdeviceptr to, from;
  std::uint64_t bytes;
};

// The part of a buffer for one of several devices.
struct Slice {
  std::uint64_t offset, bytes;
};

class Measurer {
 public:
  Measurer(Topology& topology, gpu::DriverRef driver, const MeasureOptions& options)
      : topology_(topology), driver_(std::move(driver)), options_(options) {}

  Status run() {
    for (const NodeIndex node : topology_.all(NodeKind::device)) {
      auto opened = open(node);
      if (opened)
        devices_.push_back(*std::move(opened));
      else
        unknown(fmt::format("rates of {}: {}", describe(topology_[node]), opened.error().message));
    }
    if (devices_.empty())
      return fail(VMEM_ERROR_DRIVER, "no device could be used for measuring" +
                                         (topology_.unknown.empty() ? "" : "; " + topology_.unknown.back()));
    open_host_nodes();
    for (const Device& device : devices_) measure_alone(device);
    for (const Device& device : devices_) measure_peers(device);
    for (const NodeIndex node : topology_.all(NodeKind::pcie_switch)) measure_switch(node);
    set_nvlinks();
    set_sockets();
    return {};
  }

 private:
  void unknown(std::string sentence) { topology_.unknown.push_back(std::move(sentence)); }
  void step(const std::string& what) const {
    if (options_.on_step) options_.on_step(what);
  }

  // ---- memory ----

  Result<Device> open(NodeIndex node) {
    Device device{node, topology_[node].number, {}, {}, {}, {}, {}};
    CUdevice handle = 0;
    VMEM_TRY(driver_->check((*driver_)->cuDeviceGet(&handle, device.ordinal), "cuDeviceGet"));
    VMEM_ASSIGN(device.context, gpu::PrimaryContext::retain(driver_, handle));
    VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver_, device.context.context()));
    VMEM_ASSIGN(device.in, gpu::Stream::create(driver_));
    VMEM_ASSIGN(device.out, gpu::Stream::create(driver_));
    const CUmemAllocationProp where = gpu::device_memory(device.ordinal, false);
    std::vector<int> reach = {device.ordinal};
    for (const NodeIndex other : topology_.all(NodeKind::device))
      if (other != node && reaches(topology_[other].number, device.ordinal)) reach.push_back(topology_[other].number);
    VMEM_ASSIGN(device.memory, Buffer::create(driver_, options_.buffer_bytes, where, reach));
    VMEM_ASSIGN(device.other, Buffer::create(driver_, options_.buffer_bytes, where, reach));
    return device;
  }

  bool reaches(int from, int to) const {
    return std::size_t(from) < topology_.peers.size() && topology_.peers[std::size_t(from)][std::size_t(to)].reachable;
  }

  void open_host_nodes() {
    std::vector<int> all;
    for (const Device& device : devices_) all.push_back(device.ordinal);
    for (const NodeIndex node : topology_.all(NodeKind::host)) {
      const CUmemAllocationProp where = gpu::host_memory(topology_[node].number, false);
      auto in = Buffer::create(driver_, options_.buffer_bytes, where, all);
      auto out = Buffer::create(driver_, options_.buffer_bytes, where, all);
      if (in && out)
        hosts_[node] = {*std::move(in), *std::move(out)};
      else
        unknown(fmt::format("rates of {}: {}", describe(topology_[node]), (in ? out : in).error().message));
    }
  }

  // ---- one figure ----

  Status queue(const Flow& flow) const {
    VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver_, flow.device->context.context()));
    return driver_->check((*driver_)->cuMemcpyAsync(flow.to, flow.from, flow.bytes, flow.stream->get()),
                          "cuMemcpyAsync");
  }

  Status finish(std::span<const Flow> flows) const {
    for (const Flow& flow : flows) {
      VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver_, flow.device->context.context()));
      VMEM_TRY(flow.stream->synchronize());
    }
    return {};
  }

  // Seconds for `copies` copies of each flow, queued back to back.
  Result<double> time_round(std::span<const Flow> flows, int copies) const {
    const auto begin = Clock::now();
    for (int i = 0; i < copies; ++i)
      for (const Flow& flow : flows) VMEM_TRY(queue(flow));
    VMEM_TRY(finish(flows));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // The sum of all flows in bytes/s: the best of several rounds, since other load only slows a
  // copy. Rounds are long enough to hide the final wait. The first round, which includes set-up, is
  // discarded.
  Result<double> rate_of(std::span<const Flow> flows) const {
    constexpr double kShortestRound_s = 0.002;
    constexpr int kFewestRounds = 3;
    VMEM_TRY(time_round(flows, 1));
    int copies = 1;
    VMEM_ASSIGN(double best_s, time_round(flows, copies));
    while (best_s < kShortestRound_s) {
      copies *= 2;
      VMEM_ASSIGN(best_s, time_round(flows, copies));
    }
    const auto end = Clock::now() + std::chrono::microseconds(options_.time_us);
    for (int round = 1; round < kFewestRounds || Clock::now() < end; ++round) {
      VMEM_ASSIGN(const double seconds, time_round(flows, copies));
      best_s = std::min(best_s, seconds);
    }
    double bytes = 0;
    for (const Flow& flow : flows) bytes += double(flow.bytes);
    return bytes * copies / best_s;
  }

  // Unknown, with the reason kept, if the measurement fails.
  Rate measured(std::span<const Flow> flows, const std::string& what) {
    step(what);
    const auto rate = rate_of(flows);
    if (rate) return {*rate, Origin::measured};
    unknown(fmt::format("the rate of {}: {}", what, rate.error().message));
    return {};
  }

  // ---- what is measured ----

  struct Host {
    Buffer in, out;
  };

  Slice whole() const { return {0, options_.buffer_bytes}; }
  static Flow fetch(const Device& device, const Host& host, Slice slice) {
    return {&device, &device.in, device.memory.address(), host.in.address() + slice.offset, slice.bytes};
  }
  static Flow store(const Device& device, const Host& host, Slice slice) {
    return {&device, &device.out, host.out.address() + slice.offset, device.other.address(), slice.bytes};
  }

  std::string between(NodeIndex from, NodeIndex to) const {
    return fmt::format("{} to {}", describe(topology_[from]), describe(topology_[to]));
  }

  // Copies within the device's memory, and to and from each NUMA node. The nearest node gives the
  // rates of the device's PCIe link.
  void measure_alone(const Device& device) {
    const Flow inside{&device, &device.in, device.memory.address(), device.other.address(), options_.buffer_bytes};
    topology_.set_copy(device.node, device.node, measured(std::span(&inside, 1), between(device.node, device.node)));
    for (const auto& [node, host] : hosts_) {
      const Flow in = fetch(device, host, whole()), out = store(device, host, whole());
      topology_.set_copy(node, device.node, measured(std::span(&in, 1), between(node, device.node)));
      topology_.set_copy(device.node, node, measured(std::span(&out, 1), between(device.node, node)));
    }
    const auto near = nearest(device);
    if (!near) return;
    const auto link = std::ranges::find_if(
        topology_.links, [&](const Link& l) { return l.kind == LinkKind::pcie && l.b == device.node; });
    if (link == topology_.links.end()) return;
    const Host& host = hosts_.at(*near);
    const std::array flows = {fetch(device, host, whole()), store(device, host, whole())};
    link->forward = topology_.copy(*near, device.node)->rate;
    link->backward = topology_.copy(device.node, *near)->rate;
    link->both = measured(flows, fmt::format("{} and back", between(*near, device.node)));
  }

  // Nearest by the number of links on the path.
  std::optional<NodeIndex> nearest(const Device& device) const {
    std::optional<NodeIndex> best;
    std::size_t distance = 0;
    for (const auto& [node, host] : hosts_) {
      const auto path = best_path(topology_, node, device.node);
      if (!path || (best && path->steps.size() >= distance)) continue;
      best = node;
      distance = path->steps.size();
    }
    return best;
  }

  void measure_peers(const Device& device) {
    for (const Device& peer : devices_) {
      if (&peer == &device || !reaches(device.ordinal, peer.ordinal)) continue;
      const Flow flow{&device, &device.out, peer.memory.address(), device.other.address(), options_.buffer_bytes};
      topology_.set_copy(device.node, peer.node, measured(std::span(&flow, 1), between(device.node, peer.node)));
    }
  }

  // All devices below the switch at once.
  void measure_switch(NodeIndex node) {
    const auto link =
        std::ranges::find_if(topology_.links, [&](const Link& l) { return l.kind == LinkKind::pcie && l.b == node; });
    if (link == topology_.links.end()) return;
    const auto index = std::uint32_t(link - topology_.links.begin());
    std::vector<Flow> in, out;
    const std::uint64_t bytes = options_.buffer_bytes / devices_.size();
    for (const Device& device : devices_) {
      const auto near = nearest(device);
      const auto path = near ? best_path(topology_, *near, device.node) : std::nullopt;
      if (!path || std::ranges::find(path->steps, index, &Step::link) == path->steps.end()) continue;
      const Slice slice{in.size() * bytes, bytes};
      in.push_back(fetch(device, hosts_.at(*near), slice));
      out.push_back(store(device, hosts_.at(*near), slice));
    }
    if (in.empty()) return;
    const std::string what = describe(topology_[node]);
    link->forward = measured(in, "all devices below " + what);
    link->backward = measured(out, "all devices below " + what + ", upwards");
  }

  // NVLinks get the rates of the copies between their devices.
  void set_nvlinks() {
    for (Link& link : topology_.links) {
      if (link.kind != LinkKind::nvlink) continue;
      if (topology_[link.b].kind == NodeKind::device) {
        take(link.forward, topology_.copy(link.a, link.b));
        take(link.backward, topology_.copy(link.b, link.a));
        continue;
      }
      for (const Copy& copy : topology_.copies) {
        if (copy.from == copy.to || topology_[copy.from].kind != NodeKind::device ||
            topology_[copy.to].kind != NodeKind::device)
          continue;
        if (copy.from == link.a) take_larger(link.forward, copy.rate);
        if (copy.to == link.a) take_larger(link.backward, copy.rate);
      }
    }
  }

  static void take(Rate& rate, const Copy* copy) {
    if (copy != nullptr && copy->rate.known()) rate = copy->rate;
  }
  static void take_larger(Rate& rate, const Rate& found) {
    if (found.known() && (rate.origin != Origin::measured || found.bytes_per_s > rate.bytes_per_s)) rate = found;
  }

  // A socket's rate is the fastest copy across it between a device and a memory, if slower than the
  // PCIe link's own rate: then the socket is the limit. A socket that limits no single copy stays
  // without a rate.
  void set_sockets() {
    constexpr double kLimits = 0.9;
    for (std::uint32_t i = 0; i < topology_.links.size(); ++i) {
      if (topology_.links[i].kind != LinkKind::socket) continue;
      for (const bool forward : {true, false}) {
        double fastest = 0, alone = 0;
        for (const Copy& copy : topology_.copies) {
          if (!copy.rate.known() || topology_[copy.from].kind == topology_[copy.to].kind) continue;
          const auto path = best_path(topology_, copy.from, copy.to);
          if (!path || std::ranges::find(path->steps, Step{i, forward}) == path->steps.end()) continue;
          fastest = std::max(fastest, copy.rate.bytes_per_s);
          for (const Step each : path->steps)
            if (topology_.links[each.link].kind == LinkKind::pcie)
              alone = std::max(alone, step_rate(topology_, each).value_or(0));
        }
        Link& link = topology_.links[i];
        if (fastest > 0 && fastest < kLimits * alone)
          (forward ? link.forward : link.backward) = {fastest, Origin::measured};
      }
    }
  }

  Topology& topology_;
  const gpu::DriverRef driver_;
  const MeasureOptions& options_;
  std::vector<Device> devices_;
  std::map<NodeIndex, Host> hosts_;
};

}  // namespace

Status measure(Topology& topology, const gpu::DriverRef& driver, const MeasureOptions& options) {
  return Measurer(topology, driver, options).run();
}

}  // namespace vmem::topology
