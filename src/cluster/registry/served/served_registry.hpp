// A Registry that another node keeps: the client of RegistryServer (protocol.hpp).
//
// Each message is repeated until it is answered or the request's deadline has passed. What needs
// many messages has the whole time after each. A commit or
// a grant ends in TIMEOUT when its session is lost, by a restart of the server for example: it is
// not sent in another session, because it may have been carried out in that one.
//
// Pure but for the clock and the channel. The owner calls poll() when the channel has answers, and
// when it is due.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "cluster/registry/registry.hpp"
#include "cluster/registry/served/protocol.hpp"
#include "cluster/registry/served/request_channel.hpp"

namespace vmem::cluster {

class ServedRegistry final : public Registry {
 public:
  struct Setup {
    std::string cluster;
    std::uint64_t client = 0;                                 // random, another one in each process
    std::uint64_t try_us = 250'000, most_try_us = 2'000'000;  // until a message is repeated
    std::uint64_t timeout_us = 8'000'000;                     // since a request's last progress
  };

  // The clock and the channel outlive this. Errors: INVALID_OPTION for a name that no cluster has.
  static Result<std::unique_ptr<ServedRegistry>> create(const Clock& clock, RequestChannel& channel, Setup setup);

  RequestId post(RegistryRequest request) override;
  void poll(std::vector<Reply>& replies) override;

  std::uint64_t next_due_us() const noexcept;  // of poll(); UINT64_MAX: when there are answers
  // The latest run of the server that is known; 0: none. Leases and, if the server keeps nothing,
  // records end with a run.
  std::uint64_t incarnation() const noexcept { return static_cast<std::uint64_t>(incarnation_); }

 private:
  // When to send a message, and how long to wait then.
  struct Repeat {
    std::uint64_t due_us = 0, wait_us = 0;
  };
  struct Call {
    RegistryRequest request;
    std::uint64_t deadline_us = 0;
    Repeat repeat;
    // Of a write, and where its next piece begins.
    std::string bytes;
    served::SessionId session;  // number 0: not sent yet
    std::uint64_t order = 0;
    std::size_t offset = 0;
    // Of a reading: what has come, as of one revision.
    std::string pages;
    Revision revision{};
    std::size_t furthest = 0;  // of what has come, or was taken
    std::string trouble;       // the last one, for messages
  };
  using Calls = std::map<RequestId, Call>;

  ServedRegistry(const Clock& clock, RequestChannel& channel, Setup setup)
      : clock_(clock), channel_(channel), setup_(std::move(setup)) {}

  void ask(std::uint64_t number, decltype(served::Question::what) what);
  void ask_open();
  void ask(RequestId id, const Call& call);
  void ask_now(RequestId id, Call& call);
  void go_on(RequestId id, Call& call, std::size_t done);
  static bool waits(const Call& call);  // for a session, or for its turn
  bool may_start(const Call& call) const;
  void start_writes();

  void handle(const std::string& message);
  bool is_current(const served::Answer& answer);
  void restarted(served::Incarnation incarnation);
  void handle_open(const served::Answer& answer);
  void take(Calls::iterator at, const served::Taken& taken);
  void take(Calls::iterator at, const served::Page& page);
  void take(Calls::iterator at, const served::Outcome& outcome);
  void take(Calls::iterator at, const served::Declined& declined);
  void take(Calls::iterator at, const served::NoSession&);
  void take(Calls::iterator, const served::Opened&) {}
  void finish_reading(Calls::iterator at);

  void step();
  bool is_due(Repeat& repeat) const;
  Calls::iterator expire(Calls::iterator at);
  Calls::iterator end(Calls::iterator at, Revision revision, decltype(Reply::what) what);
  Calls::iterator refuse(Calls::iterator at, vmem_status status, const std::string& why);

  const Clock& clock_;
  RequestChannel& channel_;
  const Setup setup_;

  Calls calls_;
  std::vector<Reply> replies_;
  std::uint64_t last_id_ = 0;
  served::Incarnation incarnation_{};
  served::SessionId session_;  // number 0: none
  served::SessionId last_session_;
  std::uint64_t last_order_ = 0;
  Repeat open_;          // wait_us 0: no session is being opened
  std::string trouble_;  // the last one that concerns no single request
};

}  // namespace vmem::cluster
