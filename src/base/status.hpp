// The result of a failed operation: a status of the public API, the driver's own code if any, and a
// sentence with the request, the state found and the remedy. No exception crosses a module.
#pragma once

#include <expected>
#include <string>
#include <utility>

#include "vmem/vmem.h"

namespace vmem {

struct [[nodiscard]] Error {
  vmem_status status = VMEM_ERROR_INTERNAL;
  int native = 0;  // CUresult or errno, 0 if neither
  std::string message;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

inline std::unexpected<Error> fail(vmem_status status, std::string message, int native = 0) {
  return std::unexpected<Error>(Error{status, native, std::move(message)});
}

// Returns a failure to the caller: VMEM_TRY(expr); or VMEM_ASSIGN(auto x, expr);
#define VMEM_CONCAT_IMPL(a, b) a##b
#define VMEM_CONCAT(a, b) VMEM_CONCAT_IMPL(a, b)
#define VMEM_TRY(expr)                                                                                               \
  do {                                                                                                               \
    if (auto vmem_try_result = (expr); !vmem_try_result) return std::unexpected(std::move(vmem_try_result).error()); \
  } while (false)
#define VMEM_ASSIGN(decl, expr) VMEM_ASSIGN_IMPL(VMEM_CONCAT(vmem_result_, __LINE__), decl, expr)
#define VMEM_ASSIGN_IMPL(tmp, decl, expr)                   \
  auto tmp = (expr);                                        \
  if (!tmp) return std::unexpected(std::move(tmp).error()); \
  decl = std::move(*tmp)

}  // namespace vmem
