// The calling thread's last failure, for vmem_last_error. The C API turns every Error into a status
// through record().
#pragma once

#include <string_view>

#include "base/status.hpp"

namespace vmem::last_error {

// Keeps the message for the calling thread and returns the status.
vmem_status record(const Error& error) noexcept;
// The same without an Error, for callers that may be out of memory.
vmem_status record(vmem_status status, std::string_view message) noexcept;
// The calling thread's last recorded message, "" if none. Valid until the thread records another.
const char* message() noexcept;

}  // namespace vmem::last_error
