#include "peer/wire.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

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

Result<OwnDescriptor> make_socket() {
  OwnDescriptor made(FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!made) return system_error("a local socket");
  return made;
}

bool try_connect(int socket, const sockaddr_un& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool try_bind(int socket, const sockaddr_un& address) {
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// True for a socket left by a process that has ended. Checks S_ISSOCK because other files refuse
// connections too.
bool abandoned(const sockaddr_un& address) {
  struct stat about{};
  if (::lstat(address.sun_path, &about) != 0 || !S_ISSOCK(about.st_mode)) return false;
  const auto probe = make_socket();
  return probe && !try_connect(probe->get(), address) && errno == ECONNREFUSED;
}

constexpr int kLockTries = 100;
constexpr std::chrono::milliseconds kLockPause{20};

// Waits at most 2 s: any process that can open the folder can hold its lock.
bool lock(int folder) {
  for (int tries = 1; ::flock(folder, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || tries == kLockTries) return false;
    std::this_thread::sleep_for(kLockPause);
  }
  return true;
}

// Unlocks explicitly: a child forked just before the close would keep the lock.
class FolderLock {
 public:
  explicit FolderLock(OwnDescriptor locked) noexcept : folder_(std::move(locked)) {}
  FolderLock(FolderLock&&) = default;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock() {
    if (folder_) (void)::flock(folder_.get(), LOCK_UN);
  }

 private:
  OwnDescriptor folder_;
};

// Held while a name is checked and taken: between bind and listen a socket looks abandoned.
Result<FolderLock> lock_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  OwnDescriptor opened(FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!opened) return system_error(folder);
  if (lock(opened.get())) return FolderLock(std::move(opened));
  if (errno != EWOULDBLOCK && errno != EINTR) return system_error(folder);
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("another process keeps the folder {} locked (flock); choose another", folder), errno);
}

}  // namespace

Result<Listener> listen_at(const std::string& path) {
  VMEM_ASSIGN(const sockaddr_un address, address_of(path));
  VMEM_ASSIGN(const FolderLock lock, lock_folder_of(path));
  Listener listener;
  VMEM_ASSIGN(listener.socket, make_socket());
  if (!try_bind(listener.socket.get(), address)) {
    const int why = errno;
    if (why != EADDRINUSE) return system_error(path, why);
    if (!abandoned(address)) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("{}: another process lends there, or something else has that name; choose another", path),
                  why);
    }
    (void)::unlink(path.c_str());
    if (!try_bind(listener.socket.get(), address)) return system_error(path);
  }
  struct stat about{};
  // chmod before listen: nobody can connect before the mode is set.
  const bool ready = ::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0 && ::lstat(path.c_str(), &about) == 0 &&
                     ::listen(listener.socket.get(), 16) == 0;
  if (!ready) return system_error(path);
  listener.device = about.st_dev;
  listener.inode = about.st_ino;
  return listener;
}

void forget_name(const std::string& path, const Listener& listener) {
  const auto lock = lock_folder_of(path);
  struct stat about{};
  const bool ours =
      ::lstat(path.c_str(), &about) == 0 && about.st_dev == listener.device && about.st_ino == listener.inode;
  if (lock && ours) (void)::unlink(path.c_str());
}

Result<OwnDescriptor> connect_to(const std::string& path) {
  VMEM_ASSIGN(const sockaddr_un address, address_of(path));
  VMEM_ASSIGN(OwnDescriptor socket, make_socket());
  if (!try_connect(socket.get(), address)) {
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("{}: {}; a process lends there if it is started with --lend, or as a daemon with --hbm-mapped",
                    path, std::strerror(errno)),
        errno);
  }
  return socket;
}

Result<OwnDescriptor> accept_from(int listener) {
  OwnDescriptor accepted(FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
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

bool same_user(const Identity& who) { return who.uid == ::geteuid() || who.uid == 0; }

Result<bool> send(int socket, const Message& message, int descriptor) {
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
  // SOCK_SEQPACKET: a message is sent as a whole or not at all.
  if (::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
  return system_error("a message to another process");
}

void Outbox::put(const Message& message, FileDescriptor descriptor) {
  if (message.kind == Kind::limit)
    std::erase_if(unsent_, [](const Unsent& each) { return each.message.kind == Kind::limit; });
  unsent_.push_back({message, std::move(descriptor)});
}

Status Outbox::flush(int socket) {
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    VMEM_ASSIGN(const bool sent, send(socket, next.message, next.descriptor ? next.descriptor.get() : -1));
    if (!sent) return {};
    unsent_.pop_front();
  }
  return {};
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
  ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // ECONNRESET comes once if the peer closed with unread data; its earlier messages remain
  // readable.
  if (got < 0 && errno == ECONNRESET) got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::nullopt;
  if (got < 0) return system_error("a message from another process");
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    // The padding has room for a second descriptor; the assignment closes the first.
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= each->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(each) + at, sizeof descriptor);
      received.descriptor = FileDescriptor(descriptor);
    }
  }
  if (got == 0) return fail(VMEM_ERROR_INTERNAL, "the other process has closed the connection", ECONNRESET);
  const bool whole = got == ssize_t(sizeof received.message) && (header.msg_flags & MSG_TRUNC) == 0;
  if (!whole || received.message.magic != Message::kMagic)
    return fail(VMEM_ERROR_INTERNAL, "what came from the other process is no message of vmem's", EPROTO);
  return received;
}

void wait_readable(int socket, std::chrono::milliseconds patience) {
  pollfd watched{socket, POLLIN, 0};
  (void)::poll(&watched, 1, int(patience.count()));
}

}  // namespace vmem::peer
