// The Transport over UCX.
//
// A peer is reached by active messages over endpoints that fail alone (error handling mode PEER). Payloads travel by rendezvous,
// into memory that the receiver claimed. The connection on which the peer proved who it is (stream::Admission) stays open beside them: UCX may
// never report that a peer behind shared memory was killed, the kernel does within a millisecond.
//
// A peer has one or several channels, each with a UCX worker of its own: with a worker for all peers, UCX 1.13 keeps the TCP
// connections of endpoints that were closed by force, and uses some after they were freed. One channel is progressed by the thread that
// progresses the transport. Several, at most one for each of the UcxLoops, have a thread each; then that thread only connects, claims
// and closes. A message goes over the channel with the least under way. Two nodes use as many as both have.
//
// When a link fails, for whatever reason, it is marked; progress() has all its channels stopped, says so to the peer, waits until that
// one does not use its channels either, for 100 ms at most, has them ended, and says that the peer is gone when the last one is.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <mutex>

#include "base/log_limit.hpp"
#include "rdma/event_queue.hpp"
#include "rdma/inbox.hpp"
#include "rdma/progress_thread.hpp"
#include "rdma/stream/admission.hpp"
#include "rdma/ucx.hpp"
#include "rdma/ucx_link.hpp"
#include "rdma/ucx_loop.hpp"

namespace vmem::rdma {

class UcxTransport final : public Transport, private UcxLoopOwner {
 public:
  static Result<std::unique_ptr<UcxTransport>> create(UcxConfig config);
  ~UcxTransport() override;

  const std::string& address() const noexcept override { return admission_->address(); }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override;
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override;
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override;
  void poll(std::vector<Event>& events) override { events_.take(events); }
  bool wait(std::uint64_t most_us) override { return events_.wait(most_us); }
  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override { inbox_.wake(); }

 private:
  struct Connect {
    UcxPeerRef peer;
    SocketAddress address;
    std::uint64_t deadline_us;
  };
  struct Close {
    PeerId peer;
  };
  using Command = std::variant<Connect, Close, std::unique_ptr<UcxSend>, UcxReport>;

  explicit UcxTransport(UcxConfig config) : config_(std::move(config)) {}
  Status start();
  Status open_loops();
  Status watch(int descriptor, std::uint64_t key);
  Status start_admission();
  Status check_header_room() const;

  // Posting (ucx_transport.cpp).
  Result<std::unique_ptr<UcxSend>> prepare(const Send& send);
  void dispatch(std::unique_ptr<UcxSend> send);
  void fail_unsent(const UcxSend& send, const UcxFailure& failure);
  bool take_commands();
  void run(const Connect& command);
  void run(Close command);
  void run(std::unique_ptr<UcxSend> send);
  void run(UcxReport report);
  UcxPeerRef add_peer(std::string address, bool by_us);

  // Loops: from their threads.
  void report(UcxReport report) override { inbox_.post(std::move(report)); }
  void tell(Event event) override;
  bool full() override;

  // Links (ucx_links.cpp).
  Status open_workers(UcxLink& link) const;
  bool check_sockets();
  bool advance_admission();
  bool refresh_trust();
  void admit(stream::Admission::Outcome outcome);
  void introduce(UcxLink& link, stream::Admission::Outcome outcome);
  void advance_exchange(UcxLink& link);
  void check_addresses(UcxLink& link);
  void advance_check(UcxLink& link);
  void establish(UcxLink& link);
  void handle(const UcxConnected& connected);
  void handle(UcxAnnounced announced);
  void handle(UcxFailed failed);
  void handle(const UcxStopped& stopped);
  void handle(const UcxEnded& ended);
  void read_socket(UcxLink& link);
  void fail_link(UcxLink& link, Reason reason, Error error);
  void stop_link(UcxLink& link);
  void leave(UcxLink& link);
  void end_leaving(UcxLink& link);
  void end_link(UcxLink& link);
  void forget(UcxLink& link);
  bool settle();
  bool expire();
  UcxLink* find(PeerId peer);

  // Constant after start().
  const UcxConfig config_;
  CryptoRef crypto_;
  std::shared_ptr<TlsContext> tls_;  // null: Unix sockets
  UcxContextRef context_;
  std::optional<UcxAddressChecker> checker_;
  FileDescriptor epoll_;

  // With locks of their own.
  SlabMap slabs_;
  EventQueue events_;
  Inbox<Command> inbox_;

  std::mutex mutex_;
  std::unordered_map<PeerId, UcxPeerRef> peers_;  // protected by mutex_: those that are not gone
  std::uint64_t last_peer_ = 0, last_send_ = 0;   // protected by mutex_

  // The progressing thread's.
  boost::asio::io_context connections_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> connections_work_{
      connections_.get_executor()};
  boost::asio::posix::stream_descriptor others_{connections_};  // epoll_, for idle(): waits only
  bool waits_for_others_ = false;
  std::unique_ptr<stream::Admission> admission_;
  std::uint64_t next_refresh_us_ = 0;
  LogLimit refused_;
  std::unordered_map<PeerId, std::unique_ptr<UcxLink>> links_;
  std::vector<UcxLink*> failed_;  // to be stopped
  std::vector<UcxLink*> left_;    // to be ended
  Deadlines deadlines_;
  std::uint64_t turns_ = 0;
  std::uint64_t told_ = 0;  // events, at the last progress()
  bool sockets_due_ = true;

  std::vector<std::unique_ptr<UcxLoop>> loops_;           // by channel; constant after start()
  std::vector<std::unique_ptr<ProgressThread>> threads_;  // of loops_, if there are several
};

}  // namespace vmem::rdma
