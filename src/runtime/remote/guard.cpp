#include "runtime/remote/guard.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
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
#include <random>
#include <system_error>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "rdma/trust/local_socket.hpp"

namespace vmem::runtime {
namespace {

using std::chrono::steady_clock;

constexpr int kBacklog = 128;
constexpr std::chrono::seconds kGreetingTime{1};  // for a connected process to announce itself
constexpr std::size_t kMostGreeting = 64;         // of these at once; a new one replaces the oldest
constexpr std::chrono::seconds kAnswerTime{10};   // its guard may wait for silent lenders
// Short: a stopped daemon must not delay every start of this user's programs.
constexpr std::chrono::seconds kDaemonAnswerTime{2};
constexpr std::size_t kReportsAtOnce = 8;
constexpr int kAcceptAgainMs = 100;  // after a failure for lack of descriptors
constexpr std::chrono::milliseconds kBeforeMemoryComes{10};
constexpr std::size_t kMostBytes = 16'384;
// Prefix of daemons' sockets, in the directory of this user's sockets.
constexpr std::string_view kDaemonSockets = "daemon-guard-";
constexpr char kSeparator = '\n';

std::unexpected<Error> system_error(const char* what) {
  return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {}", what, std::strerror(errno)), errno);
}

int ms_until(steady_clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
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

// Line by line: id and incarnation, secret, certificates, fabric, each lender.
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

// A report may start threads, which can fail too.
Status try_to_report(const BorrowingNode& ended) noexcept {
  try {
    return report_end(ended);
  } catch (const std::bad_alloc&) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY, "no memory");
  } catch (const std::system_error& error) {
    return fail(VMEM_ERROR_INTERNAL, "no thread", error.code().value());
  }
}

FileDescriptor connect_to(const std::string& path) {
  const auto name = name_of(path);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!name || !socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof(*name)) != 0)
    return {};
  return socket;
}

std::vector<std::string> daemon_sockets(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(kDaemonSockets)) paths.push_back(entry.path().string());
  }
  return paths;
}

// Sockets of killed daemons. A starting daemon takes such a name only once it listens.
void remove_stale(const std::string& folder) {
  for (const std::string& path : daemon_sockets(folder)) {
    if (!connect_to(path) && errno == ECONNREFUSED) (void)::unlink(path.c_str());
  }
}

// The guards of this process: the one of `vmem run`, or those of all daemons of this user on this
// host.
std::vector<std::string> guards() {
  if (const char* const named = std::getenv(kGuardVariable)) return {named};
  const auto folder = rdma::socket_directory();
  return folder ? daemon_sockets(*folder) : std::vector<std::string>{};
}

}  // namespace

Result<std::unique_ptr<Guard>> Guard::of_run() {
  VMEM_ASSIGN(const std::string folder, rdma::socket_directory());
  return listen_at(fmt::format("{}/run-{}", folder, ::getpid()));
}

Result<std::unique_ptr<Guard>> Guard::of_daemon() {
  VMEM_ASSIGN(const std::string folder, rdma::socket_directory());
  remove_stale(folder);
  // The process number alone may collide with a process in another container that shares the
  // directory.
  const std::string name = fmt::format("{}-{:x}", ::getpid(), std::random_device{}());
  VMEM_ASSIGN(auto guard, listen_at(fmt::format("{}/beginning-{}", folder, name)));
  const std::string path = fmt::format("{}/{}{}", folder, kDaemonSockets, name);
  if (::rename(guard->path_.c_str(), path.c_str()) != 0) return system_error(path.c_str());
  guard->path_ = path;
  return guard;
}

Result<std::unique_ptr<Guard>> Guard::listen_at(const std::string& path) {
  std::unique_ptr<Guard> guard(new Guard);
  VMEM_ASSIGN(const sockaddr_un name, name_of(path));
  guard->listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  guard->stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!guard->listener_ || !guard->stop_) return system_error("a socket for programs that borrow");
  (void)::unlink(path.c_str());  // left by an earlier process with this number
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
  (void)ran_within_memory([&] { report_dead(); });
  if (!path_.empty()) (void)::unlink(path_.c_str());
}

void Guard::run() {
  ::prctl(PR_SET_NAME, "vmem-guard");
  MemoryReserve reserve;
  LogLimit lacked_memory;
  while (!readable(stop_.get())) {
    (void)reserve.refill();
    bool goes_on = true;
    const bool had = ran_within_memory([&] {
      goes_on = wait();
      if (!goes_on) return;
      report_dead();
      accept_all();
      hear_all();
    });
    if (!goes_on) return;
    if (had) continue;
    if (lacked_memory.next().logged) log::write_plain("the process has no memory to watch the programs that borrow");
    std::this_thread::sleep_for(kBeforeMemoryComes);
  }
}

