// What an endpoint of the registry answers: to each kind of request, and to a proof of a password.
#include <algorithm>
#include <array>

#include "cluster/registry/etcd/base64.hpp"
#include "cluster/registry/etcd/messages.hpp"
#include "fuzz/input.hpp"

namespace vmem::cluster {
namespace {

using fuzz::require;

void check_read(const Read& read, const std::string& prefix) {
  require(std::ranges::is_sorted(read.records, {}, &Record::key), "records are in the order of keys");
  for (const Record& each : read.records)
    require(each.key.starts_with(prefix) && each.modified > Revision{} && each.lease >= LeaseId{},
            "a record is one that was asked for");
}

void check_reply(const RegistryRequest& request, const Reply& reply) {
  require(!std::holds_alternative<Error>(reply.what), "what was understood is no error");
  require(reply.what.index() == request.index() + 1, "a reply is of the request's kind");
  require((reply.revision > Revision{}) != std::holds_alternative<Ended>(reply.what), "a reply has a revision");
  if (const auto* read = std::get_if<Read>(&reply.what)) check_read(*read, std::get<ReadPrefix>(request).prefix);
  const auto* granted = std::get_if<Granted>(&reply.what);
  require(granted == nullptr || (granted->lease > LeaseId{} && granted->seconds > 0), "a granted lease lasts");
}

void check_answer(const RegistryRequest& request, long status, std::string_view body) {
  const EtcdAnswer answer = decode_answer(request, key_prefix_of("c"), status, body);
  if (const auto* other = std::get_if<Unintelligible>(&answer))
    return require(!other->why.empty() && other->why.size() < 2048, "a short message says why");
  if (const auto* reply = std::get_if<Reply>(&answer)) {
    require(status == 200, "a failure is no reply");
    check_reply(request, *reply);
  }
}

void check_token(long status, std::string_view body) {
  const auto answer = decode_token(status, body);
  const auto* token = std::get_if<EtcdToken>(&answer);
  require(token == nullptr || (!token->text.empty() && token->text.find_first_of("\r\n :") == std::string::npos),
          "a token is part of a header line");
}

void check_base64(std::string_view text) {
  require(from_base64(to_base64(text)) == text, "bytes come back");
  if (const auto bytes = from_base64(text)) require(to_base64(*bytes) == text, "bytes have one text");
}

}  // namespace
}  // namespace vmem::cluster

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem::cluster;
  vmem::fuzz::Input input(data, size);
  const std::array<RegistryRequest, 5> requests{ReadPrefix{"a"}, Commit{}, GrantLease{5}, RenewLease{LeaseId{3}},
                                                EndLease{LeaseId{3}}};
  const std::size_t kind = input.below(requests.size() + 2);
  const long status = input.flag() ? 400 : 200;
  const std::string_view body = input.text();
  if (kind < requests.size()) {
    check_answer(requests[kind], status, body);
  } else if (kind == requests.size()) {
    check_token(status, body);
  } else {
    check_base64(body);
  }
  return 0;
}
