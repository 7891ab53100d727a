// One region at a node that takes part in it: as its publisher, as an opener, or as a daemon that
// was asked for copies.
//
// It knows what this node has of each page, and what it has promised: pages that it keeps, and late
// bytes that it refuses. A home's claims count with the term that the region's record has.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/directory_events.hpp"

namespace vmem::cluster::directory {

class Participant {
 public:
  enum class Stage : std::uint8_t {
    opening,  // not known to the home yet, or without all FREE pages
    open,
    leaving,  // keeps pages until the home lets it go
    closing,  // says Close until the record that this node has read does not list it
    over,
  };
  struct Setup {
    RegionRecord region;
    NodeId self{};
    std::string tenant;  // of this node
    Session session{};
    std::optional<Ticket> ticket;  // of the opening
    std::uint64_t asked_us = 0, deadline_us = 0;
    PathTrouble no_path = {};  // none: nothing is known of connections
    // Fetches up to this one are of earlier sessions: what they bring is refused.
    Fetch before{};
  };

  Participant(const DirectoryConfig& config, Setup setup);
  // The publisher's: it keeps what was written.
  void begin(const Runs& written);

  void want(Ticket ticket, Run pages, std::uint64_t deadline_us, Outbox& out);
  // Bytes of a page have come. False: they are not to be used; the page is to be wanted again.
  bool arrived(std::uint32_t page, Fetch fetch);
  // The source does not have them. This node itself as the source: it has lost pages that it keeps,
  // or dropped what it has cached.
  void missing(const Runs& pages, NodeId source, Outbox& out);
  void kept(const KeepWanted& wanted, KeepAnswer answer, Outbox& out);
  // This node drops cached pages. False: some are kept, and nothing is changed.
  bool drop(const Run& pages);
  // Ends in CloseEnded. At the deadline the node goes, whatever it keeps.
  void close(Ticket ticket, std::uint64_t deadline_us, std::uint64_t now_us);

  void handle(const Message& message, std::uint64_t now_us, Outbox& out);
  // The record as it is now; null: erased. Homes and terms are taken from here only.
  void learn(const RegionRecord* region, Outbox& out);
  bool step(std::uint64_t now_us, Outbox& out);
  std::uint64_t due_us() const;
  // This node is no member any more: everything that waits ends. Returns what closing is to say of
  // the pages that this node has kept, which nobody takes over. None: it has kept nothing.
  std::optional<Error> end(const Error& why, Outbox& out);

  Stage stage() const noexcept { return stage_; }
  Session session() const noexcept { return setup_.session; }
  Term term() const noexcept { return region_.term; }
  const RegionRecord& region() const noexcept { return region_; }
  Fetch last_fetch() const noexcept { return Fetch{last_fetch_}; }
  Have have(std::uint32_t page) const { return pages_[page].have; }
  // It is here by the home's wish alone, and ends by it.
  bool is_invited() const noexcept { return invited_; }

 private:
  struct Page {
    std::uint64_t round = 0;    // of the last promise, within the term
    std::uint32_t refused = 0;  // fetches up to this one bring nothing
    Have have = Have::none;
    bool said_no = false;  // in that round: a doubled message of the home does not change it
  };
  static_assert(sizeof(Page) == 16);
  struct Wanting {
    Ticket ticket{};
    Run pages;
    std::vector<bool> waits;  // by page
    std::uint32_t left = 0;
    std::uint64_t deadline_us = 0, next_us = 0;
  };
  void on(const Opened& body, Outbox& out);
  void on(const RefusedBy& body, Outbox& out);
  void on(const Closed& body, Outbox& out);
  void on(const Sources& body, Outbox& out);
  void on(const Keep& body, Outbox& out);
  void on(const Release& body, Outbox& out);
  void on(const NewTerm& body, Outbox& out);
  void on(const LeaveDone& body, Outbox& out);
  void on(const Removed& body, Outbox& out);
  template <class Other>
  void on(const Other&, Outbox&) {}

  void say(Body body, Outbox& out) const;
  void answer(Wanting& want, const SourceRun& run, std::uint64_t round, Outbox& out);
  void end_wants(Outbox& out, const Error* why = nullptr);
  bool promise(std::uint32_t page, std::uint64_t round);
  void refuse_late(std::uint32_t page, std::uint64_t round);
  void end_opening(const Error& why, Outbox& out);
  void finish(Status status, Outbox& out);
  void close_now(Outbox& out);
  bool step_opening(std::uint64_t now_us, Outbox& out);
  bool step_wants(std::uint64_t now_us, Outbox& out);
  bool step_closing(std::uint64_t now_us, Outbox& out);

  const DirectoryConfig& config_;
  Setup setup_;
  RegionRecord region_;
  const bool invited_;
  Stage stage_ = Stage::opening;
  std::vector<Page> pages_;
  std::vector<Wanting> wants_;
  std::map<std::uint32_t, std::uint64_t> fetching_;  // pages to keep, with the round
  std::set<std::uint32_t> landed_;                   // not said yet
  std::uint32_t last_fetch_;
  std::uint32_t known_ = 0;  // FREE pages before this one are known
  bool admitted_ = false, removed_ = false;
  bool listed_;           // in the record that this node has read last
  bool reopens_ = false;  // it is open, and its home has said that it is not
  std::uint64_t next_us_ = 0;
  std::optional<CloseEnded> closing_;
  std::uint64_t close_by_us_ = 0;
  std::uint32_t let_go_ = 0;  // pages before this one need not be kept
};

}  // namespace vmem::cluster::directory
