// What the lender of a GPU's memory and who borrows it say to each other: two processes of one machine and one user, over a local socket
// that keeps messages apart. A piece of memory travels as a file descriptor beside its grant.
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
  hello = 1,  // the borrower's first
  welcome,    // the lender's answer: whose memory, how much at most ever, how much now
  refused,    // or why not
  take,       // the borrower wants a piece of so many bytes
  grant,      // with the piece
  full,       // there is none now
  give,       // the borrower has unmapped and released the piece
  limit,      // what the borrower may hold from now on; if it holds more, until when it has to have given that back
  bye,        // the borrower's last: it holds nothing any more
};

struct Message {
  static constexpr std::uint32_t kMagic = 0x4d484c56;
  static constexpr std::uint16_t kVersion = 1;
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Kind kind{};
  std::uint64_t number = 0;                // take, grant, full, give: of the piece, chosen by the borrower
  std::uint64_t bytes = 0;                 // take, grant: of the piece; welcome, limit: what the borrower may hold
  std::uint64_t most_bytes = 0;            // welcome
  std::uint64_t deadline_us = 0;           // limit: from now
  std::array<unsigned char, 16> device{};  // welcome: its UUID
  std::array<char, 192> text{};            // refused

  void say(std::string_view why) { why.copy(text.data(), text.size() - 1); }
  std::string said() const { return text.back() == 0 ? std::string(text.data()) : std::string(); }
};

// Sockets are the process's own: a forked child keeps neither the name nor a connection.
// Errors of all: what the system says, with the path.
// Only the user's own processes can connect. A socket that nobody listens on any more is replaced, and nothing else is.
struct Listener {
  OwnDescriptor socket;
  dev_t device = 0;
  ino_t inode = 0;
};
Result<Listener> listen_at(const std::string& path);
// Takes the name away, if it is still the listener's.
void forget_name(const std::string& path, const Listener& listener);
Result<OwnDescriptor> connect_to(const std::string& path);
Result<OwnDescriptor> accept_from(int listener);

struct Identity {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<Identity> identity_of(int socket);
// Becomes readable when the process ends. Nothing: it has ended.
Result<std::optional<FileDescriptor>> watch_end(pid_t pid);

bool same_user(const Identity& who);  // as this process, or root

// Neither waits. `descriptor` is sent along if it is not negative. False: the other side has not read enough yet.
Result<bool> send(int socket, const Message& message, int descriptor = -1);
struct Received {
  Message message;
  FileDescriptor descriptor;
};
// Nothing: there is none yet. Errors: the other side has closed; or what came is none of these messages.
Result<std::optional<Received>> receive(int socket);
// What could not be sent yet, in order.
class Outbox {
 public:
  struct Unsent {
    Message message;
    FileDescriptor descriptor;
  };
  // A limit takes the place of one that was not sent yet.
  void put(const Message& message, FileDescriptor descriptor = {});
  Status flush(int socket);
  const std::deque<Unsent>& unsent() const { return unsent_; }
  void clear() { unsent_.clear(); }

 private:
  std::deque<Unsent> unsent_;
};
// Until there is something to receive, or the time is over, which receive will tell.
void wait_readable(int socket, std::chrono::milliseconds patience);

}  // namespace vmem::peer
