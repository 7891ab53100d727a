// A forked child has no keys and no sockets of its parent's connections, and does not crash on
// them.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "rdma/transport/stream_node.hpp"
#include "rdma/trust/certificate_folder.hpp"
#include "rdma/trust/secret_file.hpp"
#include "rdma/trust/tls.hpp"

namespace vmem::rdma {
namespace {

// The exit code of a child that runs `body`.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// A secret to search for. Stored masked, so that the search does not find the test's own copy.
struct Sought {
  static constexpr unsigned char kMask = 0x5a;
  std::array<unsigned char, 32> masked{};

  void set(std::string_view hex) {
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (std::size_t i = 0; i < masked.size(); ++i)
      masked[i] = static_cast<unsigned char>((digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1])) ^ kMask);
  }
  void set(std::span<const unsigned char> bytes) {
    for (std::size_t i = 0; i < masked.size(); ++i) masked[i] = static_cast<unsigned char>(bytes[i] ^ kMask);
  }
  __attribute__((no_sanitize_address, no_sanitize_thread, noinline)) bool is_in(const unsigned char* first,
                                                                                const unsigned char* end) const {
    for (; end - first >= static_cast<std::ptrdiff_t>(masked.size()); ++first) {
      std::size_t i = 0;
      while (i < masked.size() && static_cast<unsigned char>(first[i] ^ kMask) == masked[i]) ++i;
      if (i == masked.size()) return true;
    }
    return false;
  }
  // Searches all writable memory of this process, except the sanitizers', which is too large.
  // Allocates nothing: that would overwrite freed memory.
  bool is_in_memory() const {
    constexpr std::uintptr_t kMost = std::uintptr_t{1} << 30;
    static std::array<char, std::size_t{1} << 20> maps;
    const FileDescriptor file(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    std::size_t bytes = 0;
    for (ssize_t got = 1; got > 0; bytes += static_cast<std::size_t>(got))
      got = std::max<ssize_t>(0, ::read(file.get(), maps.data() + bytes, maps.size() - 1 - bytes));
    maps[bytes] = '\0';
    for (const char* line = maps.data(); *line != '\0'; line = std::strchr(line, '\n') + 1) {
      std::uintptr_t first = 0, end = 0;
      char may[5] = "";
      if (std::sscanf(line, "%lx-%lx %4s", &first, &end, may) != 3 || may[0] != 'r' || may[1] != 'w' ||
          end - first > kMost)
        continue;
      if (is_in(reinterpret_cast<const unsigned char*>(first), reinterpret_cast<const unsigned char*>(end)))
        return true;
    }
    return false;
  }
};

// The traffic secrets of all sessions of this process, by name.
std::map<std::string, Sought> traffic_secrets;
void note_secret(const SSL*, const char* line) {
  const std::string_view all(line);
  const auto name = all.substr(0, all.find(' '));
  if (name.find("TRAFFIC_SECRET_0") != std::string_view::npos)
    traffic_secrets[std::string(name)].set(all.substr(all.rfind(' ') + 1));
}

// Both ends of a live session.
class Session {
 public:
  Session() {
    int sockets[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    client_end_ = FileDescriptor(sockets[0]);
    server_end_ = FileDescriptor(sockets[1]);
    SSL_CTX_set_keylog_callback(context_->get(), &note_secret);
    client = *TlsSession::create(context_, TlsRole::client, client_end_.get(), "");
    server = *TlsSession::create(context_, TlsRole::server, server_end_.get(), "");
    for (bool done = false; !done;) {
      const auto one = client->handshake(), other = server->handshake();
      EXPECT_TRUE(one && other);
      done = *one && *other;
    }
  }
  bool carries(std::byte what) const {
    std::byte got{};
    if (client->write({&what, 1}).value_or(0) != 1 || !client->flush()) return false;
    return server->read({&got, 1}).value_or(0) == 1 && got == what;
  }

 private:
  std::shared_ptr<TlsContext> context_ = *TlsContext::create(*Crypto::load(), SecretFile().read());
  FileDescriptor client_end_, server_end_;

 public:
  std::unique_ptr<TlsSession> client, server;
};

TEST(TlsFork, AChildHasNoTrafficKeys) {
  const Session session;
  ASSERT_TRUE(session.carries(std::byte{1}));
  ASSERT_EQ(traffic_secrets.size(), 2u) << "of client and server";
  for (const auto& [name, secret] : traffic_secrets) {
    EXPECT_TRUE(secret.is_in_memory()) << name << ": the search finds what is there";
    EXPECT_EQ(in_child([&] { return secret.is_in_memory() ? 1 : 0; }), 0) << name;
  }
  EXPECT_TRUE(session.carries(std::byte{2})) << "the parent goes on";
}

TEST(TlsFork, AChildCannotUseASession) {
  Session session;
  ASSERT_TRUE(session.carries(std::byte{1}));
  EXPECT_EQ(in_child([&] {
              std::byte byte{1};
              const bool refused = !session.client->write({&byte, 1}) && !session.client->flush() &&
                                   !session.server->read({&byte, 1}) && !session.client->handshake();
              session.client.reset();
              session.server.reset();
              return refused ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(session.carries(std::byte{2})) << "nothing of the child's came between";
}

TEST(TlsFork, AChildIsToldThatItHasNoOpenSsl) {
  const auto crypto = *Crypto::load();
  EXPECT_EQ(in_child([&] {
              if (openssl() || openssl().error().status != VMEM_ERROR_FORKED || Crypto::load()) return 1;
              try {
                (void)crypto->random();
              } catch (const std::bad_alloc&) {
                return 0;
              }
              return 2;
            }),
            0);
  EXPECT_NE(crypto->random(), crypto->random());
}

// Neither in children nor, for the same reason, in core dumps.
TEST(TlsFork, AChildHasNoTextOfACertificatesKey) {
  Authority authority;
  const std::string folder = authority.issue("DNS:node");
  Sought text;
  {
    KeyMemory file(4096);
    const FileDescriptor key(::open((folder + "/tls.key").c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_GT(::read(key.get(), file.bytes().data(), file.bytes().size()), 0);
    // A line of base64 after the first line of the file.
    text.set(std::ranges::subrange(std::ranges::find(file.bytes(), '\n') + 65 + 1, file.bytes().end()));
  }
  const auto context = TlsContext::create(*Certificates::open(folder));
  ASSERT_TRUE(context) << context.error().message;
  EXPECT_EQ(in_child([&] { return text.is_in_memory() ? 1 : 0; }), 0);
  std::vector<unsigned char> copy(text.masked.begin(), text.masked.end());
  for (unsigned char& each : copy) each ^= Sought::kMask;
  EXPECT_EQ(in_child([&] { return text.is_in_memory() ? 1 : 0; }), 1) << "the search finds what is there";
}

// OpenSSL has a destructor for each thread that used it.
TEST(TlsFork, AChildSurvivesTheEndOfAThreadThatUsedASession) {
  constexpr int kReachedExit = 77;
  int status = 0;
  std::thread([&] {
    const Session session;
    const pid_t child = ::fork();
    if (child == 0) {
      // The last thread's end is the process's. The handler skips what sanitizers do at exit.
      (void)std::atexit([] { ::_exit(kReachedExit); });
      return;
    }
    ::waitpid(child, &status, 0);
  }).join();
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), kReachedExit);
}

// ---- sockets ----

std::size_t open_sockets() {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    found += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:[") ? 1 : 0;
  }
  return found;
}

class TransportFork : public testing::TestWithParam<bool> {};

TEST_P(TransportFork, AChildHasNoSocketOfLiveLinks) {
  const std::size_t before = open_sockets();
  const KeyringRef keyring = GetParam() ? SecretFile().read() : nullptr;
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  ASSERT_GE(open_sockets(), before + 5) << "a listener, and two connections of two ends";
  EXPECT_EQ(in_child([&] { return static_cast<int>(open_sockets() - before); }), 0);
  a.send(peer, "page", {a.outgoing(1 << 16, 3)}, a.later());
  EXPECT_TRUE(until({&a, &b}, [&] { return b.count<Message>() == 1; })) << "the parent's stay";
}

INSTANTIATE_TEST_SUITE_P(Over, TransportFork, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tls" : "UnixSocket"; });

}  // namespace
}  // namespace vmem::rdma
