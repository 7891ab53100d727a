// Transfers in pieces through an IoQueue: as many under way as it takes, and those that end short go on where they ended.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "tiers/disk/io_queue.hpp"

namespace vmem::tiers {

inline constexpr std::uint64_t kBlockBytes = 4096;  // what direct I/O comes in

class Pieces {
 public:
  struct Piece {
    void* owner = nullptr;
    Io io;                     // `tag` is ours
    std::uint32_t needed = 0;  // bytes that must be moved: fewer than asked for at the end of a file
  };
  struct Ended {
    Piece piece;
    int error = 0;          // errno; 0 if it is whole
    bool short_of = false;  // no error, and nothing more to be had: the file ends before
  };
  explicit Pieces(IoQueue& queue);

  bool room() const { return !free_tags_.empty(); }
  // REQUIRES: room.
  void push(const Piece& piece);
  // Pushes what is left of pieces that ended short, as far as there is room.
  void go_on();
  // What the queue said. Nothing: the piece is to go on.
  std::optional<Ended> ended(const IoResult& result);
  // The queue takes nothing any more: gives out what was to go on.
  std::deque<Piece> give_up();

 private:
  IoQueue& queue_;
  std::vector<Piece> under_way_;  // by tag
  std::vector<std::uint32_t> free_tags_;
  std::deque<Piece> again_;
};

}  // namespace vmem::tiers
