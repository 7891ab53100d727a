// Drained mode (option drained): no page moves while a launch is being queued or runs. In other
// modes the gate is always open.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "base/status.hpp"
#include "runtime/assembly/devices.hpp"

namespace vmem::runtime {

// Any thread.
class MoveGate {
 public:
  enum class Mode { open, drained };
  MoveGate(Mode mode, const Devices& devices) : mode_(mode), devices_(devices) {}

  bool drained() const { return mode_ == Mode::drained; }
  // A launch holds the returned lock until it is queued: meanwhile no page moves. In other modes
  // the lock is empty.
  std::shared_lock<std::shared_mutex> hold_back_moves();
  // While the returned lock is held, no work runs and no launch begins. In other modes the lock is
  // empty and nothing is waited for. Errors: those of synchronising a device.
  Result<std::unique_lock<std::shared_mutex>> drain();

 private:
  const Mode mode_;
  const Devices& devices_;
  std::shared_mutex moves_;  // shared: launches; exclusive: moves of pages
  std::mutex turn_;          // drain() holds it: new launches queue behind the drain
};

}  // namespace vmem::runtime
