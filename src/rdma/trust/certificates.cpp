#include "rdma/trust/certificates.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "rdma/trust/key_memory.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

std::unexpected<Error> refuse(const std::string& path, std::string why) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{}: {} (option certificates)", path, why));
}

// The reason why OpenSSL refused a certificate file.
std::unexpected<Error> refuse_certificates(const std::string& path) {
  const std::string words = openssl_words();
  if (::access(path.c_str(), R_OK) != 0) return refuse(path, std::strerror(errno));
  return refuse(path, fmt::format("holds no certificate in PEM form ({})", words));
}

// Without this callback OpenSSL would prompt at the terminal.
int no_password(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

using PrivateKey = std::unique_ptr<EVP_PKEY, OpenSslDelete<EVP_PKEY_free>>;

Result<PrivateKey> parse_key(const std::string& path, std::string_view text) {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  const std::unique_ptr<BIO, OpenSslDelete<BIO_free>> source(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  if (!source) return openssl_failure("a private key could not be read");
  bool asked = false;
  PrivateKey key(PEM_read_bio_PrivateKey_ex(source.get(), nullptr, &no_password, &asked, library, nullptr));
  if (key) return key;
  const std::string words = openssl_words();
  if (asked) return refuse(path, "is encrypted with a password, which vmem cannot ask for");
  return refuse(path, fmt::format("holds no private key in PEM form ({})", words));
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
  VMEM_TRY(certificates->open_key());
  return certificates;
}

// A Kubernetes secret belongs to root, and a group may read it.
Result<FileDescriptor> Certificates::open_key() const {
  // O_NONBLOCK: the open of a FIFO would block.
  FileDescriptor opened(::open(key_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat file{};
  if (!opened || ::fstat(opened.get(), &file) != 0) return refuse(key_, std::strerror(errno));
  if (!S_ISREG(file.st_mode)) return refuse(key_, "is not a file");
  if (file.st_uid != ::geteuid() && file.st_uid != 0)
    return refuse(key_, fmt::format("belongs to user {}, this process to user {}", file.st_uid, ::geteuid()));
  const mode_t others = file.st_uid == 0 ? 037 : 077;
  if ((file.st_mode & others) != 0)
    return refuse(key_, fmt::format("has mode {:04o}: others than its owner may use it; chmod 600 it (in Kubernetes: "
                                    "defaultMode: 0440)",
                                    file.st_mode & 07777));
  return opened;
}

// OpenSSL would read the file through stdio, whose buffers are in the ordinary heap. The key that
// OpenSSL parses from this copy is in memory like KeyMemory.
Status Certificates::install_key(SSL_CTX* context) const {
  VMEM_ASSIGN(const FileDescriptor file, open_key());
  const auto content = KeyText::read(file.get());
  if (!content) return refuse(key_, content.error().message);
  VMEM_ASSIGN(const PrivateKey key, parse_key(key_, content->text()));
  if (X509_check_private_key(SSL_CTX_get0_certificate(context), key.get()) != 1) {
    ERR_clear_error();
    return refuse(key_, fmt::format("is not the key of {}", certificate_));
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return refuse(key_, fmt::format("cannot be used ({})", openssl_words()));
  return {};
}

Status Certificates::install(SSL_CTX* context) const {
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(context, authority_.c_str()) != 1) return refuse_certificates(authority_);
  if (SSL_CTX_use_certificate_chain_file(context, certificate_.c_str()) != 1) return refuse_certificates(certificate_);
  return install_key(context);
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

void PeerCertificates::Free::operator()(stack_st_X509* chain) const noexcept {
  if (!openssl_is_wiped()) sk_X509_pop_free(chain, X509_free);
}

PeerCertificates::PeerCertificates(SSL* ssl)
    : chain_(X509_chain_up_ref(SSL_get0_verified_chain(ssl))),
      purpose_(SSL_is_server(ssl) == 1 ? "ssl_client" : "ssl_server") {
  if (!chain_) throw std::bad_alloc();
}

bool PeerCertificates::same_as(const PeerCertificates& other) const {
  return X509_cmp(sk_X509_value(chain_.get(), 0), sk_X509_value(other.chain_.get(), 0)) == 0;
}

bool PeerCertificates::are_in_time() const {
  for (int i = 0; i < sk_X509_num(chain_.get()); ++i) {
    // 0: the comparison failed.
    if (X509_cmp_current_time(X509_get0_notAfter(sk_X509_value(chain_.get(), i))) <= 0) return false;
  }
  return true;
}

bool PeerCertificates::are_trusted_by(SSL_CTX* context) {
  const auto library = openssl();
  if (!library) return false;
  const std::unique_ptr<X509_STORE_CTX, OpenSslDelete<X509_STORE_CTX_free>> check(
      X509_STORE_CTX_new_ex(*library, nullptr));
  // Only the store's certificates count as authorities; the chain adds intermediate ones.
  if (!check || X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), sk_X509_value(chain_.get(), 0),
                                    chain_.get()) != 1)
    throw std::bad_alloc();
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(check.get()), SSL_CTX_get_security_level(context));
  const bool trusted = X509_STORE_CTX_set_default(check.get(), purpose_) == 1 && X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (!trusted) return false;
  Chain now(X509_STORE_CTX_get1_chain(check.get()));
  if (now) chain_ = std::move(now);
  return true;
}

namespace {

std::string name_in(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, OpenSslDelete<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    if (std::string name = name_of(*sk_GENERAL_NAME_value(names.get(), i)); !name.empty()) return name;
  }
  return "";
}

}  // namespace

std::string certified_name(SSL* ssl) {
  const std::unique_ptr<X509, OpenSslDelete<X509_free>> certificate(SSL_get1_peer_certificate(ssl));
  return certificate ? name_in(*certificate) : "";
}

Result<std::string> Certificates::name() const {
  const std::unique_ptr<BIO, OpenSslDelete<BIO_free_all>> file(BIO_new_file(certificate_.c_str(), "r"));
  const std::unique_ptr<X509, OpenSslDelete<X509_free>> certificate(
      file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  if (!certificate)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} holds no certificate that can be read", certificate_));
  return name_in(*certificate);
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
