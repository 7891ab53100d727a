#include "runtime/emulated_gpu.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "gpu/emu/emu.h"

namespace vmem::test {
namespace {

std::mutex streams_mutex;

void require(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s failed with %d\n", call, int(result));
  std::abort();
}
#define REQUIRE(table, call, ...) require((table).call(__VA_ARGS__), #call)

std::shared_ptr<const gpu::Driver> loaded_driver() {
  static const auto driver = [] {
    auto loaded = gpu::Driver::load("emulated");
    if (!loaded) {
      std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
      std::abort();
    }
    return *loaded;
  }();
  return driver;
}

template <class Function>
Function emulated_symbol(const char* name) {
  void* library = dlopen(loaded_driver()->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

void run_body(const vmem_emu_launch* launch) {
  const std::unique_ptr<std::function<void()>> body(*static_cast<std::function<void()>**>(launch->params[0]));
  (*body)();
}

}  // namespace

std::string configure_emulated(const std::string& spec) {
  char error[512] = {};
  const auto configure = emulated_symbol<decltype(&vmem_emu_configure)>("vmem_emu_configure");
  return configure(spec.c_str(), error, sizeof error) == 0 ? "" : error;
}

EmulatedGpu::EmulatedGpu(const std::string& spec) : driver_(loaded_driver()) {
  if (const std::string error = configure_emulated(spec); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    std::abort();
  }
  const std::size_t sizes[] = {sizeof(void*)};
  emulated_symbol<decltype(&vmem_emu_register_kernel)>("vmem_emu_register_kernel")("run_body", run_body, sizes, 1);
  int count = 0;
  REQUIRE(cu(), cuDeviceGetCount, &count);
  contexts_.resize(std::size_t(count));
  modules_.resize(contexts_.size());
  run_.resize(contexts_.size());
  for (int device = 0; device < count; ++device) {
    const auto i = std::size_t(device);
    REQUIRE(cu(), cuDevicePrimaryCtxRetain, &contexts_[i], device);
    make_current(device);
    REQUIRE(cu(), cuModuleLoadData, &modules_[i], "VMEMEMU");
    REQUIRE(cu(), cuModuleGetFunction, &run_[i], modules_[i], "run_body");
  }
  make_current(0);
}

EmulatedGpu::~EmulatedGpu() {
  for (CUstream stream : streams_) (void)cu().cuStreamDestroy(stream);
  for (int device = 0; device < devices(); ++device) {
    (void)cu().cuCtxSetCurrent(context(device));
    (void)cu().cuCtxSynchronize();
    (void)cu().cuModuleUnload(modules_[std::size_t(device)]);
    (void)cu().cuDevicePrimaryCtxRelease(device);
  }
  (void)cu().cuCtxSetCurrent(nullptr);
}

void EmulatedGpu::make_current(int device) const { REQUIRE(cu(), cuCtxSetCurrent, context(device)); }

CUstream EmulatedGpu::create_stream(int device, unsigned flags) {
  make_current(device);
  CUstream stream = nullptr;
  REQUIRE(cu(), cuStreamCreate, &stream, flags);
  const std::lock_guard lock(streams_mutex);
  streams_.push_back(stream);
  return stream;
}

void EmulatedGpu::destroy_stream(CUstream stream) {
  {
    const std::lock_guard lock(streams_mutex);
    std::erase(streams_, stream);
  }
  REQUIRE(cu(), cuStreamDestroy, stream);
}

void EmulatedGpu::synchronize(CUstream stream) const { REQUIRE(cu(), cuStreamSynchronize, stream); }

void EmulatedGpu::order(CUstream earlier, int device, CUstream later) const {
  CUcontext before = nullptr;
  REQUIRE(cu(), cuCtxGetCurrent, &before);
  make_current(device);
  CUevent event = nullptr;
  REQUIRE(cu(), cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
  REQUIRE(cu(), cuEventRecord, event, earlier);
  REQUIRE(cu(), cuCtxSetCurrent, before);
  REQUIRE(cu(), cuStreamWaitEvent, later, event, 0);
  REQUIRE(cu(), cuEventDestroy, event);
}

CUresult EmulatedGpu::launch(CUstream stream, int device, std::function<void()> body) const {
  auto* owned = new std::function<void()>(std::move(body));
  void* params[] = {static_cast<void*>(&owned)};
  const CUresult result = cu().cuLaunchKernel(run_[std::size_t(device)], 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  if (result != CUDA_SUCCESS) delete owned;
  return result;
}

}  // namespace vmem::test
