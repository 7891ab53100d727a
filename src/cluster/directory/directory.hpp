// The distributed directory of published regions at one node: the homes that are here, the regions
// that this node takes part in, and what all of them say to other nodes and to the registry.
//
// It moves no bytes: it says where to fetch pages, and is told what has come.
//
// Pure: one thread, no clock and no network of its own. The owner delivers messages, calls step()
// until it returns false, when it is due and when the registry has replies, and then takes messages
// and events. The registry is this object's alone: another reader of its replies would lose some.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/directory/home_directory.hpp"
#include "cluster/directory/participant.hpp"
#include "cluster/directory/publish_desk.hpp"
#include "cluster/directory/request_desk.hpp"
#include "cluster/directory/takeover.hpp"

namespace vmem::cluster::directory {

class Directory {
 public:
  struct Setup {
    DirectoryConfig config;
    Random random;
    std::string tenant;                     // of this node, as others can prove it
    std::function<bool()> fenced;           // this node's membership, asked at each act
    std::function<std::uint64_t()> unix_s;  // for expiries, which all nodes compare
    PathTrouble no_path;                    // none: nothing is known of connections
    // False: of regions without a home it takes over only those that it is to remove.
    bool takes_over = true;
  };
  struct Publication {
    Serial serial{};  // from Enrollment::take_serial
    std::string name;
    std::string key;  // proves pages; for the data plane
    std::uint64_t first_granule = 0, granules = 0;
    std::uint64_t page_bytes = 0, bytes = 0;
    std::uint32_t copies = 0;
    std::uint64_t expires_s = 0;
    std::vector<std::string> readers;  // other tenants that may open it
    Runs written;                      // the other pages are FREE
  };

  // The registry and the clock outlive this.
  Directory(Registry& registry, const Clock& clock, Setup setup);

  // This node is a member, whose record nodes/ID has this revision; or no longer one: then all
  // regions end here, and everything that waits.
  void enrolled(NodeId self, Revision record);
  void expelled();
  // This node is to be among them.
  void see(NodesView view);

  // Each ends in one event with its ticket, at the latest after `wait_us`: at once where this node
  // is no member, or nothing can have the name.
  Ticket publish(Publication what, std::uint64_t wait_us);
  Ticket open(const std::string& name, std::uint64_t wait_us);
  Ticket want(Serial serial, Run pages, std::uint64_t wait_us);
  Ticket close(Serial serial, std::uint64_t wait_us);
  Ticket remove(const std::string& name, std::uint64_t wait_us);
  // Closes all regions and hands all homes over.
  Ticket leave(std::uint64_t wait_us);

  // Of the data plane; a region that is not open here takes nothing.
  bool arrived(Serial serial, std::uint32_t page, Fetch fetch);
  void missing(Serial serial, const Runs& pages, NodeId source);
  void kept(const KeepWanted& wanted, KeepAnswer answer);
  bool drop(Serial serial, const Run& pages);

  void deliver(const Sender& from, std::string_view bytes);
  bool step();  // returns whether it did anything
  std::uint64_t next_due_us() const;
  void take_messages(std::vector<Outgoing>& messages);
  void poll(std::vector<DirectoryEvent>& events);

  const RegionIndex& regions() const noexcept { return index_; }
  const HomeDirectory* home(Serial serial) const;
  const Participant* participant(Serial serial) const;

 private:
  struct Departure {
    Ticket ticket{};
    std::uint64_t deadline_us = 0;
    bool over = false;
  };

  void dispatch(const Sender& from, const Message& message);
  void to_home(const Sender& from, const Message& message);
  void to_participant(const Sender& from, const Message& message);
  void refuse_old(const Sender& from, const Message& message, Term term, NodeId home);

  bool step_records(std::uint64_t now_us);
  void changed(const StoredRegion& region);
  void adopt();
  void called(const Message& message);
  void erased(const RegionRecord& region);
  void join(const RegionRecord& region);
  bool step_takeover(std::uint64_t now_us);
  bool step_publishing(std::uint64_t now_us);
  bool open_now(const RegionRequest& request, const RegionRecord& region);
  bool step_homes(std::uint64_t now_us);
  void take_record(const RecordDesk& desk);
  bool step_participants(std::uint64_t now_us);
  bool step_departure(std::uint64_t now_us);
  void route();
  bool step_own_messages();

  const Clock& clock_;
  const Setup setup_;
  RegistryCalls calls_;
  NodesView view_;
  RegionIndex index_;
  HomeContext context_;
  RegionPoll poll_;
  Takeover takeover_;
  PublishDesk publishing_;
  RequestDesk requests_;
  std::map<Serial, std::unique_ptr<HomeDirectory>> homes_;
  std::map<Serial, std::unique_ptr<Participant>> participants_;
  std::map<Serial, Error> losses_;  // regions that an end of the membership has closed: for close()
  std::optional<Departure> departure_;
  Ticket last_ticket_{};
  Session last_session_{};
  Fetch last_fetch_{};       // of participants that are over
  std::deque<Message> own_;  // messages of this node to itself
  Outbox out_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace vmem::cluster::directory
