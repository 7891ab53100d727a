#include "intercept/nccl.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "intercept/hidden.hpp"
#include "intercept/references.hpp"

// As nccl.h has them (2.28): enumerations are passed as ints.
using ncclComm_t = struct ncclComm*;
using ncclResult_t = int;

namespace vmem::intercept {
namespace {

constexpr ncclResult_t kSuccess = 0, kSystemError = 2, kInProgress = 7;

// What one stream's collectives were given.
struct Given {
  CUstream stream = nullptr;
  std::vector<std::uintptr_t> addresses;
};
// The calling thread's group: what is called between ncclGroupStart and ncclGroupEnd is queued at the end.
struct Group {
  unsigned depth = 0;
  std::vector<Given> given;
};
thread_local Group group;

void keep_all(runtime::Runtime& runtime, std::span<const std::uintptr_t> addresses) {
  for (const std::uintptr_t address : addresses) keep(runtime, address, "memory that NCCL works on");
}

// Runs `queue` with all that was given in place. A launch inside it holds, besides, what the kernel's parameters name.
template <class Queue>
ncclResult_t hold_during(runtime::Runtime& runtime, std::span<const Given> given, Queue&& queue) {
  std::vector<runtime::LaunchHolds> holds(given.size());
  std::size_t held = 0;
  for (; held < given.size(); ++held) {
    holds[held].hold_each();  // it may wait for other processes
    auto ready = runtime.begin_launch(given[held].addresses, given[held].stream, false, holds[held]);
    if (ready) continue;
    (void)report("a collective", ready.error());
    break;
  }
  const ncclResult_t result = queue();  // in any case: a group that was begun has to end
  // A communicator that does not block has a thread of its own queue the kernels, some time later.
  for (const Given& each : given) {
    if (result == kInProgress) keep_all(runtime, each.addresses);
  }
  for (std::size_t i = 0; i < held; ++i) {
    if (result != kSuccess && result != kInProgress) {
      runtime.abandon_launch(holds[i]);
    } else if (auto ended = runtime.end_launch(holds[i]); !ended) {
      (void)report("a collective", ended.error());
    }
  }
  return result;
}

template <class Queue>
ncclResult_t collective(std::span<const void* const> buffers, CUstream stream, Queue&& queue) {
  runtime::Runtime* runtime = running();
  if (runtime == nullptr || runtime->drained())
    return queue();  // drained: all is in reach, and the kernel's launch waits by itself
  Given given{stream, {}};
  for (const void* buffer : buffers) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    if (ours(runtime, address)) given.addresses.push_back(address);
  }
  if (given.addresses.empty()) return queue();
  // A graph runs the kernels at any time; with --strict the kernel's launch is one, and cannot be begun within another.
  if (runtime->strict() || capturing(*runtime, stream)) {
    keep_all(*runtime, given.addresses);
    return queue();
  }
  if (group.depth == 0) return hold_during(*runtime, {&given, 1}, queue);
  const auto same = std::ranges::find(group.given, stream, &Given::stream);
  if (same == group.given.end()) {
    group.given.push_back(std::move(given));
  } else {
    same->addresses.insert(same->addresses.end(), given.addresses.begin(), given.addresses.end());
  }
  return queue();
}

#define VMEM_COLLECTIVES(X)                                                             \
  X(ncclAllReduce, const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)     \
  X(ncclReduce, const void*, void*, std::size_t, int, int, int, ncclComm_t, CUstream)   \
  X(ncclBroadcast, const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)     \
  X(ncclBcast, void*, std::size_t, int, int, ncclComm_t, CUstream)                      \
  X(ncclAllGather, const void*, void*, std::size_t, int, ncclComm_t, CUstream)          \
  X(ncclReduceScatter, const void*, void*, std::size_t, int, int, ncclComm_t, CUstream) \
  X(ncclAlltoAll, const void*, void*, std::size_t, int, ncclComm_t, CUstream)           \
  X(ncclGather, const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)        \
  X(ncclScatter, const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)       \
  X(ncclSend, const void*, std::size_t, int, int, ncclComm_t, CUstream)                 \
  X(ncclRecv, void*, std::size_t, int, int, ncclComm_t, CUstream)
#define VMEM_OTHERS(X)                                                       \
  X(ncclGroupStart, group_start)                                             \
  X(ncclGroupEnd, group_end)                                                 \
  X(ncclGroupSimulateEnd, group_simulate_end, void*)                         \
  X(ncclCommRegister, comm_register, ncclComm_t, void*, std::size_t, void**) \
  X(ncclCommDeregister, comm_deregister, ncclComm_t, void*)

enum Index : std::size_t {
#define VMEM_INDEX(name, ...) k_##name,
  VMEM_COLLECTIVES(VMEM_INDEX) VMEM_OTHERS(VMEM_INDEX)
#undef VMEM_INDEX
      kFunctions
};
constexpr std::array<const char*, kFunctions> names{
#define VMEM_NAME(name, ...) #name,
    VMEM_COLLECTIVES(VMEM_NAME) VMEM_OTHERS(VMEM_NAME)
#undef VMEM_NAME
};
// NCCL's own. It comes with the program, and late: it is looked for at the first call.
std::array<std::atomic<void*>, kFunctions> real_functions{};

void* find_real(const char* name) {
  if (void* found = find_symbol(RTLD_NEXT, name)) return found;
  // Python loads extensions, and what they are linked with, privately.
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = find_symbol(library, name);
  dlclose(library);
  return found;
}

template <class... A>
ncclResult_t call_real(std::size_t index, A... arguments) {
  void* known = real_functions[index].load(std::memory_order_acquire);
  if (known == nullptr) {
    known = find_real(names[index]);
    if (known == nullptr) return kSystemError;
    real_functions[index].store(known, std::memory_order_release);
  }
  return reinterpret_cast<ncclResult_t (*)(A...)>(known)(arguments...);
}

// The buffers are those arguments that are plain pointers, the stream is the last.
template <std::size_t I, class... A>
ncclResult_t collective_hook(A... arguments) {
  std::array<const void*, 2> buffers{};
  std::size_t count = 0;
  const auto take = [&](auto argument) {
    if constexpr (std::is_convertible_v<decltype(argument), const void*> &&
                  !std::is_same_v<decltype(argument), ncclComm_t> && !std::is_same_v<decltype(argument), CUstream>)
      buffers[count++] = argument;
  };
  (take(arguments), ...);
  CUstream const stream = std::get<sizeof...(A) - 1>(std::tuple(arguments...));
  return collective(std::span(buffers).first(count), stream, [&] { return call_real(I, arguments...); });
}

ncclResult_t group_start() {
  ++group.depth;
  return call_real(k_ncclGroupStart);
}

// Ends a group without running it.
ncclResult_t group_simulate_end(void* figures) {
  if (group.depth != 0) --group.depth;
  if (group.depth == 0) group.given.clear();
  return call_real(k_ncclGroupSimulateEnd, figures);
}

ncclResult_t group_end() {
  if (group.depth != 0) --group.depth;
  runtime::Runtime* runtime = running();
  if (group.depth != 0 || group.given.empty() || runtime == nullptr) return call_real(k_ncclGroupEnd);
  const std::vector<Given> given = std::exchange(group.given, {});
  return hold_during(*runtime, given, [] { return call_real(k_ncclGroupEnd); });
}

// Registered buffers are reached by other GPUs and by NICs, at any time, through mappings that do not follow a page. NCCL works without:
// as for memory that it cannot register, it gives a null handle.
ncclResult_t comm_register(ncclComm_t communicator, void* buffer, std::size_t bytes, void** handle) {
  if (handle == nullptr || !ours(running(), reinterpret_cast<std::uintptr_t>(buffer)))
    return call_real(k_ncclCommRegister, communicator, buffer, bytes, handle);
  *handle = nullptr;
  return kSuccess;
}

ncclResult_t comm_deregister(ncclComm_t communicator, void* handle) {
  return handle == nullptr ? kSuccess : call_real(k_ncclCommDeregister, communicator, handle);
}

const std::array<void*, kFunctions> hooks{
#define VMEM_COLLECTIVE(name, ...) reinterpret_cast<void*>(&collective_hook<k_##name, __VA_ARGS__>),
#define VMEM_OTHER(name, hook, ...) reinterpret_cast<void*>(&hook),
    VMEM_COLLECTIVES(VMEM_COLLECTIVE) VMEM_OTHERS(VMEM_OTHER)
#undef VMEM_COLLECTIVE
#undef VMEM_OTHER
};

}  // namespace

