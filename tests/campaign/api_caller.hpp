// One thread's calls of the API: each is timed, and its answer is compared with what the header allows. The message of
// a refusal must be of this call, and say what was asked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/verdict.hpp"
#include "vmem/vmem.h"

namespace vmem::test {

// A set of vmem_status.
using Statuses = std::uint32_t;
template <class... Status>
constexpr Statuses any_of(Status... each) {
  return (Statuses{0} | ... | (Statuses{1} << each));
}
inline constexpr Statuses kNoStatus = 0;

class Caller {
 public:
  // `most`: how long a call may take.
  Caller(Verdict& verdict, std::string name, std::chrono::milliseconds most);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // `what`: the call with its arguments. `allowed`: the answers other than those that any function may give.
  // `names`: what the message of a refused argument must have, one at least.
  template <class Call>
  vmem_status operator()(std::string what, Statuses allowed, const std::vector<std::string>& names, Call&& call) {
    begin(std::move(what));
    const vmem_status status = call();
    end(status, allowed, names);
    return status;
  }
  // The last calls, a line each.
  std::string trace() const;
  static std::uint64_t calls() { return calls_.load(); }
  // Ends the program, with what every thread calls, if a call does not come back. From a thread of the test's.
  static void end_if_hanging(std::chrono::seconds after);

 private:
  using Clock = std::chrono::steady_clock;
  void begin(std::string what);
  void end(vmem_status status, Statuses allowed, const std::vector<std::string>& names);
  void judge_message(vmem_status status, const std::vector<std::string>& names);
  void complain(const std::string& why);

  static std::atomic<std::uint64_t> calls_;
  Verdict& verdict_;
  const std::string name_;
  const std::chrono::milliseconds most_;
  std::atomic<Clock::rep> began_{0};  // of the call in progress
  mutable std::mutex mutex_;
  std::deque<std::string> trace_;  // protected by mutex_
};

}  // namespace vmem::test
