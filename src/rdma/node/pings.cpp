#include "rdma/node/pings.hpp"

namespace vmem::rdma {

// One that cannot be sent is sent at the next occasion.
void Pings::send(PeerId peer) {
  if (calls_.awaits(peer)) return;
  const Call ping{.peer = peer, .kind = wire::Kind::ping, .deadline_us = clock_.now_us() + answer_us_};
  (void)calls_.begin(ping, [](const CallEnd&) {});
}

void Pings::send_if_quiet(PeerId peer, std::uint64_t within_us) {
  if (!peers_.was_heard(peer, within_us)) send(peer);
}

}  // namespace vmem::rdma
