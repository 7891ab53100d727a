#include <fmt/format.h>

#include <optional>
#include <utility>

#include "gpu/handles.hpp"
#include "pagetable/types.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {
namespace {

// Without a driver it cannot be tried.
Result<rdma::UcxMemoryPath> ask_ucx(const std::shared_ptr<const gpu::Driver>& driver) {
  gpu::PrimaryContext context;
  std::optional<gpu::ScopedContext> current;
  gpu::DeviceMemory slab;
  const auto take = [&]() -> Result<rdma::Bytes> {
    if (!driver) return fail(VMEM_ERROR_NO_DRIVER, "it knows CUDA memory, and without a driver that was not tried");
    VMEM_ASSIGN(context, gpu::PrimaryContext::retain(driver, 0));
    VMEM_ASSIGN(auto pushed, gpu::ScopedContext::push(driver, context.context()));
    current.emplace(std::move(pushed));
    VMEM_ASSIGN(slab, gpu::DeviceMemory::create(driver, pagetable::kGranuleBytes));
    return rdma::Bytes(reinterpret_cast<std::byte*>(slab.get()), pagetable::kGranuleBytes);
  };
  return rdma::ask_ucx_about_memory({}, rdma::UcxMemoryType::cuda, take);
}

}  // namespace

void check_network(Report& report, const std::shared_ptr<const gpu::Driver>& driver) {
  constexpr const char* kTopic = "network";
  const auto path = ask_ucx(driver);
  if (!path) {
    report.note(kTopic, fmt::format("UCX, for --fabric: {}", path.error().message),
                "only for RDMA between nodes: install UCX (Debian, Ubuntu: libucx0)");
  } else if (path->direct) {
    report.ok(kTopic, fmt::format("UCX {} moves GPU memory: with --fabric, pages are fetched directly from lent HBM",
                                  path->version));
  } else {
    report.ok(kTopic,
              fmt::format("UCX {}, for --fabric; lent HBM passes pinned staging: {}", path->version, path->why));
  }
}

}  // namespace vmem::tools::doctor
