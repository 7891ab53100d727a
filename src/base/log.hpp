// The log: one line on stderr per message, formatted only when its level is on. A disabled level
// costs one relaxed load.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string_view>

#include "base/status.hpp"

namespace vmem::log {

enum class Level { trace, debug, info, warn, error, off };

namespace detail {
extern std::atomic<Level> threshold;
}

inline bool enabled(Level level) noexcept { return level >= detail::threshold.load(std::memory_order_relaxed); }
// Messages below `level` are dropped from now on.
void set_level(Level level) noexcept;
// "trace", "debug", "info", "warn", "error", "off". Errors: INVALID_OPTION.
Result<Level> parse_level(std::string_view name);
// Writes at any level; use the macros.
void write(Level level, std::string_view message);
// A warning without formatting, for callers out of memory: one line without a time, in one system
// call.
void write_plain(std::string_view message) noexcept;

}  // namespace vmem::log

// VMEM_LOG_WARN("{} ran out at {}", name, bytes): arguments are evaluated only if the level is on.
#define VMEM_LOG_AT(level, ...)                                                             \
  do {                                                                                      \
    if (::vmem::log::enabled(level)) ::vmem::log::write(level, ::fmt::format(__VA_ARGS__)); \
  } while (false)
#define VMEM_LOG_TRACE(...) VMEM_LOG_AT(::vmem::log::Level::trace, __VA_ARGS__)
#define VMEM_LOG_DEBUG(...) VMEM_LOG_AT(::vmem::log::Level::debug, __VA_ARGS__)
#define VMEM_LOG_INFO(...) VMEM_LOG_AT(::vmem::log::Level::info, __VA_ARGS__)
#define VMEM_LOG_WARN(...) VMEM_LOG_AT(::vmem::log::Level::warn, __VA_ARGS__)
#define VMEM_LOG_ERROR(...) VMEM_LOG_AT(::vmem::log::Level::error, __VA_ARGS__)
