# Run at every build: writes the commit of SOURCE_DIR to OUTPUT, if it differs from what is there.
set(commit unknown)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C "${SOURCE_DIR}" rev-parse HEAD
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${head}")
    execute_process(COMMAND ${GIT} -C "${SOURCE_DIR}" status --porcelain --untracked-files=normal
      OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(changes)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "bench/build_info.hpp"

namespace vmem::bench {

const char* const kCommit = "@commit@";

}  // namespace vmem::bench
]])
