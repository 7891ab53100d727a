// Whether a call that found no room waits.
#pragma once

#include <optional>
#include <utility>

#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

// True if the call waits for a node that does not respond now.
inline bool may_find_room_later(const MoverParts& parts, const Error& error) {
  return error.status == VMEM_ERROR_OUT_OF_MEMORY && parts.below.pacing().away(parts.core.now_us());
}

// Memory of ending regions comes free when the work that uses it ends: waits for that.
inline std::optional<Status> error_or_wait(MoverParts& parts, Patience& patience, Error error) {
  if (parts.endings.regions().empty()) return std::unexpected(std::move(error));
  if (!patience.over(parts.core)) return std::nullopt;
  error.message += "; memory that was freed is still used by unfinished work, and was waited for";
  return std::unexpected(std::move(error));
}

}  // namespace vmem::migration
