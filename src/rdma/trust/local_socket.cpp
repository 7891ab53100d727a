#include "rdma/trust/local_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>

#include "base/option_parse.hpp"

namespace vmem::rdma {
namespace {

constexpr int kBacklog = 128;
constexpr int kTries = 64;  // further ports tried after one that is taken
constexpr std::uint64_t kFirstPort = 32768, kPorts = 28000;

std::unexpected<Error> refuse(std::string why, int code = 0) {
  return fail(VMEM_ERROR_INVALID_OPTION, std::move(why), code);
}

std::string user_directory() {
  const std::string runtime = fmt::format("/run/user/{}", ::geteuid());
  struct stat folder{};
  if (::lstat(runtime.c_str(), &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == ::geteuid())
    return runtime + "/vmem";
  return fmt::format("/tmp/vmem-{}", ::geteuid());
}

std::string lock_path(const std::string& path) { return path + ".lock"; }

void unlink_name(const std::string& path) {
  (void)::unlink(path.c_str());
  (void)::unlink(lock_path(path).c_str());
}

// The names of this process's listeners, for one that ends without destroying them: it returned
// from main without vmem_shutdown. Never destroyed, as other destructors may end listeners.
struct HeldNames {
  std::mutex mutex;
  pid_t process = 0;
  std::set<std::string> paths;  // protected by mutex, as `process`
};

HeldNames& held_names() {
  static auto* const held = new HeldNames;
  return *held;
}

void hold_name(const std::string& path) {
  HeldNames& held = held_names();
  const std::lock_guard lock(held.mutex);
  // A forked child has its parent's names, which are not its own.
  if (held.process != ::getpid()) held.paths.clear();
  held.process = ::getpid();
  held.paths.insert(path);
}

void free_name(const std::string& path) {
  HeldNames& held = held_names();
  const std::lock_guard lock(held.mutex);
  held.paths.erase(path);
  unlink_name(path);
}

// With a priority, so that it runs after the destructors without one, which leave other nodes.
__attribute__((destructor(101))) void free_names_at_exit() {
  HeldNames& held = held_names();
  // Who holds it now does not go on.
  const std::unique_lock lock(held.mutex, std::try_to_lock);
  if (!lock || held.process != ::getpid()) return;
  for (const std::string& path : held.paths) unlink_name(path);
}

// Takes the lock of a name, whose holder may remove the socket file of a process that died. Empty,
// with errno: it is another's, EWOULDBLOCK, or cannot be opened. `create`: O_CREAT, or 0.
FileDescriptor lock_name(const std::string& path, int create) {
  FileDescriptor lock(::open(lock_path(path).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | create, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // The last owner may have unlinked the lock file after the open: then the lock protects no name.
  struct stat opened{}, named{};
  if (::fstat(lock.get(), &opened) == 0 && ::stat(lock_path(path).c_str(), &named) == 0 &&
      opened.st_ino == named.st_ino)
    return lock;
  errno = EWOULDBLOCK;
  return {};
}

// Whether port 0 may have picked the name.
bool is_picked(std::string_view path) {
  const auto port = parse_count(path.substr(path.rfind(':') + 1), 65535);
  return port && *port >= kFirstPort && *port < kFirstPort + kPorts;
}

// The folder, locked: exclusively while somebody clears names there.
FileDescriptor lock_folder(const std::string& path, int how) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder && ::flock(folder.get(), how) == 0 ? std::move(folder) : FileDescriptor();
}

}  // namespace

Result<std::string> socket_directory() {
  std::string path = user_directory();
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return refuse(fmt::format("the directory {} for sockets cannot be made: {}", path, std::strerror(errno)), errno);
  struct stat folder{};
  if (::lstat(path.c_str(), &folder) != 0)
    return refuse(fmt::format("the directory {} for sockets: {}", path, std::strerror(errno)), errno);
  if (folder.st_uid != ::geteuid())
    return refuse(
        fmt::format("{} has to be a directory of user {}, and belongs to user {}: only that user or root can "
                    "remove it",
                    path, ::geteuid(), folder.st_uid));
  if (!S_ISDIR(folder.st_mode)) return refuse(fmt::format("{} has to be a directory: remove it", path));
  if ((folder.st_mode & 077) != 0) return refuse(fmt::format("{} is open to others: `chmod 700 {}`", path, path));
  return path;
}

Result<sockaddr_un> socket_path(const SocketAddress& address) {
  auto folder = socket_directory();
  if (!folder)
    return refuse(folder.error().message + "; nodes with secrets need no such directory", folder.error().native);
  const std::string path = *folder + "/" + address.text();
  sockaddr_un socket{};
  socket.sun_family = AF_UNIX;
  if (path.size() >= sizeof(socket.sun_path)) return refuse(fmt::format("the socket's path {} is too long", path));
  std::memcpy(socket.sun_path, path.c_str(), path.size() + 1);
  return socket;
}

void clear_left_names() {
  const auto path = socket_directory();
  const FileDescriptor folder = path ? lock_folder(*path, LOCK_EX | LOCK_NB) : FileDescriptor();
  if (!folder) return;
  std::error_code code;
  for (const auto& each : std::filesystem::directory_iterator(*path, code)) {
    std::string name = each.path().string();
    if (!name.ends_with(".lock")) continue;
    name.resize(name.size() - std::string_view(".lock").size());
    if (!is_picked(name)) continue;
    if (const FileDescriptor lock = lock_name(name, 0)) unlink_name(name);
  }
}

Result<LocalListener> LocalListener::try_listen(const SocketAddress& address) {
  VMEM_ASSIGN(const sockaddr_un name, socket_path(address));
  LocalListener listener;
  const std::string path = name.sun_path;
  listener.lock_ = OwnDescriptor(lock_name(path, O_CREAT));
  if (!listener.lock_) {
    const int code = errno == EWOULDBLOCK ? EADDRINUSE : errno;
    return refuse(fmt::format("cannot listen on {}: {}", address.text(), std::strerror(code)), code);
  }
  hold_name(path);
  listener.path_ = path;  // from here the destructor unlinks it, also on failure
  (void)::unlink(path.c_str());
  listener.socket_ = OwnDescriptor(FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  if (!listener.socket_ ||
      ::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      ::listen(listener.socket_.get(), kBacklog) != 0)
    return refuse(fmt::format("cannot listen on {} ({}): {}", address.text(), path, std::strerror(errno)), errno);
  listener.address_ = address.text();
  return listener;
}

Result<LocalListener> LocalListener::create(const Crypto& crypto, const SocketAddress& address) {
  const std::string text = address.text();
  if (!text.ends_with(":0")) {
    auto listener = try_listen(address);
    if (listener || listener.error().native != EADDRINUSE) return listener;
    // Another process may look just now whether the name was left behind: not while this waits.
    VMEM_ASSIGN(const std::string path, socket_directory());
    const FileDescriptor folder = lock_folder(path, LOCK_SH);
    return try_listen(address);
  }
  clear_left_names();
  const std::string host = text.substr(0, text.size() - 1);
  for (int i = 0;; ++i) {
    VMEM_ASSIGN(const SocketAddress chosen,
                SocketAddress::parse(host + fmt::to_string(kFirstPort + crypto.random() % kPorts)));
    auto listener = try_listen(chosen);
    if (listener || listener.error().native != EADDRINUSE || i == kTries) return listener;
  }
}

LocalListener::~LocalListener() {
  if (!lock_ || path_.empty()) return;  // moved from, or another process holds the lock
  free_name(path_);
}

FileDescriptor peer_process(int socket) {
#ifdef SO_PEERPIDFD
  int opened = -1;
  socklen_t bytes = sizeof(opened);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &opened, &bytes) == 0) return FileDescriptor(opened);
#endif
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

pid_t peer_number(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

Status check_peer_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return refuse(fmt::format("the peer's user is unknown: {}", std::strerror(errno)), errno);
  if (peer.uid == ::geteuid()) return {};
  return refuse(fmt::format("the peer belongs to user {}, this process to user {}: give both the same secret file",
                            peer.uid, ::geteuid()));
}

}  // namespace vmem::rdma
