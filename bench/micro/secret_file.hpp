// A secret that a benchmark shares with its child processes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file_descriptor.hpp"
#include "rdma/trust/keyring.hpp"

namespace vmem::bench {

// Writes the secret to a new file; `path` ends in XXXXXX. Forks a process for it, because children
// of a process that used OpenSSL cannot use it.
inline bool make_secret_file(char* path) {
  const FileDescriptor file(::mkstemp(path));
  const pid_t writer = ::fork();
  if (writer == 0) {
    const auto line = rdma::make_secret_line(**rdma::Crypto::load(), "bench");
    ::_exit(line && ::write(file.get(), line->data(), line->size()) > 0 ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(writer, &status, 0) == writer && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace vmem::bench
