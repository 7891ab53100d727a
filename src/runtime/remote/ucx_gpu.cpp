#include "runtime/remote/ucx_gpu.hpp"

#include <fmt/format.h>

#include <boost/container/small_vector.hpp>

#include "base/log.hpp"
#include "base/of_vmem.hpp"

namespace vmem::runtime {
namespace {

// While it lives, this thread has no current context.
class NoContext {
 public:
  explicit NoContext(const gpu::Driver& driver) : driver_(driver) {
    CUcontext current = nullptr;
    while (driver_->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) {
      contexts_.push_back(current);  // before it is popped: memory may run out
      if (driver_->cuCtxPopCurrent(&current) == CUDA_SUCCESS) continue;
      contexts_.pop_back();
      break;
    }
  }
  ~NoContext() {
    for (auto each = contexts_.rbegin(); each != contexts_.rend(); ++each) {
      const Status pushed = driver_.check(driver_->cuCtxPushCurrent(*each), "cuCtxPushCurrent");
      if (!pushed) VMEM_LOG_ERROR("a thread that registered memory with UCX: {}", pushed.error().message);
    }
  }
  NoContext(const NoContext&) = delete;
  NoContext& operator=(const NoContext&) = delete;

 private:
  const gpu::Driver& driver_;
  boost::container::small_vector<CUcontext, 4> contexts_;  // the current one first
};

}  // namespace

rdma::UcxMemoryType ucx_memory_type(const gpu::Driver& driver) {
  return driver.emulated() ? rdma::UcxMemoryType::host : rdma::UcxMemoryType::cuda;
}

std::function<void(const std::function<void()>& call)> without_context(gpu::DriverRef driver) {
  return [driver = std::move(driver)](const std::function<void()>& call) {
    const OfVmem mark;
    const gpu::RelaxedCapture relaxed(*driver);
    const NoContext none(*driver);
    call();
  };
}

std::optional<rdma::UcxGpuMemory> receive_from_gpus(const gpu::DriverRef& driver,
                                                    const std::vector<std::pair<std::string, std::string>>& settings) {
  const rdma::UcxMemoryType type = ucx_memory_type(*driver);
  const bool cuda = type == rdma::UcxMemoryType::cuda;
  const OfVmem mark;
  const gpu::RelaxedCapture relaxed(*driver);
  const auto asked = rdma::ask_ucx_about_memory(cuda ? rdma::with_cuda(settings) : settings, type, {});
  // For as long as the thread lives.
  const auto relax = [driver] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)(*driver)->cuThreadExchangeStreamCaptureMode(&mode);
  };
  if (asked && asked->direct)
    return rdma::UcxGpuMemory{.type = type, .enter_thread = relax, .without_context = without_context(driver)};
  VMEM_LOG_INFO("pages in HBM that other nodes lend come through staging there: {}",
                asked ? fmt::format("UCX {} here does not receive from GPU memory: {}", asked->version, asked->why)
                      : asked.error().message);
  return std::nullopt;
}

}  // namespace vmem::runtime
