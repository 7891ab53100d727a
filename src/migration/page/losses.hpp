// Pages of live regions whose bytes are lost, or whose mapping shows wrong bytes.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "migration/page/residency.hpp"
#include "migration/page/transfers.hpp"

namespace vmem::migration {

class Losses {
 public:
  Losses(const Core& core, Residency& residency) : core_(core), residency_(residency) {}

  // A load failed after the page was mapped; a copy of the bytes is left.
  struct Unread {
    std::string why;
    std::optional<NearSlot> good;  // the bytes' place, if neither the page's slot nor below
  };

  void lose(PageRef ref, const Error& error);  // no copy is left
  std::string reason(PageRef ref) const;       // of a loss; empty: unknown
  void add_unread(PageRef ref, Unread unread);
  bool is_unread(PageRef ref) const { return unread(ref) != nullptr; }
  const Unread* unread(PageRef ref) const;
  std::optional<Unread> take_unread(PageRef ref);
  void forget(const Region& region);  // REQUIRES: it has no unread pages

 private:
  const Core& core_;
  Residency& residency_;
  std::map<PageId, std::string> lost_;
  std::map<PageId, Unread> unread_;
};

}  // namespace vmem::migration
