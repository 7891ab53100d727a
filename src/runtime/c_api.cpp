// The C interface: one runtime per process. Turns every failure into a status and a message; no
// exception escapes.
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/last_error.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "runtime/runtime.hpp"
#include "vmem/cluster.h"

namespace {

using vmem::Error;
using vmem::fail;
using vmem::Status;
using vmem::runtime::Runtime;

std::mutex life_mutex;  // vmem_init and vmem_shutdown
std::atomic<Runtime*> live{nullptr};

// In the forked child of a process with a live runtime. A child of any other process can call
// vmem_init.
bool forked() { return vmem::process::forked() && live.load(std::memory_order_relaxed) != nullptr; }

template <class Call>
vmem_status guarded(Call&& call) noexcept {
  try {
    Status result = call();
    return result ? VMEM_OK : vmem::last_error::record(result.error());
  } catch (const std::bad_alloc&) {
    return vmem::last_error::record(VMEM_ERROR_OUT_OF_MEMORY,
                                    "the process is out of memory for vmem's own bookkeeping");
  } catch (const std::exception& unexpected) {
    return vmem::last_error::record(VMEM_ERROR_INTERNAL, unexpected.what());
  }
}

constexpr std::uint64_t kClusterWaitUs = 30'000'000;

vmem::Result<vmem::runtime::Publishing*> publishing_of(Runtime& runtime) {
  if (auto* const publishing = runtime.publishing()) return publishing;
  return vmem::fail(VMEM_ERROR_UNSUPPORTED,
                    "regions are published to a cluster, and this program takes part in none: give the option cluster");
}

template <class Call>
vmem_status with_runtime(Call&& call) noexcept {
  Runtime* runtime = live.load(std::memory_order_acquire);
  if (runtime != nullptr && !vmem::process::forked()) [[likely]] {
    return guarded([&] {
      Status result = call(*runtime);
      // Reports a loss to all threads. If only the calling thread's context is invalid, the device
      // is not lost.
      if (!result && result.error().status == VMEM_ERROR_DEVICE_LOST && !runtime->report_loss(result.error()))
          [[unlikely]]
        result.error().status = VMEM_ERROR_DRIVER;
      return result;
    });
  }
  if (forked()) {
    return vmem::last_error::record(
        VMEM_ERROR_FORKED,
        "this process was forked from one that uses vmem; GPU memory does not survive fork: start "
        "workers with exec (or Python's spawn), or fork before vmem_init");
  }
  return vmem::last_error::record(VMEM_ERROR_NOT_INITIALIZED, "vmem is not initialised; call vmem_init first");
}

Status null_argument(const char* name) { return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} is NULL", name)); }

// Bounds a count that was given in bytes, or as -1: vmem would allocate for it and read past the
// array.
constexpr size_t kMostRanges = size_t{1} << 20;

Status check_array(const vmem_range* ranges, size_t count) {
  if (ranges == nullptr && count != 0) return null_argument("ranges");
  if (count <= kMostRanges) [[likely]]
    return {};
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("count is {}; one call takes at most {} ranges", count, kMostRanges));
}

Status start(const vmem_option* options, size_t count) {
  const std::lock_guard lock(life_mutex);
  if (forked()) return fail(VMEM_ERROR_FORKED, "this process was forked from one that uses vmem");
  if (live.load() != nullptr) return fail(VMEM_ERROR_ALREADY_INITIALIZED, "vmem is initialised already");
  if (options == nullptr && count != 0) return null_argument("options");
  std::vector<std::pair<std::string, std::string>> given;
  for (size_t i = 0; i < count; ++i) {
    if (options[i].name == nullptr || options[i].value == nullptr) return null_argument("an option's name or value");
    given.emplace_back(options[i].name, options[i].value);
  }
  VMEM_ASSIGN(const vmem::Options resolved, vmem::resolve_options(given));
  VMEM_ASSIGN(const auto level, vmem::log::parse_level(resolved.log_level));
  vmem::log::set_level(level);
  VMEM_ASSIGN(auto runtime, Runtime::create(resolved));
  if (!vmem::process::watch_forks()) return fail(VMEM_ERROR_INTERNAL, "pthread_atfork failed");
  live.store(runtime.release(), std::memory_order_release);
  return {};
}

