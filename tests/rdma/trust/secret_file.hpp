// A temporary secret file, removed on destruction.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "base/file_descriptor.hpp"
#include "rdma/trust/keyring.hpp"

namespace vmem::rdma {

class SecretFile {
 public:
  SecretFile() : SecretFile(line("cluster")) {}
  explicit SecretFile(const std::string& text, mode_t mode = 0600) {
    const FileDescriptor file(::mkstemp(path_));
    write(text);
    ::chmod(path_, mode);
  }
  ~SecretFile() { ::unlink(path_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  static std::string line(const std::string& identity) { return *make_secret_line(**Crypto::load(), identity); }
  // Replaces the contents.
  void write(const std::string& text) const {
    if (!(std::ofstream(path_) << text)) throw std::runtime_error("the secret was not written");
  }
  std::string path() const { return path_; }
  KeyringRef read() const { return *Keyring::open(path_); }

 private:
  char path_[32] = "/tmp/vmem_secret_XXXXXX";
};

}  // namespace vmem::rdma
