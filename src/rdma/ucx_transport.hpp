// The Transport over UCX. Its workers are used by the thread that progresses; other threads hand it commands.
//
// A peer is reached by active messages over an endpoint that fails alone (error handling mode PEER). Payloads travel by rendezvous,
// into memory that the receiver claimed. The TCP connection of the handshake stays open beside it: UCX may never report that a
// peer behind shared memory was killed, the kernel does within a millisecond.
//
// Each link has a worker of its own. When a link fails, for whatever reason, it is marked; progress() destroys its worker outside of
// UCX's callbacks, which ends all that was under way and closes its connections, and says that the peer is gone. With a worker for
// all links, UCX 1.13 keeps the TCP connections of endpoints that were closed by force, and uses some after they were freed.
#pragma once

#include <mutex>

#include "rdma/deadlines.hpp"
#include "rdma/event_queue.hpp"
#include "rdma/lobby.hpp"
#include "rdma/slab_map.hpp"
#include "rdma/ucx.hpp"
#include "rdma/ucx_link.hpp"

namespace vmem::rdma {

class UcxTransport final : public Transport {
 public:
  static Result<std::unique_ptr<UcxTransport>> create(UcxConfig config);
  ~UcxTransport() override;

  const std::string& address() const noexcept override { return lobby_->address(); }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override;
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override;
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override;
  void poll(std::vector<Event>& events) override { events_.take(events); }
  bool wait(std::uint64_t most_us) override { return events_.wait(most_us); }
  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override;

 private:
  struct Connect {
    PeerId peer;
    SocketAddress address;
    std::uint64_t deadline_us;
  };
  struct Close {
    PeerId peer;
  };
  using Command = std::variant<Connect, Close, std::unique_ptr<UcxSend>>;

  explicit UcxTransport(UcxConfig config) : config_(std::move(config)) {}
  Status start();
  Status watch(int descriptor, std::uint64_t key);
  Status check_header_room() const;

  // Posting (ucx_transport.cpp).
  Result<std::unique_ptr<UcxSend>> prepare(const Send& send);
  void post(std::vector<Command> commands);
  bool take_commands();
  void run(Connect command);
  void run(Close command);
  void run(std::unique_ptr<UcxSend> send);

  // Links (ucx_links.cpp).
  Result<Entrance> open_entrance() const;
  bool progress_workers();
  bool arm_workers();
  bool check_sockets();
  bool advance_lobby();
  void admit(Lobby::Outcome outcome);
  void establish(UcxLink& link, Lobby::Outcome outcome);
  Status open_worker(UcxLink& link);
  void greet(UcxLink& link);
  void on_connected(UcxLink& link);
  void read_socket(UcxLink& link);
  void fail_link(UcxLink& link, Reason reason, Error error);
  static void on_endpoint_error(void* link, ucp_ep_h endpoint, ucs_status_t status);
  void lose_link(UcxLink& link, ucs_status_t status);
  void end_link(UcxLink& link);
  void end_worker(UcxLink& link);
  bool settle();
  bool expire();
  UcxLink* find(PeerId peer);

  // Messages (ucx_messages.cpp).
  void start_send(UcxSend& send);
  void end_send(UcxSend& send, ucs_status_t status);
  static ucs_status_t on_message(void* link, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t take_message(UcxLink& link, ConstBytes bytes, void* data, std::size_t payload_bytes, bool rendezvous);
  bool proves_itself(UcxLink& link, ConstBytes bytes, const Opened& opened) const;
  ucs_status_t take_payload(UcxLink& link, ConstBytes header, void* data, std::size_t bytes, bool rendezvous);
  ucs_status_t start_receive(UcxLink& link, ConstBytes header, const Claim& claim, void* descriptor);
  void end_receive(UcxReceive& receive, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* send);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* receive);

  // Constant after start().
  const UcxConfig config_;
  CryptoRef crypto_;
  UcxContextRef context_;
  FileDescriptor epoll_, wakeup_;

  // With locks of their own.
  SlabMap slabs_;
  EventQueue events_;

  std::mutex mutex_;
  std::vector<Command> commands_;                        // protected by mutex_
  bool idle_ = false;                                    // protected by mutex_: a post has to write to wakeup_
  std::unordered_map<PeerId, std::size_t> outstanding_;  // protected by mutex_: of the peers there are
  std::uint64_t last_peer_ = 0, last_send_ = 0;          // protected by mutex_

  // The progressing thread's.
  std::unique_ptr<Lobby> lobby_;
  std::unordered_map<PeerId, std::unique_ptr<UcxLink>> links_;
  std::vector<UcxLink*> failed_;
  Deadlines deadlines_;
  std::vector<Lobby::Outcome> outcomes_;
  std::uint64_t turns_ = 0;
  bool sockets_due_ = true;
};

}  // namespace vmem::rdma