Status end() {
  const std::lock_guard lock(life_mutex);
  Runtime* runtime = live.load();
  if (runtime == nullptr) return fail(VMEM_ERROR_NOT_INITIALIZED, "vmem is not initialised");
  VMEM_TRY(runtime->shut_down());
  live.store(nullptr, std::memory_order_release);
  delete runtime;
  return {};
}

}  // namespace

vmem::runtime::Runtime* vmem::runtime::live_runtime() noexcept { return live.load(std::memory_order_acquire); }

extern "C" {

const char* vmem_status_string(vmem_status status) {
  switch (status) {
    case VMEM_OK:
      return "ok";
    case VMEM_ERROR_INVALID_VALUE:
      return "invalid value";
    case VMEM_ERROR_INVALID_OPTION:
      return "invalid option";
    case VMEM_ERROR_NOT_INITIALIZED:
      return "not initialised";
    case VMEM_ERROR_ALREADY_INITIALIZED:
      return "already initialised";
    case VMEM_ERROR_INVALID_POINTER:
      return "invalid pointer";
    case VMEM_ERROR_INVALID_RANGE:
      return "invalid range";
    case VMEM_ERROR_NOT_ACQUIRED:
      return "not acquired";
    case VMEM_ERROR_IN_USE:
      return "in use";
    case VMEM_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case VMEM_ERROR_ADDRESS_SPACE:
      return "address space exhausted";
    case VMEM_ERROR_LOST:
      return "data lost";
    case VMEM_ERROR_TIMEOUT:
      return "timeout";
    case VMEM_ERROR_UNSUPPORTED:
      return "unsupported";
    case VMEM_ERROR_NO_DRIVER:
      return "no driver";
    case VMEM_ERROR_DRIVER:
      return "driver error";
    case VMEM_ERROR_DEVICE_LOST:
      return "device lost";
    case VMEM_ERROR_FORKED:
      return "forked";
    case VMEM_ERROR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* vmem_last_error(void) { return vmem::last_error::message(); }
const char* vmem_version(void) { return VMEM_VERSION; }

vmem_status vmem_init(const vmem_option* options, size_t count) {
  return guarded([&] { return start(options, count); });
}

vmem_status vmem_shutdown(void) {
  return with_runtime([](Runtime&) { return end(); });
}

vmem_status vmem_malloc(void** out, size_t bytes, int device, vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (out == nullptr) return null_argument("out");
    VMEM_ASSIGN(*out, runtime.allocations().allocate(bytes, device, stream));
    return {};
  });
}

vmem_status vmem_map_file(void** out, const char* path, uint64_t offset, uint64_t bytes, int device) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (out == nullptr || path == nullptr) return null_argument(out == nullptr ? "out" : "path");
    VMEM_ASSIGN(*out, runtime.allocations().map_file(path, offset, bytes, device));
    return {};
  });
}

vmem_status vmem_publish(void* ptr, const char* name, const vmem_publish_options* options) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (ptr == nullptr || name == nullptr) return null_argument(ptr == nullptr ? "ptr" : "name");
    VMEM_ASSIGN(vmem::runtime::Publishing* const publishing, publishing_of(runtime));
    const vmem_publish_options how = options == nullptr ? vmem_publish_options{} : *options;
    if (how.reserved != 0)
      return vmem::fail(VMEM_ERROR_INVALID_VALUE,
                        "vmem_publish_options.reserved is not 0: set the struct to zeros first");
    VMEM_ASSIGN(std::vector<std::string> readers,
                vmem::cluster::directory::parse_readers(how.readers == nullptr ? "" : how.readers));
    return publishing->publish(ptr, {.name = name,
                                     .copies = how.copies,
                                     .expires_s = how.expires_s,
                                     .wait_us = how.wait_us == 0 ? kClusterWaitUs : how.wait_us,
                                     .readers = std::move(readers)});
  });
}

vmem_status vmem_open(void** out, uint64_t* bytes, const char* name, int device, uint64_t wait_us) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (out == nullptr || name == nullptr) return null_argument(out == nullptr ? "out" : "name");
    VMEM_ASSIGN(vmem::runtime::Publishing* const publishing, publishing_of(runtime));
    VMEM_ASSIGN(const auto opened, publishing->open(name, device, wait_us));
    *out = opened.pointer;
    if (bytes != nullptr) *bytes = opened.bytes;
    return {};
  });
}

