// Whether this process was forked, and the number of the calling thread.
#pragma once

#include <cstdint>

namespace vmem::process {

// Makes later forks visible in the child. Returns false on failure.
bool watch_forks();
// Whether this process is a child forked after watch_forks. The parent's other threads do not exist
// here, but their locks stay locked; GPU memory is not this process's own.
bool forked() noexcept;

// A number of the calling thread, unique among live threads; not 0. When the thread ends, a later
// thread may get its number. Calls after that, from destructors of other thread-local variables,
// get fresh numbers. A thread-local variable whose destructor needs the thread's number must be
// constructed after a first call.
std::uintptr_t thread_number();
// Reserves the calling thread's number: no later thread gets it.
void keep_thread_number() noexcept;

}  // namespace vmem::process
