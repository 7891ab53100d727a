// Replies by request. A repeated request, after a lost or late reply, gets the same reply and is
// not carried out again. A request of an ended epoch or an old sequence is stale. Pure; the caller
// locks.
//
// A client has at most `window` requests without a reply, so older ones are over: the client has
// the reply or no longer waits. The caller forgets clients that are no longer members, which
// bounds their number.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "rdma/node/wire.hpp"

namespace vmem::rdma {

class ReplyCache {
 public:
  enum class Verdict : std::uint8_t {
    carry_out,  // new; answered() or abandoned() must follow
    under_way,  // in flight: its reply is still to come; drop this one
    answered,   // reply() returns the reply to send again
    stale,      // of an earlier epoch or too old
  };

  explicit ReplyCache(std::uint64_t window = 1024) : window_(window) {}

  Verdict arrived(const wire::RequestId& request);
  // The request was carried out. No effect if its epoch or the window has moved past it.
  void answered(const wire::RequestId& request, std::vector<std::byte> reply);
  // The request was not carried out; a repetition counts as new.
  void abandoned(const wire::RequestId& request);
  // For a request with the verdict `answered`: valid until the next call. Otherwise empty.
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
    std::map<std::uint64_t, Entry> entries;  // by sequence; newest - window_ < sequence <= newest
  };
  bool too_old(const Client& client, std::uint64_t sequence) const noexcept {
    return client.newest >= window_ && sequence <= client.newest - window_;
  }
  const Entry* find(const wire::RequestId& request) const;

  const std::uint64_t window_;
  std::unordered_map<std::uint64_t, Client> clients_;
};

}  // namespace vmem::rdma
