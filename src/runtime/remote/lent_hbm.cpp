#include "runtime/remote/lent_hbm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/device_info.hpp"
#include "pagetable/types.hpp"
#include "runtime/remote/ucx_gpu.hpp"

namespace vmem::runtime {
namespace {

using pagetable::kGranuleBytes;

std::string flag_words(const HbmLoan& loan) {
  return fmt::format("--hbm {}:{}", loan.ordinal, format_bytes(loan.bytes));
}

Status check_ordinal(const gpu::Driver& driver, const HbmLoan& loan) {
  int present = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  if (loan.ordinal < present) return {};
  const std::string there = present == 0
                                ? "the CUDA driver sees none; see `vmem doctor`"
                                : fmt::format("there {} (0 to {}); name one of them",
                                              present == 1 ? "is 1" : fmt::format("are {}", present), present - 1);
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} names GPU {}, and {}", flag_words(loan), loan.ordinal, there));
}

}  // namespace

Result<HbmLoan> parse_hbm_loan(const std::string& text) {
  HbmLoan loan;
  const std::size_t colon = text.find(':');
  const char* const end = text.data() + std::min(colon, text.size());
  const auto [stopped, code] = std::from_chars(text.data(), end, loan.ordinal);
  if (colon == std::string::npos || code != std::errc{} || stopped != end || loan.ordinal < 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("'{}' names no GPU and size; accepted: a GPU's number and a size, such as 0:40GiB", text));
  VMEM_ASSIGN(loan.bytes, parse_bytes(text.substr(colon + 1)));
  if (loan.bytes < kGranuleBytes)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is too little: HBM is lent in units of {}; give at least that", exact_bytes(loan.bytes),
                            format_bytes(kGranuleBytes)));
  loan.bytes = loan.bytes / kGranuleBytes * kGranuleBytes;
  return loan;
}

Status add_mapped_part(HbmLoan& loan, std::uint64_t bytes) {
  if (bytes < kGranuleBytes)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--hbm-mapped {}: HBM is lent in units of {}; give at least "
                                                       "that, or leave it out",
                                                       exact_bytes(bytes), format_bytes(kGranuleBytes)));
  if (bytes > loan.bytes)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--hbm-mapped {} is a part of what {} lends, and more than that; give at most {}",
                            exact_bytes(bytes), flag_words(loan), format_bytes(loan.bytes)));
  loan.mapped_bytes = bytes / kGranuleBytes * kGranuleBytes;
  return {};
}

Result<std::unique_ptr<LentHbm>> LentHbm::open(Config config) {
  const HbmLoan& loan = config.loan;
  std::unique_ptr<LentHbm> lent(new LentHbm(loan));
  auto loaded = gpu::Driver::load(config.driver);
  if (!loaded)
    return fail(loaded.error().status,
                fmt::format("{} needs a CUDA driver: {}", flag_words(loan), loaded.error().message));
  lent->driver_ = *std::move(loaded);
  VMEM_TRY(check_ordinal(*lent->driver_, loan));
  CUdevice device = 0;
  VMEM_TRY(lent->driver_->check((*lent->driver_)->cuDeviceGet(&device, loan.ordinal), "cuDeviceGet"));
  VMEM_ASSIGN(lent->context_, gpu::PrimaryContext::retain(lent->driver_, device));
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(lent->driver_, lent->context_.context()));
  VMEM_TRY(lent->check_free());
  if (loan.stored_bytes() != 0) VMEM_TRY(lent->store(config));
  if (loan.mapped_bytes != 0) VMEM_TRY(lent->lend_pieces(config, device));
  return lent;
}

Status LentHbm::store(Config& config) {
  VMEM_TRY(pin(config.staging));
  VMEM_ASSIGN(tier_, tiers::HbmTier::create({.driver = driver_,
                                             .ordinal = loan_.ordinal,
                                             .bytes = loan_.stored_bytes(),
                                             .on_ready = std::move(config.on_ready)}));
  return {};
}

Status LentHbm::lend_pieces(Config& config, CUdevice device) {
  VMEM_ASSIGN(lender_, peer::Lender::create({.driver = driver_,
                                             .device = device,
                                             .context = context_.context(),
                                             .path = std::move(config.socket),
                                             .most_bytes = loan_.mapped_bytes,
                                             .on_change = {}}));
  lender_->set_limit(loan_.mapped_bytes);
  return {};
}