void* nccl_hook(const char* name, void* function) {
  const auto found = std::ranges::find_if(names, [&](const char* each) { return std::strcmp(each, name) == 0; });
  if (found == names.end()) return function;
  const auto index = std::size_t(found - names.begin());
  if (function == hooks[index]) return function;
  // A second NCCL in the process is left alone: its kernels' parameters are looked at all the same.
  void* known = nullptr;
  const bool first = real_functions[index].compare_exchange_strong(known, function);
  return first || known == function ? hooks[index] : function;
}

// Under NCCL's own names, for what is linked with it.
#define VMEM_JUMP(name) \
  asm(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n  jmp *vmem_hook_of_" #name "(%rip)\n");
#define VMEM_COLLECTIVE(name, ...)                                                             \
  extern "C" {                                                                                 \
  [[gnu::used, gnu::visibility("hidden")]] void* export_of_##name asm("vmem_hook_of_" #name) = \
      reinterpret_cast<void*>(&collective_hook<k_##name, __VA_ARGS__>);                        \
  }                                                                                            \
  VMEM_JUMP(name)
#define VMEM_OTHER(name, hook, ...)                                                                                 \
  extern "C" {                                                                                                      \
  [[gnu::used,                                                                                                      \
    gnu::visibility("hidden")]] void* export_of_##name asm("vmem_hook_of_" #name) = reinterpret_cast<void*>(&hook); \
  }                                                                                                                 \
  VMEM_JUMP(name)
VMEM_COLLECTIVES(VMEM_COLLECTIVE)
VMEM_OTHERS(VMEM_OTHER)

}  // namespace vmem::intercept
