#include "cluster/registry/memory_registry.hpp"

#include <iterator>

namespace vmem::cluster {

RequestId MemoryRegistry::post(RegistryRequest request) {
  const RequestId id{++last_id_};
  replies_.push_back(state_.apply(id, request));
  return id;
}

void MemoryRegistry::poll(std::vector<Reply>& replies) {
  replies.insert(replies.end(), std::make_move_iterator(replies_.begin()), std::make_move_iterator(replies_.end()));
  replies_.clear();
}

}  // namespace vmem::cluster
