#include "rdma/transport/stream/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace vmem::rdma::stream {
namespace {

// Bytes that a channel reads or writes before the lane's other channels have their turns. The first
// turn after kIdle without a message to send is longer, so that it holds a page: a reader waits for
// this page alone, while a stream of pages loses nothing by turns of others in between.
constexpr std::size_t kTurnBytes = std::size_t{256} << 10;
constexpr std::size_t kFirstTurnBytes = std::size_t{4} << 20;
constexpr std::chrono::microseconds kIdle{300};
constexpr std::size_t kDropBytes = 64 << 10;
constexpr std::size_t kMostFarewellBytes = kMostHeaderBytes;

std::span<std::byte> bytes_of(Frame& frame) { return std::as_writable_bytes(std::span(&frame, 1)); }

}  // namespace

Channel::Channel(boost::asio::io_context& lane, ChannelOwner& owner, ChannelId id, ByteStream stream)
    : lane_(lane), owner_(owner), id_(id), stream_(std::move(stream)), descriptor_(lane), turn_bytes_(kTurnBytes) {}

void Channel::start() {
  boost::system::error_code none;
  if (!closed_) descriptor_.assign(stream_.descriptor(), none);
  if (none) return fail({VMEM_ERROR_INTERNAL, none.value(), "the socket cannot be waited for: " + none.message()});
  expect(Stage::frame, bytes_of(frame_));
  read();
}

void Channel::fail(Error error) {
  if (std::exchange(broken_, true)) return;
  report(Broken{std::move(error)});
}

// ---- reading ----

void Channel::expect(Stage stage, Bytes target) {
  stage_ = stage;
  target_ = target;
}

void Channel::read() {
  if (reading_) return;
  reading_ = true;
  std::size_t turn = 0;
  Step step = Step::went_on;
  while (step == Step::went_on && turn < kTurnBytes) step = read_some(turn);
  reading_ = false;
  if (step == Step::blocked) return wait_readable();
  if (step == Step::went_on) post_turn();
}

// Adds the number of bytes read to `turn`.
Channel::Step Channel::read_some(std::size_t& turn) {
  if (broken_ || closed_ || paused_ || stage_ == Stage::waiting) return Step::stopped;
  if (stage_ == Stage::skipping) target_ = Bytes(dropped_).first(std::min<std::uint64_t>(dropped_.size(), to_skip_));
  if (!target_.empty()) {
    const auto got = stream_.read(target_.first(std::min(target_.size(), kTurnBytes)));
    if (!got) {
      fail(got.error());
      return Step::stopped;
    }
    if (*got == 0) return Step::blocked;
    turn += *got;
    target_ = target_.subspan(*got);
    if (stage_ == Stage::skipping) to_skip_ -= *got;
    if (!target_.empty()) return Step::went_on;
  }
  switch (stage_) {
    case Stage::frame:
      return on_frame();
    case Stage::header:
      return on_header();
    case Stage::skipping:
      if (to_skip_ == 0) expect(Stage::frame, bytes_of(frame_));
      return Step::went_on;
    case Stage::payload:
      expect(Stage::frame, bytes_of(frame_));
      report(Landed{});
      return Step::went_on;
    case Stage::waiting:
      break;
  }
  return Step::stopped;
}

Channel::Step Channel::on_frame() {
  const bool known = frame_.kind == Frame::Kind::message || frame_.kind == Frame::Kind::farewell;
  if (!known || frame_.header_bytes > kMostHeaderBytes || frame_.payload_bytes > kMostPayloadBytes ||
      frame_.reserved != 0) {
    fail({VMEM_ERROR_INVALID_VALUE, 0, "the peer sent a frame that cannot be: run the same release on both nodes"});
    return Step::stopped;
  }
  header_.resize(frame_.header_bytes);
  expect(Stage::header, header_);
  return Step::went_on;
}

Channel::Step Channel::on_header() {
  if (frame_.kind == Frame::Kind::farewell) {
    report(Farewell{{reinterpret_cast<const char*>(header_.data()), header_.size()}});
    broken_ = true;  // a farewell is the last frame
    return Step::stopped;
  }
  if (frame_.payload_bytes == 0) {
    report(Arrived{std::exchange(header_, {})});
    expect(Stage::frame, bytes_of(frame_));
    return Step::went_on;
  }
  stage_ = Stage::waiting;
  report(Announced{std::exchange(header_, {}), frame_.payload_bytes});
  return stage_ == Stage::waiting ? Step::stopped : Step::went_on;
}

