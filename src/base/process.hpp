// What became of this process, and which of its threads is calling.
#pragma once

#include <cstdint>

namespace vmem::process {

// From here on a fork is noticed in the child. Errors are reported as false.
bool watch_forks();
// This process is a child forked after watch_forks. Its threads, other than the one that forked, are gone, with what they had
// locked; GPU memory is not its own.
bool forked() noexcept;

// A number of the calling thread that no other live thread has; not 0. A thread that ends hands its number to a later one. Calls
// after that, by destructors of other thread-local variables, get numbers of their own: a thread-local variable whose destructor
// needs the thread's number is constructed after a first call of this.
std::uintptr_t thread_number();
// The calling thread's number goes to no other thread.
void keep_thread_number() noexcept;

}  // namespace vmem::process
