#include "runtime/memory/move_gate.hpp"

#include <fmt/format.h>

#include "gpu/handles.hpp"

namespace vmem::runtime {

std::shared_lock<std::shared_mutex> MoveGate::hold_back_moves() {
  if (!drained()) return {};
  const std::lock_guard after_moves(turn_);
  return std::shared_lock(moves_);
}

Result<std::unique_lock<std::shared_mutex>> MoveGate::drain() {
  if (!drained()) return std::unique_lock<std::shared_mutex>();
  // Launches wait behind this mutex: readers of the shared mutex alone could starve the drain.
  const std::lock_guard first(turn_);
  std::unique_lock lock(moves_);
  const gpu::RelaxedCapture relaxed(*devices_.front().driver);
  for (const auto& device : devices_) {
    auto idle = devices_.synchronize(device->ordinal);
    if (idle) continue;
    Error error = idle.error();
    error.message = fmt::format(
        "--drained moves pages only while nothing runs: {}; is a stream capturing? Allocate before that, "
        "or raise --hbm",
        error.message);
    return std::unexpected(std::move(error));
  }
  return lock;
}

}  // namespace vmem::runtime
