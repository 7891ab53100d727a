// UCX and the memory of this process's GPUs: what transports of daemons and programs are told.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/handles.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"

namespace vmem::runtime {

// The memory of an emulated GPU is host memory.
rdma::UcxMemoryType ucx_memory_type(const gpu::Driver& driver);
// As UcxGpuMemory::without_context, whatever contexts are current on the calling thread.
std::function<void(const std::function<void()>& call)> without_context(gpu::DriverRef driver);
// Asks UCX whether a transport with these settings would receive payloads that a lender sends from
// its GPU's memory, and logs if not; then nullopt. Otherwise what the transport is to be told. It
// needs no context of a GPU: it sends from host memory and receives there. `driver` is not null.
std::optional<rdma::UcxGpuMemory> receive_from_gpus(const gpu::DriverRef& driver,
                                                    const std::vector<std::pair<std::string, std::string>>& settings);

}  // namespace vmem::runtime
