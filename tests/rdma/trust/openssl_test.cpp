// vmem's own OpenSSL, in a fresh process.
#include "rdma/trust/openssl.hpp"

#include <gtest/gtest.h>
#include <sys/inotify.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "rdma/process.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {
namespace {

std::string program() { return std::filesystem::canonical("/proc/self/exe").parent_path() / "rdma_openssl"; }

// A configuration file that asks for a nonexistent provider. Detects when the file is opened.
class WatchedConfiguration {
 public:
  WatchedConfiguration() {
    const FileDescriptor made(::mkstemp(path_));
    std::ofstream(path_) << "openssl_conf = all\n[all]\nproviders = providers\nssl_conf = ssl\n"
                            "[providers]\nnone = none\n[none]\nmodule = /nonexistent.so\nactivate = 1\n"
                            "[ssl]\nsystem_default = ours\n[ours]\nCiphersuites = none\n";
    watch_ = FileDescriptor(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    EXPECT_GE(::inotify_add_watch(watch_.get(), path_, IN_OPEN), 0);
  }
  ~WatchedConfiguration() { ::unlink(path_); }
  WatchedConfiguration(const WatchedConfiguration&) = delete;
  WatchedConfiguration& operator=(const WatchedConfiguration&) = delete;

  const char* path() const noexcept { return path_; }
  bool was_opened() const {
    alignas(inotify_event) std::array<char, 4096> events;
    return ::read(watch_.get(), events.data(), events.size()) > 0;
  }

 private:
  char path_[32] = "/tmp/vmem_openssl_XXXXXX";
  FileDescriptor watch_;
};

TEST(OpenSsl, ReadsNoConfigurationFile) {
  const WatchedConfiguration configuration;
  const SecretFile secret;
  ::setenv("OPENSSL_CONF", configuration.path(), 1);
  Process child({program(), secret.path()});
  ::unsetenv("OPENSSL_CONF");
  EXPECT_EQ(child.first_line(), "started");
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(configuration.was_opened());
  std::ifstream look(configuration.path());
  EXPECT_TRUE(configuration.was_opened()) << "the watch sees who opens it";
}

TEST(OpenSsl, RegistersNoExitHandler) {
  const SecretFile secret;
  Process child({program(), secret.path()});
  EXPECT_TRUE(child.says("usable at the end"));
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace vmem::rdma
