#include "tiers/io/pieces.hpp"

#include <cerrno>
#include <utility>

namespace vmem::tiers {

Pieces::Pieces(IoQueue& queue) : queue_(queue), under_way_(queue.depth()) {
  for (std::uint32_t tag = queue.depth(); tag > 0; --tag) free_tags_.push_back(tag - 1);
}

void Pieces::push(const Piece& piece) {
  const std::uint32_t tag = free_tags_.back();
  free_tags_.pop_back();
  under_way_[tag] = piece;
  under_way_[tag].io.tag = tag;
  queue_.push(under_way_[tag].io);
}

std::optional<Pieces::Piece> Pieces::next_to_go_on() {
  if (!room() || again_.empty()) return std::nullopt;
  const Piece piece = again_.front();
  again_.pop_front();
  return piece;
}

std::optional<Pieces::Ended> Pieces::ended(const IoResult& result) {
  Piece piece = under_way_[result.tag];
  free_tags_.push_back(std::uint32_t(result.tag));
  if (result.result == -EINTR || result.result == -EAGAIN) {
    again_.push_back(piece);
    return std::nullopt;
  }
  if (result.result < 0) return Ended{piece, int(-result.result), false};
  if (result.result >= piece.needed) return Ended{piece, 0, false};
  const std::uint64_t moved = std::uint64_t(result.result) / kBlockBytes * kBlockBytes;
  if (moved == 0) return Ended{piece, 0, true};
  piece.io.advance(std::uint32_t(moved));
  piece.needed -= std::uint32_t(moved);
  again_.push_back(piece);
  return std::nullopt;
}

std::deque<Pieces::Piece> Pieces::give_up() { return std::exchange(again_, {}); }

}  // namespace vmem::tiers
