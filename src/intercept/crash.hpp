// A process that crashes: whose fault it may be.
#pragma once

namespace vmem::intercept {

// From here on a crash in code of vmem's, or in a call that vmem made, is said to be one, with the way that led there; any other passes without
// a word, unless the log level is debug. Handlers that were there before come after this one; those that the program sets later, in its place.
void report_own_crashes();

}  // namespace vmem::intercept
