// Supervises a child program, and acts towards its own parent as the program would.
#pragma once

#include <cstdint>
#include <functional>

namespace vmem::tools {

// Whether nodes that lend memory to the program cannot see its end, and are told of it.
enum class Lenders : std::uint8_t { none, to_be_told };

struct Supervised {
  char* const* words = nullptr;  // the program and its arguments; the last is null
  Lenders lenders = Lenders::none;
  // In the child, where exec failed with this error; returns the child's exit code.
  std::function<int(int error)> cannot_run;
  // After the program's end, and after the lenders heard of it.
  std::function<void()> at_end;
};

// Runs the program until its end. Passes on received signals, ends as the program did, and kills
// the program if killed itself. Returns the exit code.
int supervise(const Supervised& program);

}  // namespace vmem::tools
