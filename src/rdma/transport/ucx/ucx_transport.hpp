// The Transport over UCX.
//
// Messages are active messages over endpoints with error handling mode PEER, which fail separately.
// Payloads use rendezvous, into memory that the receiver claimed. The authenticated connection
// (Admission) stays open beside them: UCX may never report that a peer over shared memory was
// killed; the kernel does within a millisecond.
//
// A peer has one or several channels, each with its own UCX worker. With one worker for all peers,
// UCX 1.13 keeps the TCP connections of endpoints closed by force, and uses some after it has freed
// them. The thread that progresses the transport also progresses a single channel. Several
// channels, at most one per UcxLoop, have a thread each; then the progressing thread only connects,
// claims and closes. A message uses the channel with the fewest bytes in flight. Two nodes use
// the smaller of their numbers of channels.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "rdma/transport/event_queue.hpp"
#include "rdma/transport/inbox.hpp"
#include "rdma/transport/progress_thread.hpp"
#include "rdma/transport/ucx/ucx.hpp"
#include "rdma/transport/ucx/ucx_introductions.hpp"

namespace vmem::rdma {

class UcxTransport final : public Transport, private UcxLoopOwner {
 public:
  static Result<std::unique_ptr<UcxTransport>> create(UcxConfig config);
  ~UcxTransport() override;

  const std::string& address() const noexcept override { return admission_->address(); }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override;
  bool sends_gpu_memory() const noexcept override { return config_.gpu.has_value(); }
  Result<std::unique_ptr<Slab>> register_gpu_slab(Bytes memory) override;
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override;
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override { inbox_.post(Close{peer}); }
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
  Result<std::unique_ptr<Slab>> add_slab(Bytes memory, Result<UcxMemory> mapped);
  void enter_thread() const;
  Status start();
  Status open_loops();
  Status start_admission();
  Status check_header_room() const;
  std::span<const std::unique_ptr<UcxLoop>> own_loops() const;

  // Called by loops, on their threads.
  void report(UcxReport report) override { inbox_.post(std::move(report)); }
  void tell(Event event) override;
  bool full() override;

  // Thread: the progressing one.
  bool take_commands();
  void run(const Connect& command);
  void run(Close command) { links_->close(command.peer); }
  void run(std::unique_ptr<UcxSend> send) { links_->send(std::move(send)); }
  void run(UcxReport report) { links_->handle(std::move(report)); }
  bool check_sockets();

  // Constant after start().
  const UcxConfig config_;
  CryptoRef crypto_;
  std::shared_ptr<TlsContext> tls_;  // null: Unix sockets
  UcxContextRef context_;
  UcxPoll poll_;

  // Any thread; internally locked.
  SlabMap slabs_;
  EventQueue events_;
  Inbox<Command> inbox_;
  UcxPeers peers_;
  UcxSender sender_{*this, loops_, slabs_};

  // Only for the progressing thread.
  boost::asio::io_context connections_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> connections_work_{
      connections_.get_executor()};
  boost::asio::posix::stream_descriptor others_{connections_};  // of poll_, for idle(): waits only
  bool waits_for_others_ = false;
  std::unique_ptr<Admission> admission_;
  std::optional<UcxLinks> links_;                  // from start(), like the next
  std::optional<UcxIntroductions> introductions_;  // calls links_
  bool entered_ = false;                           // enter_thread() was called
  std::uint64_t turns_ = 0;
  std::uint64_t told_ = 0;  // events at the last progress()
  bool sockets_due_ = true;

  UcxLoops loops_;                                        // constant after start()
  std::vector<std::unique_ptr<ProgressThread>> threads_;  // of loops_, if there are several
};

}  // namespace vmem::rdma
