// Gives sends to the channels of their peers. Any thread.
#pragma once

#include <memory>
#include <vector>

#include "rdma/transport/slab_map.hpp"
#include "rdma/transport/ucx/ucx_loop.hpp"

namespace vmem::rdma {

using UcxLoops = std::vector<std::unique_ptr<UcxLoop>>;  // by channel

class UcxSender {
 public:
  // All outlive this.
  UcxSender(UcxLoopOwner& owner, const UcxLoops& loops, const SlabMap& slabs)
      : owner_(owner), loops_(loops), slabs_(slabs) {}

  // Errors: INVALID_VALUE for a malformed send or one of unregistered memory.
  Result<std::unique_ptr<UcxSend>> prepare(const Send& send) const;
  // To the channel with the fewest bytes to send. REQUIRES: the peer is connected.
  void dispatch(std::unique_ptr<UcxSend> send) const;
  void refuse(const UcxSend& send, const UcxFailure& failure) const;

 private:
  UcxLoopOwner& owner_;
  const UcxLoops& loops_;
  const SlabMap& slabs_;
};

inline UcxFailure peer_is_gone() { return {Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}}; }

}  // namespace vmem::rdma
