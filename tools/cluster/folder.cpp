#include "tools/cluster/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/printable.hpp"

namespace vmem::tools::local_cluster {
namespace {

constexpr std::size_t kMostRead = std::size_t{1} << 20;
constexpr off_t kTail = 16 << 10;  // of a log
constexpr int kTries = 16;         // while other commands make and remove the folder

std::unexpected<Error> refuse(std::string why, int code = 0) {
  return fail(VMEM_ERROR_INVALID_OPTION, std::move(why), code);
}

std::unexpected<Error> cannot(const char* what, const std::string& path) {
  const int error = errno;
  return refuse(fmt::format("{} cannot be {}: {}", printable(path), what, std::strerror(error)), error);
}

bool is_own_folder(const char* path) {
  struct stat found{};
  return path[0] == '/' && ::stat(path, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
}

// The link at a path that ends with a slash would be followed.
std::string without_end_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Status check_owner(const std::string& path, const struct stat& found) {
  if (S_ISLNK(found.st_mode)) return refuse(fmt::format("{} is a link; give --dir a folder itself", path));
  if (!S_ISDIR(found.st_mode)) return refuse(fmt::format("{} is not a folder; give --dir another path", path));
  if (found.st_uid != ::geteuid())
    return refuse(fmt::format("{} belongs to user {}, and has to belong to user {}; give --dir another path", path,
                              found.st_uid, ::geteuid()));
  if ((found.st_mode & 077) != 0)
    return refuse(fmt::format("{} is open to other users (mode {:04o}); give --dir a folder of mode 0700", path,
                              found.st_mode & 07777));
  return {};
}

Result<std::string> read_from(int file, const std::string& path, std::size_t most) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() < most) {
    const ssize_t got = ::read(file, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path);
    if (got == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

bool write_to(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::string Folder::usual_path() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && is_own_folder(runtime)) return without_end_slash(runtime) + "/vmem-cluster";
  return fmt::format("/tmp/vmem-cluster-{}", ::geteuid());
}

Result<std::optional<Folder>> Folder::open(const std::string& given) {
  const std::string path = without_end_slash(std::filesystem::absolute(given).lexically_normal().string());
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return cannot("used", path);
  }
  VMEM_TRY(check_owner(path, found));
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && errno == ENOENT) return std::nullopt;
  // Once more: the path may name another folder by now.
  if (!folder || ::fstat(folder.get(), &found) != 0) return cannot("opened", path);
  VMEM_TRY(check_owner(path, found));
  return Folder(path, std::move(folder));
}

Status Folder::lock() const {
  if (::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return cannot("locked", path_);
  return fail(VMEM_ERROR_IN_USE, fmt::format("another `vmem cluster` command works in {} just now; wait for its end, "
                                             "or give --dir another path",
                                             path_));
}

// False after another command has removed the folder.
bool Folder::is_at_its_path() const {
  struct stat opened{}, named{};
  return ::fstat(folder_.get(), &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

Result<std::optional<Folder>> Folder::find(const std::string& path) { return open(path); }

Result<std::optional<Folder>> Folder::find_locked(const std::string& path) {
  VMEM_ASSIGN(auto folder, open(path));
  if (!folder) return std::nullopt;
  VMEM_TRY(folder->lock());
  if (!folder->is_at_its_path()) return std::nullopt;
  return folder;
}

Result<Folder> Folder::make(const std::string& path) {
  for (int tries = 0; tries < kTries; ++tries) {
    const bool made = ::mkdir(without_end_slash(path).c_str(), 0700) == 0;
    if (!made && errno != EEXIST) return cannot("made", path);
    VMEM_ASSIGN(auto folder, find_locked(path));
    if (!folder) continue;
    folder->is_new_ = made;
    return *std::move(folder);
  }
  return fail(VMEM_ERROR_IN_USE, fmt::format("other commands keep removing {}; give --dir another path", path));
}

bool Folder::has(const std::string& name) const {
  struct stat found{};
  return ::fstatat(folder_.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<std::optional<std::string>> Folder::read(const std::string& name) const {
  const FileDescriptor opened(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!opened && errno == ENOENT) return std::nullopt;
  if (!opened) return cannot("read", file(name));
  VMEM_ASSIGN(std::string text, read_from(opened.get(), file(name), kMostRead));
  return text;
}

Status Folder::write(const std::string& name, const std::string& text) const {
  const std::string beside = name + kNewSuffix;
  FileDescriptor opened(
      ::openat(folder_.get(), beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!opened || !write_to(opened.get(), text) || ::fsync(opened.get()) != 0) return cannot("written", file(beside));
  opened.reset();
  if (::renameat(folder_.get(), beside.c_str(), folder_.get(), name.c_str()) != 0)
    return cannot("replaced", file(name));
  return {};
}

Result<FileDescriptor> Folder::make_log(const std::string& name) const {
  FileDescriptor opened(
      ::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!opened) return cannot("made", file(name));
  return opened;
}

std::vector<std::string> Folder::last_lines(const std::string& name, std::size_t most) const {
  const FileDescriptor opened(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat found{};
  if (!opened || ::fstat(opened.get(), &found) != 0) return {};
  if (found.st_size > kTail) (void)::lseek(opened.get(), -kTail, SEEK_END);
  const auto text = read_from(opened.get(), file(name), kTail);
  if (!text) return {};
  std::vector<std::string> lines;
  for (std::string_view rest = *text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  return lines;
}

Status Folder::remove(const std::string& name) const {
  std::error_code code;
  std::filesystem::remove_all(file(name), code);
  if (code) return refuse(fmt::format("{} cannot be removed: {}", file(name), code.message()), code.value());
  return {};
}

void Folder::remove_itself() const { (void)::rmdir(path_.c_str()); }

}  // namespace vmem::tools::local_cluster
