// Owners of UCX handles, one type per kind. Children keep their parents alive. A worker and its
// endpoints are used by one thread at a time; any thread may register and unregister memory.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rdma/transport/transport.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
#include "rdma/transport/ucx/ucx_table.hpp"

namespace vmem::rdma {

using UcxSettings = std::vector<std::pair<std::string, std::string>>;
ucs_memory_type_t number_of(UcxMemoryType type);

class UcxContext {
 public:
  // Errors: INVALID_OPTION for a setting that UCX does not accept, UNSUPPORTED.
  static Result<std::shared_ptr<UcxContext>> create(UcxRef ucx, const UcxSettings& settings);
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ~UcxContext();
  ucp_context_h get() const noexcept { return handle_; }
  // Whether UCX tells this type of memory from others, and moves it.
  Result<bool> moves(ucs_memory_type_t type) const;
  const Ucx& ucx() const noexcept { return *ucx_; }

 private:
  UcxContext(UcxRef ucx, ucp_context_h handle) : ucx_(std::move(ucx)), handle_(handle) {}
  UcxRef ucx_;
  ucp_context_h handle_;
};
using UcxContextRef = std::shared_ptr<UcxContext>;

class UcxMemory {
 public:
  static Result<UcxMemory> map(UcxContextRef context, Bytes memory, ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST);
  ucs_memory_type_t told_type() const noexcept { return told_type_; }  // the argument of map()
  Result<ucs_memory_type_t> type() const;                              // as UCX registered it
  UcxMemory(UcxMemory&& other) noexcept
      : context_(std::move(other.context_)),
        handle_(std::exchange(other.handle_, nullptr)),
        told_type_(other.told_type_) {}
  UcxMemory& operator=(UcxMemory&&) = delete;
  ~UcxMemory();
  ucp_mem_h get() const noexcept { return handle_; }

 private:
  UcxMemory(UcxContextRef context, ucp_mem_h handle, ucs_memory_type_t type)
      : context_(std::move(context)), handle_(handle), told_type_(type) {}
  UcxContextRef context_;
  ucp_mem_h handle_;
  ucs_memory_type_t told_type_;
};

class UcxWorker {
 public:
  static Result<std::shared_ptr<UcxWorker>> create(UcxContextRef context);
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  ~UcxWorker();
  ucp_worker_h get() const noexcept { return handle_; }
  const Ucx& ucx() const noexcept { return context_->ucx(); }
  int descriptor() const noexcept { return descriptor_; }
  // The address that endpoints of other workers connect to.
  Result<std::vector<std::byte>> address() const;
  Status on_message(ucp_am_recv_callback_t handler, void* arg);
  // Maximum size of a message header.
  Result<std::size_t> most_header_bytes() const;
  bool progress() noexcept { return ucx()->ucp_worker_progress(handle_) != 0; }
  // True: the descriptor will signal new work. False: there is work to progress now.
  bool arm() noexcept { return ucx()->ucp_worker_arm(handle_) == UCS_OK; }

 private:
  UcxWorker(UcxContextRef context, ucp_worker_h handle) : context_(std::move(context)), handle_(handle) {}
  UcxContextRef context_;
  ucp_worker_h handle_;
  int descriptor_ = -1;
};
using UcxWorkerRef = std::shared_ptr<UcxWorker>;

class UcxEndpoint {
 public:
  UcxEndpoint() = default;
  // Closes by force: operations in flight end with an error, in later progress calls or when the
  // worker is destroyed.
  ~UcxEndpoint();
  // progress calls `on_error`, at most once, when the peer is no longer reachable.
  static Result<UcxEndpoint> create(UcxWorkerRef worker, ConstBytes address, ucp_err_handler_cb_t on_error, void* arg);
  UcxEndpoint(UcxEndpoint&& other) noexcept { swap(other); }
  UcxEndpoint& operator=(UcxEndpoint&& other) noexcept {
    swap(other);
    return *this;
  }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  ucp_ep_h get() const noexcept { return handle_; }
  // Transports that carry messages: "tcp/lo", or several: "rc_mlx5/mlx5_0:1, tcp/eth0".
  std::string path() const;

 private:
  void swap(UcxEndpoint& other) noexcept {
    std::swap(worker_, other.worker_);
    std::swap(handle_, other.handle_);
  }
  UcxWorkerRef worker_;
  ucp_ep_h handle_ = nullptr;
};

// Extracts transports and devices from the output of ucp_ep_print_info.
std::string lanes_of(std::string_view info);

}  // namespace vmem::rdma
