#include "cluster/static_peers.hpp"

namespace vmem::cluster {

Result<StaticPeers> StaticPeers::create(NodeIdentity self, const std::vector<Peer>& listed, Rules rules) {
  StaticPeers peers(self, rules);
  VMEM_TRY(peers.roster_.advance(Epoch{1}, listed));
  return peers;
}

}  // namespace vmem::cluster
