// Calls into the system that may never return, as open and close do on a network file system whose server is gone. Each runs in
// a thread of its own, which is given up with all that it holds if it does not come back in time. Such a thread ends whenever the
// kernel lets it: libvmem.so is never unloaded (-z nodelete), and nothing else that the thread uses may end before it.
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

  // Any thread. The call must not throw. Without a thread for it (no memory), it is made in the calling thread.
  void begin(Call call) noexcept;
  // Returns whether all calls came back. Those that did not within `limit` are given up. While it runs, nobody calls `begin`.
  bool finish(std::chrono::microseconds limit);

 private:
  struct Running;
  void join_ended();

  std::mutex mutex_;  // below
  std::vector<std::pair<std::thread, std::shared_ptr<Running>>> running_;
};

// The result of `call`, made in a thread of its own; nothing if it did not come back within `limit`. Then the result, if there is
// ever one, ends in that thread. What `call` throws is thrown here.
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
