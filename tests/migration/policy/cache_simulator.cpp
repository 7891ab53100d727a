#include "migration/policy/cache_simulator.hpp"

#include <gtest/gtest.h>

#include <list>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace vmem::migration::testing {
namespace {

std::uint64_t key(Reference reference) { return std::uint64_t{reference.region} << 32 | reference.page; }
std::uint64_t key(PageId page) { return std::uint64_t{page.region.value} << 32 | page.index; }

void begin_regions(Policy& policy, const Trace& trace) {
  for (std::uint32_t i = 0; i < trace.region_pages.size(); ++i)
    policy.region_begins({.id = {i + 1}, .pages = trace.region_pages[i], .page_bytes = kPageBytes});
}

bool evict_one(Policy& policy, std::unordered_set<std::uint64_t>& resident) {
  PageId victim[1];
  const VictimQuery query{.page_bytes = kPageBytes, .bytes_wanted = kPageBytes};
  const bool found = policy.victims(query, victim) == 1;
  if (!found || resident.erase(key(victim[0])) == 0) {
    ADD_FAILURE() << "no victim, or one that is not resident";
    return false;
  }
  policy.page_left(victim[0]);
  return true;
}

}  // namespace

std::uint64_t policy_hits(Policy& policy, const Trace& trace, std::uint32_t frames, Report report) {
  std::unordered_set<std::uint64_t> resident;
  std::uint64_t hits = 0;
  begin_regions(policy, trace);
  for (const Reference& reference : trace.references) {
    const Use use{.region = {reference.region}, .first = reference.page, .count = 1, .stream = reference.stream};
    if (report == Report::before_arrival) policy.used(use);
    if (resident.contains(key(reference))) {
      ++hits;
    } else {
      if (resident.size() == frames && !evict_one(policy, resident)) break;
      resident.insert(key(reference));
      policy.page_arrived({{reference.region}, reference.page}, Cause::use);
    }
    if (report == Report::after_arrival) policy.used(use);
  }
  for (std::uint32_t i = 0; i < trace.region_pages.size(); ++i) policy.region_ends({i + 1});
  return hits;
}

std::uint64_t lru_hits(const Trace& trace, std::uint32_t frames) {
  std::list<std::uint64_t> order;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> where;
  std::uint64_t hits = 0;
  for (const Reference& reference : trace.references) {
    if (const auto found = where.find(key(reference)); found != where.end()) {
      ++hits;
      order.erase(found->second);
    } else if (where.size() == frames) {
      where.erase(order.front());
      order.pop_front();
    }
    where[key(reference)] = order.insert(order.end(), key(reference));
  }
  return hits;
}

std::uint64_t clock_hits(const Trace& trace, std::uint32_t frames) {
  struct Frame {
    std::uint64_t page;
    bool referenced;
  };
  std::vector<Frame> ring;
  std::unordered_map<std::uint64_t, std::size_t> where;
  std::size_t hand = 0;
  std::uint64_t hits = 0;
  for (const Reference& reference : trace.references) {
    if (const auto found = where.find(key(reference)); found != where.end()) {
      ++hits;
      ring[found->second].referenced = true;
      continue;
    }
    if (ring.size() < frames) {
      where[key(reference)] = ring.size();
      ring.push_back({key(reference), true});
      continue;
    }
    for (; ring[hand].referenced; hand = (hand + 1) % frames) ring[hand].referenced = false;
    where.erase(ring[hand].page);
    ring[hand] = {key(reference), true};
    where[key(reference)] = hand;
    hand = (hand + 1) % frames;
  }
  return hits;
}

std::uint64_t belady_hits(const Trace& trace, std::uint32_t frames) {
  const std::size_t length = trace.references.size();
  std::vector<std::size_t> next(length);
  std::unordered_map<std::uint64_t, std::size_t> seen;
  for (std::size_t i = length; i-- > 0;) {
    const auto found = seen.find(key(trace.references[i]));
    // Distinct values for pages not used again.
    next[i] = found == seen.end() ? length + i : found->second;
    seen[key(trace.references[i])] = i;
  }
  std::set<std::size_t> next_uses;  // of resident pages
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < length; ++i) {
    if (next_uses.erase(i)) {
      ++hits;
    } else if (next_uses.size() == frames) {
      next_uses.erase(std::prev(next_uses.end()));
    }
    next_uses.insert(next[i]);
  }
  return hits;
}

}  // namespace vmem::migration::testing
