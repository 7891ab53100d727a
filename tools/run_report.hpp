// The two lines that `vmem run` ends with.
#pragma once

#include <cstdint>
#include <string>

#include "base/run_board.hpp"

namespace vmem::tools {

enum class CudaDriver : std::uint8_t { installed, absent };

// What vmem did for the processes of a run, in two lines; "" where a refusal has said it all.
std::string run_report(const RunBoard::Summary& summary, CudaDriver driver);

}  // namespace vmem::tools
