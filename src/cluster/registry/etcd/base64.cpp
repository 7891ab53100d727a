#include "cluster/registry/etcd/base64.hpp"

#include <openssl/evp.h>

namespace vmem::cluster {
namespace {

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');
  (void)EVP_EncodeBlock(bytes_of(text), bytes_of(bytes), static_cast<int>(bytes.size()));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (bytes.size() < padding || EVP_DecodeBlock(bytes_of(bytes), bytes_of(text), static_cast<int>(text.size())) < 0)
    return std::nullopt;
  bytes.resize(bytes.size() - padding);
  // OpenSSL skips white space, and ignores the last bits before the padding.
  if (to_base64(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace vmem::cluster
