#include "runtime/memory/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace vmem::runtime {

using pagetable::Access;
using pagetable::kGranuleBytes;
using pagetable::kGranuleShift;
using pagetable::Region;
using pagetable::SharedPages;
using pagetable::Span;

namespace {

// Larger blocks have pages of their own, of which the last is a small part.
constexpr std::uint64_t kLargestInPages = 16;
// What is committed at a time: this share of what the stream has already.
constexpr std::uint64_t kGrowthShare = 16;
// Addresses of a region: so many bytes, and at most this share of the address space.
constexpr std::uint64_t kRegionBytes = std::uint64_t{1} << 30, kRegionShare = 64;
// How many pieces an allocation asks whether they still wait.
constexpr std::size_t kAskedAtOnce = 8;

std::uint32_t granules_of(std::uint64_t bytes) { return std::uint32_t((bytes + kGranuleBytes - 1) >> kGranuleShift); }

}  // namespace

Arena::~Arena() {
  for (Pool& pool : pools_) {
    for (Lane& lane : pool.lanes) lane.free.clear();
    pool.waiting.clear();
    pool.pieces.clear_and_dispose(std::default_delete<Piece>());
  }
}

bool Arena::takes(int device, std::uint64_t bytes) const {
  return bytes <= parts_.mover.shared_page_bytes(device) * kLargestInPages;
}

Result<std::uintptr_t> Arena::allocate(int device, std::uint64_t bytes, const StreamId& stream) {
  const std::uint32_t granules = granules_of(bytes);
  Pool& pool = pools_[std::size_t(device)];
  for (;;) {
    std::unique_lock lock(mutex_);
    settle(pool, kAskedAtOnce);
    Lane& lane = lane_of(pool, stream);
    Growth more;
    if (Piece* const piece = find(pool, lane, granules)) {
      more = given_up_in(*piece, granules);
      if (more.again == 0) return give_out(pool, *piece, granules);
    } else {
      more = growth(pool, lane, granules);
    }
    if (more.home != nullptr) {
      ++more.home->growing;
      more.home->asked += more.most;
    }
    lock.unlock();
    VMEM_TRY(grow(device, lane, more, granules));
  }
}

// REQUIRES mutex_, as all that follow but where a comment says otherwise.
// The piece's first granules become a block. std::bad_alloc: nothing has changed.
std::uintptr_t Arena::give_out(Pool& pool, Piece& piece, std::uint32_t granules) {
  BySize& free = piece.lane->free;
  if (piece.granules != granules) {
    auto rest = std::make_unique<Piece>();
    rest->home = piece.home;
    rest->lane = piece.lane;
    rest->first = piece.first + granules;
    rest->granules = piece.granules - granules;
    pool.pieces.insert(*rest);
    free.insert(*rest.release());
  }
  free.erase(free.iterator_to(piece));
  piece.granules = granules;
  piece.state = Piece::State::live;
  ++piece.home->blocks;
  pool.live += granules;
  pool.not_live -= granules;
  const Span block({piece.first}, granules, Access::read);
  tell(*piece.home->region, block, parts_.space.sharing().begin_block(*piece.home->region, block), false);
  return parts_.space.address_of(piece.first);
}

// The smallest piece with room, at the lowest address of those.
Arena::Piece* Arena::find(Pool& pool, Lane& lane, std::uint32_t granules) {
  auto found = lane.free.lower_bound(SizeOf::type{granules, 0});
  if (found == lane.free.end()) {
    adopt(pool, lane);
    found = lane.free.lower_bound(SizeOf::type{granules, 0});
  }
  return found == lane.free.end() ? nullptr : &*found;
}

// A new stream takes over what one has left that ended, once that one's work is complete.
Arena::Lane& Arena::lane_of(Pool& pool, const StreamId& stream) {
  Lane* left = nullptr;
  for (Lane& lane : pool.lanes) {
    if (!lane.closed && lane.stream == stream) return lane;
    if (left == nullptr && is_left(lane)) left = &lane;
  }
  Lane& lane = left != nullptr ? *left : pool.lanes.emplace_back();
  lane.stream = stream;
  lane.closed.reset();
  return lane;
}

// The stream may have ended.
Arena::Lane& Arena::lane_freed_on(Pool& pool, const StreamId& stream) {
  Lane* ended = nullptr;
  for (Lane& lane : pool.lanes) {
    if (lane.stream != stream) continue;
    if (!lane.closed) return lane;
    ended = &lane;
  }
  return ended != nullptr ? *ended : lane_of(pool, stream);
}

