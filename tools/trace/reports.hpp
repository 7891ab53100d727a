// What `vmem trace` prints of a trace.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "replay/replay.hpp"
#include "trace/bound.hpp"
#include "trace/file.hpp"
#include "trace/program.hpp"

namespace vmem::tools {

// What was recorded, in some 20 lines: sizes, bytes moved, waits, what was busy, what
// ran.
std::string summary_of(const trace::Trace& trace, const std::string& path);

// One line for each event.
std::string words_of(const trace::Trace& trace, const trace::Event& event);

// For chrome://tracing and Perfetto: JSON with a track for each stream and thread, each direction
// of the link, the mover and the waits; an arrow leads from a fetch to the launch that waited for
// it. Errors: INVALID_OPTION (the file cannot be written).
Status export_chrome(const trace::Trace& trace, const std::string& path);

// What a part of the trace takes at least in so much HBM, and what a schedule that knows it takes.
// Errors: INVALID_OPTION (no launches; a launch that needs more).
Result<std::string> bound_of(const trace::Trace& trace, const trace::Extract& what, const trace::Machine& machine);

// What a replay measured.
std::string words_of(const replay::Measured& measured);

// What a replay kept busy, as export_chrome writes a trace.
std::string json_of(const replay::Timeline& timeline);

}  // namespace vmem::tools
