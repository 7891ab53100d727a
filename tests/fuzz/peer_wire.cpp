// Messages between processes that lend and borrow GPU memory, with file descriptors attached.
#include "peer/wire.hpp"

#include <array>

#include "fuzz/socket_pair.hpp"

namespace vmem::peer {
namespace {

using fuzz::ConstBytes;
using fuzz::Input;
using fuzz::require;
using fuzz::SocketPair;

ConstBytes bytes_of(const Message& message) { return std::as_bytes(std::span(&message, 1)); }

void send_raw(int socket, ConstBytes bytes, std::size_t descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  if (descriptors != 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    for (std::size_t i = 0; i < descriptors; ++i)
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &socket, sizeof(int));
  }
  require(::sendmsg(socket, &header, MSG_NOSIGNAL) >= 0, "a message can be sent");
}

// The lowest free descriptor number: if it differs afterwards, a descriptor leaked.
int next_descriptor() { return FileDescriptor(::dup(0)).get(); }

void check_again(const Message& message) {
  SocketPair sockets(SOCK_SEQPACKET);
  Outbox outbox;
  outbox.put(message);
  require(outbox.flush(sockets.theirs.get()) && outbox.unsent().empty(), "a message can be sent again");
  const auto received = receive(sockets.ours.get());
  require(received && *received && fuzz::equal(bytes_of((*received)->message), bytes_of(message)),
          "what was received is sent the same");
}

void run(Input& input) {
  SocketPair sockets(SOCK_SEQPACKET);
  for (int i = 0; i < 4 && !input.empty(); ++i) {
    const std::size_t descriptors = input.below(5);
    std::array<std::byte, 2 * sizeof(Message)> bytes{};
    // A message of the right size, unless the input says otherwise.
    const std::size_t size = input.below(4) == 0 ? input.take<std::uint16_t>() % bytes.size() : sizeof(Message);
    const ConstBytes content = input.bytes(size);
    std::ranges::copy(content, bytes.begin());
    send_raw(sockets.theirs.get(), ConstBytes(bytes).first(size), descriptors);
    const auto received = receive(sockets.ours.get());
    if (!received) {
      require(!received.error().message.empty(), "a refusal says why");
      continue;
    }
    require(received->has_value(), "a message that was sent is there");
    const Received& got = **received;
    require(size == sizeof(Message) && fuzz::equal(bytes_of(got.message), ConstBytes(bytes).first(size)),
            "a message is taken as a whole");
    require(bool(got.descriptor) == (descriptors != 0), "a descriptor comes with its message");
    require(got.message.said().size() < got.message.text.size(), "what was said ends");
    check_again(got.message);
  }
}

}  // namespace
}  // namespace vmem::peer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int before = vmem::peer::next_descriptor();
  vmem::fuzz::Input input(data, size);
  vmem::peer::run(input);
  vmem::fuzz::require(vmem::peer::next_descriptor() == before, "no descriptor is left open");
  return 0;
}
