#include "trace/recorder.hpp"

#include <algorithm>
#include <utility>

#include "base/memory_reserve.hpp"

namespace vmem::trace {
namespace {

constexpr std::uint64_t kPauseNs = 20'000;
// Keeps an event far below a chunk's size.
constexpr std::size_t kNamedMax = 1u << 15;

std::uint8_t flags_of(const Recorder::Use& use) {
  return std::uint8_t((use.writes ? Named::kWrites : 0) | (use.possible ? Named::kPossible : 0) |
                      (use.discards ? Named::kDiscards : 0));
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::create(const std::string& path, std::uint64_t limit_bytes,
                                                   const Header& header, std::uint64_t began_ns) {
  VMEM_ASSIGN(auto writer, Writer::create(path, limit_bytes, header));
  if (writer == nullptr) return nullptr;
  return std::unique_ptr<Recorder>(new Recorder(std::move(writer), began_ns));
}

Recorder::Recorder(std::unique_ptr<Writer> writer, std::uint64_t began_ns)
    : writer_(std::move(writer)), began_ns_(began_ns) {}

// Runs a piece of the record; without memory for it the trace ends.
template <class Piece>
void Recorder::note(Piece&& piece) noexcept {
  if (!writer_->ended() && !ran_within_memory(piece)) lacks_memory();
}

std::uint32_t Recorder::number_of(const std::string& name) noexcept {
  std::uint32_t number = 0;
  note([&] {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = numbers_.try_emplace(name, std::uint32_t(numbers_.size() + 1));
    if (fresh) new_names_.push_back({at->second, name});
    if (fresh) has_new_names_.store(true, std::memory_order_release);
    number = at->second;
  });
  return number;
}

std::uint32_t Recorder::number_of_event(std::uintptr_t event) noexcept {
  std::uint32_t number = 0;
  note([&] {
    const std::lock_guard lock(mutex_);
    number = event_numbers_.try_emplace(event, std::uint32_t(event_numbers_.size() + 1)).first->second;
  });
  return number;
}

void Recorder::add(std::uint64_t at_ns, const Body& body) noexcept { writer_->add(since_begin(at_ns), body); }

void Recorder::region_begins(const RegionBegins& begins, std::uint64_t now_ns) noexcept {
  note([&] {
    Region& region = regions_[begins.region] = {begins, 0, 0, 0, 0};
    begin_block(region, now_ns);
  });
}

void Recorder::region_ends(std::uint32_t id, std::uint64_t now_ns) noexcept {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return;
  end_block(found->second, now_ns);
  regions_.erase(found);
}

void Recorder::begin_block(Region& region, std::uint64_t at_ns) {
  region.block = ++last_block_;
  region.since_ns = std::max(region.since_ns, at_ns);
  const RegionBegins& of = region.begins;
  add(region.since_ns, BlockBegins{region.block, of.bytes, of.granule, of.granules, of.device, of.kind});
}

void Recorder::end_block(Region& region, std::uint64_t at_ns) {
  if (region.block == 0) return;
  region.since_ns = std::max(region.since_ns, at_ns);
  add(region.since_ns, BlockEnds{region.block});
  region.before = std::exchange(region.block, 0);
}

void Recorder::begin_life(Region& region, std::uint64_t life, std::uint64_t at_ns) {
  end_block(region, at_ns);
  if (life != region.life + 1) region.before = 0;
  region.life = life;
}

void Recorder::region_changed(std::uint32_t id, std::uint64_t life, bool dead, std::uint64_t at_ns) noexcept {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return;
  note([&] {
    Region& region = found->second;
    if (life > region.life) begin_life(region, life, at_ns);
    if (!dead && life == region.life && region.block == 0) begin_block(region, at_ns);
  });
}

void Recorder::shared_region_begins(std::uint32_t granule, std::uint32_t granules) noexcept {
  neighbours_.erase(neighbours_.lower_bound(granule), neighbours_.lower_bound(granule + granules));
}

void Recorder::begin_at(Neighbour& at, const Place& place, std::uint64_t at_ns) {
  at.block = ++last_block_;
  at.granules = place.granules;
  at.since_ns = std::max(at.since_ns, at_ns);
  add(at.since_ns, BlockBegins{at.block, std::uint64_t{place.granules} << kGranuleShift, place.granule, place.granules,
                               place.device, BlockKind::undeclared});
}

void Recorder::end_at(Neighbour& at, std::uint64_t life, std::uint64_t at_ns) {
  at.since = life;
  if (at.block == 0) return;
  at.since_ns = std::max(at.since_ns, at_ns);
  add(at.since_ns, BlockEnds{at.block});
  at.before = std::exchange(at.block, 0);
}

// Threads' logs are read one after the other: a use of a new block can come before the changes that
// begin it, and one of an old block after.
void Recorder::block_changed(const Place& place, std::uint64_t life, bool dead, std::uint64_t at_ns) noexcept {
  note([&] {
    Neighbour& at = neighbours_[place.granule];
    if (life < at.since) return;                             // a use of a later block came before
    if (!dead && at.block != 0 && life == at.since) return;  // begun by its first use
    end_at(at, life, at_ns);
    if (!dead) begin_at(at, place, at_ns);
  });
}

Block Recorder::block_used(const Place& place, std::uint64_t life, std::uint64_t at_ns) {
  Neighbour& at = neighbours_[place.granule];
  if (life < at.since) return at.before;
  if (at.block != 0 && at.granules == place.granules) return at.block;
  end_at(at, life, at_ns);
  begin_at(at, place, at_ns);
  return at.block;
}

void Recorder::used_at(std::uint32_t number, const Place& place, const Use& use) noexcept {
  note([&] {
    Thread& by = thread(number);
    if (by.named.size() >= kNamedMax) return;
    const Named named{.block = block_used(place, use.life, by.last_ns), .flags = flags_of(use)};
    if (named.block != 0) by.named.push_back(named);
  });
}

// False: the block is unknown. Threads' uses are read one thread after the other: a use of a new
// life can come before the change that begins it, and one of an old life after.
bool Recorder::named_by(const Use& use, std::uint64_t at_ns, Named& named) {
  const auto found = regions_.find(use.region);
  if (found == regions_.end()) return false;
  Region& region = found->second;
  if (use.life > region.life) begin_life(region, use.life, at_ns);
  const bool current = use.life == region.life;
  if (current && region.block == 0) begin_block(region, at_ns);
  named.block = current ? region.block : use.life + 1 == region.life ? region.before : 0;
  if (named.block == 0) return false;
  named.flags = flags_of(use);
  if (use.granules < region.begins.granules) {
    named.flags |= Named::kPart;
    named.first = use.granule - region.begins.granule;
    named.granules = use.granules;
  }
  return true;
}

Recorder::Thread& Recorder::thread(std::uint32_t number) {
  if (number >= threads_.size()) threads_.resize(number + 1);
  return threads_[number];
}

void Recorder::used(std::uint32_t number, const Use& use) noexcept {
  note([&] {
    Thread& by = thread(number);
    Named named;
    if (by.named.size() < kNamedMax && named_by(use, by.last_ns, named)) by.named.push_back(named);
  });
}

void Recorder::launched(std::uint32_t number, const Work& work, std::uint32_t what, std::uint64_t at_ns) noexcept {
  note([&] {
    write_names(at_ns);
    Thread& by = thread(number);
    by.last_ns = at_ns;
    Body body(Launch{number, work.stream, work.device, work.epoch, what, work.tracing_us, std::move(by.named)});
    add(at_ns, body);
    by.named = std::move(std::get<Launch>(body).named);
    by.named.clear();
  });
}

void Recorder::write_names(std::uint64_t at_ns) {
  if (!has_new_names_.exchange(false, std::memory_order_acquire)) return;
  std::vector<Name> names;
  {
    const std::lock_guard lock(mutex_);
    names.swap(new_names_);
  }
  for (Name& name : names) add(at_ns, std::move(name));
}

void Recorder::busy(std::uint64_t from_ns, std::uint64_t until_ns) noexcept {
  if (busy_.took_ns != 0 && from_ns - (busy_from_ns_ + busy_.took_ns) <= kPauseNs) {
    busy_.took_ns = until_ns - busy_from_ns_;
    return;
  }
  if (busy_.took_ns != 0) add(busy_from_ns_, busy_);
  busy_from_ns_ = from_ns;
  busy_.took_ns = until_ns - from_ns;
}

void Recorder::frames(std::uint64_t made, std::uint64_t unmade, std::uint64_t now_ns) noexcept {
  if (made == made_ && unmade == unmade_) return;
  add(now_ns, Frames{std::uint32_t(made - made_), std::uint32_t(unmade - unmade_)});
  made_ = made;
  unmade_ = unmade;
}

void Recorder::finish() noexcept {
  if (busy_.took_ns != 0) add(busy_from_ns_, std::exchange(busy_, {}));
  // A name without a launch says nothing.
  writer_->finish();
}

}  // namespace vmem::trace
