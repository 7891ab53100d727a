#include "toy_tier.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace vmem::examples {

using tiers::Completion;
using tiers::Direction;
using tiers::Grant;
using tiers::Outcome;
using tiers::SlotGrant;
using tiers::SlotId;
using tiers::Transfer;

namespace {

// A copy within memory cannot hang; a tier above a device takes the option call_wait.
constexpr std::chrono::seconds kAnswerWait{30};

tiers::Checksum seal_of(std::span<const std::byte> bytes, const Transfer& transfer) {
  return tiers::seal(bytes, {.page = transfer.page, .version = transfer.version, .bytes = transfer.bytes});
}

}  // namespace

// ---- slots ----

// allocate never answers `later`, so all free space is ready.
tiers::TierUsage ToyTier::usage() const {
  const std::uint64_t used = used_bytes_;
  return {.budget_bytes = budget_bytes_, .used_bytes = used, .ready_bytes = budget_bytes_ - used, .held_bytes = used};
}

Result<SlotGrant> ToyTier::allocate(std::uint64_t page_bytes) {
  if (page_bytes > budget_bytes_ - used_bytes_) return SlotGrant{.grant = Grant::full};
  std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[page_bytes]);
  if (bytes == nullptr) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("the toy tier cannot allocate {} bytes for a page; lower its budget of {} bytes",
                            page_bytes, budget_bytes_));
  }
  if (free_.empty()) {
    slots_.emplace_back();
    free_.push_back(SlotId(slots_.size() - 1));
  }
  const SlotId slot = free_.back();
  free_.pop_back();
  slots_[slot] = {.bytes = std::move(bytes), .page_bytes = page_bytes, .seal = {}};
  used_bytes_ += page_bytes;
  return SlotGrant{.grant = Grant::granted, .slot = slot};
}

void ToyTier::release(SlotId slot) {
  free_.push_back(slot);
  used_bytes_ -= std::exchange(slots_[slot], {}).page_bytes;
}

// ---- transfers ----

Status ToyTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;  // not accepted yet
  for (Transfer& transfer : transfers) {
    transfer.if_changed = false;  // this tier does not compare: it copies
    transfer.id = ledger_.begin(transfer.direction, [&](std::uint64_t id) {
      Transfer accepted = transfer;
      accepted.id = id;
      post(accepted);
    });
  }
  return {};
}

void ToyTier::post(const Transfer& transfer) {
  Slot& slot = slots_[transfer.slot];
  auto completion = std::make_shared<Completion>(Completion{.id = transfer.id});
  workers_.post(
      [&slot, transfer, completion](std::uint32_t) {
        if (transfer.direction == Direction::store) {
          store(slot, transfer);
        } else {
          *completion = load(slot, transfer);
        }
      },
      // A transfer completes exactly once, also where an error's text found no memory.
      [this, direction = transfer.direction, completion](tiers::Workers::Ended ended) {
        if (ended == tiers::Workers::Ended::no_memory) {
          completion->outcome = Outcome::failed;
          completion->error.status = VMEM_ERROR_OUT_OF_MEMORY;
        }
        ledger_.complete(std::move(*completion), direction);
      });
}

// Worker. The seal is that of the source: it also finds damage done by the copy.
void ToyTier::store(Slot& slot, const Transfer& transfer) {
  slot.seal = seal_of({transfer.host, transfer.bytes}, transfer);
  std::memcpy(slot.bytes.get(), transfer.host, transfer.bytes);
}

// Worker. Checks what has arrived: whoever asked gets the page's bytes or an error.
Completion ToyTier::load(const Slot& slot, const Transfer& transfer) {
  std::memcpy(transfer.host, slot.bytes.get(), transfer.bytes);
  Completion completion{.id = transfer.id};
  if (slot.seal == seal_of({transfer.host, transfer.bytes}, transfer)) return completion;
  completion.outcome = Outcome::lost;
  completion.error = {VMEM_ERROR_LOST, 0,
                      fmt::format("the toy tier's slot {} was to hold version {} of the page at granule {}; {}",
                                  transfer.slot, transfer.version, transfer.page.granule,
                                  slot.seal ? "its checksum does not match" : "nothing was stored there")};
  return completion;
}

Status ToyTier::poll(std::vector<Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

tiers::Finished ToyTier::finish() noexcept {
  return ledger_.finish(kAnswerWait, "the toy tier's worker does not answer: its memory is left to the system");
}

}  // namespace vmem::examples
