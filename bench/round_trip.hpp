// A request of one byte and its answer of a page, by plain sockets: the least time in which a page
// comes from another process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "bench/socket_pair.hpp"

namespace vmem::bench {

class RoundTrip {
 public:
  // Answers come from a child process, which ends with this. Errors: DRIVER.
  static Result<RoundTrip> start(SocketKind kind, std::uint64_t page_bytes);
  // Answers come from a server elsewhere that sends a page for each byte it is sent. Errors:
  // INVALID_OPTION, naming the address.
  static Result<RoundTrip> connect(const std::string& address);
  RoundTrip(RoundTrip&& other) noexcept
      : socket_(std::move(other.socket_)), child_(std::exchange(other.child_, -1)), name_(std::move(other.name_)) {}
  RoundTrip& operator=(RoundTrip&&) = delete;
  ~RoundTrip();

  // Returns once `page` is filled. Errors: DRIVER; TIMEOUT if no byte comes for ten seconds.
  Status fetch(std::span<std::byte> page) const;
  // "plain local sockets between two processes here"
  const std::string& name() const { return name_; }

 private:
  RoundTrip(FileDescriptor socket, std::string name) : socket_(std::move(socket)), name_(std::move(name)) {}
  Status prepare() const;

  FileDescriptor socket_;
  pid_t child_ = -1;
  std::string name_;
};

}  // namespace vmem::bench
