// Moves pages between memory and files over an IoQueue, in requests of about equal size. All
// requests of a page are sent before those of the next, so that the oldest page ends first. A
// request that ends short is continued where it ended.
//
// One thread. Nothing is sent before `send`.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.hpp"
#include "tiers/io/io_queue.hpp"
#include "tiers/io/pieces.hpp"

namespace vmem::tiers {

class PageIo {
 public:
  // A range of a file, and its memory: first `head_bytes` at `head`, then the rest at `memory`.
  // Offset, sizes and memory are multiples of kBlockBytes.
  struct Page {
    Io::Kind kind = Io::Kind::read;
    std::uint32_t file = 0;  // as Io::file
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;         // in all
    std::uint64_t needed_bytes = 0;  // the page fails if fewer move; the file may end there
    std::byte* head = nullptr;
    std::uint32_t head_bytes = 0;
    std::byte* memory = nullptr;
    std::uint32_t most_request_bytes = 0;
  };
  struct Failure {
    enum class Cause : std::uint8_t {
      request,     // it failed with `error`
      file_ended,  // before needed_bytes
      queue,       // it takes no requests; another try is pointless
    };
    Cause cause = Cause::request;
    Io io;             // unless `queue`: the request that failed first
    int error = 0;     // errno
    Error queue = {};  // why the queue failed
  };
  // Called once, when no request of the page is in flight any more. It may begin pages.
  using Ended = std::move_only_function<void(std::optional<Failure>)>;

  explicit PageIo(IoQueue& queue) : pieces_(queue) {}

  void begin(const Page& page, Ended ended);
  // Pushes requests as long as the queue has room.
  void send();
  // Takes a result of the queue.
  void take(const IoResult& result);
  // The queue failed: fails the pages with requests that are unsent or to be continued. The other
  // pages end with their results.
  void queue_failed(const Error& error);

 private:
  struct Active {
    Page page;
    Ended ended;
    std::uint32_t request_bytes = 0;
    std::uint64_t sent_bytes = 0;
    std::uint32_t in_flight = 0;  // requests, including those to be continued
    std::optional<Failure> failure;
  };
  bool send_next(Active& active);
  void end_if_over(Active& active);

  Pieces pieces_;
  std::vector<std::unique_ptr<Active>> active_;
  std::deque<Active*> sending_;  // the active pages with unsent requests
};

}  // namespace vmem::tiers
