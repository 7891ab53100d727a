// Certificates made with the openssl program, in a folder removed on destruction.
#pragma once

#include <fmt/format.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "rdma/trust/certificates.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {

class Authority {
 public:
  Authority() {
    if (::mkdtemp(path_) == nullptr) throw std::runtime_error("no folder for certificates");
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=authority "
        "-keyout {0}/ca.key -out {0}/ca.crt");
  }
  ~Authority() { std::filesystem::remove_all(path_); }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  // Makes a node's folder. `names`: "DNS:gpu07,IP:127.0.0.1", or "" for none. `days`: validity.
  std::string issue(const std::string& names, int days = 1) {
    const std::string folder = fmt::format("{}/{}", path_, ++issued_);
    std::filesystem::create_directory(folder);
    issue_into(folder, names, days);
    return folder;
  }
  void issue_into(const std::string& folder, const std::string& names, int days = 1) const {
    const std::string extension = names.empty() ? "" : "-addext subjectAltName=" + names;
    run(
        fmt::format("openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node "
                    "-keyout {0}/tls.key -out {0}/request {1}",
                    folder, extension));
    run(
        fmt::format("openssl x509 -req -in {0}/request -copy_extensions copyall -CA {{0}}/ca.crt -CAkey {{0}}/ca.key "
                    "-CAcreateserial -days {1} -out {0}/tls.crt",
                    folder, days));
    std::filesystem::copy_file(fmt::format("{}/ca.crt", path_), folder + "/ca.crt",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::permissions(folder + "/tls.key", std::filesystem::perms(0600));
  }
  // Re-signs the folder's certificate so that it expires `seconds` from now.
  void let_expire_in(const std::string& folder, long seconds) const {
    const std::string path = folder + "/tls.crt";
    (void)openssl();  // loads OpenSSL before its first use
    const auto open = [](const std::string& file, const char* mode) {
      return std::unique_ptr<BIO, OpenSslDelete<BIO_free>>(BIO_new_file(file.c_str(), mode));
    };
    const std::unique_ptr<EVP_PKEY, OpenSslDelete<EVP_PKEY_free>> key(
        PEM_read_bio_PrivateKey(open(fmt::format("{}/ca.key", path_), "r").get(), nullptr, nullptr, nullptr));
    const std::unique_ptr<X509, OpenSslDelete<X509_free>> certificate(
        PEM_read_bio_X509(open(path, "r").get(), nullptr, nullptr, nullptr));
    if (!key || !certificate || X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds) == nullptr ||
        X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0 ||
        PEM_write_bio_X509(open(path, "w").get(), certificate.get()) != 1)
      throw std::runtime_error("the certificate was not signed again: " + openssl_words());
  }

 private:
  // {0} in `command` stands for the authority's folder.
  void run(const std::string& command) const {
    const std::string line = fmt::format(fmt::runtime(command), path_) + " 2>/dev/null";
    if (std::system(line.c_str()) != 0) throw std::runtime_error("failed: " + line);
  }
  char path_[40] = "/tmp/vmem_certificates_XXXXXX";
  int issued_ = 0;
};

}  // namespace vmem::rdma
