// A node's certificate, its private key and its trusted authority, from a folder with the files of
// a Kubernetes TLS secret: ca.crt, tls.crt (with intermediate certificates) and tls.key.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

struct stack_st_X509;  // OpenSSL's

namespace vmem::rdma {

class Certificates;
using CertificatesRef = std::shared_ptr<const Certificates>;

class Certificates {
 public:
  // Checks only access to the key file. Errors: INVALID_OPTION if others may use the key, or it
  // cannot be opened.
  static Result<CertificatesRef> open(const std::string& folder);

  // Loads the files into `context`, which then accepts peers with certificates of this authority.
  // Errors: INVALID_OPTION, naming the file.
  Status install(SSL_CTX* context) const;
  // The identity that peers see: the first name in this node's certificate; "": none. Errors:
  // INVALID_OPTION.
  Result<std::string> name() const;
  // Changes when one of the files is replaced.
  std::string version() const;

 private:
  explicit Certificates(const std::string& folder)
      : authority_(folder + "/ca.crt"), certificate_(folder + "/tls.crt"), key_(folder + "/tls.key") {}
  Result<FileDescriptor> open_key() const;
  Status install_key(SSL_CTX* context) const;

  const std::string authority_, certificate_, key_;
};

// The verified chain of a peer: its certificate, intermediate ones and the authority's.
class PeerCertificates {
 public:
  // REQUIRES: the handshake is over.
  explicit PeerCertificates(SSL* ssl);
  // Compares only the peers' own certificates.
  bool same_as(const PeerCertificates& other) const;
  // False once a certificate of the chain has expired.
  bool are_in_time() const;
  // Verifies the chain again, against the authorities that `context` trusts.
  bool are_trusted_by(SSL_CTX* context);

 private:
  struct Free {
    void operator()(stack_st_X509* chain) const noexcept;
  };
  using Chain = std::unique_ptr<stack_st_X509, Free>;
  Chain chain_;  // as last verified, the peer's own first
  const char* const purpose_;
};

// The first DNS name, URI or address among the subject alternative names of the peer's certificate;
// "" if it has none.
std::string certified_name(SSL* ssl);
// Makes a client's handshake fail unless the peer's certificate is for `host`, a name or numeric
// address. Errors: INTERNAL.
Status expect_certified_host(SSL* ssl, const std::string& host);

}  // namespace vmem::rdma
