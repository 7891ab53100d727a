#include "rdma/transport/ucx/ucx_handles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace vmem::rdma {
namespace {

struct ConfigRelease {
  const Ucx* ucx;
  void operator()(ucp_config_t* config) const noexcept { (*ucx)->ucp_config_release(config); }
};
constexpr std::size_t kAddressPadding = 4096;

using UcxSettingsHandle = std::unique_ptr<ucp_config_t, ConfigRelease>;

Result<UcxSettingsHandle> read_settings(const Ucx& ucx, const UcxSettings& settings) {
  ucp_config_t* raw = nullptr;
  VMEM_TRY(ucx.check(ucx->ucp_config_read(nullptr, nullptr, &raw), "ucp_config_read"));
  UcxSettingsHandle config(raw, {&ucx});
  for (const auto& [name, value] : settings) {
    if (const ucs_status_t status = ucx->ucp_config_modify(config.get(), name.c_str(), value.c_str()); status != UCS_OK)
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("UCX does not take UCX_{}={}: {}", name, value, ucx.words(status)), status);
  }
  return config;
}

}  // namespace

ucs_memory_type_t number_of(UcxMemoryType type) {
  return type == UcxMemoryType::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

Result<UcxContextRef> UcxContext::create(UcxRef ucx, const UcxSettings& settings) {
  VMEM_ASSIGN(const auto config, read_settings(*ucx, settings));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // other threads than the worker's register memory
  params.name = "vmem";
  ucp_context_h handle = nullptr;
  const ucs_status_t status = (*ucx)->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.get(), &handle);
  if (const auto named = std::ranges::find(settings, "NET_DEVICES", &UcxSettings::value_type::first);
      status == UCS_ERR_NO_DEVICE && named != settings.end())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--fabric ucx:{}: UCX can use no RDMA device of that name here ({}); `ucx_info -d` lists "
                            "this machine's devices",
                            named->second, ucx->words(status)),
                status);
  VMEM_TRY(ucx->check(status, "ucp_init"));
  return UcxContextRef(new UcxContext(std::move(ucx), handle));
}

UcxContext::~UcxContext() { (*ucx_)->ucp_cleanup(handle_); }

Result<bool> UcxContext::moves(ucs_memory_type_t type) const {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  VMEM_TRY(ucx().check(ucx()->ucp_context_query(handle_, &attributes), "ucp_context_query"));
  return (attributes.memory_types & UCS_BIT(type)) != 0;
}

Result<UcxMemory> UcxMemory::map(UcxContextRef context, Bytes memory, ucs_memory_type_t type) {
  ucp_mem_map_params_t params{};
  params.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = memory.data();
  params.length = memory.size();
  // Set explicitly: UCX would take pinned host memory of the CUDA driver for GPU memory.
  params.memory_type = type;
  ucp_mem_h handle = nullptr;
  VMEM_TRY(context->ucx().check(context->ucx()->ucp_mem_map(context->get(), &params, &handle), "ucp_mem_map"));
  return UcxMemory(std::move(context), handle, type);
}

UcxMemory::~UcxMemory() {
  if (handle_ != nullptr) (void)context_->ucx()->ucp_mem_unmap(context_->get(), handle_);
}

Result<ucs_memory_type_t> UcxMemory::type() const {
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE;
  VMEM_TRY(context_->ucx().check(context_->ucx()->ucp_mem_query(handle_, &attributes), "ucp_mem_query"));
  return attributes.mem_type;
}

Result<UcxWorkerRef> UcxWorker::create(UcxContextRef context) {
  const Ucx& ucx = context->ucx();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread creates the worker, then the progressing thread uses it.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h handle = nullptr;
  VMEM_TRY(ucx.check(ucx->ucp_worker_create(context->get(), &params, &handle), "ucp_worker_create"));
  UcxWorkerRef worker(new UcxWorker(std::move(context), handle));
  VMEM_TRY(ucx.check(ucx->ucp_worker_get_efd(handle, &worker->descriptor_), "ucp_worker_get_efd"));
  return worker;
}

UcxWorker::~UcxWorker() { ucx()->ucp_worker_destroy(handle_); }

Result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  VMEM_TRY(ucx().check(ucx()->ucp_worker_get_address(handle_, &address, &bytes), "ucp_worker_get_address"));
  const auto* first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(first, first + bytes);
  ucx()->ucp_worker_release_address(handle_, address);
  return copy;
}

Status UcxWorker::on_message(ucp_am_recv_callback_t handler, void* arg) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = 0;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = handler;
  params.arg = arg;
  return ucx().check(ucx()->ucp_worker_set_am_recv_handler(handle_, &params), "ucp_worker_set_am_recv_handler");
}

Result<std::size_t> UcxWorker::most_header_bytes() const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  VMEM_TRY(ucx().check(ucx()->ucp_worker_query(handle_, &attributes), "ucp_worker_query"));
  return attributes.max_am_header;
}

Result<UcxEndpoint> UcxEndpoint::create(UcxWorkerRef worker, ConstBytes address, ucp_err_handler_cb_t on_error,
                                        void* arg) {
  // UCX does not know the size of an address. With the padding, it reads the same bytes past the
  // end of a malformed address in every process.
  std::vector<std::byte> padded(address.begin(), address.end());
  padded.resize(address.size() + kAddressPadding);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_error, arg};
  UcxEndpoint endpoint;
  VMEM_TRY(
      worker->ucx().check(worker->ucx()->ucp_ep_create(worker->get(), &params, &endpoint.handle_), "ucp_ep_create"));
  endpoint.worker_ = std::move(worker);
  return endpoint;
}

UcxEndpoint::~UcxEndpoint() {
  if (handle_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = worker_->ucx()->ucp_ep_close_nbx(handle_, &params);
  if (UCS_PTR_IS_PTR(request)) worker_->ucx()->ucp_request_free(request);
}

std::string UcxEndpoint::path() const {
  char* text = nullptr;
  std::size_t bytes = 0;
  FILE* const stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return "unknown";
  worker_->ucx()->ucp_ep_print_info(handle_, stream);
  (void)std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return lanes_of({text, bytes});
}

// Parses lines such as
// "#                 lane[0]:  1:tcp/lo.0 md[1]     -> md[1]/tcp/sysdev[255] am am_bw#0 wireup".
std::string lanes_of(std::string_view info) {
  std::vector<std::string_view> lanes;
  for (std::size_t at = info.find("lane["); at != std::string_view::npos; at = info.find("lane[", at + 1)) {
    std::string_view line = info.substr(at, info.find('\n', at) - at);
    const auto index = line.find("]:");
    const auto name = index == std::string_view::npos ? index : line.find(':', index + 2);
    if (name == std::string_view::npos) continue;
    line.remove_prefix(name + 1);
    line = line.substr(0, line.find(' '));
    line = line.substr(0, line.rfind('.'));  // removes the path index of a multi-path device
    if (!line.empty() && std::ranges::find(lanes, line) == lanes.end()) lanes.push_back(line);
  }
  return lanes.empty() ? "unknown" : fmt::format("{}", fmt::join(lanes, ", "));
}

}  // namespace vmem::rdma
