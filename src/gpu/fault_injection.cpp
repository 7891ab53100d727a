#include "gpu/fault_injection.hpp"

#include <algorithm>
#include <atomic>

#include "gpu/driver_wrap.hpp"

namespace vmem::gpu {

struct FaultInjector::Access {
  static std::optional<CUresult> intercept(FaultInjector& injector, std::string_view function) {
    return injector.intercept(function);
  }
  static const DriverTable& inner(const FaultInjector& injector) { return injector.inner_->table(); }
};

namespace {

// Living injectors; the last one is in force. Calls read only the atomic.
std::mutex injectors_mutex;
std::vector<FaultInjector*> injectors;
std::atomic<FaultInjector*> in_force{nullptr};

template <auto Entry, DriverFunction Which, class Function>
struct Wrapper;

template <auto Entry, DriverFunction Which, class... Arguments>
struct Wrapper<Entry, Which, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    FaultInjector* injector = in_force.load(std::memory_order_acquire);
    if (!injector) return CUDA_ERROR_DEINITIALIZED;  // called after the injector's end
    if (const auto failure = FaultInjector::Access::intercept(*injector, kDriverFunctionNames[Which])) return *failure;
    return (FaultInjector::Access::inner(*injector).*Entry)(arguments...);
  }
};

}  // namespace

FaultInjector::FaultInjector(std::shared_ptr<const Driver> inner) : inner_(std::move(inner)) {
  {
    const std::lock_guard lock(injectors_mutex);
    injectors.push_back(this);
    in_force.store(this, std::memory_order_release);
  }
  decorated_ = Driver::over(wrapped<Wrapper>(inner_->table(), {}), inner_->emulated(),
                            inner_->path() + " (with fault injection)");
  forget_counts();  // Driver::over called cuDriverGetVersion
}

void FaultInjector::forget_counts() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
  total_ = 0;
}

FaultInjector::~FaultInjector() {
  const std::lock_guard lock(injectors_mutex);
  std::erase(injectors, this);
  in_force.store(injectors.empty() ? nullptr : injectors.back(), std::memory_order_release);
}

void FaultInjector::fail_nth(std::uint64_t n, CUresult result) { fail_nth("", n, result); }

void FaultInjector::fail_nth(std::string_view function, std::uint64_t n, CUresult result) {
  const std::lock_guard lock(mutex_);
  plans_.push_back({std::string(function), n, result});
}

void FaultInjector::fail_always(std::string_view function, CUresult result) {
  const std::lock_guard lock(mutex_);
  if (result == CUDA_SUCCESS)
    always_.erase(std::string(function));
  else
    always_[std::string(function)] = result;
}

void FaultInjector::clear_plans() {
  const std::lock_guard lock(mutex_);
  plans_.clear();
  always_.clear();
}

std::uint64_t FaultInjector::calls() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

std::uint64_t FaultInjector::calls(std::string_view function) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(std::string(function));
  return found == counts_.end() ? 0 : found->second;
}

void FaultInjector::start_log() {
  const std::lock_guard lock(mutex_);
  logging_ = true;
  log_.clear();
}

std::vector<std::string> FaultInjector::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void FaultInjector::on_call(std::function<void(std::string_view)> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = hook ? std::make_shared<const std::function<void(std::string_view)>>(std::move(hook)) : nullptr;
}

std::optional<CUresult> FaultInjector::intercept(std::string_view function) {
  std::shared_ptr<const std::function<void(std::string_view)>> hook;
  std::optional<CUresult> failure;
  {
    const std::lock_guard lock(mutex_);
    ++total_;
    ++counts_[std::string(function)];
    if (logging_) log_.emplace_back(function);
    failure = due(function);
    hook = hook_;
  }
  if (hook) (*hook)(function);
  return failure;
}

std::optional<CUresult> FaultInjector::due(std::string_view function) {
  std::optional<CUresult> failure;
  for (Plan& plan : plans_)
    if ((plan.function.empty() || plan.function == function) && --plan.remaining == 0 && !failure)
      failure = plan.result;
  std::erase_if(plans_, [](const Plan& plan) { return plan.remaining == 0; });
  if (!failure)
    if (const auto found = always_.find(std::string(function)); found != always_.end()) failure = found->second;
  return failure;
}

}  // namespace vmem::gpu
