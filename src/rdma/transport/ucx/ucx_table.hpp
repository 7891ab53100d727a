// All UCX functions that vmem calls, loaded from libucp.so.0 at run time: a single node does not
// need the library.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "base/status.hpp"

namespace vmem::rdma {

#define VMEM_UCX_FUNCTIONS(X)       \
  X(ucp_get_version)                \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_context_query)              \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_mem_map)                    \
  X(ucp_mem_unmap)                  \
  X(ucp_mem_query)                  \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_query)               \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_print_info)              \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_data_release)            \
  X(ucp_request_free)               \
  X(ucs_status_string)

struct UcxTable {
#define VMEM_MEMBER(name) decltype(&::name) name = nullptr;
  VMEM_UCX_FUNCTIONS(VMEM_MEMBER)
#undef VMEM_MEMBER
};

class Ucx {
 public:
  // Errors: UNSUPPORTED, naming the library and what to install.
  static Result<std::shared_ptr<const Ucx>> load();
  const UcxTable* operator->() const noexcept { return &table_; }
  std::string version() const;  // "1.13.1"
  // OK for UCS_OK; otherwise an Error with the call and UCX's status string.
  Status check(ucs_status_t status, const char* call) const;
  const char* words(ucs_status_t status) const noexcept { return table_.ucs_status_string(status); }

 private:
  UcxTable table_;
};
using UcxRef = std::shared_ptr<const Ucx>;

}  // namespace vmem::rdma
