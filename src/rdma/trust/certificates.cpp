#include "rdma/trust/certificates.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

std::unexpected<Error> refuse(const std::string& path, std::string why) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{}: {}", path, why));
}

std::string_view text_of(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<std::size_t>(ASN1_STRING_length(string))};
}

std::string address_of(const ASN1_OCTET_STRING* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(bytes) != 16) return "";
  const char* const written = ::inet_ntop(family, ASN1_STRING_get0_data(bytes), text.data(), text.size());
  return written == nullptr ? "" : written;
}

std::string name_of(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_DNS:
      return std::string(text_of(name.d.dNSName));
    case GEN_URI:
      return std::string(text_of(name.d.uniformResourceIdentifier));
    case GEN_IPADD:
      return address_of(name.d.iPAddress);
    default:
      return "";
  }
}

}  // namespace

Result<CertificatesRef> Certificates::open(const std::string& folder) {
  CertificatesRef certificates(new Certificates(folder));
  VMEM_TRY(certificates->check_key_file());
  return certificates;
}

// A Kubernetes secret belongs to root, and its readers to a group.
Status Certificates::check_key_file() const {
  struct stat file{};
  if (::stat(key_.c_str(), &file) != 0) return refuse(key_, std::strerror(errno));
  if (!S_ISREG(file.st_mode)) return refuse(key_, "is not a file");
  if (file.st_uid != ::geteuid() && file.st_uid != 0)
    return refuse(key_, fmt::format("belongs to user {}, this process to user {}", file.st_uid, ::geteuid()));
  const mode_t others = file.st_uid == 0 ? 037 : 077;
  if ((file.st_mode & others) != 0)
    return refuse(key_, fmt::format("has mode {:04o}: others than its owner may use it; chmod 600 it (in Kubernetes: "
                                    "defaultMode: 0440)",
                                    file.st_mode & 07777));
  return {};
}

Status Certificates::install(SSL_CTX* context) const {
  VMEM_TRY(check_key_file());
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(context, authority_.c_str()) != 1) return refuse(authority_, openssl_words());
  if (SSL_CTX_use_certificate_chain_file(context, certificate_.c_str()) != 1)
    return refuse(certificate_, openssl_words());
  if (SSL_CTX_use_PrivateKey_file(context, key_.c_str(), SSL_FILETYPE_PEM) != 1) return refuse(key_, openssl_words());
  if (SSL_CTX_check_private_key(context) != 1)
    return refuse(key_, fmt::format("is not the key of {}: {}", certificate_, openssl_words()));
  return {};
}

std::string Certificates::version() const {
  std::string version;
  for (const std::string& path : {authority_, certificate_, key_}) {
    struct stat file{};
    if (::stat(path.c_str(), &file) != 0) continue;
    version += fmt::format("{}:{}:{}.{} ", file.st_ino, file.st_size, file.st_ctim.tv_sec, file.st_ctim.tv_nsec);
  }
  return version;
}

std::string certified_name(SSL* ssl) {
  const std::unique_ptr<X509, OpenSslDelete<X509_free>> certificate(SSL_get1_peer_certificate(ssl));
  if (!certificate) return "";
  const std::unique_ptr<GENERAL_NAMES, OpenSslDelete<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    if (std::string name = name_of(*sk_GENERAL_NAME_value(names.get(), i)); !name.empty()) return name;
  }
  return "";
}

Status expect_certified_host(SSL* ssl, const std::string& host) {
  X509_VERIFY_PARAM* const parameters = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host.c_str()) == 1) return {};
  ERR_clear_error();
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (SSL_set1_host(ssl, host.c_str()) == 1) return {};
  return openssl_failure("the name of the peer's certificate could not be set");
}

}  // namespace vmem::rdma
