// A loaded driver: a function table without further state. The RAII types in handles.hpp own
// contexts and handles.
#pragma once

#include <memory>
#include <string>

#include "base/status.hpp"
#include "gpu/driver_table.hpp"

namespace vmem::gpu {

// Sets how Driver::load finds functions in a library (default: dlsym), for a library that replaces
// dlsym. Call it before any driver is loaded.
using SymbolLookup = void* (*)(void* library, const char* name);
void use_symbol_lookup(SymbolLookup lookup);

// True for an error that a kernel leaves in its context: every later call on the context fails with
// it.
bool is_sticky(CUresult result);

class Driver {
 public:
  // `which`: "auto" (libcuda.so.1; the error suggests the emulated driver), "emulated"
  // (libvmem_emu.so beside this library, then on the loader's path), or a path. Calls cuInit. The
  // library is never unloaded, because driver threads outlive any owner.
  // Errors: NO_DRIVER, with the reason: not found, a required function missing, older than CUDA 13,
  // or cuInit failed.
  static Result<std::shared_ptr<const Driver>> load(const std::string& which);
  static bool installed();  // libcuda.so.1 can be loaded, usable or not
  // Makes a driver from the caller's table. Decorators that fail, delay or count calls use it.
  static std::shared_ptr<const Driver> over(const DriverTable& table, bool emulated, std::string path);

  const DriverTable& table() const noexcept { return table_; }
  const DriverTable* operator->() const noexcept { return &table_; }
  bool emulated() const noexcept { return emulated_; }  // exports vmem_emu_configure
  const std::string& path() const noexcept { return path_; }
  int version() const noexcept { return version_; }  // as cuDriverGetVersion: 13000 is CUDA 13.0

  // OK for CUDA_SUCCESS; otherwise an Error with the call's name and the driver's error text.
  // Context-fatal results become DEVICE_LOST, out of memory OUT_OF_MEMORY, all others DRIVER.
  Status check(CUresult result, const char* call) const;

 private:
  DriverTable table_;
  std::string path_;
  bool emulated_ = false;
  int version_ = 0;
};

}  // namespace vmem::gpu
