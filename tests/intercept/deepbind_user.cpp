// A library loaded with RTLD_DEEPBIND that calls the driver.
#include "intercept/deepbind_user.hpp"

#include <dlfcn.h>

namespace {

void* looked_up() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver == nullptr ? nullptr : dlsym(driver, "cuMemAlloc_v2");
}

void* asked_for() {
  void* function = nullptr;
  (void)cuGetProcAddress("cuMemAlloc", &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
  return function;
}

const DeepbindUser functions{cuMemAlloc, cuMemFree, cuLaunchKernel, cuGetProcAddress, looked_up, asked_for};

}  // namespace

extern "C" const DeepbindUser* deepbind_user() { return &functions; }
