// Messages between nodes: headers and lending bodies.
#include "rdma/node/wire.hpp"

#include "fuzz/input.hpp"
#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/protocol.hpp"

namespace vmem::rdma::wire {
namespace {

using fuzz::equal;
using fuzz::Input;
using fuzz::require;

template <class Body>
void read(ConstBytes body) {
  const auto value = read_body<Body>(body);
  require(value.has_value() == (body.size() == sizeof(Body)), "a body has the size of its type");
  if (value) require(equal(body_of(*value), body), "a body is read and written byte for byte");
  if constexpr (requires { value->answer; }) {
    if (value) require(!answer_words(value->answer).empty(), "every answer has words");
  }
}

void check(ConstBytes message) {
  const auto parsed = parse(message);
  if (!parsed) return require(!parsed.error().message.empty(), "a refusal says why");
  require(!kind_name(parsed->header.kind).empty(), "only known kinds are accepted");
  const auto written = write(parsed->header, parsed->body);
  require(written && equal(*written, message), "what was parsed is written the same");
  for (const std::uint16_t version : {kProtocolVersion - 1, +kProtocolVersion}) {
    if (const auto ask = read_ask(parsed->body, version))
      require(equal(encode(*ask, version), parsed->body), "an ask is read and written byte for byte");
    if (const auto lent = read_lent(parsed->body, version))
      require(equal(encode(*lent, version), parsed->body), "a lease is read and written byte for byte");
  }
  read<End>(parsed->body);
  read<PageAt>(parsed->body);
  read<Reply>(parsed->body);
}

// Messages of a peer that computes checksums.
void check_written(Input& input) {
  const auto header = input.take<Header>();
  const ConstBytes body = input.bytes(input.below(256));
  if (const auto written = write(header, body)) {
    check(*written);
    require(parse(*written, header.version).has_value(), "what was written can be parsed");
  }
}

}  // namespace
}  // namespace vmem::rdma::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  if (input.flag()) {
    vmem::rdma::wire::check_written(input);
  } else {
    vmem::rdma::wire::check(input.rest());
  }
  return 0;
}
