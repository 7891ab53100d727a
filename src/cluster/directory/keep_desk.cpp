#include "cluster/directory/keep_desk.hpp"

#include <algorithm>

namespace vmem::cluster::directory {

void KeepDesk::ask(std::uint32_t page, std::uint32_t place, Asked asked) {
  if (const auto known = asked_.find({page, place}); known != asked_.end()) erase(known);
  ++counts_[std::size_t(asked.kind)];
  asked_.emplace(Key{page, place}, std::move(asked));
}

KeepDesk::Place KeepDesk::erase(Place each) {
  --counts_[std::size_t(each->second.kind)];
  return asked_.erase(each);
}

std::optional<KeepDesk::Kind> KeepDesk::answer(std::uint32_t page, std::uint32_t place, std::uint64_t round) {
  const auto found = asked_.find({page, place});
  if (found == asked_.end() || found->second.round != round || found->second.kind == Kind::release) return std::nullopt;
  const Kind kind = found->second.kind;
  erase(found);
  return kind;
}

void KeepDesk::released(std::uint32_t page, std::uint32_t place, std::uint64_t round) {
  const auto found = asked_.find({page, place});
  if (found == asked_.end() || found->second.kind != Kind::release || found->second.round != round) return;
  erase(found);
}

bool KeepDesk::asked(std::uint32_t page, Kind kind) const {
  for (auto each = asked_.lower_bound({page, 0}); each != asked_.end() && each->first.first == page; ++each)
    if (each->second.kind == kind) return true;
  return false;
}

void KeepDesk::drop_page(std::uint32_t page, Kind kind) {
  for (auto each = asked_.lower_bound({page, 0}); each != asked_.end() && each->first.first == page;)
    each = each->second.kind == kind ? erase(each) : std::next(each);
}

void KeepDesk::release_rest(std::uint32_t page, std::uint64_t round) {
  for (auto each = asked_.lower_bound({page, 0}); each != asked_.end() && each->first.first == page; ++each) {
    if (each->second.kind != Kind::has) continue;
    --counts_[std::size_t(Kind::has)];
    ++counts_[std::size_t(Kind::release)];
    each->second = {.kind = Kind::release, .round = round, .sources = {}};
  }
}

std::vector<std::uint32_t> KeepDesk::drop_place(std::uint32_t place) {
  std::vector<std::uint32_t> pages;
  for (auto each = asked_.begin(); each != asked_.end();) {
    const bool there = each->first.second == place;
    if (there) pages.push_back(each->first.first);
    each = there ? erase(each) : std::next(each);
  }
  return pages;
}

std::vector<KeepDesk::Batch> KeepDesk::due(std::uint64_t now_us, std::uint64_t resend_us) {
  std::vector<Batch> batches;
  for (auto& [key, asked] : asked_) {
    if (now_us < asked.next_us) continue;
    asked.next_us = now_us + resend_us;
    const auto fits = std::ranges::find_if(batches, [&](const Batch& batch) {
      return batch.place == key.second && batch.kind == asked.kind && batch.round == asked.round &&
             batch.sources == asked.sources && batch.pages.size() < kMostRuns;
    });
    Batch& batch = fits != batches.end() ? *fits
                                         : batches.emplace_back(Batch{.place = key.second,
                                                                      .kind = asked.kind,
                                                                      .round = asked.round,
                                                                      .sources = asked.sources,
                                                                      .pages = {}});
    append(batch.pages, key.first);
  }
  return batches;
}

std::vector<std::pair<KeepDesk::Key, KeepDesk::Kind>> KeepDesk::expire(std::uint64_t now_us) {
  std::vector<std::pair<Key, Kind>> late;
  for (auto each = asked_.begin(); each != asked_.end();) {
    const bool over = each->second.until_us <= now_us;
    if (over) late.emplace_back(each->first, each->second.kind);
    each = over ? erase(each) : std::next(each);
  }
  return late;
}

std::uint64_t KeepDesk::due_us() const {
  std::uint64_t due_us = UINT64_MAX;
  for (const auto& [key, asked] : asked_) due_us = std::min({due_us, asked.next_us, asked.until_us});
  return due_us;
}

}  // namespace vmem::cluster::directory
