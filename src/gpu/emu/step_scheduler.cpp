#include "gpu/emu/step_scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "gpu/emu/machine.hpp"

namespace vmem::emu {

void StepScheduler::add(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

std::size_t StepScheduler::run(std::size_t most) {
  std::size_t ran = 0;
  while (ran < most && run_one()) ++ran;
  return ran;
}

void StepScheduler::run_until(const std::function<bool()>& done) {
  constexpr std::chrono::microseconds pause{20};
  while (!done()) {
    if (!run_one()) std::this_thread::sleep_for(pause);
  }
}

bool StepScheduler::run_one() {
  const std::lock_guard running(running_);
  for (const auto& stream : next_round()) {
    if (!stream->step()) continue;
    last_ = stream->id();
    return true;
  }
  return false;
}

// All streams, beginning with the one after the last that ran.
std::vector<std::shared_ptr<Stream>> StepScheduler::next_round() {
  std::vector<std::shared_ptr<Stream>> round;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [](const std::weak_ptr<Stream>& stream) { return stream.expired(); });
    for (const auto& each : streams_) {
      if (auto stream = each.lock()) round.push_back(std::move(stream));
    }
  }
  const auto first = std::ranges::find_if(round, [&](const auto& stream) { return stream->id() > last_; });
  std::rotate(round.begin(), first, round.end());
  return round;
}

}  // namespace vmem::emu

std::size_t vmem_emu_run(std::size_t most) {
  return vmem::emu::machine().config().workers ? 0 : vmem::emu::machine().steps().run(most);
}
