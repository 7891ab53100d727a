#include "rdma/transport/in_process/in_process.hpp"

#include "rdma/transport/in_process/in_process_fabric.hpp"

namespace vmem::rdma {

void FabricState::deliver(NodeId from, NodeId to, Packet packet) {
  if (ways_cut.contains({from, to}) || cuts.contains(packet.path)) return;
  if (const auto node = nodes.find(to); node != nodes.end())
    node->second->arrive(clock.now_us() + latency_us, ++packets, std::move(packet));
}

Fabric::Fabric(const Clock& clock) : state_(std::make_shared<FabricState>(clock)) {}

std::unique_ptr<Transport> Fabric::node(NodeIdentity self, Receiver& receiver) {
  return node(self, receiver, state_->clock);
}

std::unique_ptr<Transport> Fabric::node(NodeIdentity self, Receiver& receiver, const Clock& clock) {
  return std::make_unique<FabricNode>(state_, self, receiver, clock);
}

void Fabric::set_latency(std::uint64_t us) {
  const std::lock_guard lock(state_->mutex);
  state_->latency_us = us;
}

void Fabric::set_partition(NodeId a, NodeId b, bool apart) {
  set_one_way_cut(a, b, apart);
  set_one_way_cut(b, a, apart);
}

void Fabric::set_one_way_cut(NodeId from, NodeId to, bool cut) {
  const std::lock_guard lock(state_->mutex);
  if (cut) {
    state_->ways_cut.insert({from, to});
  } else {
    state_->ways_cut.erase({from, to});
  }
}

void Fabric::set_cut(NodeId node, std::uint64_t path, bool cut) {
  const std::lock_guard lock(state_->mutex);
  if (cut) {
    state_->cuts.insert({node, path});
  } else {
    state_->cuts.erase({node, path});
  }
}

void Fabric::set_silence(NodeId node, bool silent) {
  const std::lock_guard lock(state_->mutex);
  if (silent) {
    state_->silent.insert(node);
  } else {
    state_->silent.erase(node);
  }
}

void Fabric::kill(NodeId node) {
  const std::lock_guard lock(state_->mutex);
  state_->dead.insert(node);
  if (const auto found = state_->nodes.find(node); found != state_->nodes.end()) found->second->end_process();
  for (const auto& [id, other] : state_->nodes) {
    if (id != node) other->peer_died(node);
  }
}

void Fabric::set_refusing(NodeId node, bool refusing) {
  const std::lock_guard lock(state_->mutex);
  if (refusing) {
    state_->refusing.insert(node);
  } else {
    state_->refusing.erase(node);
  }
}

void Fabric::send_gpu_memory() { state_->gpu_memory.store(true); }

void Fabric::take_no_gpu_memory(NodeId node) {
  const std::lock_guard lock(state_->mutex);
  state_->without_gpu_memory.insert(node);
}

void Fabric::share_machine() {
  const std::lock_guard lock(state_->mutex);
  state_->one_machine = true;
}

}  // namespace vmem::rdma
