// What was answered to whom: a request that comes again, because its reply was lost or late, gets the same reply and is not carried
// out again; one of an epoch or a sequence that is over is stale. Pure; the caller locks.
//
// A client has at most `window` requests without a reply. So what is older than its newest by more than that is over: the client
// has the reply, or has given up. Clients are members, so their number is bounded; who is none any more is forgotten by the caller.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "rdma/wire.hpp"

namespace vmem::rdma {

class ReplyCache {
 public:
  enum class Verdict : std::uint8_t {
    carry_out,  // new; answered() or abandoned() follows
    under_way,  // being carried out: its reply will go out then, drop this one
    answered,   // reply() has what to send again
    stale,      // of an earlier epoch, or too old
  };

  explicit ReplyCache(std::uint64_t window = 1024) : window_(window) {}

  Verdict arrived(const wire::RequestId& request);
  // It was carried out. If it is not under way any more (its client's epoch ended, or its window went on), nothing.
  void answered(const wire::RequestId& request, std::vector<std::byte> reply);
  // It was not carried out: when it comes again, it is new.
  void abandoned(const wire::RequestId& request);
  // Of a request with the verdict `answered`; valid until the next call. Empty for all others.
  ConstBytes reply(const wire::RequestId& request) const;
  void forget(std::uint64_t client);
  std::size_t clients() const noexcept { return clients_.size(); }

 private:
  struct Entry {
    bool done = false;
    std::vector<std::byte> reply;
  };
  struct Client {
    Epoch epoch{};
    std::uint64_t newest = 0;
    std::map<std::uint64_t, Entry> entries;  // by sequence, newest - window_ < sequence <= newest
  };
  bool too_old(const Client& client, std::uint64_t sequence) const noexcept {
    return client.newest >= window_ && sequence <= client.newest - window_;
  }
  const Entry* find(const wire::RequestId& request) const;

  const std::uint64_t window_;
  std::unordered_map<std::uint64_t, Client> clients_;
};

}  // namespace vmem::rdma
