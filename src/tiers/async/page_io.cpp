#include "tiers/async/page_io.hpp"

#include <algorithm>
#include <utility>

#include "tiers/io/request_size.hpp"

namespace vmem::tiers {

void PageIo::begin(const Page& page, Ended ended) {
  auto active = std::make_unique<Active>();
  active->page = page;
  active->ended = std::move(ended);
  active->request_bytes = even_request_bytes(page.bytes, page.most_request_bytes);
  sending_.push_back(active.get());
  active_.push_back(std::move(active));
}

void PageIo::send() {
  while (const auto piece = pieces_.next_to_go_on()) pieces_.push(*piece);
  while (pieces_.room() && !sending_.empty()) {
    if (!send_next(*sending_.front())) sending_.pop_front();
  }
}

// False: that was the page's last request.
bool PageIo::send_next(Active& active) {
  const Page& page = active.page;
  const std::uint64_t at = active.sent_bytes;
  Pieces::Piece piece{.owner = &active};
  piece.io.kind = page.kind;
  piece.io.file = page.file;
  piece.io.offset = page.offset + at;
  piece.io.bytes = std::uint32_t(std::min<std::uint64_t>(active.request_bytes, page.bytes - at));
  if (at < page.head_bytes) {
    piece.io.head = page.head + at;
    piece.io.head_bytes = page.head_bytes - std::uint32_t(at);
    piece.io.memory = page.memory;
  } else {
    piece.io.memory = page.memory + (at - page.head_bytes);
  }
  piece.needed = std::uint32_t(std::min<std::uint64_t>(piece.io.bytes, page.needed_bytes - at));
  active.sent_bytes += piece.io.bytes;
  ++active.in_flight;
  pieces_.push(piece);
  return active.sent_bytes < page.bytes;
}

void PageIo::take(const IoResult& result) {
  const auto ended = pieces_.ended(result);
  if (!ended) return;
  Active& active = *static_cast<Active*>(ended->piece.owner);
  if (!active.failure && (ended->error != 0 || ended->short_of)) {
    const auto cause = ended->error != 0 ? Failure::Cause::request : Failure::Cause::file_ended;
    active.failure = {.cause = cause, .io = ended->piece.io, .error = ended->error};
  }
  --active.in_flight;
  end_if_over(active);
}

void PageIo::end_if_over(Active& active) {
  if (active.in_flight != 0 || active.sent_bytes != active.page.bytes) return;
  const auto found = std::ranges::find_if(active_, [&](const auto& each) { return each.get() == &active; });
  const std::unique_ptr<Active> over = std::exchange(*found, std::move(active_.back()));
  active_.pop_back();
  over->ended(std::move(over->failure));
}

void PageIo::queue_failed(const Error& error) {
  const auto give_up = [&](Active& active) {
    active.failure = {.cause = Failure::Cause::queue, .io = {}, .error = 0, .queue = error};
    active.sent_bytes = active.page.bytes;
  };
  for (Active* active : std::exchange(sending_, {})) {
    give_up(*active);
    end_if_over(*active);
  }
  for (const Pieces::Piece& piece : pieces_.give_up()) {
    Active& active = *static_cast<Active*>(piece.owner);
    give_up(active);
    --active.in_flight;
    end_if_over(active);
  }
}

}  // namespace vmem::tiers
