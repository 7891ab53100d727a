#include "runtime/loop_file_system.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file_descriptor.hpp"

namespace vmem::test {
namespace {

constexpr unsigned long kShutdown = _IOR('X', 125, std::uint32_t);
constexpr std::uint32_t kWithoutFlush = 2;

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

}  // namespace

LoopFileSystem::LoopFileSystem(std::uint64_t bytes) : folder_(::testing::TempDir() + "vmem-loop-XXXXXX") {
  if (::geteuid() != 0) {
    why_not_ = "only root mounts file systems";
    return;
  }
  if (::mkdtemp(folder_.data()) == nullptr) {
    why_not_ = "no folder for it can be made";
    return;
  }
  std::filesystem::create_directory(path());
  if (!run(fmt::format("truncate -s {} {}/image && mkfs.ext4 -q -E lazy_itable_init=0 {}/image", bytes, folder_,
                       folder_)))
    why_not_ = "mkfs.ext4 is not there or fails";
  else if (!run(fmt::format("mount -o loop {}/image {}", folder_, path())))
    why_not_ = "loop devices cannot be mounted here";
}

LoopFileSystem::~LoopFileSystem() {
  if (!why_not_) (void)run("umount -l " + path());
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool LoopFileSystem::shut_down() const {
  const FileDescriptor directory(::open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::uint32_t how = kWithoutFlush;
  return ::ioctl(directory.get(), kShutdown, &how) == 0;
}

bool LoopFileSystem::make_read_only() const { return run("mount -o remount,abort " + path()); }

bool LoopFileSystem::fill_up() const {
  (void)run(fmt::format("dd if=/dev/zero of={}/filler bs=1M", path()));  // ends when full
  return std::filesystem::space(path()).available < (std::uint64_t{1} << 20);
}

bool LoopFileSystem::lose_the_disk() const { return ::truncate((folder_ + "/image").c_str(), 0) == 0; }

bool LoopFileSystem::remove_directory() const { return run("umount -l " + path()) && ::rmdir(path().c_str()) == 0; }

}  // namespace vmem::test
