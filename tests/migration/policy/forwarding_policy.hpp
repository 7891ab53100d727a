// Policies in front of another one: each changes or counts something, and passes everything on.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "migration/policy/policy.hpp"

namespace vmem::migration::testing {

class ForwardingPolicy : public Policy {
 public:
  explicit ForwardingPolicy(std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {}

  void region_begins(const RegionShape& region) override { policy_->region_begins(region); }
  void region_ends(RegionId region) override { policy_->region_ends(region); }
  void page_arrived(PageId page, Cause cause) override { policy_->page_arrived(page, cause); }
  void page_left(PageId page) override { policy_->page_left(page); }
  void page_prefers(PageId page, Preference preference) override { policy_->page_prefers(page, preference); }
  void used(const Use& use) override { policy_->used(use); }
  void pages_dead(PageId first, std::uint32_t count, bool dead) override { policy_->pages_dead(first, count, dead); }
  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override { return policy_->victims(query, out); }
  std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) override {
    return policy_->prefetches(query, out);
  }
  std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) override { return policy_->leaves(query, out); }
  std::uint64_t metadata_bytes() const override { return policy_->metadata_bytes(); }

 private:
  const std::unique_ptr<Policy> policy_;
};

// To the other policy every region is undeclared.
class UndeclaredRegions final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  void region_begins(const RegionShape& region) override {
    RegionShape undeclared = region;
    undeclared.undeclared = true;
    ForwardingPolicy::region_begins(undeclared);
  }
};

// Counts the pages that the other policy evicts ahead of demand.
class CountedLeaves final : public ForwardingPolicy {
 public:
  CountedLeaves(std::unique_ptr<Policy> policy, std::size_t& count)
      : ForwardingPolicy(std::move(policy)), count_(count) {}
  std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) override {
    const std::size_t given = ForwardingPolicy::leaves(query, out);
    count_ += given;
    return given;
  }

 private:
  std::size_t& count_;
};

}  // namespace vmem::migration::testing
