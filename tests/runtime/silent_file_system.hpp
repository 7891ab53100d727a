// A file system that stops answering on command, like a hung FUSE server or NFS without its server:
// it accepts requests and does not answer. Its server is a separate process, so that killing it
// ends every request.
#pragma once

#include <optional>
#include <string>

#include "rdma/process.hpp"

namespace vmem::test {

class SilentFileSystem {
 public:
  SilentFileSystem();
  ~SilentFileSystem();
  SilentFileSystem(const SilentFileSystem&) = delete;
  SilentFileSystem& operator=(const SilentFileSystem&) = delete;

  // The reason that it is not mounted; nothing if it is.
  const std::optional<std::string>& why_not() const { return why_not_; }
  std::string path() const { return folder_ + "/mounted"; }

  void go_silent();
  void answer_again();  // also requests made meanwhile
  void die();           // kills the server: all requests fail, waiting ones too

 private:
  std::string folder_;
  std::optional<rdma::Process> server_;
  std::size_t silences_ = 0, answers_ = 0;
  bool dead_ = false;
  std::optional<std::string> why_not_;
};

}  // namespace vmem::test
