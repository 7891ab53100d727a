// Leases follow what the program needs: they grow before it uses the room, and shrink some time
// after it needs less. So nodes share what others lend, and none takes all.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/lending/remote_tier/lenders.hpp"
#include "rdma/lending/remote_tier/remote_config.hpp"

namespace vmem::rdma {

class LeaseSizing {
 public:
  // What the program says, and what it is told. Any thread; the mutex is a leaf.
  class Need {
   public:
    // See tiers::GrowingTier.
    std::uint64_t set(std::uint64_t bytes);
    bool was_answered(std::uint64_t ticket) const;
    std::string shortage() const;

    // For LeaseSizing.
    struct State {
      std::uint64_t now_bytes = 0;
      std::uint64_t most_bytes = 0;  // since it was read last
      std::uint64_t ticket = 0;
    };
    State read();
    std::uint64_t ticket() const { return ticket_.load(std::memory_order_acquire); }
    void answer(std::uint64_t ticket, std::string shortage);

   private:
    mutable std::mutex mutex_;
    std::atomic<std::uint64_t> ticket_ = 0;
    // Protected by mutex_.
    State state_;
    std::uint64_t answered_ = 0;
    std::string shortage_;
  };

  // All outlive this.
  struct Parts {
    Lenders& lenders;
    CopyPlacer& placer;
    const Clock& clock;
    Need& need;
  };
  LeaseSizing(const RemoteConfig& config, Parts parts) : config_(config), parts_(parts) {}

  // The node's thread. Asks lenders for other sizes; false: it did nothing.
  bool go_on();

 private:
  void follow(const Need::State& need);
  std::uint64_t wanted_bytes() const;
  std::vector<CopyPlacer::Lendable> lenders() const;
  bool size(const CopyPlacer::Lendable& lender, const wire::MediumBytes& wanted);
  bool refresh(std::uint32_t node);
  bool is_time();
  bool lacks() const { return parts_.placer.usage().budget_bytes < most_bytes_; }
  void answer();

  const RemoteConfig& config_;
  const Parts parts_;
  std::uint64_t most_bytes_ = 0;     // needed lately
  std::uint64_t most_until_us_ = 0;  // until then it stands though less is needed
  std::uint64_t ticket_ = 0;         // of what is needed now
  bool answered_ = true;             // that ticket is
  // The last that was asked of a lender.
  struct Asked {
    std::uint64_t ticket = 0, at_us = 0;
    wire::MediumBytes bytes, usable;  // the lease's size; what was usable before
  };
  std::vector<Asked> asked_;      // by node
  std::uint64_t look_us_ = 0;     // when sizes are compared again
  std::uint64_t refresh_us_ = 0;  // when lenders are asked again what they have
};

}  // namespace vmem::rdma
