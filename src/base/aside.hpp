// System calls that may never return, as open and close on a network file system whose server is
// gone. Each call runs in its own thread, which is abandoned with all that it holds if the call
// does not return in time. The kernel decides when it ends: libvmem_gpu.so is never unloaded
// (-z nodelete), and nothing else that the thread uses may end before it.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace vmem {

class Aside {
 public:
  using Call = std::move_only_function<void()>;
  Aside() = default;
  ~Aside() { (void)finish({}); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // Any thread. The call must not throw. If no thread can be created (no memory), the calling
  // thread makes the call.
  void begin(Call call) noexcept;
  // Returns whether all calls have returned; abandons calls that have not within `limit`. REQUIRES:
  // no concurrent `begin`.
  bool finish(std::chrono::microseconds limit);

 private:
  struct Running;
  void join_ended();

  std::mutex mutex_;  // protects the members below
  std::vector<std::pair<std::thread, std::shared_ptr<Running>>> running_;
};

// The result of `call`, made in its own thread; no value if `call` did not return within `limit`. A
// later result is destroyed in that thread. Rethrows an exception of `call`.
template <class Value>
std::optional<Value> call_within(std::chrono::microseconds limit, std::move_only_function<Value()> call) {
  struct Outcome {
    std::optional<Value> value;
    std::exception_ptr thrown;
  };
  auto outcome = std::make_shared<Outcome>();
  Aside aside;
  aside.begin([outcome, call = std::move(call)]() mutable {
    try {
      outcome->value.emplace(call());
    } catch (...) {
      outcome->thrown = std::current_exception();
    }
  });
  if (!aside.finish(limit)) return std::nullopt;
  if (outcome->thrown) std::rethrow_exception(outcome->thrown);
  return std::move(outcome->value);
}

}  // namespace vmem
