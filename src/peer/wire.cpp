#include "peer/wire.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace vmem::peer {
namespace {

std::unexpected<Error> system_error(const std::string& what, int error = errno) {
  return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{}: {}", what, std::strerror(error)), error);
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the path of a socket has 1 to {} bytes, '{}' has {}",
                                                       sizeof address.sun_path - 1, path, path.size()));
  }
  path.copy(address.sun_path, path.size());
  return address;
}

Result<FileDescriptor> make_socket() {
  FileDescriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return system_error("a local socket");
  return made;
}

bool try_connect(int socket, const sockaddr_un& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool try_bind(int socket, const sockaddr_un& address) {
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Left by a process that has ended.
bool abandoned(const sockaddr_un& address) {
  const auto probe = make_socket();
  return probe && !try_connect(probe->get(), address) && errno == ECONNREFUSED;
}

}  // namespace

Result<FileDescriptor> listen_at(const std::string& path) {
  VMEM_ASSIGN(const sockaddr_un address, address_of(path));
  VMEM_ASSIGN(FileDescriptor listener, make_socket());
  if (!try_bind(listener.get(), address)) {
    const int why = errno;
    if (why != EADDRINUSE) return system_error(path, why);
    if (!abandoned(address)) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("{}: another process lends there, or something else has that name; choose another", path),
                  why);
    }
    (void)::unlink(path.c_str());
    if (!try_bind(listener.get(), address)) return system_error(path);
  }
  // Before anybody can connect.
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(listener.get(), 16) != 0) return system_error(path);
  return listener;
}

Result<FileDescriptor> connect_to(const std::string& path) {
  VMEM_ASSIGN(const sockaddr_un address, address_of(path));
  VMEM_ASSIGN(FileDescriptor socket, make_socket());
  if (!try_connect(socket.get(), address)) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{}: {}; the process that lends there is started with --lend", path, std::strerror(errno)),
                errno);
  }
  return socket;
}

Result<FileDescriptor> accept_from(int listener) {
  FileDescriptor accepted(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted) return system_error("a borrower");
  return accepted;
}

Result<Identity> identity_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return system_error("who is on the other side of a local socket");
  return Identity{credentials.pid, credentials.uid};
}

Result<std::optional<FileDescriptor>> watch_end(pid_t pid) {
  const long opened = ::syscall(SYS_pidfd_open, pid, 0);
  if (opened < 0 && errno == ESRCH) return std::nullopt;
  if (opened < 0) return system_error(fmt::format("process {}", pid));
  return FileDescriptor(int(opened));
}

Status send(int socket, const Message& message, int descriptor) {
  iovec part{const_cast<Message*>(&message), sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  if (::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t(sizeof message)) return {};
  return system_error("a message to another process");
}

Result<std::optional<Received>> receive(int socket) {
  Received received;
  iovec part{&received.message, sizeof received.message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::nullopt;
  if (got < 0) return system_error("a message from another process");
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(each), sizeof descriptor);
    received.descriptor = FileDescriptor(descriptor);
  }
  if (got == 0) return fail(VMEM_ERROR_INTERNAL, "the other process has closed the connection", ECONNRESET);
  const bool whole = got == ssize_t(sizeof received.message) && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || received.message.magic != Message::kMagic)
    return fail(VMEM_ERROR_INTERNAL, "what came from the other process is no message of vmem's", EPROTO);
  return received;
}

void wait_readable(int socket, std::chrono::milliseconds patience) {
  pollfd watched{socket, POLLIN, 0};
  (void)::poll(&watched, 1, int(patience.count()));
}

}  // namespace vmem::peer
