#include "runtime/cluster/simulator/program_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace vmem::runtime::simulator {

using rdma::wire::Answer;
using sharing::SharedPage;

namespace {

constexpr std::uint64_t kMostAnswerUs = 20'000;  // of a mover

pagetable::Serial page_serial(cluster::directory::Serial serial) {
  return pagetable::Serial{static_cast<std::uint64_t>(serial)};
}
cluster::directory::Serial serial_of(pagetable::Serial serial) {
  return cluster::directory::Serial{static_cast<std::uint64_t>(serial)};
}

}  // namespace

void ProgramPages::expect(bool right, const std::string& what) {
  if (!right && wrong_.empty()) wrong_ = what;
}

void ProgramPages::begin(DirectoryService& directory, sharing::SharedTier& tier) {
  directory_ = &directory;
  tier_ = &tier;
}

// ---- regions ----

ProgramPages::Region& ProgramPages::add(const RegionRecord& record, bool own) {
  constexpr std::size_t kKeyBytes = sharing::RegionKey::kBytes;
  const auto* const secret = reinterpret_cast<const unsigned char*>(record.key.data());
  Region& region = regions_[record.serial];
  region = {.record = record, .own = own, .key = {}, .source = {}, .pages = {}, .lost = {}, .loading = {}};
  region.key = std::make_shared<const sharing::RegionKey>(
      *sharing::RegionKey::of(std::span<const unsigned char, kKeyBytes>(secret, kKeyBytes)));
  region.source = tier_->open({.name = record.name,
                               .serial = page_serial(record.serial),
                               .bytes = record.bytes,
                               .page_bytes = record.page_bytes,
                               .first_granule = std::uint32_t(record.first_granule),
                               .earlier = own ? pagetable::Serial{} : page_serial(record.earlier),
                               .own = own,
                               .key = region.key});
  region.first_slot = *region.source->lay_out(record.page_bytes, record.pages);
  return region;
}

void ProgramPages::publish(const RegionRecord& record) {
  Region& region = add(record, true);
  const auto& words = setup_.contents.words(record.serial);
  for (std::uint32_t page = 0; page < record.pages; ++page)
    if (words[page] != PageContents::kUnwritten)
      region.pages[page] = std::make_shared<std::vector<std::byte>>(setup_.contents.bytes(record.serial, page));
}

void ProgramPages::open(const RegionRecord& record) {
  if (find(record.serial) == nullptr) add(record, false);
}

const ProgramPages::Region* ProgramPages::find(Serial serial) const {
  const auto found = regions_.find(serial);
  return found == regions_.end() ? nullptr : &found->second;
}

cluster::directory::Session ProgramPages::session(Serial serial) const {
  const auto* const part = directory_->directory().participant(serial);
  const bool open = part != nullptr && part->stage() == cluster::directory::Participant::Stage::open;
  return open ? part->session() : cluster::directory::Session{};
}

// ---- pages ----

bool ProgramPages::has(Serial serial, std::uint32_t page) const {
  const Region* const region = find(serial);
  return region != nullptr && region->pages.contains(page);
}

bool ProgramPages::has_lost(Serial serial, std::uint32_t page) const {
  const Region* const region = find(serial);
  return region != nullptr && region->lost.contains(page);
}

void ProgramPages::evict(Serial serial, std::uint32_t page) {
  const auto region = regions_.find(serial);
  if (region != regions_.end() && !region->second.own) region->second.pages.erase(page);
}

void ProgramPages::lose(Serial serial, std::uint32_t page) {
  const auto region = regions_.find(serial);
  if (region == regions_.end() || !region->second.own || region->second.pages.erase(page) == 0) return;
  region->second.lost.insert(page);
}

