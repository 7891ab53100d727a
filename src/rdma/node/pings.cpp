#include "rdma/node/pings.hpp"

namespace vmem::rdma {

void Pings::send(PeerId peer) {
  if (!sent_.insert(peer).second) return;
  const Call ping{.peer = peer, .kind = wire::Kind::ping, .deadline_us = clock_.now_us() + answer_us_};
  if (!calls_.begin(ping, [this, peer](const CallEnd&) { sent_.erase(peer); })) sent_.erase(peer);
}

void Pings::send_if_quiet(PeerId peer) {
  if (!peers_.was_heard(peer, kQuietUs)) send(peer);
}

}  // namespace vmem::rdma
