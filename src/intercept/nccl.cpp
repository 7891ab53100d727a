#include "intercept/nccl.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <list>
#include <new>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "intercept/hidden.hpp"
#include "intercept/references.hpp"

// As declared in nccl.h (2.28); enumerations are passed as ints.
using ncclComm_t = struct ncclComm*;
using ncclResult_t = int;

namespace vmem::intercept {
namespace {

constexpr ncclResult_t kSuccess = 0, kSystemError = 2, kInProgress = 7;

// The buffers of one collective, held in place until it is queued.
struct Held {
  std::vector<std::uintptr_t> addresses;
  runtime::LaunchHolds holds;
  std::optional<runtime::HeldLaunch> launch;

  ~Held() {
    if (launch && running() == nullptr) launch->forget();
  }
};
// The calling thread's group: ncclGroupEnd queues the calls made since ncclGroupStart, or none of
// them after an error.
struct Group {
  unsigned depth = 0;
  bool refused = false;
  std::list<Held> held;

  // The thread ends in the middle of a group: its holds stay.
  ~Group() {
    for (Held& each : held) each.launch->forget();
  }
};
thread_local Group group;

void keep_all(runtime::Runtime& runtime, std::span<const std::uintptr_t> addresses) {
  for (const std::uintptr_t address : addresses) keep(runtime, address, "memory that NCCL works on");
}

enum class Ready { held, kept, refused };
// Refused, already reported: the buffers cannot be in place together. Kept: vmem cannot bring them
// to the device at all, for example without peer access; NCCL may try.
Ready hold(runtime::Runtime& runtime, CUstream stream, Held& held) {
  held.holds.hold_separately = true;  // NCCL may wait for other processes
  held.holds.follow_tables = false;
  held.holds.what = traced_as(runtime, nullptr, "a collective");
  auto ready = runtime.launches().begin(held.addresses, stream, false, held.holds);
  if (ready) {
    held.launch.emplace(runtime.launches(), held.holds);
    return Ready::held;
  }
  (void)report("a collective", ready.error());
  if (ready.error().status != VMEM_ERROR_UNSUPPORTED) return Ready::refused;
  keep_all(runtime, held.addresses);
  return Ready::kept;
}

// Holds the buffers of a collective, or keeps them where it may run at any time. Kept, too, if none
// is vmem's.
Ready prepare(runtime::Runtime& runtime, std::span<const void* const> buffers, CUstream stream, Held& held) {
  for (const void* buffer : buffers) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    if (ours(&runtime, address)) held.addresses.push_back(address);
  }
  if (held.addresses.empty()) return Ready::kept;
  // A graph may run the kernels at any time. With --strict the kernel's launch cannot begin within
  // another launch.
  if (!runtime.launches().strict() && !capturing(runtime, stream)) return hold(runtime, stream, held);
  keep_all(runtime, held.addresses);
  return Ready::kept;
}

// Ends the holds. `queued`: NCCL's result for queueing the collectives. A kernel launch inside NCCL
// additionally holds its own parameters.
void let_go(std::list<Held> all, runtime::Runtime& runtime, ncclResult_t queued) {
  if (queued != kSuccess && queued != kInProgress) return;
  for (Held& held : all) held.launch->queued();
  // A thread of a non-blocking communicator queues the kernels later.
  const auto keep_them = [&] {
    for (const Held& held : all) keep_all(runtime, held.addresses);
  };
  if (queued == kInProgress && !ran_within_memory(keep_them)) {
    for (Held& held : all) held.launch->forget();  // the buffers stay held, and cannot be freed
    log::write_plain("out of host memory: the buffers of an NCCL collective stay where they are and cannot be freed");
    return;
  }
  for (Held& held : all) {
    if (auto ended = held.launch->end(); !ended) (void)report("a collective", ended.error());
  }
}

// `reject` makes a call that NCCL refuses, so that NCCL discards the group.
template <class Queue, class Reject>
ncclResult_t collective(std::span<const void* const> buffers, CUstream stream, Queue&& queue, Reject&& reject) {
  runtime::Runtime* runtime = running();
  // Drained: all memory is accessible, and the kernel's launch waits by itself.
  if (runtime == nullptr || runtime->move_gate().drained()) return queue();
  if (group.refused) return queue();  // NCCL discards it with the group
  std::list<Held> one;
  Ready ready = Ready::refused;
  try {
    ready = prepare(*runtime, buffers, stream, one.emplace_back());
  } catch (const std::bad_alloc&) {
    (void)report_exception();
  }
  if (ready == Ready::kept) return queue();
  if (ready == Ready::refused) {
    if (group.depth == 0) return kSystemError;
    group.refused = true;
    (void)reject();
    group.held.clear();
    return kSystemError;
  }
  const ncclResult_t queued = queue();
  if (group.depth != 0 && queued == kSuccess) {
    group.held.splice(group.held.end(), one);
  } else {
    let_go(std::move(one), *runtime, queued);
  }
  return queued;
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
// NCCL's own functions, looked up at the first call: the program loads NCCL late.
std::array<std::atomic<void*>, kFunctions> real_functions{};

void* find_real(const char* name) {
  if (void* found = find_symbol(RTLD_NEXT, name)) return found;
  // Python loads extensions and their dependencies with RTLD_LOCAL.
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

template <class Work>
ncclResult_t system_error_if_it_throws(Work&& work) {
  ncclResult_t result = kSystemError;
  (void)refused_if_it_throws([&] {
    result = work();
    return CUDA_SUCCESS;
  });
  return result;
}

// The pointer arguments are the buffers; the last argument is the stream.
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
  const auto without_communicator = [](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), ncclComm_t>)
      return ncclComm_t{};
    else
      return argument;
  };
  return system_error_if_it_throws([&] {
    return collective(
        std::span(buffers).first(count), stream, [&] { return call_real(I, arguments...); },
        [&] { return call_real(I, without_communicator(arguments)...); });
  });
}

ncclResult_t group_start() {
  ++group.depth;
  return call_real(k_ncclGroupStart);
}

// Holds the group's buffers until `end`, which returns NCCL's result, has queued the collectives.
template <class End>
ncclResult_t end_group(End&& end) {
  if (group.depth != 0) --group.depth;
  std::list<Held> held;
  if (group.depth == 0) {
    held.swap(group.held);
    group.refused = false;
  }
  return system_error_if_it_throws([&] {
    const ncclResult_t ended = end();
    if (runtime::Runtime* runtime = running()) let_go(std::move(held), *runtime, ended);
    return ended;
  });
}

ncclResult_t group_end() {
  return end_group([] { return call_real(k_ncclGroupEnd); });
}

// A simulation queues nothing: its holds end at once.
ncclResult_t group_simulate_end(void* figures) {
  return end_group([&] { return call_real(k_ncclGroupSimulateEnd, figures); });
}

// Registered buffers are accessed by other GPUs and by NICs at any time, through mappings that do
// not follow a page. As for memory that NCCL cannot register, return a null handle; NCCL works
// without registration.
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
  // A second NCCL in the process is not hooked; its kernels' parameters are still read at launch.
  void* known = nullptr;
  const bool first = real_functions[index].compare_exchange_strong(known, function);
  return first || known == function ? hooks[index] : function;
}

// Exports under NCCL's own names, for programs that link NCCL.
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
