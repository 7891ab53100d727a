// A TLS 1.3 ClientHello with a pre-shared key (RFC 8446, 4.1.2 and 4.2.11), built byte by byte:
// OpenSSL's clients always offer psk_dhe_ke.
#pragma once

#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rdma/trust/crypto.hpp"

namespace vmem::rdma {

class ClientHello {
 public:
  using Octets = std::vector<unsigned char>;
  std::vector<std::uint16_t> ciphers{0x1301};
  std::vector<unsigned char> key_exchange_modes{1};  // 0: psk_ke, 1: psk_dhe_ke
  bool key_share = true;                             // X25519; nobody knows the private key
  std::string identity;
  Key key;

  // The TLS record, with a binder that proves the key.
  Octets record() const {
    Octets hello = message();
    const Octets proof = binder(std::span(hello).first(hello.size() - kBinders));
    std::copy(proof.begin(), proof.end(), hello.end() - static_cast<std::ptrdiff_t>(proof.size()));
    Octets record{0x16, 0x03, 0x01};
    append(record, 2, hello);
    return record;
  }

 private:
  static constexpr std::size_t kHash = 32;
  static constexpr std::size_t kBinders = 2 + 1 + kHash;  // with two length fields

  // Not inlined: GCC 12 would warn of a read that does not happen.
  [[gnu::noinline]] static void append(Octets& to, int length_bytes, const Octets& what) {
    for (int i = length_bytes - 1; i >= 0; --i) to.push_back(static_cast<unsigned char>(what.size() >> (8 * i)));
    to.insert(to.end(), what.begin(), what.end());
  }
  static void extend(Octets& extensions, unsigned char type, const Octets& what) {
    extensions.insert(extensions.end(), {0, type});
    append(extensions, 2, what);
  }

  Octets message() const {
    Octets body{0x03, 0x03};
    body.insert(body.end(), 32, 0x5a);  // random
    body.push_back(0);                  // session id
    Octets suites;
    for (const std::uint16_t each : ciphers)
      suites.insert(suites.end(), {static_cast<unsigned char>(each >> 8), static_cast<unsigned char>(each)});
    append(body, 2, suites);
    body.insert(body.end(), {1, 0});  // no compression
    append(body, 2, extensions());
    Octets hello{1};
    append(hello, 3, body);
    return hello;
  }
  Octets extensions() const {
    Octets all;
    extend(all, 43, {2, 0x03, 0x04});     // supported_versions: 1.3
    extend(all, 10, {0, 2, 0x00, 0x1d});  // supported_groups: X25519
    extend(all, 13, {0, 2, 0x04, 0x03});  // signature_algorithms
    if (key_share) {
      Octets point(32, 0), entry{0x00, 0x1d}, entries;
      point[0] = 9;
      append(entry, 2, point);
      append(entries, 2, entry);
      extend(all, 51, entries);
    }
    Octets modes;
    append(modes, 1, key_exchange_modes);
    extend(all, 45, modes);
    Octets one, keys;
    append(one, 2, {identity.begin(), identity.end()});
    one.insert(one.end(), 4, 0);  // ticket age
    append(keys, 2, one);
    Octets empty;
    append(empty, 1, Octets(kHash, 0));
    append(keys, 2, empty);
    extend(all, 41, keys);  // must be last
    return all;
  }

  // RFC 8446, 7.1.
  static Octets hmac(const Octets& with, std::span<const unsigned char> of) {
    Octets out(kHash);
    ::HMAC(EVP_sha256(), with.data(), static_cast<int>(with.size()), of.data(), of.size(), out.data(), nullptr);
    return out;
  }
  static Octets sha256(std::span<const unsigned char> of) {
    Octets out(kHash);
    ::SHA256(of.data(), of.size(), out.data());
    return out;
  }
  static Octets expand(const Octets& secret, const std::string& label, const Octets& context) {
    const std::string full = "tls13 " + label;
    Octets info{0, kHash};
    append(info, 1, {full.begin(), full.end()});
    append(info, 1, context);
    info.push_back(1);
    return hmac(secret, info);
  }
  Octets binder(std::span<const unsigned char> truncated) const {
    const Octets early = hmac(Octets(kHash, 0), key.bytes);
    const Octets finished = expand(expand(early, "ext binder", sha256({})), "finished", {});
    return hmac(finished, sha256(truncated));
  }
};

}  // namespace vmem::rdma
