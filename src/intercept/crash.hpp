// Reports whether vmem caused a crash of the process.
#pragma once

namespace vmem::intercept {

// Installs handlers that print a backtrace when vmem's code, or a call made by vmem, crashes. Other
// crashes are reported only at log level debug. Earlier handlers run after these; handlers that the
// program installs later replace these.
void report_own_crashes();

}  // namespace vmem::intercept