bool Arena::is_left(const Lane& lane) const { return lane.closed && parts_.marks.complete(*lane.closed); }

// What ended streams have left serves this one.
void Arena::adopt(Pool& pool, Lane& by) {
  for (Lane& lane : pool.lanes) {
    if ((lane.free.empty() && lane.newest == nullptr) || !is_left(lane)) continue;
    for (Piece& piece : pool.pieces) {
      if (piece.lane == &lane) piece.lane = &by;
    }
    while (!lane.free.empty()) {
      Piece& piece = *lane.free.begin();
      lane.free.erase(lane.free.begin());
      by.free.insert(piece);
    }
    for (Home& home : pool.homes) {
      if (home.lane == &lane) home.lane = &by;
    }
    if (by.newest == nullptr) by.newest = lane.newest;
    lane.newest = nullptr;
    by.granules += std::exchange(lane.granules, 0);
  }
}

// Those that still wait go to the end.
void Arena::settle(Pool& pool, std::size_t most) {
  for (most = std::min(most, pool.waiting.size()); most > 0; --most) {
    Piece& piece = pool.waiting.front();
    pool.waiting.pop_front();
    std::erase_if(piece.marks, [this](std::uint64_t mark) { return parts_.marks.complete(mark); });
    if (piece.marks.empty()) {
      put_back(pool, piece);
    } else {
      pool.waiting.push_back(piece);
    }
  }
}

Result<std::uint64_t> Arena::free(const Region& region, std::uintptr_t address, const std::optional<StreamId>& stream,
                                  std::vector<std::uint64_t> others) {
  Pool& pool = pools_[std::size_t(region.device)];
  const std::uint32_t granule = parts_.space.granule_at(address);
  const std::lock_guard lock(mutex_);
  const auto found = pool.pieces.find(granule);
  if (found == pool.pieces.end() || found->state != Piece::State::live || address != parts_.space.address_of(granule)) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is not an allocation: it was freed, or lies inside one", address));
  }
  Piece& piece = *found;
  Region& own = *piece.home->region;
  piece.lane = stream ? &lane_freed_on(pool, *stream) : piece.home->lane;
  const std::uint64_t bytes = std::uint64_t{piece.granules} << kGranuleShift;
  const Span block({piece.first}, piece.granules, Access::read);
  tell(own, block, parts_.space.sharing().end_block(own, block), true);
  pool.live -= piece.granules;
  pool.not_live += piece.granules;
  piece.marks = std::move(others);
  if (piece.marks.empty()) {
    put_back(pool, piece);
  } else {
    piece.state = Piece::State::waiting;
    pool.waiting.push_back(piece);
  }
  return bytes;
}

// REQUIRES: in no list but the one by address.
void Arena::put_back(Pool& pool, Piece& piece) noexcept {
  piece.state = Piece::State::free;
  piece.marks.clear();
  --piece.home->blocks;
  piece.lane->free.insert(piece);
  join(pool, piece);
}

// Joins a free piece with the free neighbours that serve the same stream.
void Arena::join(Pool& pool, Piece& piece) noexcept {
  const auto joins = [&](const Piece& other) {
    return other.state == Piece::State::free && other.home == piece.home && other.lane == piece.lane;
  };
  BySize& free = piece.lane->free;
  const auto at = pool.pieces.iterator_to(piece);
  Piece* const before = at != pool.pieces.begin() && joins(*std::prev(at)) ? &*std::prev(at) : nullptr;
  Piece* const behind = std::next(at) != pool.pieces.end() && joins(*std::next(at)) ? &*std::next(at) : nullptr;
  Piece& joined = before != nullptr ? *before : piece;
  free.erase(free.iterator_to(joined));
  for (Piece* const other : {before != nullptr ? &piece : nullptr, behind}) {
    if (other == nullptr) continue;
    joined.granules += other->granules;
    free.erase(free.iterator_to(*other));
    pool.pieces.erase(pool.pieces.iterator_to(*other));
    delete other;
  }
  free.insert(joined);
}

Arena::Growth Arena::growth(const Pool& pool, const Lane& lane, std::uint32_t granules) const {
  Home* const home = lane.newest;
  if (home == nullptr) return {};
  const std::uint32_t page = home->page_granules(), end = home->region->first.index + home->begun;
  // What is free before the end counts.
  const auto last = pool.pieces.lower_bound(end);
  std::uint32_t needed = granules;
  if (last != pool.pieces.begin()) {
    const Piece& piece = *std::prev(last);
    if (piece.home == home && piece.lane == &lane && piece.state == Piece::State::free) needed -= piece.granules;
  }
  const std::uint32_t least = (needed + page - 1) / page, room = home->region->page_count - home->asked;
  if (room < least) return {};
  const auto share = std::uint32_t(std::min<std::uint64_t>(lane.granules / kGrowthShare / page, room));
  return {home, least, std::max(least, share)};
}

