#include "rdma/lending/lease_message.hpp"

#include <algorithm>
#include <span>

namespace vmem::rdma::wire {
namespace {

using pagetable::kGranuleBytes;
using pagetable::kGranuleShift;

// As sent. In version 5 an Ask names no lease, a Lent has no room, and no extents follow them.
struct SentExtent {
  std::uint32_t first = 0, count = 0;  // in granules
};
struct SentAsk {
  MediumBytes bytes;
};
struct SentAskOfLease {
  SentAsk ask;
  std::uint64_t lease = 0;
};
struct SentLent {
  std::uint64_t lease = 0;
  MediumBytes bytes;
  Answer answer = Answer::done;
  std::uint32_t nodes = 0;
  std::uint64_t lendable_bytes = 0, leased_bytes = 0, holder = 0, holder_bytes = 0, holder_left_us = 0;
};
struct SentLentWithRoom {
  SentLent lent;
  MediumBytes room;
};
static_assert(sizeof(SentExtent) == 8 && sizeof(SentAsk) == 24 && sizeof(SentAskOfLease) == 32 &&
              sizeof(SentLent) == lent_bytes(kResizableVersion - 1).least &&
              sizeof(SentLentWithRoom) == lent_bytes(kResizableVersion).least);

template <class T>
std::vector<std::byte> join(const T& fields, std::span<const Extent> extents) {
  const ConstBytes first = body_of(fields);
  std::vector<std::byte> body(first.begin(), first.end());
  for (const Extent& each : extents) {
    const SentExtent sent{static_cast<std::uint32_t>(each.first >> kGranuleShift),
                          static_cast<std::uint32_t>(each.bytes >> kGranuleShift)};
    const ConstBytes bytes = body_of(sent);
    body.insert(body.end(), bytes.begin(), bytes.end());
  }
  return body;
}

// nullopt: malformed, or the extents overlap.
std::optional<std::vector<Extent>> read_extents(ConstBytes bytes) {
  if (bytes.size() % sizeof(SentExtent) != 0 || bytes.size() > kMostExtents * sizeof(SentExtent)) return std::nullopt;
  std::vector<Extent> extents;
  for (; !bytes.empty(); bytes = bytes.subspan(sizeof(SentExtent))) {
    const auto sent = *read_body<SentExtent>(bytes.first(sizeof(SentExtent)));
    const Extent extent{std::uint64_t{sent.first} << kGranuleShift, std::uint64_t{sent.count} << kGranuleShift};
    const bool overlaps = std::ranges::any_of(
        extents, [&](const Extent& each) { return extent.first < each.end() && each.first < extent.end(); });
    if (extent.bytes == 0 || overlaps || extent.end() > first_offset(Medium::disk)) return std::nullopt;
    extents.push_back(extent);
  }
  return extents;
}

Lent lent_of(const SentLent& sent) {
  return {.lease = sent.lease,
          .bytes = sent.bytes,
          .room = {},
          .answer = sent.answer,
          .nodes = sent.nodes,
          .lendable_bytes = sent.lendable_bytes,
          .leased_bytes = sent.leased_bytes,
          .holder = sent.holder,
          .holder_bytes = sent.holder_bytes,
          .holder_left_us = sent.holder_left_us};
}

}  // namespace

std::vector<std::byte> encode(const Ask& ask, std::uint16_t version) {
  if (version < kResizableVersion) return join(SentAsk{ask.bytes}, {});
  return join(SentAskOfLease{{ask.bytes}, ask.lease}, ask.returned);
}

std::vector<std::byte> encode(const Lent& lent, std::uint16_t version) {
  const SentLent sent{.lease = lent.lease,
                      .bytes = lent.bytes,
                      .answer = lent.answer,
                      .nodes = lent.nodes,
                      .lendable_bytes = lent.lendable_bytes,
                      .leased_bytes = lent.leased_bytes,
                      .holder = lent.holder,
                      .holder_bytes = lent.holder_bytes,
                      .holder_left_us = lent.holder_left_us};
  if (version < kResizableVersion) return join(sent, {});
  return join(SentLentWithRoom{sent, lent.room}, lent.memory);
}

std::optional<Ask> read_ask(ConstBytes body, std::uint16_t version) {
  if (version < kResizableVersion) {
    const auto sent = read_body<SentAsk>(body);
    return sent ? std::optional(Ask{sent->bytes}) : std::nullopt;
  }
  if (body.size() < sizeof(SentAskOfLease)) return std::nullopt;
  const auto sent = *read_body<SentAskOfLease>(body.first(sizeof(SentAskOfLease)));
  auto returned = read_extents(body.subspan(sizeof(SentAskOfLease)));
  if (!returned) return std::nullopt;
  return Ask{sent.ask.bytes, *std::move(returned), sent.lease};
}

std::optional<Lent> read_lent(ConstBytes body, std::uint16_t version) {
  if (version < kResizableVersion) {
    const auto sent = read_body<SentLent>(body);
    return sent ? std::optional(lent_of(*sent)) : std::nullopt;
  }
  if (body.size() < sizeof(SentLentWithRoom)) return std::nullopt;
  const auto sent = *read_body<SentLentWithRoom>(body.first(sizeof(SentLentWithRoom)));
  auto memory = read_extents(body.subspan(sizeof(SentLentWithRoom)));
  if (!memory) return std::nullopt;
  Lent lent = lent_of(sent.lent);
  lent.room = sent.room;
  lent.memory = *std::move(memory);
  return lent;
}

}  // namespace vmem::rdma::wire
