// What to say when the GPU has failed for good (a sticky error): which launches may have done it, what they named, and, where the
// kernel's log gives the address, whose memory it is and what happened to it lately.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>

namespace vmem::intercept {

struct FunctionFacts;
// A launch of the function (null: of a graph) is being queued. Remembers the thread's last ones. Nothing: nobody looked at what it names.
void note_launch(const FunctionFacts* function, CUstream stream,
                 std::optional<std::span<const std::uintptr_t>> addresses);

// `result` is sticky (gpu::is_sticky). Once for the process: on stderr.
void diagnose(CUresult result);

}  // namespace vmem::intercept
