// Kernels: host functions registered by name, the modules and functions that refer to them, and one launch's
// parameters.
#pragma once

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

  // Where parameter `index` begins in a parameter buffer, which is laid out like a struct.
  std::size_t param_offset(std::size_t index) const;
};

struct Module {
  std::shared_ptr<Context> context;
};

// Code that belongs to no context. A kernel has one handle, however often it is asked for.
struct Library {
  std::mutex mutex;  // before the handle table's
  std::map<std::string, CUkernel, std::less<>> kernels;
};

struct LibraryKernel {
  std::shared_ptr<const Library> library;
  std::shared_ptr<const Kernel> kernel;
};

// Of a module, or of a library's kernel in one context.
struct Function {
  std::shared_ptr<Context> context;
  std::shared_ptr<const Module> module;
  std::shared_ptr<const Kernel> kernel;
  std::shared_ptr<const Library> library;
};

// An image that the emulated driver has kernels for.
bool is_image(const void* image);

// The kernel registered under `name`, or null.
std::shared_ptr<const Kernel> find_kernel(const char* name);

class Launch {
 public:
  // Copies the parameters out of `params`, or of the buffer named by `extra`. Null: they do not fit the kernel.
  static std::unique_ptr<Launch> make(std::shared_ptr<const Kernel> kernel, void** params, void** extra);

  // Runs the kernel for `device`, with faults diagnosed (fault_handler.hpp).
  void run(int device);

  vmem_emu_launch shape{};

 private:
  explicit Launch(std::shared_ptr<const Kernel> kernel);
  bool copy_buffer(void** extra);

  const std::shared_ptr<const Kernel> kernel_;
  std::vector<std::max_align_t> storage_;
  std::vector<void*> params_;
};

}  // namespace vmem::emu
