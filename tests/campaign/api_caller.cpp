#include "campaign/api_caller.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace vmem::test {
namespace {

constexpr std::size_t kTraceLines = 20;
// A message left unset by a refusal shows this size: vmem_stats of such a struct sets it before
// each call.
constexpr std::uint32_t kNobodysBytes = 7777;
constexpr std::string_view kStale = "struct_bytes is 7777;";

std::mutex callers_mutex;
std::vector<Caller*> callers;  // protected by callers_mutex

// Refusals whose messages are about arguments.
constexpr Statuses kAboutArguments =
    any_of(VMEM_ERROR_INVALID_VALUE, VMEM_ERROR_INVALID_POINTER, VMEM_ERROR_INVALID_RANGE, VMEM_ERROR_NOT_ACQUIRED);

bool has(Statuses set, vmem_status status) { return (set >> status & 1) != 0; }

}  // namespace

std::atomic<std::uint64_t> Caller::calls_{0};

Caller::Caller(Verdict& verdict, std::string name, std::chrono::milliseconds most)
    : verdict_(verdict), name_(std::move(name)), most_(most) {
  const std::lock_guard lock(callers_mutex);
  callers.push_back(this);
}

Caller::~Caller() {
  const std::lock_guard lock(callers_mutex);
  std::erase(callers, this);
}

void Caller::begin(std::string what) {
  {
    const std::lock_guard lock(mutex_);
    if (trace_.size() == kTraceLines) trace_.pop_front();
    trace_.push_back(std::move(what));
  }
  vmem_statistics other{};
  other.struct_bytes = kNobodysBytes;
  (void)vmem_stats(&other);
  calls_.fetch_add(1, std::memory_order_relaxed);
  began_.store(Clock::now().time_since_epoch().count());
}

void Caller::end(vmem_status status, Statuses allowed, const std::vector<std::string>& names) {
  const auto took = Clock::now().time_since_epoch() - Clock::duration(began_.exchange(0));
  if (took > most_) {
    complain(fmt::format("took {} ms, and {} are allowed",
                         std::chrono::duration_cast<std::chrono::milliseconds>(took).count(), most_.count()));
  }
  {
    const std::lock_guard lock(mutex_);
    trace_.back() += fmt::format(" -> {}", vmem_status_string(status));
  }
  if (!has(allowed, status)) complain(fmt::format("must not end so: {}", vmem_last_error()));
  if (status != VMEM_OK) judge_message(status, names);
}

void Caller::judge_message(vmem_status status, const std::vector<std::string>& names) {
  const std::string_view message = vmem_last_error();
  if (message.empty() || (message.starts_with(kStale) && status != VMEM_ERROR_NOT_INITIALIZED))
    return complain("a refusal without a message");
  if (!has(kAboutArguments, status)) return;
  const auto named = [&](const std::string& name) { return message.contains(name); };
  if (!names.empty() && std::ranges::none_of(names, named))
    complain(fmt::format("the message does not say what was asked: {}", message));
}

void Caller::complain(const std::string& why) {
  const std::lock_guard lock(mutex_);
  verdict_.fail(fmt::format("{}: {}: {}", name_, trace_.back(), why));
}

std::string Caller::trace() const {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const std::string& line : trace_) all += fmt::format("  {}: {}\n", name_, line);
  return all;
}

void Caller::end_if_hanging(std::chrono::seconds after) {
  const std::lock_guard lock(callers_mutex);
  const auto now = Clock::now().time_since_epoch();
  const auto hangs = [&](const Caller* caller) {
    const Clock::rep began = caller->began_.load();
    return began != 0 && now - Clock::duration(began) > after;
  };
  if (std::ranges::none_of(callers, hangs)) return;
  for (const Caller* caller : callers)
    fmt::print(stderr, "{}{}", caller->trace(), hangs(caller) ? "  which does not come back\n" : "");
  std::abort();
}

}  // namespace vmem::test
