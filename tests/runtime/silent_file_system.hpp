// A file system that goes silent on command, as a FUSE server that hangs or NFS without its server: it takes requests, and does not
// answer. Its server is a process of its own, so that its end is the end of every request.
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

  // Why there is none; nothing if it is mounted.
  const std::optional<std::string>& why_not() const { return why_not_; }
  std::string path() const { return folder_ + "/mounted"; }

  void go_silent();
  void answer_again();  // what was asked meanwhile, too
  void die();           // its server: requests fail, those that wait as well

 private:
  std::string folder_;
  std::optional<rdma::Process> server_;
  std::size_t silences_ = 0, answers_ = 0;
  bool dead_ = false;
  std::optional<std::string> why_not_;
};

}  // namespace vmem::test
