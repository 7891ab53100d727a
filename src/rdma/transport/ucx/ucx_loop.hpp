// One thread's part of a UcxTransport: its workers, and the messages over them. Other threads post
// commands; the loop reports events to its owner.
//
// A failed or stopped channel is no longer progressed. On UcxEnd the loop destroys the channel's
// worker, outside UCX's callbacks; this ends all operations in flight and closes its connections.
#pragma once

#include <functional>
#include <variant>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "rdma/transport/deadlines.hpp"
#include "rdma/transport/inbox.hpp"
#include "rdma/transport/progressable.hpp"
#include "rdma/transport/slab_map.hpp"
#include "rdma/transport/ucx/ucx_channel.hpp"

namespace vmem::rdma {

// ---- commands ----
struct UcxOpen {
  std::unique_ptr<UcxChannel> channel;  // with its worker
  std::vector<std::byte> address;       // of the peer's worker
  bool greets = false;                  // sends a greeting, which the peer answers
  FileDescriptor socket;                // duplicate of the link's; readable only if the peer leaves
};
struct UcxStop {  // no more progress of the channel; answered by UcxStopped
  PeerId peer{};
};
struct UcxEnd {  // of a stopped channel; answered by UcxEnded
  PeerId peer{};
  UcxFailure failure;
};
struct UcxTake {  // receives an announced payload
  PeerId peer{};
  void* descriptor = nullptr;
  std::vector<std::byte> header;
  Claim claim;
};
struct UcxRefuse {
  PeerId peer{};
  void* descriptor = nullptr;
};
using UcxCommand = std::variant<UcxOpen, UcxStop, UcxEnd, UcxTake, UcxRefuse, std::unique_ptr<UcxSend>>;

// ---- reports ----
struct UcxConnected {
  PeerId peer{};
};
struct UcxAnnounced {
  PeerId peer{};
  std::uint32_t index = 0;  // of the channel
  std::vector<std::byte> header;
  std::uint64_t payload_bytes = 0;
  std::vector<std::byte> payload;  // a small payload; for a large one, see
  void* descriptor = nullptr;
};
struct UcxFailed {
  PeerId peer{};
  UcxFailure failure;
};
struct UcxStopped {
  PeerId peer{};
};
struct UcxEnded {
  PeerId peer{};
};
using UcxReport = std::variant<UcxConnected, UcxAnnounced, UcxFailed, UcxStopped, UcxEnded>;

// Called on the loop's thread.
class UcxLoopOwner {
 public:
  virtual void report(UcxReport report) = 0;
  virtual void tell(Event event) = 0;
  // True if so many reports and events are pending that the loop should receive no more.
  virtual bool full() = 0;

 protected:
  ~UcxLoopOwner() = default;
};

class UcxLoop final : public Progressable {
 public:
  // All must outlive the loop.
  struct Config {
    UcxLoopOwner* owner = nullptr;
    CryptoRef crypto;
    UcxContextRef context;
    const Clock* clock = nullptr;
    const SlabMap* slabs = nullptr;
    std::function<void()> enter_thread = {};  // see UcxGpuMemory; empty: there is none
  };
  static Result<std::unique_ptr<UcxLoop>> create(Config config);

  // Any thread. Keeps the order of posts.
  void post(UcxCommand command) { inbox_.post(std::move(command)); }

  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override { inbox_.wake(); }
  // The part of progress() that runs posted commands; does not progress UCX.
  bool carry_out();
  // For owners that wait for several descriptors: while armed, descriptor() is readable when there
  // is work. False: there is work now.
  bool arm();
  void disarm() { inbox_.disarm(); }
  int descriptor() const noexcept { return epoll_.get(); }

 private:
  explicit UcxLoop(Config config) : config_(std::move(config)) {}
  const Ucx& ucx() const noexcept { return config_.context->ucx(); }

  // Channels (ucx_loop.cpp).
  void run(UcxOpen command);
  void run(const UcxStop& command);
  void run(const UcxEnd& command);
  void run(UcxTake command);
  void run(UcxRefuse command);
  void run(std::unique_ptr<UcxSend> send);
  UcxChannel* find(PeerId peer);
  Status connect(UcxChannel& channel, ConstBytes address);
  void greet(UcxChannel& channel);
  void on_connected(UcxChannel& channel);
  bool progress_workers();
  bool may_progress(UcxChannel& channel);
  bool expire();
  void fail_channel(UcxChannel& channel, Reason reason, Error error);
  void lose_channel(UcxChannel& channel, ucs_status_t status);
  static void on_endpoint_error(void* channel, ucp_ep_h endpoint, ucs_status_t status);

  // Messages (ucx_messages.cpp).
  void start_send(UcxSend& send);
  void end_send(UcxSend& send, ucs_status_t status);
  void send_over(UcxSend& send, const UcxFailure* failure);
  static ucs_status_t on_message(void* channel, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t take_message(UcxChannel& channel, ConstBytes bytes, void* data, std::size_t payload_bytes,
                            bool rendezvous);
  bool proves_itself(UcxChannel& channel, ConstBytes bytes, const Opened& opened);
  void dropped(const UcxChannel& channel, const std::string& why);
  void end_receive(UcxReceive& receive, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* send);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* receive);

  const Config config_;
  FileDescriptor epoll_;
  Inbox<UcxCommand> inbox_;

  // Only for the loop's thread.
  std::unordered_map<PeerId, std::unique_ptr<UcxChannel>> channels_;
  Deadlines deadlines_;
  LogLimit dropped_;
  bool entered_ = false;   // enter_thread was called
  bool reported_ = false;  // this progress() made a report that may lead to commands
};

}  // namespace vmem::rdma