void Channel::take(Bytes destination) {
  if (stage_ != Stage::waiting) return;
  expect(Stage::payload, destination);
  read();
}

void Channel::skip() {
  if (stage_ != Stage::waiting) return;
  dropped_.resize(kDropBytes);
  to_skip_ = frame_.payload_bytes;
  stage_ = Stage::skipping;
  read();
}

void Channel::resume() {
  if (!std::exchange(paused_, false)) return;
  read();
}

// resume() may read while a wait or turn from before the pause is pending: a second is not needed.
// The flags are set last, since both calls may throw std::bad_alloc. Neither call runs its handler
// before it returns.
void Channel::wait_readable() {
  if (awaits_bytes_) return;
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& code) {
                           self->awaits_bytes_ = false;
                           if (!code) self->read();
                         });
  awaits_bytes_ = true;
}

void Channel::post_turn() {
  if (turn_posted_) return;
  boost::asio::post(lane_, [self = shared_from_this()] {
    self->turn_posted_ = false;
    self->read();
  });
  turn_posted_ = true;
}

// ---- writing ----

void Channel::send(Outgoing outgoing) {
  if (broken_ || closed_) return;  // the end of the link fails this send
  if (!writing_ && Clock::now() - last_send_ >= kIdle) turn_bytes_ = kFirstTurnBytes;
  queue_.push_back(std::move(outgoing));
  if (!writing_) write();
}

void Channel::begin(const Outgoing& outgoing) {
  Frame frame{.kind = outgoing.kind, .header_bytes = static_cast<std::uint16_t>(outgoing.header.size())};
  for (const ConstBytes span : outgoing.payload) frame.payload_bytes += span.size();
  prefix_.resize(sizeof(frame) + outgoing.header.size());
  std::memcpy(prefix_.data(), &frame, sizeof(frame));
  if (!outgoing.header.empty())
    std::memcpy(prefix_.data() + sizeof(frame), outgoing.header.data(), outgoing.header.size());
  pieces_.assign({ConstBytes(prefix_)});
  pieces_.insert(pieces_.end(), outgoing.payload.begin(), outgoing.payload.end());
}

// False: the socket would block. True with a non-empty queue: the turn is over.
Result<bool> Channel::write_some() {
  const std::size_t most = std::exchange(turn_bytes_, kTurnBytes);
  std::size_t turn = 0;
  while (!queue_.empty()) {
    if (pieces_.empty()) begin(queue_.front());
    while (!pieces_.empty()) {
      if (turn == most) return true;
      VMEM_ASSIGN(std::size_t taken, stream_.write(pieces_, most - turn));
      turn += taken;
      if (taken == 0) {
        VMEM_ASSIGN(const bool flushed, stream_.flush());
        if (!flushed || !stream_.is_encrypted()) return false;
        continue;
      }
      auto piece = pieces_.begin();
      for (; piece != pieces_.end() && taken >= piece->size(); ++piece) taken -= piece->size();
      pieces_.erase(pieces_.begin(), piece);
      if (taken != 0) pieces_.front() = pieces_.front().subspan(taken);
    }
    // TLS copies: the payload memory is free before the socket has taken the encrypted bytes.
    if (queue_.front().id != SendId{}) report(Written{queue_.front().id});
    queue_.pop_front();
    last_send_ = Clock::now();
  }
  return stream_.flush();
}

void Channel::write() {
  if (broken_ || closed_) return;
  writing_ = true;
  const auto done = write_some();
  if (!done) {
    writing_ = false;
    return fail(done.error());
  }
  if (!*done) return wait_writable();
  writing_ = !queue_.empty();
  if (writing_) boost::asio::post(lane_, [self = shared_from_this()] { self->write(); });
}

void Channel::wait_writable() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& code) {
                           if (!code) self->write();
                         });
}

void Channel::close(std::string farewell) {
  if (std::exchange(closed_, true)) return;
  // Only between messages: inside a message the peer would read the farewell as message bytes.
  if (!farewell.empty() && !broken_ && pieces_.empty()) {
    farewell.resize(std::min(farewell.size(), kMostFarewellBytes));
    const auto text = std::as_bytes(std::span(farewell));
    queue_.clear();
    queue_.push_back({.kind = Frame::Kind::farewell, .header = {text.begin(), text.end()}, .payload = {}});
    (void)write_some();  // best effort: the peer also sees the end of the connection
  }
  broken_ = true;
  queue_.clear();
  pieces_.clear();
  if (descriptor_.is_open()) descriptor_.release();
  stream_.shut();
  report(Closed{});
}

}  // namespace vmem::rdma::stream
