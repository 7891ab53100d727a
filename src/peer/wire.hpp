// Messages between the lender of GPU memory and a borrower: two processes of one user on one
// machine, over a local socket that preserves message boundaries. A piece of memory travels as a
// file descriptor with its grant.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "base/closed_on_fork.hpp"
#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem::peer {

enum class Kind : std::uint16_t {
  hello = 1,  // the borrower's first message
  welcome,    // the lender's answer: device, largest limit, limit now
  refused,    // the lender's answer instead: the reason
  take,       // the borrower asks for a piece of `bytes`
  grant,      // the lender's answer, with the piece
  full,       // the lender's answer: no memory is left now
  give,       // the borrower has unmapped and released the piece
  limit,      // the borrower's new limit, and the deadline for returning the excess
  bye,        // the borrower's last message: it holds nothing
};

struct Message {
  static constexpr std::uint32_t kMagic = 0x4d484c56;
  static constexpr std::uint16_t kVersion = 1;
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind{};
  std::uint64_t number = 0;                // take .. give: of the piece, chosen by the borrower
  std::uint64_t bytes = 0;                 // take, grant: of the piece; welcome, limit: the limit
  std::uint64_t most_bytes = 0;            // welcome
  std::uint64_t deadline_us = 0;           // limit: from the time of sending
  std::array<unsigned char, 16> device{};  // welcome: the GPU's UUID
  std::array<char, 192> text{};            // refused: the reason

  void say(std::string_view why) { why.copy(text.data(), text.size() - 1); }
  std::string said() const { return text.back() == 0 ? std::string(text.data()) : std::string(); }
};

// Sockets belong to this process: a forked child keeps neither the name nor a connection. Errors of
// all functions: the system's message, with the path or operation.
//
// listen_at: only this user's processes can connect. Replaces a socket on which nobody listens, and
// nothing else.
struct Listener {
  OwnDescriptor socket;
  dev_t device = 0;
  ino_t inode = 0;
};
Result<Listener> listen_at(const std::string& path);
// Unlinks the name if it still is the listener's.
void forget_name(const std::string& path, const Listener& listener);
Result<OwnDescriptor> connect_to(const std::string& path);
Result<OwnDescriptor> accept_from(int listener);

struct Identity {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<Identity> identity_of(int socket);
// A pidfd, readable once the process ends. nullopt: the process has ended.
Result<std::optional<FileDescriptor>> watch_end(pid_t pid);

bool same_user(const Identity& who);  // the user of this process, or root

// send and receive never wait. Attaches `descriptor` unless negative. False: the peer has not read
// enough yet.
Result<bool> send(int socket, const Message& message, int descriptor = -1);
struct Received {
  Message message;
  FileDescriptor descriptor;  // none: not attached, or no descriptor left here
};
// nullopt: no message yet. Errors: the peer has closed, or sent an invalid message.
Result<std::optional<Received>> receive(int socket);
// Messages that could not be sent yet, in order.
class Outbox {
 public:
  struct Unsent {
    Message message;
    FileDescriptor descriptor;
  };
  // A new limit replaces an unsent one.
  void put(const Message& message, FileDescriptor descriptor = {});
  Status flush(int socket);
  const std::deque<Unsent>& unsent() const { return unsent_; }
  void clear() { unsent_.clear(); }

 private:
  std::deque<Unsent> unsent_;
};
// Waits until there is something to receive, or `patience` has passed; receive() tells which.
void wait_readable(int socket, std::chrono::milliseconds patience);

}  // namespace vmem::peer
