#include "runtime/silent_file_system.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace vmem::test {

SilentFileSystem::SilentFileSystem() : folder_(::testing::TempDir() + "vmem-silent-XXXXXX") {
  if (::mkdtemp(folder_.data()) == nullptr) {
    why_not_ = "no folder for it can be made";
    return;
  }
  std::filesystem::create_directory(path());
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  server_.emplace(std::vector<std::string>{(here / "silent_file_system_server").string(), path()});
  if (const std::string said = server_->first_line(); said != "mounted") why_not_ = said;
}

SilentFileSystem::~SilentFileSystem() {
  server_.reset();
  if (!why_not_) (void)::umount2(path().c_str(), MNT_DETACH);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void SilentFileSystem::go_silent() {
  server_->signal(SIGUSR1);
  EXPECT_TRUE(server_->says("silent", silences_++));
}

void SilentFileSystem::answer_again() {
  if (dead_) return;
  server_->signal(SIGUSR2);
  EXPECT_TRUE(server_->says("answers", answers_++));
}

void SilentFileSystem::die() {
  dead_ = true;
  server_->signal(SIGKILL);
  server_->wait();
}

}  // namespace vmem::test
