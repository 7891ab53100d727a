#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "rdma/crypto.hpp"

namespace vmem::rdma {
namespace {

constexpr std::size_t kLeastBytes = 16;
constexpr std::size_t kMostBytes = 4096;

std::unexpected<Error> refuse(const std::string& path, std::string why, int native = 0) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the secret file {}: {}", path, why), native);
}

Status check_file(int descriptor, const std::string& path) {
  struct stat file{};
  if (::fstat(descriptor, &file) != 0) return refuse(path, std::strerror(errno), errno);
  if (!S_ISREG(file.st_mode)) return refuse(path, "is not a file");
  if (file.st_uid != ::geteuid() && file.st_uid != 0)
    return refuse(path, fmt::format("belongs to user {}, this process to user {}", file.st_uid, ::geteuid()));
  if ((file.st_mode & 077) != 0)
    return refuse(path,
                  fmt::format("has mode {:04o}: others than its owner may use it; chmod 600 it", file.st_mode & 07777));
  return {};
}

}  // namespace

Result<Secret> Secret::read(const Crypto& crypto, const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO would block
  if (!file) return refuse(path, std::strerror(errno), errno);
  VMEM_TRY(check_file(file.get(), path));
  KeyBytes<kMostBytes + 1> content;
  const ssize_t read = ::read(file.get(), content.bytes.data(), content.bytes.size());
  if (read < 0) return refuse(path, std::strerror(errno), errno);
  auto bytes = static_cast<std::size_t>(read);
  if (bytes > kMostBytes) return refuse(path, fmt::format("has more than {} bytes", kMostBytes));
  if (bytes > 0 && content.bytes[bytes - 1] == '\n') --bytes;
  if (bytes < kLeastBytes)
    return refuse(path, fmt::format("has {} bytes; a secret has at least {}: head -c 32 /dev/urandom | base64", bytes,
                                    kLeastBytes));
  Secret secret;
  secret.key_ = crypto.hash(std::as_bytes(std::span(content.bytes).first(bytes)));
  secret.none_ = false;
  return secret;
}

}  // namespace vmem::rdma