vmem_status vmem_close(void* ptr, vmem_stream stream, uint64_t wait_us) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (ptr == nullptr) return null_argument("ptr");
    VMEM_ASSIGN(vmem::runtime::Publishing* const publishing, publishing_of(runtime));
    return publishing->close(ptr, stream, wait_us == 0 ? kClusterWaitUs : wait_us);
  });
}

vmem_status vmem_published_stats(vmem_published_statistics* out) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (out == nullptr) return null_argument("out");
    if (out->struct_bytes != sizeof(vmem_published_statistics))
      return vmem::fail(VMEM_ERROR_INVALID_VALUE,
                        fmt::format("struct_bytes is {}; set it to sizeof(vmem_published_statistics), {}",
                                    out->struct_bytes, sizeof(vmem_published_statistics)));
    VMEM_ASSIGN(vmem::runtime::Publishing* const publishing, publishing_of(runtime));
    vmem_published_statistics figures{.struct_bytes = sizeof(vmem_published_statistics)};
    VMEM_TRY(publishing->add_to(figures));
    *out = figures;
    return {};
  });
}

vmem_status vmem_free(void* ptr, vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (ptr == nullptr) return {};
    return runtime.allocations().free(ptr, stream);
  });
}

vmem_status vmem_acquire(const vmem_range* ranges, size_t count, vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) -> Status {
    VMEM_TRY(check_array(ranges, count));
    return runtime.hit_path().acquire({ranges, count}, stream);
  });
}

vmem_status vmem_release(const vmem_range* ranges, size_t count, vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) -> Status {
    VMEM_TRY(check_array(ranges, count));
    return runtime.hit_path().release({ranges, count}, stream);
  });
}

vmem_status vmem_stream_close(vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) { return runtime.close_stream(stream); });
}

vmem_status vmem_prefetch(const void* ptr, size_t bytes) {
  return with_runtime([&](Runtime& runtime) { return runtime.requests().prefetch(ptr, bytes); });
}

vmem_status vmem_advise(const void* ptr, size_t bytes, vmem_advice advice) {
  return with_runtime([&](Runtime& runtime) { return runtime.requests().advise(ptr, bytes, advice); });
}

vmem_status vmem_memcpy(void* dst, const void* src, size_t bytes, vmem_stream stream) {
  return with_runtime([&](Runtime& runtime) {
    if (dst == nullptr || src == nullptr) return null_argument(dst == nullptr ? "dst" : "src");
    return runtime.copies().copy(dst, src, bytes, stream);
  });
}

vmem_status vmem_memset(void* ptr, int value, size_t bytes, vmem_stream stream) {
  return with_runtime(
      [&](Runtime& runtime) { return runtime.copies().fill(ptr, std::uint8_t(value), 1, bytes, stream); });
}

vmem_status vmem_read(void* host_dst, const void* src, size_t bytes) {
  return with_runtime([&](Runtime& runtime) {
    return host_dst == nullptr ? null_argument("host_dst") : runtime.copies().read(host_dst, src, bytes);
  });
}

vmem_status vmem_write(void* dst, const void* host_src, size_t bytes) {
  return with_runtime([&](Runtime& runtime) {
    return host_src == nullptr ? null_argument("host_src") : runtime.copies().write(dst, host_src, bytes);
  });
}

vmem_status vmem_query(const void* ptr, vmem_pointer_info* info) {
  return with_runtime(
      [&](Runtime& runtime) { return info == nullptr ? null_argument("info") : runtime.requests().query(ptr, *info); });
}

vmem_status vmem_stats(vmem_statistics* out) {
  return with_runtime([&](Runtime& runtime) -> Status {
    if (out == nullptr) return null_argument("out");
    if (out->struct_bytes != sizeof(vmem_statistics)) {
      return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("struct_bytes is {}; set it to sizeof(vmem_statistics), {}",
                                                        out->struct_bytes, sizeof(vmem_statistics)));
    }
    VMEM_TRY(runtime.statistics(*out));
    out->struct_bytes = sizeof(vmem_statistics);
    return {};
  });
}

vmem_status vmem_quiesce(void) {
  return with_runtime([](Runtime& runtime) { return runtime.requests().quiesce(); });
}

}  // extern "C"
