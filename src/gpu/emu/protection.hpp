// Which addresses are mapped, who may access them, and the protection of the pages that follows from it. This is the
// part of the address space that the fault handler reads, so it is a flat table of atomic words, one per 2 MiB of the
// whole user address range and committed lazily, with one spin lock that is never held while a kernel runs on the
// thread.
//
// With check_host_access a device mapping is inaccessible for the whole process until a kernel faults on it; the
// handler then looks the access up, opens the mapping for that kernel, and it is closed again when that kernel ends
// (others that use it fault and open it again). So a host thread that touches device memory faults, as it does on a
// real machine, unless it does so while a kernel has the same mapping open; and it is known which mappings running
// kernels use. Without the check a page is accessible to the whole process as soon as it is to one device.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace vmem::emu {

// The values of CUmemAccess_flags; two bits, and the union of two accesses is their bitwise or.
enum class Access : unsigned { none = 0, read = 1, read_write = 3 };

inline bool permits(Access granted, Access wanted) {
  return (static_cast<unsigned>(granted) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

// What each device, and the host, may do with a mapping.
class AccessSet {
 public:
  static constexpr unsigned host_shift = 32;
  static constexpr std::uint64_t all_bits = (std::uint64_t{1} << 34) - 1;

  AccessSet() = default;
  explicit AccessSet(std::uint64_t bits) : bits_(bits & all_bits) {}

  Access device(int ordinal) const { return at(2 * static_cast<unsigned>(ordinal)); }
  Access host() const { return at(host_shift); }
  void set_device(int ordinal, Access access) { set(2 * static_cast<unsigned>(ordinal), access); }
  void set_host(Access access) { set(host_shift, access); }
  Access any_device() const;
  std::uint64_t bits() const { return bits_; }

 private:
  Access at(unsigned shift) const { return static_cast<Access>(bits_ >> shift & 3); }
  void set(unsigned shift, Access access) {
    bits_ = (bits_ & ~(std::uint64_t{3} << shift)) | std::uint64_t{static_cast<unsigned>(access)} << shift;
  }
  std::uint64_t bits_ = 0;
};

namespace protection {

// Before any other call; again when the machine is configured anew, with nothing mapped. False: no room for the table.
bool start(bool check_host_access);

// Address ranges that belong to the emulated driver. False: too many, or the system refuses.
bool add_reservation(std::uint64_t begin, std::size_t bytes);
void remove_reservation(std::uint64_t begin);

// A kernel that has the range open, or null: changing a mapping under it is fatal on a GPU. Only known with
// check_host_access. The name is good for a message.
const char* kernel_using(std::uint64_t begin, std::size_t bytes);

// Both work on whole granules inside a reservation. False: the system refuses (its limit on mappings, most likely).
bool map(std::uint64_t begin, std::size_t bytes, int fd, off_t offset, AccessSet access);
bool unmap(std::uint64_t begin, std::size_t bytes);
// REQUIRES: begin, bytes are exactly those of a mapping.
bool set_access(std::uint64_t begin, std::size_t bytes, AccessSet access);

// Bracket every kernel; the mappings that its faults opened are closed when it ends.
struct RunningKernel {
  const char* name = nullptr;  // null: the thread runs no kernel
  int device = 0;
};
void kernel_ends(const RunningKernel& kernel);

// Async-signal-safe.
enum class Fault {
  resolved,      // the access is granted and the page open by now: run the instruction again
  unknown,       // not an address of the emulated driver
  unmapped,      // reserved, nothing mapped
  inaccessible,  // mapped, but without the access asked for
};
struct FaultReport {
  Fault fault = Fault::unknown;
  Access granted = Access::none;
};
FaultReport resolve_kernel_fault(std::uint64_t address, bool write, const RunningKernel& kernel);
FaultReport describe_host_fault(std::uint64_t address);

}  // namespace protection
}  // namespace vmem::emu
