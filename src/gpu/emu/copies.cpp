#include "gpu/emu/copies.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "gpu/emu/machine.hpp"

namespace vmem::emu {
namespace {

using Segments = std::vector<Segment>;

constexpr int kNearby = -1;  // NUMA node of memory near every device

// Memory outside the driver's reservations is host memory.
std::optional<Segments> find_segments(std::uint64_t address, std::size_t bytes, int device, Access wanted) {
  AddressSpace& space = machine().addresses();
  if (space.contains(address)) return space.segments(address, bytes, device, wanted);
  return Segments{{reinterpret_cast<std::byte*>(address), bytes, {true, kNearby}, nullptr}};
}

// A GPU's copy engine allocates no process memory, so the emulated one retries instead of failing.
std::optional<Segments> segments_of(std::uint64_t address, std::size_t bytes, int device, Access wanted) {
  for (;;) {
    try {
      return find_segments(address, bytes, device, wanted);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

class Path {
 public:
  Path(Location source, Location target) {
    Machine& m = machine();
    Device* from = source.host ? nullptr : m.device(source.id);
    Device* to = target.host ? nullptr : m.device(target.id);
    if (from == to) return;
    Link* const peer = from && to ? from->to_peer[static_cast<std::size_t>(to->ordinal)].get() : nullptr;
    if (peer && m.config().nvlink) {
      add(*peer);
      return;
    }
    // The PCIe path. Devices without peer access copy through the host, which is the same path.
    const bool below_one_switch =
        from && to && m.uplink(from->ordinal) && m.uplink(from->ordinal) == m.uplink(to->ordinal);
    if (from) up(*from, below_one_switch);
    cross(from ? m.config().numa_node(from->ordinal) : source.id, to ? m.config().numa_node(to->ordinal) : target.id);
    if (to) down(*to, below_one_switch);
  }
  std::span<Link* const> links() const { return std::span(links_).first(count_); }

 private:
  void add(Link& link) { links_[count_++] = &link; }
  // An unthrottled shared link would still serialise the copies of several devices.
  void add_shared(Link& link) {
    if (link.throttles()) add(link);
  }
  void up(Device& device, bool stays_below) {
    add(device.d2h);
    if (device.limits_duplex) add(device.host_duplex);
    if (SharedLink* uplink = machine().uplink(device.ordinal); uplink && !stays_below) add_shared(uplink->up);
  }
  void down(Device& device, bool stays_below) {
    add(device.h2d);
    if (device.limits_duplex) add(device.host_duplex);
    if (SharedLink* uplink = machine().uplink(device.ordinal); uplink && !stays_below) add_shared(uplink->down);
  }
  void cross(int from_node, int to_node) {
    if (from_node == to_node || from_node == kNearby || to_node == kNearby) return;
    SharedLink& socket = machine().socket(from_node, to_node);
    add_shared(from_node < to_node ? socket.down : socket.up);
  }

  std::array<Link*, 7> links_{};
  std::size_t count_ = 0;
};

}  // namespace

Reach reach_of(std::uint64_t address) {
  if (machine().addresses().contains(address)) return Reach::vmm;
  return machine().pinned().find(address).bytes > 0 ? Reach::pinned : Reach::pageable;
}

void run_transfer(Context& context, const Transfer& transfer, FixedCost fixed_cost) {
  const auto targets = segments_of(transfer.target, transfer.bytes, transfer.target_device, Access::read_write);
  const auto sources = segments_of(transfer.source, transfer.bytes, transfer.source_device, Access::read);
  if (!targets || !sources) return context.set_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::chrono::duration<double, std::micro> fixed_us(machine().config().copy_us);
  auto fixed = std::chrono::duration_cast<Link::Clock::duration>(fixed_us);
  if (fixed_cost == FixedCost::waived) fixed = {};
  std::size_t done = 0, t = 0, s = 0, t_offset = 0, s_offset = 0;
  while (done < transfer.bytes) {
    const Segment &target = (*targets)[t], &source = (*sources)[s];
    const std::size_t bytes = std::min(target.bytes - t_offset, source.bytes - s_offset);
    const Path path(source.location, target.location);
    vmem::emu::transfer(path.links(), bytes, std::exchange(fixed, {}),
                        [&] { std::memmove(target.data + t_offset, source.data + s_offset, bytes); });
    done += bytes;
    t_offset += bytes;
    s_offset += bytes;
    if (t_offset == target.bytes) ++t, t_offset = 0;
    if (s_offset == source.bytes) ++s, s_offset = 0;
  }
}

void run_fill(Context& context, std::uint64_t target, std::uint32_t value, unsigned value_bytes, std::size_t bytes) {
  const auto segments = segments_of(target, bytes, context.device().ordinal, Access::read_write);
  if (!segments) return context.set_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  for (const Segment& segment : *segments) {
    // Segments end at granules and the target is aligned, so no value straddles two segments.
    if (value_bytes == 1)
      std::memset(segment.data, static_cast<int>(value), segment.bytes);
    else if (value_bytes == 2)
      std::fill_n(reinterpret_cast<std::uint16_t*>(segment.data), segment.bytes / 2, static_cast<std::uint16_t>(value));
    else
      std::fill_n(reinterpret_cast<std::uint32_t*>(segment.data), segment.bytes / 4, value);
  }
}

}  // namespace vmem::emu
