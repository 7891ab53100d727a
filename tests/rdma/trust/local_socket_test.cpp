// Nodes without a secret: access to the directory of their sockets, and to the sockets.
#include "rdma/trust/local_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "rdma/transport/stream_node.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

// A user id that no user and no other test has.
const uid_t kSomebody = 100'000 + static_cast<uid_t>(::getpid());
const std::string kTheirs = fmt::format("/tmp/vmem-{}", kSomebody);

// The result of `body`, run in a child as another user.
std::string as_somebody(const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor out(ends[0]);
  FileDescriptor in(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string said = "setuid failed";
    if (::setgid(kSomebody) == 0 && ::setuid(kSomebody) == 0) said = body();
    ::_exit(::write(in.get(), said.data(), said.size()) < 0 ? 1 : 0);
  }
  in.reset();
  std::string said;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(out.get(), buffer, sizeof(buffer))) > 0;)
    said.append(buffer, static_cast<std::size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return said;
}

// The directory of an unused user, so that no other process's is touched.
class SocketDirectory : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
    std::filesystem::remove_all(kTheirs);
  }
  void TearDown() override {
    if (::geteuid() == 0) std::filesystem::remove_all(kTheirs);
  }
  static std::string outcome() {
    return as_somebody([] {
      const auto made = socket_directory();
      return made ? *made : made.error().message;
    });
  }
  static mode_t mode() {
    struct stat folder{};
    EXPECT_EQ(::lstat(kTheirs.c_str(), &folder), 0);
    return folder.st_mode & 07777;
  }
};

TEST_F(SocketDirectory, IsMadeForItsUserAlone) {
  const mode_t before = ::umask(0);
  EXPECT_EQ(outcome(), kTheirs);
  ::umask(before);
  EXPECT_EQ(mode(), 0700u);
  EXPECT_EQ(outcome(), kTheirs) << "and used again";
}

TEST_F(SocketDirectory, ThatOthersMayEnterIsRefused) {
  for (const mode_t open : {0701, 0710, 0770, 0755, 0777}) {
    ASSERT_EQ(::mkdir(kTheirs.c_str(), 0700), 0);
    ASSERT_EQ(::chown(kTheirs.c_str(), kSomebody, kSomebody) | ::chmod(kTheirs.c_str(), open), 0);
    EXPECT_THAT(outcome(), HasSubstr("chmod 700")) << fmt::format("{:o}", open);
    EXPECT_EQ(mode(), open);
    ASSERT_EQ(::rmdir(kTheirs.c_str()), 0);
  }
}

TEST_F(SocketDirectory, OfAnotherUserIsRefused) {
  ASSERT_EQ(::mkdir(kTheirs.c_str(), 0700), 0);
  EXPECT_THAT(outcome(), HasSubstr(fmt::format("has to be a directory of user {}, and belongs to user", kSomebody)));
}

TEST_F(SocketDirectory, BehindALinkIsRefused) {
  const std::string elsewhere = kTheirs + "-elsewhere";
  ASSERT_EQ(::mkdir(elsewhere.c_str(), 0700) | ::chown(elsewhere.c_str(), kSomebody, kSomebody), 0);
  std::filesystem::create_symlink(elsewhere, kTheirs);
  ASSERT_EQ(::lchown(kTheirs.c_str(), kSomebody, kSomebody), 0);
  EXPECT_THAT(outcome(), HasSubstr("has to be a directory"));
  ASSERT_EQ(::rmdir(elsewhere.c_str()), 0);
}

// ---- credentials ----

sockaddr_un named(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), name.sun_path);
  return name;
}
const sockaddr* address_of(const sockaddr_un& name) { return reinterpret_cast<const sockaddr*>(&name); }

// A folder with access for all users.
class OpenFolder {
 public:
  OpenFolder() {
    if (::mkdtemp(path_) == nullptr || ::chmod(path_, 0777) != 0) throw std::runtime_error("no folder");
  }
  ~OpenFolder() { std::filesystem::remove_all(path_); }
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  std::string in(const std::string& name) const { return std::string(path_) + "/" + name; }

