// Requests to etcd's JSON gateway (3.4 and later) and its replies. Pure.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

// Before every key of the cluster: "/vmem/CLUSTER/".
std::string key_prefix_of(std::string_view cluster);

struct EtcdRequest {
  std::string path, body;  // for POST
};
EtcdRequest encode_request(const RegistryRequest& request, std::string_view key_prefix);
EtcdRequest encode_authenticate(std::string_view user, std::string_view password);

// gRPC's status codes, of which etcd uses these.
enum class EtcdCode : int {
  invalid_argument = 3,
  not_found = 5,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  out_of_range = 11,
  unimplemented = 12,
  unauthenticated = 16,
};
struct EtcdRefusal {
  EtcdCode code{};  // any value
  std::string message;
};
// True if an answer with this code proves that the request was not carried out, and that another
// endpoint would say the same.
bool is_final(EtcdCode code) noexcept;
// True if a new token may help.
bool asks_for_token(const EtcdRefusal& refusal) noexcept;

// What cannot be an answer of etcd to the request.
struct Unintelligible {
  std::string why;
};
// Without the id.
using EtcdAnswer = std::variant<Reply, EtcdRefusal, Unintelligible>;
EtcdAnswer decode_answer(const RegistryRequest& request, std::string_view key_prefix, long http_status,
                         std::string_view body);
struct EtcdToken {
  std::string text;
};
std::variant<EtcdToken, EtcdRefusal, Unintelligible> decode_token(long http_status, std::string_view body);

}  // namespace vmem::cluster
