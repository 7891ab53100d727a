// The host that figures were measured on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace vmem::bench {

struct Machine {
  std::string cpu;     // model name
  unsigned cores = 0;  // this process may use
  std::string system;  // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available_bytes = 0;            // without swapping, and below the container's limit
  std::optional<std::uint64_t> container_limit_bytes;  // of the control group, where there is one
};

Machine read_machine();

}  // namespace vmem::bench