// Without the lock, since the mover may wait for memory that other threads free. Those may grow the
// same region meanwhile: what they have asked for is counted in Home::asked.
Status Arena::grow(int device, Lane& lane, const Growth& growth, std::uint32_t granules) {
  if (growth.home == nullptr) return begin_region(device, lane, granules);
  Result<std::uint32_t> begun = 0;
  const auto ended = [&] {
    const std::lock_guard lock(mutex_);
    --growth.home->growing;
    growth.home->asked -= growth.most - begun.value_or(0);
  };
  try {
    begun = growth.again != 0 ? commit_again(device, growth) : extend(device, lane, growth);
  } catch (...) {
    ended();
    throw;
  }
  ended();
  if (!begun) return std::unexpected(std::move(begun).error());
  return {};
}

// Takes the lock itself.
Status Arena::begin_region(int device, Lane& lane, std::uint32_t granules) {
  std::list<Home> made(1);
  const std::uint64_t least = std::uint64_t{granules} << kGranuleShift;
  const std::uint64_t bytes = std::max(least, std::min(kRegionBytes, parts_.space.bytes() / kRegionShare));
  auto region = parts_.regions.allocate(bytes, device, RegionKind::shared);
  if (!region && bytes > least) region = parts_.regions.allocate(least, device, RegionKind::shared);
  if (!region) return std::unexpected(std::move(region).error());
  made.front().region = *region;
  made.front().given_up.resize((*region)->page_count);
  made.front().lane = &lane;
  Pool& pool = pools_[std::size_t(device)];
  const std::lock_guard lock(mutex_);
  pool.homes.splice(pool.homes.end(), made);
  lane.newest = &pool.homes.back();
  return {};
}

// Takes the lock itself. Returns how many pages began.
Result<std::uint32_t> Arena::extend(int device, Lane& lane, const Growth& growth) {
  Pool& pool = pools_[std::size_t(device)];
  Home& home = *growth.home;
  auto piece = std::make_unique<Piece>();
  std::uint32_t pages = growth.most;
  auto first = parts_.regions.extend(*home.region, pages);
  if (!first && growth.least < pages) first = parts_.regions.extend(*home.region, pages = growth.least);
  if (!first) return std::unexpected(std::move(first).error());
  const std::lock_guard lock(mutex_);
  piece->home = &home;
  piece->lane = &lane;
  piece->first = home.region->first.index + *first * home.page_granules();
  piece->granules = pages * home.page_granules();
  home.begun = std::max(home.begun, piece->first + piece->granules - home.region->first.index);
  lane.granules += piece->granules;
  pool.not_live += piece->granules;
  pool.pieces.insert(*piece);
  ++home.blocks;
  put_back(pool, *piece.release());
  return pages;
}

// The pages that the first granules of a piece need, and that were given up.
Arena::Growth Arena::given_up_in(const Piece& piece, std::uint32_t granules) {
  const Region& region = *piece.home->region;
  Growth more{
      .home = piece.home, .first = region.page_at(piece.first), .last = region.page_at(piece.first + granules - 1)};
  for (std::uint32_t page = more.first; page <= more.last; ++page) more.again += piece.home->given_up[page] ? 1 : 0;
  return more;
}

// Takes the lock itself. Returns 0: no page begins.
Result<std::uint32_t> Arena::commit_again(int device, const Growth& growth) {
  using What = migration::CommitRequest::What;
  Home& home = *growth.home;
  VMEM_TRY(parts_.regions.commit(*home.region, growth.again, What::commit));
  std::uint32_t found = 0;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t page = growth.first; page <= growth.last; ++page) {
      if (!home.given_up[page]) continue;
      home.given_up[page] = false;
      ++found;
    }
    pools_[std::size_t(device)].given_up -= std::uint64_t{found} * home.page_granules();
  }
  // Another thread did the same.
  if (found < growth.again) VMEM_TRY(parts_.regions.commit(*home.region, growth.again - found, What::give_up));
  return 0;
}

