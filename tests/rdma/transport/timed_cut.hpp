// One cut at a time between two nodes of a fabric, which ends by itself.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "rdma/transport/faulty.hpp"
#include "rdma/transport/in_process/in_process.hpp"

namespace vmem::rdma {

class TimedCut {
 public:
  TimedCut(Fabric& fabric, const Clock& clock) : fabric_(fabric), clock_(clock) {}

  // For so long nothing passes this way between the nodes; out: from the first.
  void begin(NodeId here, NodeId there, Way way, std::uint64_t us) {
    end();
    here_ = here;
    there_ = there;
    until_us_ = clock_.now_us() + us;
    set(way, true);
  }
  void end() {
    set(Way::both, false);
    here_ = there_ = {};
  }
  bool on() const { return here_ != NodeId{}; }
  // Call after time has passed.
  void keep_time() {
    if (on() && clock_.now_us() >= until_us_) end();
  }

 private:
  void set(Way way, bool cut) {
    if (way != Way::in) fabric_.set_one_way_cut(here_, there_, cut);
    if (way != Way::out) fabric_.set_one_way_cut(there_, here_, cut);
  }

  Fabric& fabric_;
  const Clock& clock_;
  NodeId here_{}, there_{};
  std::uint64_t until_us_ = 0;
};

}  // namespace vmem::rdma