 private:
  char path_[32] = "/tmp/vmem_open_XXXXXX";
};

// The name cannot be bound because a folder has it. Files in the working directory must not be
// touched.
TEST_F(SocketDirectory, AListenerThatCannotBindLeavesNoLockAndRemovesNobodysFile) {
  const OpenFolder work;
  const auto crypto = *Crypto::load();
  const std::string said = as_somebody([&] {
    const SocketAddress address = *SocketAddress::parse("127.0.0.1:30");
    const std::string name = socket_path(address)->sun_path;
    std::ofstream(work.in(".lock")) << "a user's";
    if (::chdir(work.in("").c_str()) != 0 || ::mkdir(name.c_str(), 0700) != 0) return std::string("not set up");
    const auto listener = LocalListener::create(*crypto, address);
    return fmt::format("{}; the user's file {}, the lock {}",
                       listener ? "it listens" : std::strerror(listener.error().native),
                       ::access(".lock", F_OK) == 0 ? "stays" : "is gone",
                       ::access((name + ".lock").c_str(), F_OK) == 0 ? "stays" : "is gone");
  });
  EXPECT_EQ(said, "Address already in use; the user's file stays, the lock is gone");
}

// ---- names that are left behind ----

std::size_t files() {
  std::error_code code;
  const std::filesystem::directory_iterator all(kTheirs, code);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_F(SocketDirectory, AProcessThatReturnsFromMainLeavesNoName) {
  const auto crypto = *Crypto::load();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(kSomebody) != 0 || ::setuid(kSomebody) != 0) ::_exit(1);
    // Nobody destroys it, and it stays reachable: a leak would change the exit status.
    static auto* const listener =
        new Result<LocalListener>(LocalListener::create(*crypto, *SocketAddress::parse("127.0.0.1:40001")));
    std::exit(*listener && files() == 2 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(files(), 0u);
}

TEST_F(SocketDirectory, NamesOfKilledProcessesAreClearedAndOthersAreNot) {
  const auto crypto = *Crypto::load();
  const auto listen = [&](const char* address) {
    return LocalListener::create(*crypto, *SocketAddress::parse(address));
  };
  as_somebody([&] {
    for (const char* address : {"127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:7000"})
      (void)new Result<LocalListener>(listen(address));
    return std::string();  // and _exit, as if killed
  });
  EXPECT_EQ(files(), 6u);
  const std::string said = as_somebody([&] {
    const auto again = listen("127.0.0.1:40002");
    clear_left_names();
    return fmt::format("{}: {}", again.has_value(), files());
  });
  EXPECT_EQ(said, "true: 4") << "its own, and that with a port of its owner's choice";
  EXPECT_EQ(files(), 2u);
}

// Whether somebody waits for the lock of a file.
bool is_waited_for(const FileDescriptor& file) {
  struct stat found{};
  EXPECT_EQ(::fstat(file.get(), &found), 0);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);)
    if (line.contains("->") && line.contains(fmt::format(":{} ", found.st_ino))) return true;
  return false;
}

