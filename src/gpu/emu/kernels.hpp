// Kernels (host functions registered by name), the modules, libraries and functions that refer to
// them, and one launch's parameters.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Context;

struct Kernel {
  std::string name;
  vmem_emu_kernel function = nullptr;
  std::vector<std::size_t> param_bytes;

  // The offset of parameter `index` in a parameter buffer, which is laid out like a struct.
  std::size_t param_offset(std::size_t index) const;
};

struct Module {
  std::shared_ptr<Context> context;
};

// Code without a context. Repeated lookups of a kernel return the same handle.
struct Library {
  std::mutex mutex;  // taken before the handle table's
  std::map<std::string, CUkernel, std::less<>> kernels;
};

struct LibraryKernel {
  std::shared_ptr<const Library> library;
  std::shared_ptr<const Kernel> kernel;
};

// A module's function, or a library's kernel in one context.
struct Function {
  std::shared_ptr<Context> context;
  std::shared_ptr<const Module> module;
  std::shared_ptr<const Kernel> kernel;
  std::shared_ptr<const Library> library;
};

// True for an image that starts with the emulated driver's magic bytes (emu.h).
bool is_image(const void* image);

// The kernel registered under `name`, or null.
std::shared_ptr<const Kernel> find_kernel(const char* name);

class Launch {
 public:
  // Copies the parameters from `params`, or from the buffer in `extra`. Null: they do not fit the
  // kernel.
  static std::unique_ptr<Launch> make(std::shared_ptr<const Kernel> kernel, void** params, void** extra);

  // Runs the kernel for `device`; fault_handler.hpp diagnoses its faults. Graphs call this
  // repeatedly.
  void run(int device) const;

  // The copies, for queries of a graph node. One of the two is null, as at the launch's creation.
  void** params() const { return extra_[0] ? nullptr : param_pointers(); }
  void** extra() const { return extra_[0] ? const_cast<void**>(extra_.data()) : nullptr; }

  vmem_emu_launch shape{};

 private:
  explicit Launch(std::shared_ptr<const Kernel> kernel);
  bool copy_buffer(void** extra);
  void** param_pointers() const { return const_cast<void**>(params_.data()); }

  const std::shared_ptr<const Kernel> kernel_;
  std::vector<std::max_align_t> storage_;
  std::vector<void*> params_;
  std::vector<std::byte> buffer_;  // copy of the buffer in `extra`
  std::size_t buffer_bytes_ = 0;
  std::array<void*, 5> extra_{};
};

// Within the limits of grids and blocks.
bool valid_shape(const vmem_emu_launch& shape);

}  // namespace vmem::emu