Status LentHbm::check_free() const {
  std::size_t free = 0, total = 0;
  VMEM_TRY(driver_->check((*driver_)->cuMemGetInfo(&free, &total), "cuMemGetInfo"));
  if (loan_.bytes <= free) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} asked for, GPU {} has {} free of {}; lower --hbm, or end what uses that GPU",
                          flag_words(loan_), loan_.ordinal, format_bytes(free), format_bytes(total)));
}

Status LentHbm::pin(rdma::Bytes staging) {
  VMEM_TRY(driver_->check((*driver_)->cuMemHostRegister(staging.data(), staging.size(), CU_MEMHOSTREGISTER_PORTABLE),
                          "cuMemHostRegister"));
  pinned_ = staging.data();
  return {};
}

void LentHbm::close() {
  lender_.reset();
  tier_.reset();
}

LentHbm::~LentHbm() {
  close();
  if (pinned_ == nullptr) return;
  // A failure means a lost context, and the memory is pinned no more.
  const auto current = gpu::ScopedContext::push(driver_, context_.context());
  (void)(*driver_)->cuMemHostUnregister(pinned_);
}

void LentHbm::set_limit(std::optional<cluster::HbmLimit> limit, bool drains) {
  const cluster::HbmParts parts = cluster::hbm_parts(loan_.bytes, loan_.mapped_bytes, limit);
  const std::uint64_t mapped = drains ? 0 : parts.mapped;
  if (tier_) {
    VMEM_LOG_INFO("of {} of HBM for pages from the network, {} are to be lent", format_bytes(loan_.stored_bytes()),
                  format_bytes(parts.stored));
    tier_->set_limit(parts.stored);
  }
  if (lender_) {
    VMEM_LOG_INFO("of {} of HBM for programs of this host, {} are to be lent", format_bytes(loan_.mapped_bytes),
                  format_bytes(mapped));
    lender_->set_limit(mapped);
  }
}

cluster::MappedHbm LentHbm::mapped_part() const {
  if (!lender_) return {};
  return {.socket = lender_->path(), .gpu = gpu::format_uuid(lender_->device()), .bytes = loan_.mapped_bytes};
}

// The slab that UCX is to register is allocated like those of the tier.
std::optional<rdma::UcxGpuMemory> LentHbm::ask_ucx(const std::vector<std::pair<std::string, std::string>>& settings) {
  if (!tier_) return std::nullopt;
  const auto type = ucx_memory_type(*driver_);
  const auto current = gpu::ScopedContext::push(driver_, context_.context());
  gpu::DeviceMemory slab;
  const auto take = [&]() -> Result<rdma::Bytes> {
    VMEM_ASSIGN(slab, gpu::DeviceMemory::create(driver_, kGranuleBytes));
    return rdma::Bytes(reinterpret_cast<std::byte*>(slab.get()), kGranuleBytes);
  };
  const bool cuda = type == rdma::UcxMemoryType::cuda;
  const auto asked = rdma::ask_ucx_about_memory(cuda ? rdma::with_cuda(settings) : settings, type, take);
  const bool direct = asked && asked->direct;
  path_ = !asked ? fmt::format("through pinned staging; UCX was not asked about GPU memory: {}", asked.error().message)
          : direct
              ? fmt::format("fetched from directly by UCX {}, stored to through pinned staging", asked->version)
              : fmt::format("through pinned staging; UCX {} does not move its memory: {}", asked->version, asked->why);
  VMEM_LOG_INFO("HBM that is lent: {}", describe());
  if (!direct) return std::nullopt;
  return gpu_memory(type);
}

rdma::UcxGpuMemory LentHbm::gpu_memory(rdma::UcxMemoryType type) const {
  const auto enter = [driver = driver_, context = context_.context()] {
    const Status made = driver->check((*driver)->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (!made) VMEM_LOG_ERROR("HBM that is lent: {}", made.error().message);
  };
  return {.type = type, .enter_thread = enter, .without_context = without_context(driver_)};
}

std::string LentHbm::describe() const {
  return tier_ ? fmt::format("GPU {}, {}", loan_.ordinal, path_) : fmt::format("GPU {}", loan_.ordinal);
}

}  // namespace vmem::runtime
