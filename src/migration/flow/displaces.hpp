// What may be displaced for the page that a call needs.
#pragma once

#include "migration/page/page_ref.hpp"

namespace vmem::migration {

// The pages that a new host slot may displace. unwanted: only pages that nobody waits for; reads
// ahead use this, or two of them would displace each other for ever. advised: also copies kept on
// advice. lifting: a request waits for the slot, so pages may also move up into frames that are
// free or come free without a slot. Eviction never lifts, which bounds the recursion.
enum class Displaces { unwanted, anything, advised, lifting };

// What a slot of host memory is wanted for.
struct SlotWish {
  Displaces displaces = Displaces::anything;
  const Page* excluded = nullptr;  // not displaced: the page whose service led to this wish
  bool for_copy = false;           // that page is another node's
};

}  // namespace vmem::migration
