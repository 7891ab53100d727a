// What a node lends to others, from memory that returns other bytes now and then, and has no time
// now and then.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sharing/page_holder.hpp"

namespace vmem::runtime::simulator {

struct MemoryFaults {
  std::uint32_t damaged = 0, busy = 0;  // of a thousand pages
};

class UnreliablePages final : public sharing::PageHolder {
 public:
  // All outlive this.
  UnreliablePages(sharing::PageHolder& pages, const MemoryFaults& faults, std::uint64_t seed)
      : pages_(pages), faults_(faults), random_(seed) {}

  bool may_read(pagetable::Serial serial, const std::string& tenant) const override {
    return pages_.may_read(serial, tenant);
  }
  void lend(const sharing::SharedPage& page, Lent lent) override {
    if (random_() % 1000 < faults_.busy) return lent(std::unexpected(rdma::wire::Answer::again));
    if (random_() % 1000 >= faults_.damaged) return pages_.lend(page, std::move(lent));
    const std::uint64_t bit = random_();
    pages_.lend(page,
                [bit, lent = std::move(lent)](std::expected<sharing::LentPage, rdma::wire::Answer> given) mutable {
                  lent(given ? damaged(*std::move(given), bit) : std::move(given));
                });
  }

 private:
  static sharing::LentPage damaged(sharing::LentPage page, std::uint64_t bit) {
    auto copy = std::make_unique<std::vector<std::byte>>(page.bytes.begin(), page.bytes.end());
    (*copy)[bit / 8 % copy->size()] ^= std::byte{1} << (bit % 8);
    sharing::LentPage other{.bytes = *copy, .tag = page.tag, .give_back = {}};
    other.give_back = [copy = std::move(copy), page = std::move(page)]() mutable {
      if (page.give_back) page.give_back();
    };
    return other;
  }

  sharing::PageHolder& pages_;
  const MemoryFaults& faults_;
  std::mt19937_64 random_;
};

}  // namespace vmem::runtime::simulator
