#include "runtime/guard.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.hpp"
#include "rdma/stream/local_socket.hpp"

namespace vmem::runtime {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::seconds kGreeting{1};  // for a process that connected
constexpr std::chrono::milliseconds kRest{100};
constexpr int kAnswerMs = 10'000;  // lenders that do not answer are waited for
// A process has one node, or a few over time if it starts vmem again. Each takes a descriptor.
constexpr std::ptrdiff_t kMostOfProcess = 4;
constexpr std::size_t kMostWatched = 512;
constexpr std::size_t kMostCallers = 64;
constexpr int kMostAcceptedAtOnce = 16;
constexpr std::size_t kMostBytes = 16'384;
constexpr char kSeparator = '\n';

std::unexpected<Error> system_error(const char* what) {
  return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {}", what, std::strerror(errno)), errno);
}

bool readable(int descriptor, int most_ms = 0) {
  pollfd watched{descriptor, POLLIN, 0};
  return ::poll(&watched, 1, most_ms) == 1 && (watched.revents & POLLIN) != 0;
}

Result<sockaddr_un> name_of(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path))
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the socket's path {} is too long", path));
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  return name;
}

// One line each: id and incarnation, secret, certificates, fabric, and the lenders.
std::string text_of(const BorrowingNode& node) {
  std::string text =
      fmt::format("{} {}", static_cast<std::uint64_t>(node.node.id), static_cast<std::uint64_t>(node.node.incarnation));
  for (const std::string& each : {node.secret, node.certificates, node.fabric}) text += kSeparator + each;
  for (const std::string& lender : node.lenders) text += kSeparator + lender;
  return text;
}

std::optional<BorrowingNode> parse(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(kSeparator, begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  unsigned long long id = 0, incarnation = 0;
  if (lines.size() < 5 || std::sscanf(lines[0].c_str(), "%llu %llu", &id, &incarnation) != 2) return std::nullopt;
  return BorrowingNode{.node = {NodeId{id}, Incarnation{incarnation}},
                       .secret = lines[1],
                       .certificates = lines[2],
                       .fabric = lines[3],
                       .lenders = {lines.begin() + 4, lines.end()}};
}

}  // namespace

Result<std::unique_ptr<Guard>> Guard::create() {
  std::unique_ptr<Guard> guard(new Guard);
  VMEM_ASSIGN(const std::string folder, rdma::stream::socket_directory());
  const std::string path = fmt::format("{}/run-{}", folder, ::getpid());
  VMEM_ASSIGN(const sockaddr_un name, name_of(path));
  guard->listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  guard->stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!guard->listener_ || !guard->stop_) return system_error("a socket for programs that borrow");
  (void)::unlink(path.c_str());  // of a process with this number that is no more
  if (::bind(guard->listener_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      ::listen(guard->listener_.get(), kBacklog) != 0)
    return system_error(path.c_str());
  guard->path_ = path;
  return guard;
}

void Guard::start() {
  thread_ = std::thread([this] { run(); });
}

Guard::~Guard() {
  if (thread_.joinable()) {
    (void)::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  report_dead();
  if (!path_.empty()) (void)::unlink(path_.c_str());
}

void Guard::run() {
  ::prctl(PR_SET_NAME, "vmem-guard");
  while (!readable(stop_.get())) {
    wait();
    report_dead();
    accept_all();
    hear_callers();
  }
}

void Guard::wait() {
  std::vector<pollfd> awaited{{stop_.get(), POLLIN, 0}};
  for (const Watched& each : watched_) awaited.push_back({each.process.get(), POLLIN, 0});
  for (const Caller& each : callers_) awaited.push_back({each.socket.get(), POLLIN, 0});
  auto due = Clock::time_point::max();
  if (!callers_.empty()) due = callers_.front().until;
  if (accepts_from_ > Clock::now()) {
    due = std::min(due, accepts_from_);
  } else {
    awaited.push_back({listener_.get(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
  const bool is_due = due != Clock::time_point::max();
  (void)::poll(awaited.data(), awaited.size(), is_due ? static_cast<int>(std::max<long>(left, 0)) : -1);
}

void Guard::accept_all() {
  if (accepts_from_ > Clock::now()) return;
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    FileDescriptor caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!caller) {
      const bool none = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (!none) accepts_from_ = Clock::now() + kRest;  // the caller stays in the queue: no busy waiting
      return;
    }
    if (!rdma::stream::check_peer_user(caller.get())) continue;
    // Who has waited longest without a word goes.
    if (callers_.size() == kMostCallers) callers_.pop_front();
    callers_.push_back({std::move(caller), Clock::now() + kGreeting});
  }
}

void Guard::hear_callers() {
  std::erase_if(callers_, [this](const Caller& each) {
    if (!readable(each.socket.get())) return Clock::now() >= each.until;
    welcome(each.socket);
    return true;
  });
}

void Guard::welcome(const FileDescriptor& caller) {
  std::array<char, kMostBytes> text;
  const ssize_t got = ::recv(caller.get(), text.data(), text.size(), 0);
  auto node = got > 0 ? parse({text.data(), static_cast<std::size_t>(got)}) : std::nullopt;
  if (!node || !watch(*std::move(node), caller)) return;
  report_dead();
  (void)::send(caller.get(), "", 1, MSG_NOSIGNAL);
}

// False: it is not watched, and its lenders keep its room for a while after its end.
bool Guard::watch(BorrowingNode node, const FileDescriptor& caller) {
  ucred who{};
  socklen_t bytes = sizeof(who);
  FileDescriptor process = rdma::stream::peer_process(caller.get());
  if (!process || ::getsockopt(caller.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return false;
  if (watched_.size() >= kMostWatched || std::ranges::count(watched_, who.pid, &Watched::number) >= kMostOfProcess)
    return false;
  watched_.push_back({std::move(node), std::move(process), who.pid});
  return true;
}

void Guard::report_dead() {
  std::erase_if(watched_, [this](const Watched& each) {
    if (!readable(each.process.get())) return false;
    const Status reported = report_end(each.node);
    if (const auto times = reported ? LogLimit::Occurrence{} : not_reported_.next(); times.logged)
      VMEM_LOG_WARN(
          "the nodes that lent to a process that has ended did not hear of it, and keep its room for a while: {} ({} "
          "such ends)",
          reported.error().message, times.count);
    return true;
  });
}

void announce_to_guard(const BorrowingNode& self) {
  const char* const path = std::getenv(kGuardVariable);
  if (path == nullptr || *path == '\0') return;
  const auto name = name_of(path);
  const FileDescriptor guard(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  BorrowingNode there = self;
  for (std::string* const path_there : {&there.secret, &there.certificates}) {
    if (!path_there->empty()) *path_there = std::filesystem::absolute(*path_there).string();
  }
  const std::string text = text_of(there);
  const bool heard = name && guard && text.size() <= kMostBytes &&
                     ::connect(guard.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) == 0 &&
                     rdma::stream::check_peer_user(guard.get()) &&
                     ::send(guard.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()) &&
                     readable(guard.get(), kAnswerMs);
  if (!heard) VMEM_LOG_INFO("nobody at {} watches for this process's end ({})", path, kGuardVariable);
}

}  // namespace vmem::runtime
