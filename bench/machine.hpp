// The host on which figures were measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace vmem::bench {

struct Machine {
  std::string cpu;     // model name
  unsigned cores = 0;  // usable by this process
  std::string system;  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"
  std::uint64_t memory_bytes = 0;
  // Without swapping, and below the container's limit.
  std::uint64_t memory_available_bytes = 0;
  std::optional<std::uint64_t> container_limit_bytes;  // of the control group, if any
};

Machine read_machine();

}  // namespace vmem::bench
