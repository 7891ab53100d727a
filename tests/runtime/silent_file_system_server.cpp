// A file system in memory through /dev/fuse that falls silent on command: silent_file_system_server
// FOLDER. After SIGUSR1 it accepts requests and answers none; after SIGUSR2 it answers, kept
// requests first. Prints one line per change: "mounted", "silent", "answers". Ends when killed (the
// kernel then fails all requests) or unmounted.
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace vmem::test {
namespace {

constexpr std::uint32_t kMostBytes = 1u << 20;  // of one read or write
constexpr std::uint32_t kBlockBytes = 4096;
constexpr std::uint64_t kRoomBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kRoot = FUSE_ROOT_ID;

void say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

// One request: its header, its argument and the bytes after it.
class Request {
 public:
  explicit Request(std::span<const std::byte> bytes) : bytes_(bytes) {
    std::memcpy(&header_, bytes.data(), sizeof(header_));
  }
  const fuse_in_header& header() const { return header_; }
  template <class Argument>
  Argument argument() const {
    Argument argument{};
    const auto rest = bytes_.subspan(sizeof(header_));
    std::memcpy(&argument, rest.data(), std::min(rest.size(), sizeof(argument)));
    return argument;
  }
  std::span<const std::byte> after(std::size_t argument_bytes) const {
    return bytes_.subspan(sizeof(header_) + argument_bytes);
  }
  std::string name(std::size_t argument_bytes = 0) const {
    return reinterpret_cast<const char*>(after(argument_bytes).data());
  }

 private:
  const std::span<const std::byte> bytes_;
  fuse_in_header header_{};
};

class Server {
 public:
  // Returns an errno.
  int mount(const char* folder);
  void run(int signals);

 private:
  bool read_request();
  void obey(int signals);
  void serve(const Request& request);
  void answer(const Request& request, int error, std::initializer_list<std::span<const std::byte>> parts = {});
  template <class... Parts>
  void answer_with(const Request& request, const Parts&... parts) {
    answer(request, 0, {std::as_bytes(std::span(&parts, 1))...});
  }
  fuse_attr attributes(std::uint64_t node) const;
  fuse_entry_out entry(std::uint64_t node) const;
  fuse_attr_out attribute_answer(std::uint64_t node) const {
    return {.attr_valid = 0, .attr_valid_nsec = 0, .dummy = 0, .attr = attributes(node)};
  }
  std::uint64_t make(const std::string& name);
  void init(const Request& request);
  void lookup(const Request& request);
  void create(const Request& request);
  void set_attributes(const Request& request);
  void remove(const Request& request);
  void read(const Request& request);
  void write(const Request& request);
  void allocate(const Request& request);
  void state_room(const Request& request);

  FileDescriptor fuse_;
  std::vector<std::byte> buffer_{kMostBytes + std::size_t{64} * 1024};
  std::map<std::uint64_t, FileDescriptor> files_;  // by node: the file's bytes
  std::map<std::string, std::uint64_t> names_;
  std::uint64_t last_node_ = kRoot;
  bool silent_ = false, mounted_ = true;
  std::vector<std::vector<std::byte>> kept_;  // requests received while silent
};

int Server::mount(const char* folder) {
  fuse_ = FileDescriptor(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!fuse_) return errno;
  const std::string options = "fd=" + std::to_string(fuse_.get()) + ",rootmode=40000,user_id=0,group_id=0";
  return ::mount("vmem-test", folder, "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0 ? 0 : errno;
}

void Server::run(int signals) {
  while (mounted_) {
    std::array<pollfd, 2> awaited{{{fuse_.get(), POLLIN, 0}, {signals, POLLIN, 0}}};
    (void)::poll(awaited.data(), awaited.size(), -1);
    if (awaited[1].revents != 0) obey(signals);
    if (awaited[0].revents != 0) mounted_ = read_request();
  }
}

void Server::obey(int signals) {
  signalfd_siginfo about{};
  if (::read(signals, &about, sizeof(about)) != sizeof(about)) return;
  silent_ = about.ssi_signo == SIGUSR1;
  if (!silent_) {
    for (const auto& each : std::exchange(kept_, {})) serve(Request(each));
  }
  say(silent_ ? "silent" : "answers");
}

// False: unmounted.
bool Server::read_request() {
  const ssize_t got = ::read(fuse_.get(), buffer_.data(), buffer_.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN || errno == ENOENT;
  const std::span<const std::byte> bytes(buffer_.data(), static_cast<std::size_t>(got));
  if (silent_) {
    kept_.emplace_back(bytes.begin(), bytes.end());
  } else {
    serve(Request(bytes));
  }
  return true;
}

void Server::answer(const Request& request, int error, std::initializer_list<std::span<const std::byte>> parts) {
  fuse_out_header header{sizeof(fuse_out_header), -error, request.header().unique};
  std::vector<iovec> vectors{{&header, sizeof(header)}};
  for (const auto& part : parts) {
    vectors.push_back({const_cast<std::byte*>(part.data()), part.size()});  // only read
    header.len += static_cast<std::uint32_t>(part.size());
  }
  [[maybe_unused]] const ssize_t sent = ::writev(fuse_.get(), vectors.data(), static_cast<int>(vectors.size()));
}

void Server::serve(const Request& request) {
  const std::uint64_t node = request.header().nodeid;
  switch (request.header().opcode) {
    case FUSE_INIT:
      return init(request);
    case FUSE_LOOKUP:
      return lookup(request);
    case FUSE_GETATTR:
      return answer_with(request, attribute_answer(node));
    case FUSE_SETATTR:
      return set_attributes(request);
    case FUSE_CREATE:
      return create(request);
    case FUSE_UNLINK:
      return remove(request);
    case FUSE_OPEN:
    case FUSE_OPENDIR:
      return answer_with(request, fuse_open_out{});
    case FUSE_READ:
      return read(request);
    case FUSE_WRITE:
      return write(request);
    case FUSE_FALLOCATE:
      return allocate(request);
    case FUSE_STATFS:
      return state_room(request);
    case FUSE_READDIR:
    case FUSE_FLUSH:
    case FUSE_FSYNC:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      return answer(request, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // these requests have no answer
    default:
      return answer(request, ENOSYS);
  }
}

void Server::init(const Request& request) {
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = 31;
  out.max_readahead = kMostBytes;
  out.flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ASYNC_DIO;
  out.max_background = 64;
  out.congestion_threshold = 64;
  out.max_write = kMostBytes;
  out.time_gran = 1;
  out.max_pages = kMostBytes / kBlockBytes;
  answer_with(request, out);
}

fuse_attr Server::attributes(std::uint64_t node) const {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.blksize = kBlockBytes;
  attributes.nlink = 1;
  attributes.mode = node == kRoot ? S_IFDIR | 0755 : S_IFREG | 0644;
  struct stat about{};
  if (const auto file = files_.find(node); file != files_.end() && ::fstat(file->second.get(), &about) == 0) {
    attributes.size = static_cast<std::uint64_t>(about.st_size);
    attributes.blocks = static_cast<std::uint64_t>(about.st_blocks);
  }
  return attributes;
}

fuse_entry_out Server::entry(std::uint64_t node) const {
  fuse_entry_out entry{};
  entry.nodeid = node;
  entry.attr = attributes(node);
  return entry;
}

std::uint64_t Server::make(const std::string& name) {
  const std::uint64_t node = ++last_node_;
  files_[node] = FileDescriptor(::memfd_create(name.c_str(), MFD_CLOEXEC));
  names_[name] = node;
  return node;
}

void Server::lookup(const Request& request) {
  const auto found = names_.find(request.name());
  if (found == names_.end()) return answer(request, ENOENT);
  answer_with(request, entry(found->second));
}

void Server::create(const Request& request) {
  const std::uint64_t node = make(request.name(sizeof(fuse_create_in)));
  answer_with(request, entry(node), fuse_open_out{});
}

void Server::set_attributes(const Request& request) {
  const auto wanted = request.argument<fuse_setattr_in>();
  const std::uint64_t node = request.header().nodeid;
  const bool size = (wanted.valid & FATTR_SIZE) != 0;
  if (size && ::ftruncate(files_.at(node).get(), static_cast<off_t>(wanted.size)) != 0) return answer(request, errno);
  answer_with(request, attribute_answer(node));
}

// Open files keep their bytes.
void Server::remove(const Request& request) { answer(request, names_.erase(request.name()) == 1 ? 0 : ENOENT); }

void Server::read(const Request& request) {
  const auto wanted = request.argument<fuse_read_in>();
  std::vector<std::byte> bytes(wanted.size);
  const ssize_t got =
      ::pread(files_.at(request.header().nodeid).get(), bytes.data(), bytes.size(), static_cast<off_t>(wanted.offset));
  if (got < 0) return answer(request, errno);
  answer(request, 0, {std::span(bytes).first(static_cast<std::size_t>(got))});
}

void Server::write(const Request& request) {
  const auto wanted = request.argument<fuse_write_in>();
  const auto bytes = request.after(sizeof(fuse_write_in)).first(wanted.size);
  const ssize_t written =
      ::pwrite(files_.at(request.header().nodeid).get(), bytes.data(), bytes.size(), static_cast<off_t>(wanted.offset));
  if (written < 0) return answer(request, errno);
  answer_with(request, fuse_write_out{static_cast<std::uint32_t>(written), 0});
}

void Server::allocate(const Request& request) {
  const auto wanted = request.argument<fuse_fallocate_in>();
  const int done = ::fallocate(files_.at(request.header().nodeid).get(), static_cast<int>(wanted.mode),
                               static_cast<off_t>(wanted.offset), static_cast<off_t>(wanted.length));
  answer(request, done == 0 ? 0 : errno);
}

void Server::state_room(const Request& request) {
  fuse_statfs_out out{};
  out.st.blocks = out.st.bfree = out.st.bavail = kRoomBytes / kBlockBytes;
  out.st.bsize = out.st.frsize = kBlockBytes;
  out.st.namelen = 255;
  answer_with(request, out);
}

int serve(const char* folder) {
  sigset_t obeyed;
  ::sigemptyset(&obeyed);
  ::sigaddset(&obeyed, SIGUSR1);
  ::sigaddset(&obeyed, SIGUSR2);
  (void)::sigprocmask(SIG_BLOCK, &obeyed, nullptr);
  const FileDescriptor signals(::signalfd(-1, &obeyed, SFD_CLOEXEC));
  Server server;
  if (const int error = server.mount(folder); error != 0) {
    say((std::string("/dev/fuse cannot be used here: ") + std::strerror(error)).c_str());
    return 1;
  }
  say("mounted");
  server.run(signals.get());
  return 0;
}

}  // namespace
}  // namespace vmem::test

int main(int count, char** words) { return count == 2 ? vmem::test::serve(words[1]) : 2; }