void ProgramPages::read(Serial serial, std::uint32_t page) {
  const auto found = regions_.find(serial);
  if (found == regions_.end() || found->second.loading.contains(page)) return;
  Region& region = found->second;
  if (const auto here = region.pages.find(page); here != region.pages.end())
    return expect(setup_.contents.are(*here->second, serial, page), "the bytes of a page have changed");
  // A publisher knows which pages it has not written.
  if (region.own && !region.lost.contains(page)) return;
  const auto memory = std::make_shared<std::vector<std::byte>>(PageContents::kPageBytes, std::byte{0xee});
  tiers::Transfer transfer{.page = {page_serial(serial), page},
                           .version = 1,
                           .slot = region.first_slot + page,
                           .host = memory->data(),
                           .bytes = memory->size()};
  expect(tier_->submit({&transfer, 1}).has_value(), "a page could not be asked for");
  region.loading.insert(page);
  loading_[transfer.id] = {.session = session(serial),
                           .serial = serial,
                           .page = page,
                           .deadline_us = setup_.clock.now_us() + setup_.patience_us,
                           .memory = memory,
                           .source = region.source};
}

void ProgramPages::arrived(const tiers::Completion& completion) {
  auto found = loading_.extract(completion.id);
  if (!found) return;
  auto& [in, serial, page, deadline_us, memory, source] = found.mapped();
  const auto region = regions_.find(serial);
  // The region may have been closed since, and opened again.
  if (region == regions_.end() || region->second.source != source) return;
  region->second.loading.erase(page);
  if (completion.outcome == tiers::Outcome::failed) {
    ++counts.failed;
  } else if (completion.outcome == tiers::Outcome::lost) {
    ++counts.lost;
    if (in != cluster::directory::Session{} && in == session(serial)) setup_.read_lost(serial, page);
  } else {
    ++counts.read;
    expect(setup_.contents.are(*memory, serial, page),
           fmt::format("page {} of region {} was read with other bytes", page, static_cast<std::uint64_t>(serial)));
    if (setup_.contents.words(serial)[page] != PageContents::kUnwritten) region->second.pages[page] = memory;
  }
}

// ---- for other nodes ----

bool ProgramPages::may_read(pagetable::Serial serial, const std::string& tenant) const {
  const Region* const region = find(serial_of(serial));
  return region != nullptr && cluster::directory::may_read(DirectoryService::tenant_of(tenant), region->record.tenant,
                                                           region->record.readers);
}

void ProgramPages::lend(const SharedPage& page, Lent lent) {
  answering_.emplace(setup_.clock.now_us() + random_() % kMostAnswerUs, Lending{page, std::move(lent)});
}

void ProgramPages::answer(const SharedPage& page, Lent& lent) {
  const Region* const region = find(serial_of(page.serial));
  if (region == nullptr || page.page >= region->record.pages || page.bytes != region->record.page_bytes)
    return lent(std::unexpected(Answer::unknown));
  if (const auto here = region->pages.find(page.page); here != region->pages.end())
    return lent(sharing::LentPage{
        .bytes = *here->second, .tag = region->key->tag(*here->second, page), .give_back = [memory = here->second] {}});
  if (region->loading.contains(page.page)) return lent(std::unexpected(Answer::unknown));
  directory_->gone(page);
  lent(std::unexpected(region->own ? Answer::damaged : Answer::unknown));
}

bool ProgramPages::step() {
  bool did = false;
  completions_.clear();
  (void)tier_->poll(completions_);
  for (const tiers::Completion& completion : completions_) arrived(completion);
  did |= !completions_.empty();
  while (!answering_.empty() && answering_.begin()->first <= setup_.clock.now_us()) {
    auto first = answering_.extract(answering_.begin());
    answer(first.mapped().page, first.mapped().lent);
    did = true;
  }
  return did;
}

bool ProgramPages::is_overdue(std::uint64_t slack_us) const {
  const std::uint64_t now_us = setup_.clock.now_us();
  return std::ranges::any_of(loading_, [&](const auto& each) { return now_us > each.second.deadline_us + slack_us; });
}

}  // namespace vmem::runtime::simulator
