#include "gpu/call_times.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <tuple>

#include "gpu/driver_wrap.hpp"

namespace vmem::gpu {
namespace {

// Written by the owning thread, taken by any thread.
struct Noted {
  std::atomic<std::uint64_t> calls{0}, ns{0}, most_ns{0};
};
struct ThreadCalls {
  std::string name;
  std::array<Noted, kDriverFunctions> functions;
};

std::mutex threads_mutex;
std::vector<std::unique_ptr<ThreadCalls>> threads;  // protected by threads_mutex
std::atomic<const Driver*> in_force{nullptr};

ThreadCalls& own_calls() {
  thread_local ThreadCalls* own = nullptr;
  if (own != nullptr) return *own;
  auto made = std::make_unique<ThreadCalls>();
  std::array<char, 16> name{};  // the kernel's limit
  ::prctl(PR_GET_NAME, name.data());
  made->name = name.data();
  own = made.get();
  const std::lock_guard lock(threads_mutex);
  threads.push_back(std::move(made));
  return *own;
}

template <auto Entry, DriverFunction Function, class Type>
struct Timed;

template <auto Entry, DriverFunction Function, class... Arguments>
struct Timed<Entry, Function, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    using Clock = std::chrono::steady_clock;
    const Driver& inner = *in_force.load(std::memory_order_acquire);
    const auto begun = Clock::now();
    const CUresult result = (inner.table().*Entry)(arguments...);
    const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begun).count());
    Noted& noted = own_calls().functions[Function];
    noted.calls.fetch_add(1, std::memory_order_relaxed);
    noted.ns.fetch_add(ns, std::memory_order_relaxed);
    if (ns > noted.most_ns.load(std::memory_order_relaxed)) noted.most_ns.store(ns, std::memory_order_relaxed);
    return result;
  }
};

}  // namespace

std::shared_ptr<const Driver> with_call_times(const std::shared_ptr<const Driver>& inner) {
  // Kept forever: driver threads may call until the process ends.
  static std::mutex mutex;
  static std::vector<std::shared_ptr<const Driver>> kept;
  {
    const std::lock_guard lock(mutex);
    if (std::ranges::find(kept, inner) == kept.end()) kept.push_back(inner);
    in_force.store(inner.get(), std::memory_order_release);
  }
  // VMEM_DRIVER_INTERCEPTION functions are not measured.
  return Driver::over(wrapped<Timed>(inner->table(), inner->table()), inner->emulated(), inner->path());
}

std::vector<CallTime> take_call_times() {
  std::vector<CallTime> taken;
  {
    const std::lock_guard lock(threads_mutex);
    for (const auto& thread : threads) {
      for (std::size_t i = 0; i < kDriverFunctions; ++i) {
        Noted& noted = thread->functions[i];
        const std::uint64_t calls = noted.calls.exchange(0, std::memory_order_relaxed);
        if (calls == 0) continue;
        const auto same = [&](const CallTime& each) {
          return each.thread == thread->name && each.function == kDriverFunctionNames[i];
        };
        auto at = std::ranges::find_if(taken, same);
        if (at == taken.end()) at = taken.insert(at, {.thread = thread->name, .function = kDriverFunctionNames[i]});
        at->calls += calls;
        at->ns += noted.ns.exchange(0, std::memory_order_relaxed);
        at->most_ns = std::max(at->most_ns, noted.most_ns.exchange(0, std::memory_order_relaxed));
      }
    }
  }
  std::ranges::sort(taken, [](const CallTime& a, const CallTime& b) {
    return std::tie(a.thread, b.ns, a.function) < std::tie(b.thread, a.ns, b.function);
  });
  return taken;
}

std::string words_of(std::span<const CallTime> times) {
  std::string text;
  for (const CallTime& each : times)
    text += fmt::format("{:<16}{:<34}{:>9} calls {:>12.3f} ms, {:.2f} µs each, {:.1f} µs at most\n", each.thread,
                        each.function, each.calls, double(each.ns) / 1e6, double(each.ns) / 1e3 / double(each.calls),
                        double(each.most_ns) / 1e3);
  return text;
}

}  // namespace vmem::gpu
