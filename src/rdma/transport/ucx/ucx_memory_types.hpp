// Whether the installed UCX moves GPU memory itself, without a copy in host memory. UCX does where
// it was built for CUDA, and where its transports can register that memory.
//
// The memory of an emulated GPU is host memory, and UCX is told so.
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

// GPU memory that UCX knows: a transport sends from it, or receives what peers send from theirs.
struct UcxGpuMemory {
  UcxMemoryType type = UcxMemoryType::cuda;
  // Makes the calling thread ready for UCX: a context of the GPU is current if the transport has
  // memory of its own there, and driver calls disturb no capture. Each thread that uses UCX calls
  // it before, perhaps more than once. May be empty.
  std::function<void()> enter_thread = {};
  // Calls with no context current on this thread: with one, UCX pins all host memory that it
  // registers for the GPU, too. Empty: there are no contexts.
  std::function<void(const std::function<void()>& call)> without_context = {};
};

struct UcxMemoryPath {
  std::string version;  // of UCX: "1.13.1"
  // UCX knows that memory, and registered the slab, if there was one, as what it is.
  bool direct = false;
  std::string why;  // why not: "it has no CUDA memory type"
};

// UCX's settings, without the prefix UCX_, with its transport that copies CUDA memory besides. UCX
// tells CUDA memory from host memory by it, and registers it with the other transports, or copies
// it in pieces for them. Its other CUDA transports move memory between GPUs only.
std::vector<std::pair<std::string, std::string>> with_cuda(std::vector<std::pair<std::string, std::string>> settings);

// Asks UCX with a context of its own, which ends before this returns. `slab` is called only if UCX
// knows the type: it gives memory of that type, at least a page of the system, which has to live
// until this returns. For CUDA memory a CUDA context has to be current. Empty: nothing is
// registered, as for a transport that receives from such memory and has none.
// Errors: UNSUPPORTED without UCX 1.13 or newer; INVALID_OPTION for settings that it does not take,
// such as devices that are not there.
Result<UcxMemoryPath> ask_ucx_about_memory(const std::vector<std::pair<std::string, std::string>>& settings,
                                           UcxMemoryType type, const std::function<Result<Bytes>()>& slab);

}  // namespace vmem::rdma
