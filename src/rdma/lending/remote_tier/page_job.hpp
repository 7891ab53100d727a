// The transfer of one page between its slot and the nodes that have, or shall have, its copies.
// Data only. Thread: the node's; a worker while it prepares or checks the job.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "pagetable/types.hpp"
#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/lending/remote_tier/page_buffers.hpp"
#include "rdma/node/page_calls.hpp"
#include "rdma/trust/page_aead.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct PageJob {
  enum class Leg : std::uint8_t { none, wanted, in_flight, done, failed };
  struct Copy {
    Leg leg = Leg::none;
    std::uint32_t tries = 0;
    CopyPlace fetched_from;  // the last fetch
  };

  tiers::Transfer transfer;
  wire::SealedPage page;
  tiers::Checksum content;
  PageAead::Proof proof;
  PageBuffers::Buffer encrypted;  // the ciphertext of a store, if encrypted
  Bytes stored;                   // bytes to send, or destination of a fetch
  bool same = false;              // a store with if_changed whose bytes the slot already holds
  std::unique_ptr<Slab> slab;     // null: the job was not prepared
  std::array<Copy, kMostReplicas> copies{};
  // The last copy with a checksum mismatch: its lender is asked to verify it.
  std::optional<std::size_t> unverified;
  std::uint64_t give_up_us = 0, again_us = 0;
  std::uint32_t in_flight = 0;  // requests and work of workers
  bool waits = false;           // is in the list of waiting jobs
  PageCallId fetch{};           // the last one
  bool kept = false;            // a lender has a copy but could not read it
  Error error{VMEM_ERROR_LOST, 0, "no node has a copy"};

  bool is_load() const { return transfer.direction == tiers::Direction::load; }
};
using PageJobRef = std::shared_ptr<PageJob>;

// For error messages.
std::string words(const PageJob& job);

}  // namespace vmem::rdma
