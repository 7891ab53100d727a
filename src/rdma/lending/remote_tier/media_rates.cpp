#include "rdma/lending/remote_tier/media_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::rdma {
namespace {

using tiers::PlaceRates;
using wire::Medium;

constexpr std::uint64_t kLookUs = 100'000;
constexpr std::size_t kMostNamed = 4;  // in a line of the log

std::uint32_t place_of(std::uint32_t node, Medium medium) {
  return node * static_cast<std::uint32_t>(wire::kMedia.size()) + static_cast<std::uint32_t>(medium);
}

}  // namespace

MediaRates::Begun MediaRates::begins(const CopyPlace& at, tiers::Direction direction, std::uint64_t bytes) {
  return rates_.begins(place_of(at.node, *wire::medium_of(at.offset)), direction, bytes, clock_.now_us());
}

void MediaRates::ended(const Begun& begun, bool moved) { rates_.ended(begun, moved, clock_.now_us()); }

void MediaRates::settle() {
  if (clock_.now_us() < look_us_) return;
  look_us_ = clock_.now_us() + kLookUs;
  look_at_lenders();
  if (!rates_.update(clock_.now_us())) return;
  for (std::uint32_t node = 0; node < placer_.nodes(); ++node)
    for (const Medium medium : wire::kMedia) {
      if (lendable(node)[medium] != 0) placer_.set_level(node, medium, rates_.level(place_of(node, medium)));
    }
  if (const auto times = changed_.next(); times.logged)
    VMEM_LOG_INFO("new pages on other nodes go, by measured rates, to {} ({} changes of the order)", words(),
                  times.count);
}

// What a lease does not have now keeps its rate.
wire::MediumBytes MediaRates::lendable(std::uint32_t node) const {
  const CopyPlacer::NodeRoom room = placer_.room(node);
  return room.usable + room.obtainable;
}

// A lender's disks are not tried before its memory and HBM are full.
void MediaRates::look_at_lenders() {
  for (std::uint32_t node = 0; node < placer_.nodes(); ++node) {
    const wire::MediumBytes lent = lendable(node);
    for (const Medium medium : wire::kMedia) {
      const std::uint32_t place = place_of(node, medium);
      if (lent[medium] == 0) {
        rates_.remove(place);
      } else {
        rates_.add(place, medium == Medium::disk ? PlaceRates::Untried::last : PlaceRates::Untried::first);
      }
    }
  }
}

std::string MediaRates::words() const {
  struct Named {
    std::uint32_t level = 0;
    std::string words;
  };
  std::vector<Named> all;
  for (std::uint32_t node = 0; node < placer_.nodes(); ++node) {
    const wire::MediumBytes lent = placer_.room(node).usable;
    for (const Medium medium : wire::kMedia) {
      if (lent[medium] == 0) continue;
      const std::uint32_t place = place_of(node, medium);
      const double rate = rates_.bytes_s(place);
      all.push_back(
          {rates_.level(place),
           fmt::format("{} of {} ({})", wire::medium_words(medium), placer_.address(node),
                       rate == 0 ? "not measured yet" : format_bytes(static_cast<std::uint64_t>(rate)) + "/s")});
    }
  }
  std::ranges::stable_sort(all, {}, &Named::level);
  std::string words;
  for (std::size_t i = 0; i < std::min(all.size(), kMostNamed); ++i) {
    const bool alike = i != 0 && all[i].level == all[i - 1].level;
    words += (i == 0 ? "" : alike ? " and " : ", then ") + all[i].words;
  }
  return all.size() > kMostNamed ? fmt::format("{} and {} more", words, all.size() - kMostNamed) : words;
}

}  // namespace vmem::rdma
