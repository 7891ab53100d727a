// The C++ part of out_of_memory_test.py: calls vmem_torch_alloc below PyTorch's translation of
// exceptions, and inspects the exceptions in C++.
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <exception>
#include <future>
#include <string>
#include <typeinfo>

namespace {

using Allocate = void*(ssize_t, int, void*);

void* allocate(int64_t bytes, int64_t device) {
  auto* const function = reinterpret_cast<Allocate*>(dlsym(RTLD_DEFAULT, "vmem_torch_alloc"));
  TORCH_CHECK_NOT_IMPLEMENTED(function != nullptr, "this process is not under vmem");
  return function(bytes, int(device), nullptr);
}

int64_t allocate_as_operator(int64_t bytes, int64_t device) {
  return reinterpret_cast<int64_t>(allocate(bytes, device));
}

// For CUDAPluggableAllocator's set_reset_fn, which torch._C._cuda_emptyCache calls through
// libtorch_cuda.
void allocate_a_pebibyte() { (void)allocate(int64_t{1} << 50, 0); }
int64_t address_of_allocate_a_pebibyte() { return reinterpret_cast<int64_t>(&allocate_a_pebibyte); }

// The exception's message, or a description of its defect.
std::string caught_in_cpp(int64_t bytes) {
  std::exception_ptr kept;
  try {
    (void)allocate(bytes, 0);
    return "nothing was thrown";
  } catch (const c10::OutOfMemoryError& error) {
    if (typeid(error) != typeid(c10::OutOfMemoryError)) return std::string("it is a ") + typeid(error).name();
    const c10::OutOfMemoryError copy = error;
    if (copy.msg() != error.msg() || std::string(copy.what_without_backtrace()) != error.msg())
      return "its copy differs";
    if (std::string(error.what()).find("Exception raised from vmem_torch_alloc") == std::string::npos)
      return error.what();
    kept = std::current_exception();
  }
  // Rethrown and destroyed in another thread.
  return std::async(std::launch::async,
                    [moved = std::move(kept)]() mutable {
                      try {
                        std::rethrow_exception(std::move(moved));
                      } catch (const c10::Error& error) {
                        return error.msg();
                      }
                    })
      .get();
}

int64_t exception_bytes() { return sizeof(c10::OutOfMemoryError); }

}  // namespace

TORCH_LIBRARY(vmem_test, library) {
  library.def("allocate", &allocate_as_operator);
  library.def("address_of_allocate_a_pebibyte", &address_of_allocate_a_pebibyte);
  library.def("caught_in_cpp", &caught_in_cpp);
  library.def("exception_bytes", &exception_bytes);
}
