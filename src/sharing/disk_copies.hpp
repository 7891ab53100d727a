// Copies of other nodes' pages on this node's disks. Stands between the mover and two tiers: the
// one that fetches pages of published regions, and that of the disks, where the copies take slots
// which no page of the program needs.
//
//   mover → sources()  loads of pages: from the disks if there is a copy (CopyRule), else from
//                      nodes. If the one fails, the other follows. What was fetched may get a copy.
//         → disks()    the program's own pages. If the disks are full, copies make room.
//
// The copy is written from staging memory, to which a worker copies the page before its load ends:
// the mover may release the page's host slot at once. A page that finds no staging memory free gets
// no copy this time.
//
// Threads: those of Tier; the disks' slots, too, are released by the mover's calls. keep(),
// statistics() and the destruction of a source: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "sharing/copy_list.hpp"
#include "sharing/copy_rule.hpp"
#include "tiers/abilities.hpp"
#include "tiers/async/inbox.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/disk/staging.hpp"
#include "tiers/page_source.hpp"

namespace vmem::sharing {

class DiskCopies {
 public:
  // Of the disks' budget, this part stays free of copies, so that a page of the program finds room
  // at once, and copies neither fill the disks nor make them punch holes.
  static constexpr std::uint64_t kFreePart = 5;
  struct Config {
    std::uint64_t limit_bytes = UINT64_MAX;
    std::uint32_t workers = 1;  // 0: poll copies to staging memory
    std::function<void()> on_ready;
  };
  static constexpr std::uint64_t kStagingBytes = std::uint64_t{64} << 20;  // see tiers::Staging
  struct Statistics {
    std::uint64_t bytes = 0;        // of copies
    std::uint64_t limit_bytes = 0;  // now
    std::uint64_t stored_pages = 0, loaded_pages = 0;
    std::uint64_t metadata_bytes = 0;
  };
  // All outlive this.
  DiskCopies(tiers::Tier& source, tiers::Tier& disk, const Clock& clock, Config config);
  ~DiskCopies();
  DiskCopies(const DiskCopies&) = delete;
  DiskCopies& operator=(const DiskCopies&) = delete;

  tiers::Tier& sources();
  tiers::Tier& disks();
  // The source, whose pages may get copies. It must not outlive this.
  std::shared_ptr<tiers::PageSource> keep(std::shared_ptr<tiers::PageSource> source);
  Statistics statistics() const;

 private:
  class Source;
  class SourcesFace;
  class DisksFace;
  using Place = CopyRule::Place;

  struct Load {
    tiers::Transfer transfer;  // as the mover submitted it, with the id that it knows
    CopyRule::Begun begun;
    Place at{};
    bool tried_nodes = false, tried_disks = false;
    DiskSlot copy;  // null: there is none, or it is damaged
    std::optional<tiers::Completion> of_nodes;
    Error disk_error;
  };
  struct Store {
    enum class State : std::uint8_t { copying, waits_for_slot, writing } state = State::copying;
    tiers::Transfer transfer;
    tiers::SlotId page = 0;
    std::uint64_t ticket = 0;         // see CopyList
    std::uint64_t loaded_before = 0;  // see CopyList::load
    DiskSlot place;                   // while it is written
    tiers::Staging::Buffer buffer;
  };
  using StoreRef = std::list<Store>::iterator;
  struct Held {
    tiers::SlotId slot = 0;
    std::uint64_t bytes = 0;
    Held* next = nullptr;  // of dropped_
  };
  // What the disks' requests name: stays until the process ends if a disk does not answer.
  struct Outgoing {
    tiers::Staging staging{kStagingBytes};
    std::list<Store> stores;
  };

  std::uint64_t now_us() const { return clock_.now_us(); }
  std::uint64_t limit() const;
  bool idle() const;

  // ---- loads ----
  Status submit_load(tiers::Transfer& transfer);
  Status start(Load load, Place place);
  bool follow(const Load& load, Place place);
  void load_ended(Load load, tiers::Completion completion);
  void disk_load_failed(Load& load, const tiers::Completion& completion);
  void give_up(const Load& load);
  void fetched(const Load& load, tiers::Completion completion);
  void give(const Load& load, tiers::Completion completion);

  // ---- copies ----
  bool get_ready();
  bool begin_copy(const Load& load, const tiers::Completion& completion, std::uint64_t loaded_before);
  void copied(StoreRef store);
  void advance(StoreRef store);
  bool write(StoreRef store, DiskSlot place);
  DiskSlot held(std::unique_ptr<Held> slot);
  Result<tiers::SlotGrant> disk_slot(std::uint64_t bytes);
  void release_dropped();
  bool take_slot(StoreRef store);
  void give_up_copies(StoreRef store);
  void abandon(StoreRef store);
  void stored(StoreRef store, bool done);
  bool make_room(std::uint64_t bytes, std::uint64_t loaded_before);
  bool remove_eldest_before(std::uint64_t load);
  std::uint64_t remove_eldest();

  // ---- both tiers ----
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes);
  Status submit_own(std::span<tiers::Transfer> transfers);
  Status collect_disk();
  void disk_ended(tiers::Completion completion);
  Status collect_source();
  tiers::Finished finish() noexcept;

  tiers::Tier& source_;
  tiers::Tier& disk_;
  const tiers::Abilities source_abilities_, disk_abilities_;
  const Clock& clock_;
  const Config config_;
  std::atomic<std::uint64_t> held_bytes_ = 0;  // slots of copies, also of dropped ones

  mutable std::mutex mutex_;  // guards the members below
  // Slots that nothing uses any more, each linked to the next. The mover's next call releases them:
  // a region, and its copies with it, may end on any thread.
  Held* dropped_ = nullptr;
  bool finished_ = false, quarantined_ = false;
  std::uint64_t paused_until_us_ = 0;  // until then no page gets a copy
  CopyRule rule_;
  std::map<std::uint64_t, Load> loads_;  // by the tier's id
  // Of the program's pages, from the disks.
  std::map<std::uint64_t, CopyRule::Begun> own_loads_;
  std::vector<tiers::Completion> polled_, to_sources_, to_disks_;  // to_: for poll
  Statistics counted_;
  tiers::Inbox inbox_;
  std::unique_ptr<Outgoing> outgoing_;  // null: no page got a copy yet
  CopyList list_;
  std::unique_ptr<tiers::Workers> workers_;  // likewise
  std::unique_ptr<SourcesFace> sources_face_;
  std::unique_ptr<DisksFace> disks_face_;
};

}  // namespace vmem::sharing
