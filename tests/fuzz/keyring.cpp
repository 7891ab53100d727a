// The file with a node's secrets.
#include "rdma/trust/keyring.hpp"

#include <openssl/evp.h>

#include <array>

#include "base/log.hpp"
#include "fuzz/memory_file.hpp"

namespace vmem::rdma {
namespace {

using fuzz::MemoryFile;
using fuzz::require;

std::string line_of(const Secret& secret) {
  std::array<unsigned char, 45> encoded;
  const Key key = secret.key();
  EVP_EncodeBlock(encoded.data(), key.bytes.data(), int(key.bytes.size()));
  return secret.name + ' ' + reinterpret_cast<const char*>(encoded.data()) + '\n';
}

void check(std::string_view text) {
  const MemoryFile file(text);
  const auto keyring = Keyring::open(file.path());
  if (!keyring) return require(!keyring.error().message.empty(), "a refusal says why");
  const Secret& own = (*keyring)->own();
  require((*keyring)->find(own.name) == &own && (*keyring)->holds(own.serial), "a node's own secret is found");
  const MemoryFile again(line_of(own));
  const auto reread = Keyring::open(again.path());
  require(reread && (*reread)->own().name == own.name && (*reread)->own().key().bytes == own.key().bytes,
          "a secret is written as one that means the same");
}

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::log::set_level(vmem::log::Level::off);
  vmem::rdma::check(vmem::fuzz::Input(data, size).text());
  return 0;
}
