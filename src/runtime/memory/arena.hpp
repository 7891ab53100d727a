// Blocks of programs that do not call vmem, placed side by side in shared pages. So a page can be
// large, whatever the sizes of the blocks: mapping costs the same for any size, and all frames of
// HBM have one size. Blocks are whole granules.
//
// A block goes where the smallest free piece has room for it, at the lowest address of those: what
// lies where follows from the order of the program's calls alone. So a program that repeats itself
// gets the same addresses again, and can be foreseen. Where pages are resident does not matter.
//
// Reuse is stream-ordered: what was freed on a stream can be allocated on it again at once. What
// was used by several streams waits until that work is complete. Other streams get free memory only
// when its stream ends.
//
// Regions of shared pages are large ranges of addresses, so that free neighbours can be joined.
// Only the pages that blocks have needed so far are committed; when memory runs out, only those
// with a block.
#pragma once

#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "migration/mover.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/memory/life_log.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// Any thread.
class Arena {
 public:
  struct Parts {
    pagetable::AddressSpace& space;
    migration::Mover& mover;
    Regions& regions;
    StreamMarks& marks;
    LifeLog& lives;
  };
  Arena(const Parts& parts, std::size_t devices) : parts_(parts), pools_(devices) {}
  ~Arena();

  // Whether a block of so many bytes has its place here.
  bool takes(int device, std::uint64_t bytes) const;
  // The block's address, for `bytes` rounded up to granules. Errors: those of Regions.
  Result<std::uintptr_t> allocate(int device, std::uint64_t bytes, const StreamId& stream);
  // `stream`: orders the free; nothing: all work that used the block is complete, but for `others`:
  // marks of streams that used it. Returns the block's bytes. Errors: INVALID_POINTER.
  // std::bad_alloc: the block is still allocated.
  Result<std::uint64_t> free(const pagetable::Region& region, std::uintptr_t address,
                             const std::optional<StreamId>& stream, std::vector<std::uint64_t> others);
  // The stream ends: what was freed on it waits for its work, and then serves any stream.
  Status close_stream(const StreamId& stream);
  // Gives up all pages without a block, and ends regions of which none is left. Stops at the first
  // error.
  Status trim();
  Status trim(int device);
  std::uint64_t free_bytes(int device) const;  // committed, but in no block
  std::uint64_t live_bytes() const;

 private:
  struct Lane;
  // A region. Its first `begun` granules are in pieces.
  struct Home {
    pagetable::Region* region;
    Lane* lane;  // which extends it
    std::uint32_t begun = 0;
    std::uint32_t asked = 0;       // pages that began, or that a thread is asking for
    std::vector<bool> given_up{};  // by page: not committed any more
    std::uint32_t blocks = 0;      // pieces that are not free
    std::uint32_t growing = 0;     // threads that ask the mover for its pages: it must not end
    std::uint32_t page_granules() const { return 1u << region->page_shift; }
  };
  // A block, or a run of granules between blocks.
  struct Piece {
    enum class State : std::uint8_t { live, waiting, free };
    Home* home = nullptr;
    Lane* lane = nullptr;  // free: the one that it serves; waiting: will serve
    std::uint32_t first = 0, granules = 0;
    State state = State::free;
    std::vector<std::uint64_t> marks{};  // waiting: of work that is not complete
    boost::intrusive::set_member_hook<> by_address{};
    boost::intrusive::set_member_hook<> by_size{};      // free
    boost::intrusive::list_member_hook<> in_waiting{};  // waiting
  };
  struct AddressOf {
    using type = std::uint32_t;
    std::uint32_t operator()(const Piece& piece) const { return piece.first; }
  };
  struct SizeOf {
    using type = std::pair<std::uint32_t, std::uint32_t>;
    type operator()(const Piece& piece) const { return {piece.granules, piece.first}; }
  };
  template <auto hook, class Key>
  using SetOf =
      boost::intrusive::set<Piece, boost::intrusive::member_hook<Piece, boost::intrusive::set_member_hook<>, hook>,
                            boost::intrusive::key_of_value<Key>>;
  using ByAddress = SetOf<&Piece::by_address, AddressOf>;
  using BySize = SetOf<&Piece::by_size, SizeOf>;
  using Waiting = boost::intrusive::list<
      Piece, boost::intrusive::member_hook<Piece, boost::intrusive::list_member_hook<>, &Piece::in_waiting>>;

  // The free memory of one stream. A lane is never removed: the next stream takes over what one has
  // left.
  struct Lane {
    StreamId stream;
    std::optional<std::uint64_t> closed;  // mark of the stream's last work; the stream has ended
    BySize free;
    Home* newest = nullptr;      // null: none to extend
    std::uint64_t granules = 0;  // committed for it
  };
  struct Pool {
    ByAddress pieces;  // owns them
    std::list<Home> homes;
    std::list<Lane> lanes;
    Waiting waiting;
    std::uint64_t live = 0, not_live = 0;  // granules
    std::uint64_t given_up = 0;            // granules, of those not live
  };
  // Where further pages come from.
  struct Growth {
    Home* home = nullptr;               // null: a new region
    std::uint32_t least = 0, most = 0;  // pages to begin
    std::uint32_t first = 0, last = 0;  // pages to commit again, of which `again` are given up
    std::uint32_t again = 0;
  };

  std::uintptr_t give_out(Pool& pool, Piece& piece, std::uint32_t granules);
  Piece* find(Pool& pool, Lane& lane, std::uint32_t granules);
  Lane& lane_of(Pool& pool, const StreamId& stream);
  Lane& lane_freed_on(Pool& pool, const StreamId& stream);
  bool is_left(const Lane& lane) const;
  void adopt(Pool& pool, Lane& by);
  void settle(Pool& pool, std::size_t most);
  void put_back(Pool& pool, Piece& piece) noexcept;
  void join(Pool& pool, Piece& piece) noexcept;
  Growth growth(const Pool& pool, const Lane& lane, std::uint32_t granules) const;
  Status begin_region(int device, Lane& lane, std::uint32_t granules);
  static Growth given_up_in(const Piece& piece, std::uint32_t granules);
  Status grow(int device, Lane& lane, const Growth& growth, std::uint32_t granules);
  Result<std::uint32_t> extend(int device, Lane& lane, const Growth& growth);
  Result<std::uint32_t> commit_again(int device, const Growth& growth);
  Status give_up_dead(Pool& pool);
  struct Unused {
    std::list<Home> home;  // one
    std::vector<Piece*> pieces;
  };
  static std::uint64_t given_up_granules(const Home& home);
  std::size_t homes(const Pool& pool) const;
  std::optional<Unused> take_unused(Pool& pool);
  void tell(const pagetable::Region& region, pagetable::Span block, pagetable::SharedPages::Pages pages, bool dead);

  const Parts parts_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Pool> pools_;   // by device
};

}  // namespace vmem::runtime
