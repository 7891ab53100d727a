// What the session asks of HTTP, and gets. Data only: in a test, the test answers.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace vmem::cluster {

enum class HttpId : std::uint64_t {};

// A POST of JSON.
struct HttpRequest {
  HttpId id{};
  std::string url, body;
  std::string token;  // for the Authorization header; "": none
  bool once = false;  // never sent a second time, not even where a connection broke
};
struct HttpAnswer {
  long status = 0;
  std::string body;
};
struct HttpFailure {
  enum class Kind : std::uint8_t {
    unreachable,  // nothing was sent
    untrusted,    // nothing was sent: certificates do not match
    unanswered,   // sent, perhaps in part
  };
  Kind kind = Kind::unreachable;
  std::string why;
};
struct HttpResult {
  HttpId id{};
  std::variant<HttpAnswer, HttpFailure> what;
};

// PEM files. "" for the first: the certificates of the system. Both of the others, or neither.
struct TlsFiles {
  std::string authorities, certificate, key;
};

}  // namespace vmem::cluster
