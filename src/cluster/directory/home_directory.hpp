// One region at its home: who takes part, who has which page, and what everybody asks about it.
//
// Only the node that regions/SERIAL names, with the term it names, is home, and it acts only while
// its own membership is not fenced. A home that was taken over learns it from the record: every
// change of the record requires that it is as the home read it last.
//
// A participant is in the record before it is told so. So a later home knows whom to ask.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/directory/healer.hpp"
#include "cluster/directory/rebuild.hpp"
#include "cluster/directory/record_desk.hpp"

namespace vmem::cluster::directory {

// Who sent a message, as the transport has proved.
struct Sender {
  NodeId node{};
  std::string tenant;
};

class HomeDirectory {
 public:
  // A home by takeover. The calls and the context outlive this.
  HomeDirectory(RegistryCalls& calls, const HomeContext& context, StoredRegion region);
  // The region's first home, at its publisher, which is the only participant and keeps what was
  // written. Call once, at the beginning.
  void begin(const Runs& written);
  // Ends in PublishEnded, when the copies are there or at the deadline.
  void await_copies(Ticket ticket, std::uint64_t deadline_us);

  void handle(const Sender& from, const Message& message, std::uint64_t now_us, Outbox& out);
  void remove();
  // This node leaves: another one is to be home. Ends in over(). False: it was said before, or the
  // region is being removed, and nobody else could do that.
  bool hand_over();
  // It is over, or void: what waits here ends.
  void end(Outbox& out);
  void view_changed() { healer_.retry(); }
  // The record may be another one: it is to be read.
  void verify() { desk_.verify(); }

  bool step(std::uint64_t now_us, Outbox& out);
  std::uint64_t due_us() const;

  // Another node is home, or the region is erased.
  bool over() const noexcept { return over_ || desk_.over(); }
  bool rebuilding() const noexcept { return !rebuilt_; }
  const RecordDesk& desk() const noexcept { return desk_; }
  const HomePages& pages() const noexcept { return pages_; }
  const HomeTable& table() const noexcept { return table_; }

 private:
  struct Opening {
    NodeId node{};
    Session session{};
    std::uint32_t from = 0;
  };
  struct Publishing {
    Ticket ticket{};
    std::uint64_t deadline_us = 0;
  };
  // What a message is from, for its handlers.
  struct From {
    const Sender& sender;
    Session session{};
    std::optional<std::uint32_t> place;
    std::uint64_t now_us = 0;
  };
  void on(const From& from, const Open& body, Outbox& out);
  void on(const From& from, const Close& body, Outbox& out);
  void on(const From& from, const Want& body, Outbox& out);
  void on(const From& from, const Landed& body, Outbox& out);
  void on(const From& from, const Missing& body, Outbox& out);
  void on(const From& from, const Kept& body, Outbox& out);
  void on(const From& from, const Report& body, Outbox& out);
  void on(const From& from, const Leaving& body, Outbox& out);
  void on(const From& from, const Remove& body, Outbox& out);
  template <class Other>
  void on(const From&, const Other&, Outbox&) {}

  void reopened(const From& from);
  void admit(const From& from, const Open& body, Outbox& out);
  void say(NodeId to, Session session, Body body, Outbox& out) const;
  SourceRun source_of(std::uint32_t page, std::uint32_t reader);
  void missing(std::uint32_t page, const Missing& body, const From& from);
  void try_to_let_go(std::uint32_t place, std::uint64_t now_us);

  bool sync(Outbox& out);
  bool drop_members_that_are_over();
  bool step_rebuild(std::uint64_t now_us, Outbox& out);
  void end_rebuild();
  bool step_removal(std::uint64_t now_us, Outbox& out);
  bool step_life();
  bool step_healing(std::uint64_t now_us, Outbox& out);
  bool step_publishing(std::uint64_t now_us, Outbox& out);
  void invite(const KnownNode& node);

  const HomeContext& context_;
  RecordDesk desk_;
  HomePages pages_;
  HomeTable table_;
  Healer healer_;
  Rebuild rebuild_;
  Revision synced_{};
  Places dropping_ = 0;  // members that are over, and not yet out of the record
  std::vector<Opening> opens_;
  std::set<NodeId> removers_;
  std::uint64_t removal_due_us_ = 0;
  bool rebuilt_ = false, removing_ = false, handing_over_ = false, over_ = false;
  std::optional<Publishing> publishing_;
  std::string unfit_;  // a daemon that may not read the region was asked for copies, and took none
};

}  // namespace vmem::cluster::directory
