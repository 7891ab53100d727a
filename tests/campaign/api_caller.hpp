// API calls of one thread: times each call and compares its answer with the header. A refusal's
// message must belong to this call and name its arguments.
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
  // `most`: the longest allowed call.
  Caller(Verdict& verdict, std::string name, std::chrono::milliseconds most);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // `what`: the call with its arguments. `allowed`: answers beyond those that any function may
  // give. `names`: the message of a refused argument must contain at least one of these.
  template <class Call>
  vmem_status operator()(std::string what, Statuses allowed, const std::vector<std::string>& names, Call&& call) {
    begin(std::move(what));
    const vmem_status status = call();
    end(status, allowed, names);
    return status;
  }
  // The last calls, one per line.
  std::string trace() const;
  static std::uint64_t calls() { return calls_.load(); }
  // Ends the program, with the current call of every thread, if a call does not return. Must be
  // called from a separate test thread.
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
  std::atomic<Clock::rep> began_{0};  // start of the current call
  mutable std::mutex mutex_;
  std::deque<std::string> trace_;  // protected by mutex_
};

}  // namespace vmem::test