// Takes the lock itself.
Status Arena::give_up_dead(Pool& pool) {
  std::vector<std::pair<Home*, std::uint32_t>> dead;
  {
    const std::lock_guard lock(mutex_);
    dead.reserve(pool.homes.size());
    for (Home& home : pool.homes) {
      if (home.growing != 0) continue;  // pages that begin are in no piece yet
      std::uint32_t pages = 0;
      for (std::uint32_t page = 0; page < home.begun / home.page_granules(); ++page) {
        if (home.given_up[page] || !home.region->dead_page(page)) continue;
        home.given_up[page] = true;
        ++pages;
      }
      if (pages == 0) continue;
      pool.given_up += std::uint64_t{pages} * home.page_granules();
      ++home.growing;
      dead.emplace_back(&home, pages);
    }
  }
  Status outcome;
  for (const auto& [home, pages] : dead) {
    auto given = parts_.regions.commit(*home->region, pages, migration::CommitRequest::What::give_up);
    if (outcome) outcome = std::move(given);
    const std::lock_guard lock(mutex_);
    --home->growing;
  }
  return outcome;
}

Status Arena::close_stream(const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  for (Pool& pool : pools_) {
    for (Lane& lane : pool.lanes) {
      if (lane.closed || lane.stream != stream) continue;
      VMEM_ASSIGN(lane.closed, parts_.marks.mark(stream));
    }
  }
  return {};
}

Status Arena::trim() {
  for (std::size_t i = 0; i < pools_.size(); ++i) VMEM_TRY(trim(int(i)));
  return {};
}

Status Arena::trim(int device) {
  Pool& pool = pools_[std::size_t(device)];
  // What cannot be ended goes to the end of the list: each is tried once.
  for (std::size_t left = homes(pool); left > 0; --left) {
    auto unused = take_unused(pool);
    if (!unused) break;
    Region& region = *unused->home.front().region;
    // No stream is named: every use is logged, or in its stream's record.
    auto ended = parts_.regions.free_unused(region, region.first.index);
    if (ended) {
      for (Piece* const piece : unused->pieces) delete piece;
      continue;
    }
    const std::lock_guard lock(mutex_);
    for (Piece* const piece : unused->pieces) {
      pool.pieces.insert(*piece);
      piece->lane->free.insert(*piece);
      pool.not_live += piece->granules;
    }
    unused->home.front().lane->granules += unused->home.front().begun;
    pool.given_up += given_up_granules(unused->home.front());
    pool.homes.splice(pool.homes.end(), unused->home);
    // A launch may still use it through a table (IN_USE): it stays.
    if (ended.error().status != VMEM_ERROR_IN_USE) return ended;
  }
  return give_up_dead(pool);
}

std::uint64_t Arena::given_up_granules(const Home& home) {
  return std::uint64_t(std::ranges::count(home.given_up, true)) * home.page_granules();
}

std::size_t Arena::homes(const Pool& pool) const {
  const std::lock_guard lock(mutex_);
  return pool.homes.size();
}

// Takes the lock itself. A region without blocks, out of all lists.
std::optional<Arena::Unused> Arena::take_unused(Pool& pool) {
  const std::lock_guard lock(mutex_);
  settle(pool, pool.waiting.size());
  const auto found =
      std::ranges::find_if(pool.homes, [](const Home& home) { return home.blocks == 0 && home.growing == 0; });
  if (found == pool.homes.end()) return std::nullopt;
  Home& home = *found;
  Unused unused;
  const auto first = pool.pieces.lower_bound(home.region->first.index);
  const auto end = pool.pieces.lower_bound(home.region->end_granule());
  unused.pieces.reserve(std::size_t(std::distance(first, end)));
  for (auto at = first; at != end;) {
    Piece& piece = *at;
    at = pool.pieces.erase(at);
    piece.lane->free.erase(piece.lane->free.iterator_to(piece));
    pool.not_live -= piece.granules;
    unused.pieces.push_back(&piece);
  }
  home.lane->granules -= home.begun;
  pool.given_up -= given_up_granules(home);
  for (Lane& lane : pool.lanes) {
    if (lane.newest == &home) lane.newest = nullptr;
  }
  unused.home.splice(unused.home.end(), pool.homes, found);
  return unused;
}

std::uint64_t Arena::free_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const Pool& pool = pools_[std::size_t(device)];
  return (pool.not_live - pool.given_up) << kGranuleShift;
}

std::uint64_t Arena::live_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t granules = 0;
  for (const Pool& pool : pools_) granules += pool.live;
  return granules << kGranuleShift;
}

void Arena::tell(const Region& region, Span block, SharedPages::Pages pages, bool dead) {
  if ((pages == SharedPages::Pages::changed || parts_.lives.traces()) && parts_.lives.listens(region))
    parts_.lives.changed(block, region.life.load(std::memory_order_seq_cst), dead);
}

}  // namespace vmem::runtime
