// System calls that the kernel refuses to a thread, as containers' seccomp profiles do.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <thread>

namespace vmem::tiers {

// Applies to the calling thread and its future threads, permanently. False: the filter was not
// installed.
inline bool forbid(unsigned call, unsigned error = EPERM) {
  std::array<sock_filter, 4> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Returns `make()` from a thread in which io_uring registrations fail for lack of memory.
template <class Make>
auto without_registration(Make make) {
  decltype(make()) made;
  std::thread([&] {
    if (forbid(__NR_io_uring_register, ENOMEM)) made = make();
  }).join();
  return made;
}

}  // namespace vmem::tiers
