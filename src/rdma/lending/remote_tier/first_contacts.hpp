// The first outcome of connecting to each peer: a program that starts wants to know whether its
// peers can be used. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rdma/lending/remote_tier/remote_config.hpp"

namespace vmem::rdma {

// What else than the connection keeps a node from being used.
enum class Obstacle : std::uint8_t {
  none,
  full,            // it answered and has no room for us
  nobody_listens,  // its address refuses connections
  unreachable,     // no way leads to its address
};
// What an errno says of the address; `otherwise`, if nothing.
Obstacle obstacle_of(int error, Obstacle otherwise);

class FirstContacts {
 public:
  FirstContacts(std::vector<std::string> peers, RemoteConfig::Credentials credentials)
      : credentials_(credentials), peers_(std::move(peers)), contacts_(peers_.size()) {}

  // A further peer: its index is the number of those before it.
  void add(const std::string& address);
  void reached(std::uint32_t node, const std::string& path);
  // No effect on a node with an outcome.
  void failed(std::uint32_t node, const std::string& why, Obstacle obstacle);

  // Waits until each peer has an outcome. At most `absent` peers may be off, if another was
  // reached: a warning names each. Errors: INVALID_OPTION for the first other peer that was not
  // reached, with the reason and the remedy.
  Status wait(std::uint64_t most_us, std::size_t absent);
  // Waits until each peer has an outcome. A warning names each that was not reached.
  void settle(std::uint64_t most_us);
  // "tcp/lo"; "": the node was never reached.
  std::string path(std::uint32_t node) const;

 private:
  struct Contact {
    enum class State : std::uint8_t { untried, failed, reached };
    State state = State::untried;
    std::string path;  // if reached
    std::string why;   // if failed, like obstacle
    Obstacle obstacle = Obstacle::none;
  };
  void wait_for_outcomes(std::unique_lock<std::mutex>& lock, std::uint64_t most_us);
  std::string failure_words(const std::string& address, const Contact& contact) const;
  static bool is_off(const Contact& contact);

  const RemoteConfig::Credentials credentials_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_; by node.
  std::vector<std::string> peers_;
  std::vector<Contact> contacts_;
};

}  // namespace vmem::rdma
