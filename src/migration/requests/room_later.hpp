// Whether a call that found no room waits.
#pragma once

#include "migration/parts.hpp"

namespace vmem::migration {

// True if the call waits for a node that does not respond now.
inline bool may_find_room_later(const MoverParts& parts, const Error& error) {
  return error.status == VMEM_ERROR_OUT_OF_MEMORY && parts.below.pacing().away(parts.core.now_us());
}

}  // namespace vmem::migration
