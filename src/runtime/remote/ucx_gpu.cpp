#include "runtime/remote/ucx_gpu.hpp"

#include <fmt/format.h>

#include "base/log.hpp"

namespace vmem::runtime {
namespace {

// The contexts of this thread's stack, the current one first; none is current afterwards.
std::vector<CUcontext> pop_all(const gpu::Driver& driver) {
  std::vector<CUcontext> contexts;
  CUcontext current = nullptr;
  while (driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr &&
         driver->cuCtxPopCurrent(&current) == CUDA_SUCCESS)
    contexts.push_back(current);
  return contexts;
}

}  // namespace

rdma::UcxMemoryType ucx_memory_type(const gpu::Driver& driver) {
  return driver.emulated() ? rdma::UcxMemoryType::host : rdma::UcxMemoryType::cuda;
}

std::function<void(const std::function<void()>& call)> without_context(gpu::DriverRef driver) {
  return [driver = std::move(driver)](const std::function<void()>& call) {
    const std::vector<CUcontext> contexts = pop_all(*driver);
    call();
    for (auto each = contexts.rbegin(); each != contexts.rend(); ++each) {
      const Status pushed = driver->check((*driver)->cuCtxPushCurrent(*each), "cuCtxPushCurrent");
      if (!pushed) VMEM_LOG_ERROR("a thread that registered memory with UCX: {}", pushed.error().message);
    }
  };
}

std::optional<rdma::UcxGpuMemory> receive_from_gpus(const gpu::DriverRef& driver,
                                                    const std::vector<std::pair<std::string, std::string>>& settings) {
  const rdma::UcxMemoryType type = ucx_memory_type(*driver);
  const bool cuda = type == rdma::UcxMemoryType::cuda;
  const auto asked = rdma::ask_ucx_about_memory(cuda ? rdma::with_cuda(settings) : settings, type, {});
  if (asked && asked->direct) return rdma::UcxGpuMemory{.type = type, .without_context = without_context(driver)};
  VMEM_LOG_INFO("pages in HBM that other nodes lend come through staging there: {}",
                asked ? fmt::format("UCX {} here does not receive from GPU memory: {}", asked->version, asked->why)
                      : asked.error().message);
  return std::nullopt;
}

}  // namespace vmem::runtime
