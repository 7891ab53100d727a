#include "base/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

namespace vmem::log {
namespace {

struct Name {
  std::string_view text;
  Level level;
  spdlog::level::level_enum backend;
};
constexpr std::array<Name, 6> kNames{{
    {"trace", Level::trace, spdlog::level::trace},
    {"debug", Level::debug, spdlog::level::debug},
    {"info", Level::info, spdlog::level::info},
    {"warn", Level::warn, spdlog::level::warn},
    {"error", Level::error, spdlog::level::err},
    {"off", Level::off, spdlog::level::off},
}};

// Outside spdlog's registry, which the program may use. Never destroyed: threads may log until the
// end.
spdlog::logger& backend() {
  static spdlog::logger& logger = *[] {
    auto* made = new spdlog::logger("vmem", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("%H:%M:%S.%e [%n %P:%t] %l: %v");
    return made;
  }();
  return logger;
}

}  // namespace

std::atomic<Level> detail::threshold{Level::warn};

void set_level(Level level) noexcept { detail::threshold.store(level, std::memory_order_relaxed); }

Result<Level> parse_level(std::string_view name) {
  const auto found = std::ranges::find(kNames, name, &Name::text);
  if (found != kNames.end()) return found->level;
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is no log level", name));
}

void write(Level level, std::string_view message) {
  backend().log(kNames[std::size_t(level)].backend, spdlog::string_view_t(message.data(), message.size()));
}

void write_plain(std::string_view message) noexcept {
  if (!enabled(Level::warn)) return;
  static constexpr std::string_view kBegin = "[vmem] warning: ", kEnd = "\n";
  const auto part = [](std::string_view text) {
    return iovec{const_cast<char*>(text.data()), text.size()};  // writev only reads it
  };
  const std::array<iovec, 3> line{part(kBegin), part(message), part(kEnd)};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, line.data(), int(line.size()));
}

}  // namespace vmem::log
