// Sends pieces of transfers through an IoQueue, up to its depth in flight, and continues pieces
// that end short where they ended.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "tiers/io/io_queue.hpp"

namespace vmem::tiers {

inline constexpr std::uint64_t kBlockBytes = 4096;  // granularity of direct I/O

class Pieces {
 public:
  struct Piece {
    void* owner = nullptr;
    Io io;                     // Pieces sets `tag`
    std::uint32_t needed = 0;  // bytes that must be moved: less than io.bytes at the end of a file
  };
  struct Ended {
    Piece piece;
    int error = 0;          // errno; 0: none
    bool short_of = false;  // incomplete without an error: the file ends early
  };
  explicit Pieces(IoQueue& queue);

  bool room() const { return !free_tags_.empty(); }
  // REQUIRES: room().
  void push(const Piece& piece);
  // The rest of a piece that ended short, for push; nothing if there is none or no room.
  std::optional<Piece> next_to_go_on();
  const Piece& under_way(const IoResult& result) const { return under_way_[result.tag]; }
  // Takes a result of the queue. Nothing: the piece will continue or be retried.
  std::optional<Ended> ended(const IoResult& result);
  // For a failed queue: returns and forgets the pieces that were to continue.
  std::deque<Piece> give_up();

 private:
  IoQueue& queue_;
  std::vector<Piece> under_way_;  // by tag
  std::vector<std::uint32_t> free_tags_;
  std::deque<Piece> again_;
};

}  // namespace vmem::tiers
