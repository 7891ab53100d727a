// Requests to lenders that wait for an answer. Each has a deadline. A request ends once it is
// answered or no answer can come, and the transport no longer uses its memory.
//
// Thread: the tier's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/page_job.hpp"

namespace vmem::rdma {

struct Request {
  wire::Kind kind = wire::Kind::ping;
  std::uint32_t node = 0;
  PeerId peer{};  // the connection to the node
  PageJobRef job = nullptr;
  std::size_t copy = 0;
  Bytes destination = {};  // of a fetch
  std::uint64_t deadline_us = 0;
  SendId sending{};      // set: the payload's memory is in use
  bool landing = false;  // the destination is in use
  std::optional<wire::Answer> answer = std::nullopt;
  std::optional<wire::Lent> lent = std::nullopt;  // the answer to an allocate
  bool broken = false;                            // no answer will come

  bool is_open() const { return !answer && !broken; }
};

class Requests {
 public:
  enum class Reply : std::uint8_t { expected, none };

  Requests(Transport& transport, const Clock& clock, NodeIdentity self, std::uint64_t request_us)
      : transport_(transport), clock_(clock), self_(self), request_us_(request_us) {}

  // False, with a log line that names the address: not sent. The request then is not kept.
  bool send(Request request, Reply reply, const std::string& address, ConstBytes body, Bytes payload = {});
  // The next one that ended, in that order.
  std::optional<Request> next_ended();
  void clear();

  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes);
  // A message with a token has arrived. False: its request is unknown.
  bool landed(std::uint64_t token);
  // False: not an answer to a request over that connection.
  bool answered(PeerId peer, const wire::Parsed& message);
  void receive_failed(std::uint64_t token);
  void sent(SendId id);
  void send_failed(SendId id);
  // The connection to the node is gone.
  void break_all(std::uint32_t node);

  // Visits the nodes of requests whose deadline has passed; a node may come more than once.
  template <class Visit>
  void for_late(Visit visit) const {
    const std::uint64_t now = clock_.now_us();
    for (const auto& [sequence, request] : open_) {
      if (request.deadline_us > now) break;  // in deadline order
      if (request.is_open()) visit(request.node);
    }
  }

 private:
  using Open = std::map<std::uint64_t, Request>;
  void settle(Open::iterator request);

  Transport& transport_;
  const Clock& clock_;
  const NodeIdentity self_;
  const std::uint64_t request_us_;
  LogLimit unsent_;
  Open open_;                              // by sequence
  std::map<SendId, std::uint64_t> sends_;  // to sequence in open_
  std::uint64_t last_sequence_ = 0;
  std::deque<Request> ended_;
};

}  // namespace vmem::rdma
