// A loaded driver. Stateless beyond the table: contexts and handles belong to their RAII types in handles.hpp.
#pragma once

#include <memory>
#include <string>

#include "base/status.hpp"
#include "gpu/driver_table.hpp"

namespace vmem::gpu {

// How functions are found in a loaded library: dlsym, unless something else was set, as by a library that replaces dlsym. Before
// any driver is loaded.
using SymbolLookup = void* (*)(void* library, const char* name);
void use_symbol_lookup(SymbolLookup lookup);

// An error that a kernel leaves behind for good: every later call on its context fails with it.
bool is_sticky(CUresult result);

class Driver {
 public:
  // `which`: "auto" (libcuda.so.1; the error names the emulated driver as the alternative), "emulated" (libvmem_emu.so
  // beside this library, then the loader's path), or a path. Calls cuInit. The library stays loaded for the life of the
  // process: driver threads outlive any owner. Errors: NO_DRIVER (not found, a required function missing, older than CUDA 13,
  // cuInit failed: each named).
  static Result<std::shared_ptr<const Driver>> load(const std::string& which);
  static bool installed();  // there is a libcuda.so.1, whatever it can do
  // A driver over a table made by the caller: decorators that fail, delay or count calls wrap a loaded table this way.
  static std::shared_ptr<const Driver> over(const DriverTable& table, bool emulated, std::string path);

  const DriverTable& table() const noexcept { return table_; }
  const DriverTable* operator->() const noexcept { return &table_; }
  bool emulated() const noexcept { return emulated_; }  // exports vmem_emu_configure
  const std::string& path() const noexcept { return path_; }
  int version() const noexcept { return version_; }  // as cuDriverGetVersion: 13000 is CUDA 13.0

  // OK for CUDA_SUCCESS; otherwise an Error naming the call and the driver's own words. Context-fatal results become
  // DEVICE_LOST, out of memory OUT_OF_MEMORY, the rest DRIVER.
  Status check(CUresult result, const char* call) const;

 private:
  DriverTable table_;
  std::string path_;
  bool emulated_ = false;
  int version_ = 0;
};

}  // namespace vmem::gpu
