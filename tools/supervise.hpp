// Stays beside a program that it starts, and is to its own parent what the program would have been.
#pragma once

namespace vmem::tools {

// Runs the program of these words (the last is null) until it has ended: passes on the signals that it is sent, and ends as the
// program did. It ends the program if it is killed itself. Lenders of memory hear of the program's end before it returns.
// Returns the exit code.
int supervise(char* const* words, int (*cannot_run)(const char* program, int error));

}  // namespace vmem::tools
