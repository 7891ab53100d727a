#include "cluster/registry/served/folder_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

constexpr std::string_view kSuffix = ".registry", kNewSuffix = ".new";
constexpr std::size_t kMostFileBytes = std::size_t{512} << 20;

Error cannot(const char* what, const std::string& path, int error) {
  return {.status = VMEM_ERROR_INVALID_OPTION,
          .native = error,
          .message = fmt::format("registry: '{}' cannot be {}: {}; give a directory that this process may write, on a "
                                 "disk with room",
                                 printable(path), what, std::strerror(error))};
}

int write_whole(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

Result<std::string> read_whole(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat about{};
  if (!file || ::fstat(file.get(), &about) != 0) return std::unexpected(cannot("read", path, errno));
  if (!S_ISREG(about.st_mode)) return std::unexpected(cannot("read", path, EINVAL));
  std::string bytes;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(cannot("read", path, errno));
    if (got == 0) return bytes;
    bytes.append(part.data(), static_cast<std::size_t>(got));
    if (bytes.size() > kMostFileBytes) return std::unexpected(cannot("read", path, EFBIG));
  }
}

}  // namespace

Result<std::unique_ptr<FolderStore>> FolderStore::open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return std::unexpected(cannot("created", path, errno));
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return std::unexpected(cannot("opened", path, errno));
  const std::string lock_path = path + "/lock";
  FileDescriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return std::unexpected(cannot("opened", lock_path, errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return std::unexpected(cannot("locked", lock_path, errno));
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("registry: another process keeps its registry in '{}': end it, or give another directory",
                            printable(path)));
  }
  return std::unique_ptr<FolderStore>(new FolderStore(path, std::move(folder), std::move(lock)));
}

Result<std::vector<RegistryStore::File>> FolderStore::read_all() {
  std::vector<File> files;
  std::error_code error;
  for (std::filesystem::directory_iterator each(path_, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.ends_with(kSuffix)) continue;
    VMEM_ASSIGN(std::string bytes, read_whole(path_of(name)));
    files.push_back({.name = name.substr(0, name.size() - kSuffix.size()), .bytes = std::move(bytes)});
  }
  if (error) return std::unexpected(cannot("read", path_, error.value()));
  return files;
}

// The lock makes the name of the new file this process's own.
Status FolderStore::write(const std::string& name, const std::string& bytes) {
  const std::string path = path_of(name + std::string(kSuffix)), beside = path + std::string(kNewSuffix);
  FileDescriptor file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return std::unexpected(cannot("written", beside, errno));
  if (const int error = write_whole(file.get(), bytes); error != 0)
    return std::unexpected(cannot("written", beside, error));
  file.reset();
  if (::rename(beside.c_str(), path.c_str()) != 0) return std::unexpected(cannot("replaced", path, errno));
  if (::fsync(folder_.get()) != 0) return std::unexpected(cannot("written", path_, errno));
  return {};
}

}  // namespace vmem::cluster
