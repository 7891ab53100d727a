// Whether the installed UCX moves GPU memory itself, without a copy in host memory. UCX does where
// it was built for CUDA, and where its transports can register that memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

enum class UcxMemoryType : std::uint8_t { host, cuda };

struct UcxMemoryPath {
  std::string version;  // of UCX: "1.13.1"
  // A slab of that memory was registered as what it is.
  bool direct = false;
  std::string why;  // why not: "it has no CUDA memory type"
};

// UCX's settings, without the prefix UCX_, with its transports for CUDA memory besides.
std::vector<std::pair<std::string, std::string>> with_cuda(std::vector<std::pair<std::string, std::string>> settings);

// Asks UCX with a context of its own, which ends before this returns. `slab` is called only if UCX
// knows the type: it gives memory of that type, at least a page of the system, which has to live
// until this returns. For CUDA memory a CUDA context has to be current.
// Errors: UNSUPPORTED without UCX 1.13 or newer; INVALID_OPTION for settings that it does not take,
// such as devices that are not there.
Result<UcxMemoryPath> ask_ucx_about_memory(const std::vector<std::pair<std::string, std::string>>& settings,
                                           UcxMemoryType type, const std::function<Result<Bytes>()>& slab);

}  // namespace vmem::rdma
