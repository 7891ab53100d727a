// The interface between a ServedRegistry and what carries its messages to the server. Messages are
// at most kMostMessageBytes long, and may be lost, copied and overtaken. The channel sees to it
// that nobody but the server answers.
//
// Threads: the registry's. Answers that come on another thread wait in the channel.
#pragma once

#include <string>
#include <vector>

namespace vmem::cluster {

class RequestChannel {
 public:
  virtual ~RequestChannel() = default;
  virtual void send(std::string message) = 0;
  // Appends the answers since the last call.
  virtual void receive(std::vector<std::string>& answers) = 0;
};

}  // namespace vmem::cluster
