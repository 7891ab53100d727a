// The membership of a node that is alone.
#pragma once

#include "cluster/membership.hpp"

namespace vmem::cluster {

class SingleNode final : public Membership {
 public:
  explicit SingleNode(NodeIdentity self) { view_ = {Epoch{1}, self, {}}; }
  const View& view() const noexcept override { return view_; }
  Status heard(const std::string& address, NodeIdentity node) override;  // refuses
  void missed(NodeId) override {}                                        // there is nobody
  bool fenced(std::uint64_t) const noexcept override { return false; }   // nobody evicts it
  void poll(std::vector<Change>&) override {}                            // nothing changes

 private:
  View view_;
};

}  // namespace vmem::cluster
