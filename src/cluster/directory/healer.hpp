// Who has to keep which pages: asks all participants when a page has lost its last keeper, makes
// the copies that are wanted, moves those of nodes that are to leave, and releases surplus ones.
//
// A page is LOST only after each participant that is a member has said that it has no copy, and
// promised to refuse what is still on its way to it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/directory/directory_events.hpp"
#include "cluster/directory/home_context.hpp"
#include "cluster/directory/home_table.hpp"
#include "cluster/directory/keep_desk.hpp"

namespace vmem::cluster::directory {

class Healer {
 public:
  // All outlive this.
  Healer(const HomeContext& context, HomePages& pages, HomeTable& table, const RegionRecord& record)
      : context_(context), pages_(pages), table_(table), record_(record) {}

  // Nobody is known to keep the page.
  void seek(std::uint32_t page);
  // Asks a keeper whether it still has the page.
  void verify(std::uint32_t page, std::uint32_t place);
  // The participant has no copy of the page, and did not promise to have one.
  void not_there(std::uint32_t page, std::uint32_t place);
  void answer(std::uint32_t page, std::uint32_t place, std::uint64_t round, bool yes, std::uint64_t now_us);
  void released(std::uint32_t page, std::uint32_t place) { keeps_.settle(page, place, KeepDesk::Kind::release); }
  // The participant is gone, or another one has its place.
  void forget(std::uint32_t place);
  // Nodes, or their marks, have changed.
  void look_again() { pass_.again = true; }

  bool step(std::uint64_t now_us);
  void send(std::uint64_t now_us, const std::function<void(std::uint32_t place, Body body)>& to);
  std::uint64_t due_us() const;

  // That of what is said now.
  std::uint64_t round() const noexcept { return round_; }
  // Every page had what it needs, when last looked at.
  bool satisfied() const noexcept { return pass_.satisfied && !pass_.again; }
  // The fewest copies on daemons that a page has, and how many pages have less than wanted.
  std::pair<std::uint32_t, std::uint32_t> fewest_copies() const;
  const std::string& trouble() const noexcept { return trouble_; }
  // A daemon that has to become a participant first. None: NodeId{}
  NodeId take_invitation() { return std::exchange(invite_, NodeId{}); }
  // Pages that were found LOST since the last call.
  Runs take_lost();

 private:
  struct Pass {
    std::uint32_t next = 0, lacking = 0;
    bool again = true;  // pages before `next` may have changed
    bool satisfied = false;
    std::uint64_t due_us = 0;
  };
  bool is_open() const noexcept { return keeps_.size() < context_.config.pages_in_flight; }
  bool start_seeking(std::uint64_t now_us);
  void decide(std::uint32_t page);
  bool step_pass(std::uint64_t now_us);
  void end_pass(std::uint64_t now_us);
  Places copiers() const;
  bool is_short(std::uint32_t page) const;
  void heal(std::uint32_t page, std::uint64_t now_us);
  void keep_at(std::uint32_t page, std::uint32_t place, std::uint64_t now_us);
  void trim(std::uint32_t page);
  bool can_spare(std::uint32_t page, std::uint32_t place) const;
  std::vector<NodeId> nodes_of(Places places) const;
  std::vector<NodeId> avoided(std::uint64_t now_us) const;

  const HomeContext& context_;
  HomePages& pages_;
  HomeTable& table_;
  const RegionRecord& record_;
  KeepDesk keeps_;
  std::set<std::uint32_t> seek_;  // pages for which nobody was asked yet
  std::uint64_t round_ = 0;
  Pass pass_;
  Places going_ = 0;  // as of this step
  std::map<NodeId, std::uint64_t> avoid_us_;
  NodeId invite_{};
  std::set<std::uint32_t> lost_;
  std::string trouble_;
};

}  // namespace vmem::cluster::directory
