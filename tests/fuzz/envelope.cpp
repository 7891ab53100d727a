// The envelope of a message over UCX: its layout, its tag, and the sequence window.
#include "rdma/transport/ucx/envelope.hpp"

#include <set>

#include "fuzz/input.hpp"

namespace vmem::rdma {
namespace {

using fuzz::equal;
using fuzz::Input;
using fuzz::require;

void check(const Crypto& crypto, const ShortKey& key, ConstBytes bytes) {
  const auto opened = open(bytes);
  if (!opened) return require(!opened.error().message.empty(), "a refusal says why");
  require(opened->header.size() <= kMostHeaderBytes, "a header has its most bytes");
  require(!genuine(crypto, key, bytes), "nobody without the key makes a tag");
  const auto sealed = seal(crypto, key, opened->envelope, opened->header);
  require(genuine(crypto, key, sealed), "a sealed message is genuine");
  const auto again = open(sealed);
  require(again && equal(again->header, opened->header), "a sealed message opens again");
}

// Compares with a set of all admitted sequences.
void check_window(Input& input) {
  SequenceWindow window;
  std::set<std::uint64_t> admitted;
  std::uint64_t near = 0;
  while (!input.empty()) {
    // Steps of all sizes from the previous sequence, to hit the window's edges.
    const std::uint64_t step = input.take<std::uint16_t>() << input.below(4);
    const std::uint64_t sequence = input.flag()   ? near + step
                                   : input.flag() ? near - step
                                                  : input.take<std::uint64_t>();
    near = sequence;
    const bool is_new = !admitted.contains(sequence);
    const bool is_newest = admitted.empty() || sequence > *admitted.rbegin();
    const bool was_admitted = window.admit(sequence);
    if (was_admitted) require(sequence != 0 && is_new, "a sequence is admitted once");
    if (sequence != 0 && is_newest) require(was_admitted, "the newest is admitted");
    if (sequence != 0 && is_new && !was_admitted)
      require(*admitted.rbegin() - sequence >= kMostOutstanding, "only the too old is refused unseen");
    if (was_admitted) admitted.insert(sequence);
  }
}

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const vmem::rdma::CryptoRef crypto = *vmem::rdma::Crypto::load();
  static const vmem::rdma::ShortKey key = crypto->short_key();
  vmem::fuzz::Input input(data, size);
  if (input.flag()) {
    vmem::rdma::check_window(input);
  } else {
    vmem::rdma::check(*crypto, key, input.rest());
  }
  return 0;
}
