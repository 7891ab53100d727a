#include "gpu/emu/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>

#include "gpu/emu/fault_handler.hpp"
#include "gpu/emu/protection.hpp"

namespace vmem::emu {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Kernel>, std::less<>> kernels;
};
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

constexpr std::size_t slot_bytes = sizeof(std::max_align_t);
constexpr char image_magic[8] = {'V', 'M', 'E', 'M', 'E', 'M', 'U', '\0'};
constexpr unsigned threads_per_block_max = 1024;
constexpr unsigned grid_yz_max = 65535;
std::size_t slots_of(std::size_t bytes) { return (bytes + slot_bytes - 1) / slot_bytes; }

}  // namespace

bool is_image(const void* image) { return std::memcmp(image, image_magic, sizeof image_magic) == 0; }

bool valid_shape(const vmem_emu_launch& shape) {
  for (const unsigned extent : shape.grid)
    if (extent == 0) return false;
  for (const unsigned extent : shape.block)
    if (extent == 0 || extent > threads_per_block_max) return false;
  if (shape.grid[1] > grid_yz_max || shape.grid[2] > grid_yz_max) return false;
  return std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2] <= threads_per_block_max;
}

std::shared_ptr<const Kernel> find_kernel(const char* name) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().kernels.find(std::string_view(name));
  return found == registry().kernels.end() ? nullptr : found->second;
}

Launch::Launch(std::shared_ptr<const Kernel> kernel) : kernel_(std::move(kernel)) {
  std::size_t slots = 0;
  for (const std::size_t bytes : kernel_->param_bytes) slots += slots_of(bytes);
  storage_.resize(slots);
  params_.reserve(kernel_->param_bytes.size());
  std::max_align_t* next = storage_.data();
  for (const std::size_t bytes : kernel_->param_bytes) {
    params_.push_back(next);
    next += slots_of(bytes);
  }
}

std::unique_ptr<Launch> Launch::make(std::shared_ptr<const Kernel> kernel, void** params, void** extra) {
  std::unique_ptr<Launch> launch(new Launch(std::move(kernel)));
  const auto& sizes = launch->kernel_->param_bytes;
  if (params && extra) return nullptr;
  if (extra) return launch->copy_buffer(extra) ? std::move(launch) : nullptr;
  if (!params) return sizes.empty() ? std::move(launch) : nullptr;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!params[i]) return nullptr;
    std::memcpy(launch->params_[i], params[i], sizes[i]);
  }
  return launch;
}

// Parameter alignment is not registered. This uses the largest power of two that divides the size,
// up to 16: the alignment of scalars, pointers and vector types.
std::size_t Kernel::param_offset(std::size_t index) const {
  std::size_t offset = 0;
  for (std::size_t i = 0;; ++i) {
    const std::size_t bytes = param_bytes[i];
    const std::size_t alignment = bytes == 0 ? 1 : std::min<std::size_t>(16, std::size_t{1} << std::countr_zero(bytes));
    offset = (offset + alignment - 1) / alignment * alignment;
    if (i == index) return offset;
    offset += bytes;
  }
}

bool Launch::copy_buffer(void** extra) {
  const std::byte* buffer = nullptr;
  std::size_t buffer_bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = static_cast<const std::byte*>(extra[1]);
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      buffer_bytes = *static_cast<const std::size_t*>(extra[1]);
    else
      return false;
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const std::size_t bytes = kernel_->param_bytes[i];
    const std::size_t offset = kernel_->param_offset(i);
    if (!buffer || offset + bytes > buffer_bytes) return false;
    std::memcpy(params_[i], buffer + offset, bytes);
  }
  buffer_.assign(buffer, buffer + buffer_bytes);
  buffer_bytes_ = buffer_bytes;
  extra_ = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &buffer_bytes_,
            CU_LAUNCH_PARAM_END};
  return true;
}

void Launch::run(int device) const {
  vmem_emu_launch launch = shape;
  launch.params = param_pointers();
  launch.param_count = static_cast<unsigned>(params_.size());
  const KernelScope scope(kernel_->name.c_str(), device);
  kernel_->function(&launch);
}

}  // namespace vmem::emu

int vmem_emu_register_kernel(const char* name, vmem_emu_kernel function, const std::size_t* param_bytes,
                             unsigned param_count) {
  using namespace vmem::emu;
  if (!name || !function || (!param_bytes && param_count > 0)) return -1;
  auto kernel = std::make_shared<Kernel>();
  kernel->name = name;
  kernel->function = function;
  kernel->param_bytes.assign(param_bytes, param_bytes + param_count);
  const std::lock_guard lock(registry().mutex);
  registry().kernels[name] = std::move(kernel);
  return 0;
}
