#include "rdma/trust/keyring.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <cstring>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"

namespace vmem::rdma {
namespace {

constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kEncodedKeyBytes = 44;
// 32 random bytes have 30 distinct values on average; fewer than 16 occur once in 10^13 keys.
constexpr std::size_t kLeastDistinct = 16;
constexpr std::string_view kNameShape =
    "1 to 64 letters, digits, '.', '_' and '-': TENANT, or TENANT#REST for a further secret of a tenant";
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

std::unexpected<Error> refuse(const std::string& path, std::string why, int native = 0) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the secret file {}: {} (option secret)", path, why), native);
}

Result<struct stat> check_file(int descriptor, const std::string& path) {
  struct stat file{};
  if (::fstat(descriptor, &file) != 0) return refuse(path, std::strerror(errno), errno);
  if (!S_ISREG(file.st_mode)) return refuse(path, "is not a file");
  if (file.st_uid != ::geteuid() && file.st_uid != 0)
    return refuse(path, fmt::format("belongs to user {}, this process to user {}", file.st_uid, ::geteuid()));
  if ((file.st_mode & 077) != 0)
    return refuse(path,
                  fmt::format("has mode {:04o}: others than its owner may use it; chmod 600 it", file.st_mode & 07777));
  return file;
}

bool is_word(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return kLetters.contains(c) || std::string_view("._-").contains(c); });
}

bool is_name(std::string_view text) {
  const std::size_t mark = text.find('#');
  return text.size() <= kMostNameBytes && is_word(text.substr(0, mark)) &&
         (mark == std::string_view::npos || is_word(text.substr(mark + 1)));
}

bool decode(std::string_view text, std::span<unsigned char> key) {
  if (text.size() != kEncodedKeyBytes || text.back() != '=') return false;
  const bool letters = std::ranges::all_of(text.substr(0, kEncodedKeyBytes - 1),
                                           [](char c) { return kLetters.contains(c) || c == '+' || c == '/'; });
  KeyBytes<kEncodedKeyBytes / 4 * 3> decoded;
  if (!letters || EVP_DecodeBlock(decoded.bytes.data(), reinterpret_cast<const unsigned char*>(text.data()),
                                  static_cast<int>(text.size())) < 0)
    return false;
  std::copy_n(decoded.bytes.begin(), key.size(), key.begin());
  return true;
}

bool is_weak(std::span<const unsigned char> key) {
  std::bitset<256> seen;
  for (const unsigned char byte : key) seen.set(byte);
  return seen.count() < kLeastDistinct;
}

bool same_key(const Secret& one, const Secret& other) {
  return CRYPTO_memcmp(one.memory.bytes().data(), other.memory.bytes().data(), sizeof(Key)) == 0;
}

}  // namespace

Result<std::string> make_secret_line(const Crypto& crypto, std::string_view name) {
  if (!is_name(name))
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("'{}' cannot name a secret; a name has {}", name, kNameShape));
  Key key;
  do key = crypto.key();
  while (is_weak(key.bytes));
  KeyBytes<kEncodedKeyBytes + 1> encoded;
  EVP_EncodeBlock(encoded.bytes.data(), key.bytes.data(), static_cast<int>(key.bytes.size()));
  return fmt::format("{} {}\n", name, reinterpret_cast<const char*>(encoded.bytes.data()));
}

Key Secret::key() const {
  Key key;
  std::ranges::copy(memory.bytes(), key.bytes.begin());
  return key;
}

bool Keyring::Version::operator==(const Version& other) const noexcept {
  const auto same = [](const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; };
  return device == other.device && inode == other.inode && bytes == other.bytes && same(modified, other.modified) &&
         same(changed, other.changed);
}

Result<KeyringRef> Keyring::open(std::string path) {
  KeyringRef keyring(new Keyring(std::move(path)));
  VMEM_ASSIGN(Content content, read(keyring->path_));
  keyring->adopt(std::move(content));
  return keyring;
}

Result<Keyring::Content> Keyring::read(const std::string& path) {
  // O_NONBLOCK: the open of a FIFO would block.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return refuse(path, std::strerror(errno), errno);
  VMEM_ASSIGN(const struct stat status, check_file(file.get(), path));
  const auto content = KeyText::read(file.get());
  if (!content) return refuse(path, content.error().message, content.error().native);
  VMEM_ASSIGN(std::vector<Secret> secrets, parse(path, content->text()));
  return Content{std::move(secrets), {status.st_dev, status.st_ino, status.st_size, status.st_mtim, status.st_ctim}};
}

Result<std::vector<Secret>> Keyring::parse(const std::string& path, std::string_view text) {
  std::vector<Secret> secrets;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.front() == '#') continue;
    const auto refuse_line = [&](std::string_view why) {  // never quotes the line: it may be a key
      return refuse(path, fmt::format("line {}: {}; `vmem secret new` makes secrets", number, why));
    };
    const auto space = line.find(' ');
    if (space == std::string_view::npos) return refuse_line("is not NAME KEY");
    Secret secret(std::string(line.substr(0, space)));
    if (!is_name(secret.name)) return refuse_line(fmt::format("a name has {}", kNameShape));
    if (!decode(line.substr(space + 1), secret.memory.bytes()))
      return refuse_line("a key is 32 bytes in base64, 44 characters");
    if (is_weak(secret.memory.bytes())) return refuse_line("the key is weak: its bytes are not random");
    if (std::ranges::find(secrets, secret.name, &Secret::name) != secrets.end())
      return refuse_line(fmt::format("a second secret named '{}'", secret.name));
    secrets.push_back(std::move(secret));
  }
  if (secrets.empty()) return refuse(path, "holds no secret; `vmem secret new` makes secrets");
  return secrets;
}

void Keyring::adopt(Content content) {
  for (Secret& secret : content.secrets) {
    const Secret* const known = find(secret.name);
    secret.serial = known != nullptr && same_key(*known, secret) ? known->serial : ++last_serial_;
  }
  secrets_ = std::move(content.secrets);
  version_ = content.version;
}

const Secret* Keyring::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(secrets_, name, &Secret::name);
  return found == secrets_.end() ? nullptr : &*found;
}

bool Keyring::holds(std::uint64_t serial) const noexcept {
  return std::ranges::find(secrets_, serial, &Secret::serial) != secrets_.end();
}

bool Keyring::refresh() {
  struct stat now{};
  const bool there = ::stat(path_.c_str(), &now) == 0;
  if (there && Version{now.st_dev, now.st_ino, now.st_size, now.st_mtim, now.st_ctim} == version_) return false;
  auto content = read(path_);
  if (!content) {
    if (std::exchange(refused_, content.error().message) != content.error().message)
      VMEM_LOG_WARN("{}; the secrets that were read from it before stay valid", refused_);
    return false;
  }
  refused_.clear();
  const std::uint64_t before = last_serial_;
  const std::size_t count = secrets_.size();
  const std::string first = own().name, tenant(own().tenant());
  adopt(*std::move(content));
  const bool changed = last_serial_ != before || secrets_.size() != count || own().name != first;
  if (changed)
    VMEM_LOG_INFO("the secret file {} has {} secrets now; this node connects with '{}'", path_, secrets_.size(),
                  own().name);
  if (own().tenant() != tenant)
    VMEM_LOG_WARN(
        "the secret file {} makes this node the tenant '{}'; it was '{}'. If it borrows memory, lenders that keep "
        "pages for "
        "'{}' will refuse it and then drop them: put a secret of '{}' first (a further one is named '{}#2')",
        path_, own().tenant(), tenant, tenant, tenant, tenant);
  return changed;
}

}  // namespace vmem::rdma
