// Who has to keep which pages: asks all participants when a page has lost its last keeper, makes
// the copies that are wanted, moves those of nodes that are to leave, and releases surplus ones.
//
// A page is LOST only after each participant that is a member has said that it has no copy, and
// promised to refuse what is still on its way to it. Some promise nothing, as programs: what only
// they have is copied to a daemon, and sought anew when the last one is found without it.
//
// Looks at a page only after something about it has changed: large regions have a million.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/directory/directory_events.hpp"
#include "cluster/directory/home_context.hpp"
#include "cluster/directory/home_table.hpp"
#include "cluster/directory/keep_desk.hpp"
#include "cluster/directory/page_set.hpp"

namespace vmem::cluster::directory {

class Healer {
 public:
  // All outlive this.
  Healer(const HomeContext& context, HomePages& pages, HomeTable& table, const RegionRecord& record)
      : context_(context),
        pages_(pages),
        table_(table),
        record_(record),
        seek_(pages.size()),
        look_(pages.size()),
        lacking_(pages.size()),
        surplus_(pages.size()) {
    look_.fill();
  }

  // Nobody is known to keep the page.
  void seek(std::uint32_t page);
  // Asks a participant whether it still has the page.
  void verify(std::uint32_t page, std::uint32_t place);
  // The participant has no copy of the page, and did not promise to have one.
  void not_there(std::uint32_t page, std::uint32_t place);
  void answer(std::uint32_t page, std::uint32_t place, std::uint64_t round, KeepAnswer said, std::uint64_t now_us);
  void released(std::uint32_t page, std::uint32_t place, std::uint64_t round) { keeps_.released(page, place, round); }
  // The participant is gone, or another one has its place.
  void forget(std::uint32_t place);
  // A participant has a copy of the page now, which may be what it lacked.
  void has_copy(std::uint32_t page) {
    if (lacking_.contains(page)) look_.insert(page);
  }
  // Nodes or participants have changed: what could not be helped may be helped now.
  void retry() { retry_us_ = lacking_.empty() ? retry_us_ : 0; }
  // Whether each page that the participant keeps has a keeper that stays.
  bool covers(std::uint32_t place);
  // Whether a daemon was asked for a copy, and has not answered yet.
  bool is_copying() const noexcept { return keeps_.count(KeepDesk::Kind::fetch) != 0; }
  // Whether the daemon has said that it has no room, a short time ago.
  bool is_full(NodeId node) const;

  bool step(std::uint64_t now_us);
  void send(std::uint64_t now_us, const std::function<void(std::uint32_t place, Body body)>& to);
  std::uint64_t due_us() const;

  // That of what is said now.
  std::uint64_t round() const noexcept { return round_; }
  // Every page had what it needs, when last looked at.
  bool satisfied() const noexcept { return look_.empty() && lacking_.empty(); }
  // The fewest copies on daemons that a page has, and how many pages have less than wanted.
  std::pair<std::uint32_t, std::uint32_t> fewest_copies() const;
  const std::string& trouble() const noexcept { return trouble_; }
  // A daemon that has to become a participant first. None: NodeId{}
  NodeId take_invitation() { return std::exchange(invite_, NodeId{}); }
  // Pages that were found LOST since the last call.
  Runs take_lost();

 private:
  // A participant that does not answer stops none of these for the others: copies and seeks that
  // take too long make room, and releases do not count.
  bool may(KeepDesk::Kind kind) const noexcept {
    return keeps_.count(kind) < (kind == KeepDesk::Kind::fetch ? context_.config.pages_in_flight : kMostAsked);
  }
  bool expire(std::uint64_t now_us);
  void look_for_going();
  void release_others(std::uint32_t page, std::uint32_t keeper);
  bool start_seeking(std::uint64_t now_us);
  void decide(std::uint32_t page);
  void only_cached(std::uint32_t page, std::uint32_t place);
  bool look(std::uint64_t now_us);
  Places copiers() const;
  bool is_short(std::uint32_t page) const;
  void heal(std::uint32_t page, std::uint64_t now_us);
  const KnownNode* best_for(Places keepers) const;
  const KnownNode* choose(const HomePages::Page& entry);
  void keep_at(std::uint32_t page, std::uint32_t place, std::uint64_t now_us);
  bool trim();
  Places to_spare(std::uint32_t page) const;
  bool can_spare(std::uint32_t page, std::uint32_t place) const;
  std::vector<NodeId> nodes_of(Places places) const;
  void avoid(NodeId node, std::uint64_t now_us, KeepAnswer said);
  std::vector<NodeId> avoided() const;

  const HomeContext& context_;
  HomePages& pages_;
  HomeTable& table_;
  const RegionRecord& record_;
  static constexpr std::size_t kMostAsked = 4096;

  KeepDesk keeps_;
  PageSet seek_;     // nobody was asked yet
  PageSet look_;     // may lack something, or have too much
  PageSet lacking_;  // did when looked at
  PageSet surplus_;  // had more keepers than needed when looked at
  std::uint32_t seek_from_ = 0, look_from_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t retry_us_ = UINT64_MAX;  // of lacking_
  Places going_ = 0, forced_ = 0;        // as look_ has them
  std::optional<Places> nobody_for_;     // keepers to which no daemon can be added now
  struct Avoided {
    std::uint64_t until_us = 0;
    bool full = false;
  };
  std::map<NodeId, Avoided> avoided_;
  NodeId invite_{};
  std::set<std::uint32_t> lost_;
  std::string trouble_;
};

}  // namespace vmem::cluster::directory