// Waits for an event or a deadline. False: poll failed.
bool Guard::wait() const {
  std::vector<pollfd> awaited{{stop_.get(), POLLIN, 0}};
  if (!short_of_descriptors_) awaited.push_back({listener_.get(), POLLIN, 0});
  for (const Watched& each : watched_) awaited.push_back({each.process.get(), POLLIN, 0});
  for (const Greeting& each : greetings_) awaited.push_back({each.socket.get(), POLLIN, 0});
  int most_ms = greetings_.empty() ? -1 : ms_until(greetings_.front().until);
  if (short_of_descriptors_) most_ms = most_ms < 0 ? kAcceptAgainMs : std::min(most_ms, kAcceptAgainMs);
  if (::poll(awaited.data(), awaited.size(), most_ms) >= 0 || errno == EINTR) return true;
  if (errno == ENOMEM) throw std::bad_alloc();
  return false;
}

void Guard::accept_all() {
  for (;;) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    short_of_descriptors_ = !socket && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
    if (!socket) return;
    if (!rdma::check_peer_user(socket.get())) continue;
    if (greetings_.size() == kMostGreeting) greetings_.pop_front();
    greetings_.push_back({std::move(socket), steady_clock::now() + kGreetingTime});
  }
}

// Welcomes processes that announce themselves; closes connections silent past their time.
void Guard::hear_all() {
  std::erase_if(greetings_, [this](const Greeting& each) {
    if (!readable(each.socket.get())) return each.until <= steady_clock::now();
    welcome(each.socket.get());
    return true;
  });
}

void Guard::welcome(int socket) {
  std::array<char, kMostBytes> text;
  const ssize_t got = ::recv(socket, text.data(), text.size(), 0);
  auto node = got > 0 ? parse({text.data(), static_cast<std::size_t>(got)}) : std::nullopt;
  FileDescriptor process = rdma::peer_process(socket);
  if (!node || !process) return;
  report_dead();
  // A process may start vmem repeatedly; by now it has given back what it borrowed before.
  const pid_t number = rdma::peer_number(socket);
  std::erase_if(watched_, [&](const Watched& each) { return number > 0 && each.number == number; });
  watched_.push_back({*std::move(node), std::move(process), number});
  (void)::send(socket, "", 1, MSG_NOSIGNAL);
}

void Guard::report_dead() {
  dead_.reserve(dead_.size() + watched_.size());
  std::erase_if(watched_, [&](Watched& each) {
    if (!readable(each.process.get())) return false;
    dead_.push_back(std::move(each.node));
    return true;
  });
  // Removed from the list once reported: if report() throws for lack of memory, the next call
  // resumes there.
  while (!dead_.empty()) {
    const std::size_t some = std::min(dead_.size(), kReportsAtOnce);
    report(std::span(dead_).last(some));
    dead_.resize(dead_.size() - some);
  }
}

// In parallel, since each report may wait for a lender that does not answer.
void Guard::report(std::span<const BorrowingNode> dead) {
  std::vector<Status> results(dead.size());
  {
    std::vector<std::jthread> reporters;
    reporters.reserve(dead.size());
    for (std::size_t i = 0; i < dead.size(); ++i) {
      const auto report_one = [&result = results[i], &node = dead[i]] { result = try_to_report(node); };
      try {
        reporters.emplace_back(report_one);
      } catch (const std::system_error&) {
        report_one();  // no thread to be had: one after the other
      }
    }
  }
  for (const Status& result : results) {
    if (result) continue;
    if (const auto failure = failures_.next(); failure.logged)
      VMEM_LOG_WARN(
          "the nodes that lent to a process that has ended did not hear of it, and keep its room for a while: {} "
          "({} such failures)",
          result.error().message, failure.count);
  }
}

namespace {

// The connected socket, if a guard of this user listens.
FileDescriptor say_to_guard(const std::string& path, const std::string& text) {
  FileDescriptor guard = connect_to(path);
  if (!guard || !rdma::check_peer_user(guard.get()) ||
      ::send(guard.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
    return {};
  return guard;
}

}  // namespace

void announce_to_guard(const BorrowingNode& self) {
  const std::vector<std::string> paths = guards();
  if (paths.empty() || paths.front().empty()) return;
  BorrowingNode there = self;
  for (std::string* const path_there : {&there.secret, &there.certificates}) {
    if (!path_there->empty()) *path_there = std::filesystem::absolute(*path_there).string();
  }
  const std::string text = text_of(there);
  std::vector<FileDescriptor> asked;
  if (text.size() <= kMostBytes) {
    for (const std::string& path : paths) asked.push_back(say_to_guard(path, text));
  }
  const bool run = std::getenv(kGuardVariable) != nullptr;
  const auto until = steady_clock::now() + (run ? kAnswerTime : kDaemonAnswerTime);
  const auto heard =
      std::ranges::count_if(asked, [&](const auto& each) { return each && readable(each.get(), ms_until(until)); });
  if (heard == 0)
    VMEM_LOG_INFO(
        "no guard watches this process: if it is killed, lenders keep its room for their grace period (asked: {})",
        fmt::join(paths, ", "));
}

}  // namespace vmem::runtime
