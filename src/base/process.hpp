// What became of this process.
#pragma once

namespace vmem::process {

// From here on a fork is noticed in the child. Errors are reported as false.
bool watch_forks();
// This process is a child forked after watch_forks. Its threads, other than the one that forked, are gone, with what they had
// locked; GPU memory is not its own.
bool forked() noexcept;

}  // namespace vmem::process