// This thread has the folder and the name as clear_left_names() has them while it looks.
TEST_F(SocketDirectory, AListenerWaitsForWhoClearsNamesAtItsFixedAddress) {
  const auto crypto = *Crypto::load();
  const std::string said = as_somebody([&] {
    const SocketAddress address = *SocketAddress::parse("127.0.0.1:40001");
    const std::string name = socket_path(address)->sun_path;
    FileDescriptor folder(::open(kTheirs.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    FileDescriptor lock(::open((name + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (::flock(folder.get(), LOCK_EX) != 0 || ::flock(lock.get(), LOCK_EX) != 0) return std::string("not locked");
    std::atomic<bool> over = false;
    std::string outcome;
    std::jthread listens([&] {
      const auto listener = LocalListener::create(*crypto, address);
      outcome = listener ? "listens" : listener.error().message;
      over = true;
    });
    while (!over && !is_waited_for(folder)) std::this_thread::yield();
    std::filesystem::remove(name + ".lock");
    lock.reset();
    folder.reset();
    listens.join();
    return outcome;
  });
  EXPECT_EQ(said, "listens");
}

// Reaches the socket by another name outside the directory, as if the directory kept nobody out.
TEST(LocalPeers, AClientOfAnotherUserIsTurnedAwayUnheard) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  const OpenFolder folder;
  Node node;
  node.start_as(node.config(2, "127.0.0.1:0", nullptr));
  const std::string socket = socket_path(*SocketAddress::parse(node.transport->address()))->sun_path;
  const std::string way_in = folder.in("socket");
  ASSERT_EQ(::link(socket.c_str(), way_in.c_str()) | ::chmod(way_in.c_str(), 0777), 0);
  std::jthread steps([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) node.step();
  });
  const std::string said = as_somebody([&] {
    const FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un name = named(way_in);
    if (::connect(client.get(), address_of(name), sizeof(name)) != 0) return std::string("not connected");
    const Hello hello{.node = 77,
                      .incarnation = 1,
                      .base = kParameters.base,
                      .space_bytes = kParameters.space_bytes,
                      .page_bytes = kParameters.page_bytes};
    (void)::send(client.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    Hello answer;
    return std::string(::recv(client.get(), &answer, sizeof(answer), 0) > 0 ? "answered" : "turned away");
  });
  steps.request_stop();
  steps.join();
  EXPECT_EQ(said, "turned away");
  EXPECT_TRUE(node.events.empty());
}

TEST(LocalPeers, AListenerOfAnotherUserIsNotTalkedTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  const OpenFolder folder;
  const std::string theirs = folder.in("socket");
  const sockaddr_un name = named(theirs);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The kernel records the listening user; the descriptor is shared with this process.
  ASSERT_EQ(as_somebody([&] {
              const bool listens =
                  ::bind(listener.get(), address_of(name), sizeof(name)) == 0 && ::listen(listener.get(), 8) == 0;
              return std::string(listens ? "listens" : "does not listen");
            }),
            "listens");
  // Moves it to where this user's nodes look for a socket.
  const std::string address = "127.0.0.1:29";
  const std::string here = socket_path(*SocketAddress::parse(address))->sun_path;
  (void)::unlink(here.c_str());
  ASSERT_EQ(::rename(theirs.c_str(), here.c_str()), 0);
  Node node;
  node.start_as(node.config(1, "", nullptr));
  const PeerId peer = *node.transport->connect(address, node.later());
  EXPECT_TRUE(until({&node}, [&] { return node.gone(peer) != nullptr; }));
  (void)::unlink(here.c_str());
  ASSERT_NE(node.gone(peer), nullptr);
  EXPECT_EQ(node.gone(peer)->reason, Reason::refused);
  EXPECT_THAT(node.gone(peer)->error.message, HasSubstr(fmt::format("belongs to user {}", kSomebody)));
  const FileDescriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  char byte = 0;
  EXPECT_LE(::recv(accepted.get(), &byte, 1, 0), 0) << "it was told something";
}

// ---- descriptors ----

// No descriptor can be opened during its life.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const FileDescriptor lowest(::dup(0));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest.get()), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

class OutOfDescriptors : public testing::TestWithParam<bool> {};

TEST_P(OutOfDescriptors, AListenerRestsAndThenServesWhoWaited) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer's check of types ends a process that has no descriptors left";
#endif
  const KeyringRef keyring = GetParam() ? SecretFile().read() : nullptr;
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  a.step();  // its socket is open, and connected according to the kernel
  int busy = 0;
  {
    const NoDescriptors none;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    while (std::chrono::steady_clock::now() < end) {
      busy += b.step() ? 1 : 0;
      a.step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(a.connected());
    EXPECT_EQ(a.gone(peer), nullptr);
  }
  EXPECT_GT(busy, 0);
  EXPECT_LT(busy, 40) << "it tries without rest";
  EXPECT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
}

INSTANTIATE_TEST_SUITE_P(Over, OutOfDescriptors, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tls" : "UnixSocket"; });

}  // namespace
}  // namespace vmem::rdma
