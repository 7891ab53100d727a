#include "cluster/directory/participant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cluster/directory/region_errors.hpp"

namespace vmem::cluster::directory {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

bool contains(const std::vector<Run>& runs, std::size_t pages) {
  return std::ranges::all_of(runs, [&](const Run& run) { return run.end() <= pages; });
}

template <class Each>
void for_each_page(const Runs& runs, Each&& each) {
  for (const Run& run : runs)
    for (std::uint32_t page = run.first; page < run.end(); ++page) each(page);
}

// The messages that a list of pages needs.
template <class Make>
void in_parts(const Runs& runs, Make&& make) {
  for (std::size_t i = 0; i < runs.size(); i += kMostRuns)
    make(Runs(runs.begin() + std::ptrdiff_t(i), runs.begin() + std::ptrdiff_t(std::min(runs.size(), i + kMostRuns))));
}

}  // namespace

Participant::Participant(const DirectoryConfig& config, Setup setup)
    : config_(config),
      setup_(std::move(setup)),
      region_(setup_.region),
      invited_(!setup_.ticket && is_invitation(setup_.session)),
      pages_(region_.pages),
      last_fetch_(static_cast<std::uint32_t>(setup_.before)),
      listed_(region_.place_of(setup_.self, setup_.session).has_value()) {}

void Participant::begin(const Runs& written) {
  for (Page& page : pages_) page.have = Have::free;
  for_each_page(written, [&](std::uint32_t page) { pages_[page].have = Have::kept; });
  known_ = region_.pages;
  admitted_ = true;
  stage_ = Stage::open;
}

void Participant::say(Body body, Outbox& out) const {
  out.messages.push_back(
      {.to = region_.home,
       .message = {
           .serial = region_.serial, .term = region_.term, .session = setup_.session, .body = std::move(body)}});
}

void Participant::answer(Wanting& want, const SourceRun& run, std::uint64_t round, Outbox& out) {
  const std::uint32_t first = std::max(run.pages.first, want.pages.first);
  const std::uint64_t end = std::min(run.pages.end(), want.pages.end());
  Runs answered;
  for (std::uint32_t page = first; page < end; ++page) {
    if (!want.waits[page - want.pages.first] || round < pages_[page].round) continue;
    want.waits[page - want.pages.first] = false;
    --want.left;
    append(answered, page);
  }
  for (const Run& pages : answered)
    out.events.emplace_back(Answered{.ticket = want.ticket,
                                     .serial = region_.serial,
                                     .run = {.pages = pages, .state = run.state, .nodes = run.nodes},
                                     .fetch = Fetch{++last_fetch_}});
}

// Those that are answered, or all, with an error.
void Participant::end_wants(Outbox& out, const Error* why) {
  std::erase_if(wants_, [&](const Wanting& want) {
    if (want.left != 0 && why == nullptr) return false;
    WantEnded ended{.ticket = want.ticket, .status = {}};
    if (want.left != 0) ended.status = std::unexpected(*why);
    out.events.emplace_back(std::move(ended));
    return true;
  });
}

void Participant::want(Ticket ticket, Run pages, std::uint64_t deadline_us, Outbox& out) {
  const bool right = pages.count != 0 && pages.end() <= pages_.size();
  if (!right || removed_ || stage_ != Stage::open) {
    const std::string why = right ? "it is removed, or not open here" : fmt::format("it has {} pages", pages_.size());
    out.events.emplace_back(
        WantEnded{.ticket = ticket,
                  .status = fail(right ? VMEM_ERROR_LOST : VMEM_ERROR_INVALID_RANGE,
                                 fmt::format("{} pages from page {} of region '{}' were asked for, and {}", pages.count,
                                             pages.first, region_.name, why))});
    return;
  }
  // A node that drops what it has cached without a word asks for it again.
  for (std::uint32_t page = pages.first; page < pages.end() && !config_.keeps_copies; ++page) {
    if (pages_[page].have != Have::cached) continue;
    pages_[page].have = Have::none;
    landed_.erase(page);
  }
  Wanting want{.ticket = ticket,
               .pages = pages,
               .waits = std::vector<bool>(pages.count, true),
               .left = pages.count,
               .deadline_us = deadline_us};
  for (std::uint32_t page = pages.first; page < pages.end(); ++page)
    if (pages_[page].have == Have::free)
      answer(want, {.pages = {.first = page, .count = 1}, .state = PageState::free, .nodes = {}}, UINT64_MAX, out);
  wants_.push_back(std::move(want));
  end_wants(out);
}

bool Participant::arrived(std::uint32_t page, Fetch fetch) {
  Page& entry = pages_[page];
  const bool takes = stage_ == Stage::open || stage_ == Stage::leaving;
  if (!takes || fetch <= setup_.before || static_cast<std::uint32_t>(fetch) <= entry.refused) return false;
  if (entry.have != Have::none) return true;
  entry.have = Have::cached;
  landed_.insert(page);
  return true;
}

void Participant::missing(const Runs& pages, NodeId source, Outbox& out) {
  Runs missed = pages;
  if (source == setup_.self) {
    missed.clear();
    for_each_page(pages, [&](std::uint32_t page) {
      const Have have = page < pages_.size() ? pages_[page].have : Have::none;
      if (have != Have::kept && (have != Have::cached || config_.keeps_copies)) return;
      pages_[page].have = Have::none;
      landed_.erase(page);
      append(missed, page);
    });
  }
  in_parts(missed, [&](Runs part) { say(Missing{.pages = std::move(part), .source = source}, out); });
}

// Bytes on their way to here are not taken, nor are sources that were named before.
void Participant::refuse_late(std::uint32_t page, std::uint64_t round) {
  pages_[page].refused = last_fetch_;
  if (round < pages_[page].round) return;
  pages_[page].round = round;
  pages_[page].said_no = true;
}

// A page that is here already is kept from now on.
bool Participant::promise(std::uint32_t page, std::uint64_t round) {
  Page& entry = pages_[page];
  const bool here = entry.have == Have::cached || entry.have == Have::kept;
  if (!here || round < entry.round) return false;
  entry.have = Have::kept;
  entry.round = round;
  entry.said_no = false;
  return true;
}

void Participant::kept(const KeepWanted& wanted, KeepAnswer answer, Outbox& out) {
  if (wanted.term != region_.term || (stage_ != Stage::open && stage_ != Stage::leaving)) return;
  Runs done, not_done;
  for_each_page(wanted.pages, [&](std::uint32_t page) {
    const auto awaited = fetching_.find(page);
    if (awaited == fetching_.end() || awaited->second != wanted.round) return;
    fetching_.erase(awaited);
    const bool kept = answer == KeepAnswer::yes && promise(page, wanted.round);
    if (!kept) refuse_late(page, wanted.round);
    append(kept ? done : not_done, page);
  });
  const KeepAnswer no = answer == KeepAnswer::yes ? KeepAnswer::no : answer;
  if (!done.empty()) say(Kept{.pages = std::move(done), .round = wanted.round, .answer = KeepAnswer::yes}, out);
  if (!not_done.empty()) say(Kept{.pages = std::move(not_done), .round = wanted.round, .answer = no}, out);
}

bool Participant::drop(const Run& pages) {
  if (pages.end() > pages_.size()) return false;
  const auto begin = pages_.begin() + pages.first, end = begin + pages.count;
  if (std::any_of(begin, end, [](const Page& page) { return page.have == Have::kept; })) return false;
  for (auto page = begin; page != end; ++page)
    if (page->have == Have::cached) page->have = Have::none;
  for (std::uint32_t page = pages.first; page < pages.end(); ++page) landed_.erase(page);
  return true;
}

void Participant::close(Ticket ticket, std::uint64_t deadline_us, std::uint64_t now_us) {
  closing_ = CloseEnded{.ticket = ticket, .serial = region_.serial, .status = {}, .lost = {}};
  close_by_us_ = deadline_us;
  next_us_ = now_us;
  const bool keeps = std::ranges::any_of(pages_, [](const Page& page) { return page.have == Have::kept; });
  const bool leaves = stage_ == Stage::open && !removed_ && keeps;
  stage_ = leaves ? Stage::leaving : Stage::closing;
}

// From here on this node has nothing of the region; the home is told until it has heard it.
void Participant::close_now(Outbox& out) {
  stage_ = Stage::closing;
  next_us_ = 0;
  landed_.clear();
  const Error why = closed(region_);
  end_wants(out, &why);
  end_opening({VMEM_ERROR_LOST, 0, fmt::format("region '{}' was closed before it was open", region_.name)}, out);
  if (closing_) out.events.emplace_back(*std::exchange(closing_, std::nullopt));
}

void Participant::end_opening(const Error& why, Outbox& out) {
  if (setup_.ticket) out.events.emplace_back(OpenEnded{.ticket = *setup_.ticket, .serial = std::unexpected(why)});
  setup_.ticket.reset();
}

void Participant::finish(Status status, Outbox& out) {
  if (stage_ == Stage::over) return;
  stage_ = Stage::over;
  end_opening({VMEM_ERROR_LOST, 0, fmt::format("region '{}' was erased before it was open", region_.name)}, out);
  const Error why = status ? closed(region_) : status.error();
  end_wants(out, &why);
  if (closing_) out.events.emplace_back(*std::exchange(closing_, std::nullopt));
  out.events.emplace_back(PartEnded{region_.serial});
}

std::optional<Error> Participant::end(const Error& why, Outbox& out) {
  Runs kept;
  const bool keeps = !removed_ && (stage_ == Stage::open || stage_ == Stage::leaving);
  for (std::uint32_t page = 0; keeps && page < pages_.size(); ++page)
    if (pages_[page].have == Have::kept) append(kept, page);
  std::optional<Error> loss;
  if (!kept.empty()) loss = left_behind(region_, kept);
  if (closing_ && loss) closing_->status = std::unexpected(*loss);
  end_opening(why, out);
  finish(std::unexpected(why), out);
  return loss;
}

void Participant::handle(const Message& message, std::uint64_t, Outbox& out) {
  if (message.session != setup_.session || message.term != region_.term || stage_ == Stage::over) return;
  std::visit([&](const auto& body) { on(body, out); }, message.body);
}

void Participant::on(const Opened& body, Outbox& out) {
  const bool awaited = stage_ == Stage::opening || (stage_ == Stage::open && reopens_);
  if (!awaited || body.from != known_ || body.to > pages_.size()) return;
  for_each_page(body.free, [&](std::uint32_t page) { pages_[page].have = Have::free; });
  known_ = body.to;
  admitted_ = true;
  next_us_ = 0;
  if (known_ < pages_.size()) return;
  for (std::uint32_t page = 0; reopens_ && page < pages_.size(); ++page)
    if (pages_[page].have == Have::cached) landed_.insert(page);
  reopens_ = false;
  stage_ = Stage::open;
  if (setup_.ticket) out.events.emplace_back(OpenEnded{.ticket = *setup_.ticket, .serial = region_.serial});
  setup_.ticket.reset();
}

void Participant::on(const RefusedBy& body, Outbox& out) {
  if (stage_ == Stage::opening && !admitted_) {
    end_opening(refused(region_, setup_.tenant, body.why), out);
    return close_now(out);  // the record may list this session
  }
  if (body.why == Refusal::removed) on(Removed{}, out);
}

// Of an open region: its home may have admitted this process under its former id, as it had not
// heard of the new one yet, and has dropped that since.
void Participant::on(const Closed&, Outbox& out) {
  if (stage_ == Stage::closing && !listed_) finish({}, out);
  if (stage_ != Stage::open || listed_ || is_invited() || std::exchange(reopens_, true)) return;
  known_ = 0;
  next_us_ = 0;
}

void Participant::on(const Sources& body, Outbox& out) {
  for (const SourceRun& run : body.runs) {
    if (run.pages.end() > pages_.size()) return;
    for (Wanting& want : wants_) answer(want, run, body.round, out);
  }
  end_wants(out);
}

void Participant::on(const Keep& body, Outbox& out) {
  if (stage_ == Stage::opening || !contains(body.pages, pages_.size())) return;
  Runs done, not_done, cached, fetch;
  for_each_page(body.pages, [&](std::uint32_t page) {
    const Page& entry = pages_[page];
    const bool may = config_.keeps_copies || entry.have == Have::kept;
    const bool refused = body.round < entry.round || (body.round == entry.round && entry.said_no);
    if (stage_ != Stage::closing && !refused && !may && entry.have == Have::cached) return append(cached, page);
    if (stage_ == Stage::closing || refused || !may) return append(not_done, page);
    if (promise(page, body.round)) return append(done, page);
    const auto fetching = fetching_.find(page);
    if (fetching != fetching_.end() && fetching->second >= body.round) return;
    fetching_.erase(page);
    if (body.sources.empty()) return append(not_done, page);
    fetching_[page] = body.round;
    append(fetch, page);
  });
  for_each_page(not_done, [&](std::uint32_t page) { refuse_late(page, body.round); });
  const auto say_kept = [&](Runs pages, KeepAnswer said) {
    if (!pages.empty()) say(Kept{.pages = std::move(pages), .round = body.round, .answer = said}, out);
  };
  say_kept(std::move(done), KeepAnswer::yes);
  say_kept(std::move(not_done), KeepAnswer::no);
  say_kept(std::move(cached), KeepAnswer::cached);
  if (!fetch.empty())
    out.events.emplace_back(KeepWanted{.serial = region_.serial,
                                       .pages = std::move(fetch),
                                       .sources = body.sources,
                                       .term = region_.term,
                                       .round = body.round,
                                       .fetch = Fetch{++last_fetch_}});
}

void Participant::on(const Release& body, Outbox& out) {
  if (!contains(body.pages, pages_.size()) || stage_ == Stage::closing) return;
  Runs here, gone, freed;
  for_each_page(body.pages, [&](std::uint32_t page) {
    Page& entry = pages_[page];
    if (body.round < entry.round) return;
    entry.round = body.round;
    entry.said_no = false;
    if (entry.have == Have::kept) {
      entry.have = Have::cached;
      append(freed, page);
    }
    append(entry.have == Have::cached ? here : gone, page);
  });
  if (!here.empty()) say(Landed{.pages = std::move(here), .round = body.round}, out);
  if (!gone.empty()) say(Missing{.pages = std::move(gone), .source = setup_.self, .round = body.round}, out);
  if (!freed.empty()) out.events.emplace_back(ReleaseAllowed{.serial = region_.serial, .pages = std::move(freed)});
}

void Participant::on(const NewTerm& body, Outbox& out) {
  Report report{.from = body.from, .to = body.from, .runs = {}};
  const std::uint64_t end = std::min<std::uint64_t>(pages_.size(), std::uint64_t{body.from} + kMostRange);
  for (; report.to < end; ++report.to) {
    const Have have = stage_ == Stage::closing ? Have::none : pages_[report.to].have;
    if (have == Have::none) continue;
    const bool extends =
        !report.runs.empty() && report.runs.back().have == have && report.runs.back().pages.end() == report.to;
    if (extends) {
      ++report.runs.back().pages.count;
      continue;
    }
    if (report.runs.size() == kMostRuns) break;
    report.runs.push_back({.pages = {.first = report.to, .count = 1}, .have = have});
  }
  say(std::move(report), out);
}

void Participant::on(const LeaveDone& body, Outbox& out) {
  if (stage_ != Stage::leaving || body.from != let_go_ || body.to <= body.from) return;
  std::ranges::copy(body.lost, std::back_inserter(closing_->lost));
  let_go_ = body.to;
  next_us_ = 0;
  if (let_go_ >= pages_.size()) close_now(out);
}

void Participant::on(const Removed&, Outbox& out) {
  if (stage_ == Stage::leaving || (is_invited() && stage_ != Stage::closing)) return close_now(out);
  if (stage_ == Stage::closing || std::exchange(removed_, true)) return;
  const Error why = refused(region_, setup_.tenant, Refusal::removed);
  if (stage_ == Stage::opening) {
    end_opening(why, out);
    return close_now(out);
  }
  end_wants(out, &why);
  out.events.emplace_back(RegionRemoved{region_.serial});
}

void Participant::learn(const RegionRecord* region, Outbox& out) {
  if (stage_ == Stage::over) return;
  const bool ends = stage_ == Stage::closing || (stage_ == Stage::opening && is_invited());
  const std::optional<std::uint32_t> place = region == nullptr ? std::nullopt : region->place_of(setup_.self);
  // The home has invited this node meanwhile, and takes no other session of it.
  if (place && stage_ == Stage::opening && is_invitation(region->participants[*place].session))
    setup_.session = region->participants[*place].session;
  listed_ = region != nullptr && region->place_of(setup_.self, setup_.session);
  if (region == nullptr || (ends && !listed_)) return finish({}, out);
  if (region->term <= region_.term) return;
  region_ = *region;
  next_us_ = 0;
  let_go_ = 0;
  if (closing_) closing_->lost.clear();
  fetching_.clear();
  for (Page& page : pages_) {
    page.round = 0;
    page.said_no = false;
  }
  for (Wanting& want : wants_) want.next_us = 0;
}

bool Participant::step_opening(std::uint64_t now_us, Outbox& out) {
  const std::optional<NoPath> trouble = setup_.no_path ? setup_.no_path(region_.home) : std::nullopt;
  // Who has admitted this node refuses no connection.
  const bool is_refused = !admitted_ && trouble && trouble->refused && trouble->at_us >= setup_.asked_us;
  if (setup_.ticket && (is_refused || now_us >= setup_.deadline_us)) {
    const Error why = unopened(region_, trouble, is_refused);
    end_opening(why, out);
    stage_ = Stage::closing;  // the home may have admitted this node
    return true;
  }
  if (now_us < next_us_) return false;
  next_us_ = now_us + config_.resend_us;
  say(Open{known_}, out);
  return true;
}

bool Participant::step_wants(std::uint64_t now_us, Outbox& out) {
  bool moved = false;
  for (Wanting& want : wants_) {
    if (now_us >= want.deadline_us || now_us < want.next_us) continue;
    want.next_us = now_us + config_.resend_us;
    Runs runs;
    for (std::uint32_t i = 0; i < want.pages.count; ++i)
      if (want.waits[i]) append(runs, want.pages.first + i);
    for (const Run& run : runs) say(Want{run}, out);
    moved = true;
  }
  std::erase_if(wants_, [&](const Wanting& want) {
    if (now_us < want.deadline_us) return false;
    const auto first = std::ranges::find(want.waits, true) - want.waits.begin();
    const std::uint64_t page = want.pages.first + std::uint64_t(first);
    out.events.emplace_back(
        WantEnded{.ticket = want.ticket, .status = std::unexpected(late(region_, setup_.self, page))});
    return moved = true;
  });
  return moved;
}

bool Participant::step_closing(std::uint64_t now_us, Outbox& out) {
  if (stage_ == Stage::closing && closing_) {
    close_now(out);
    return true;
  }
  if (stage_ == Stage::leaving && now_us >= close_by_us_) {
    closing_->status = fail(VMEM_ERROR_TIMEOUT,
                            fmt::format("region '{}' was closed here before its home, node {}, had found other keepers "
                                        "for what this node keeps; some of it may be lost",
                                        region_.name, number(region_.home)));
    close_now(out);
    return true;
  }
  if (now_us < next_us_) return false;
  next_us_ = now_us + config_.resend_us;
  if (stage_ == Stage::leaving)
    say(Leaving{.left_us = close_by_us_ - now_us, .from = let_go_}, out);
  else
    say(Close{}, out);
  return true;
}

bool Participant::step(std::uint64_t now_us, Outbox& out) {
  if (stage_ == Stage::over) return false;
  if (stage_ == Stage::opening) return step_opening(now_us, out);
  bool moved = step_wants(now_us, out);
  if (stage_ == Stage::open && reopens_ && now_us >= next_us_) {
    next_us_ = now_us + config_.resend_us;
    say(Open{known_}, out);
    moved = true;
  }
  if (stage_ == Stage::closing || stage_ == Stage::leaving) moved |= step_closing(now_us, out);
  if (landed_.empty()) return moved;
  Runs landed;
  for (const std::uint32_t page : std::exchange(landed_, {})) append(landed, page);
  in_parts(landed, [&](Runs part) { say(Landed{.pages = std::move(part)}, out); });
  return true;
}

std::uint64_t Participant::due_us() const {
  if (stage_ == Stage::over) return UINT64_MAX;
  std::uint64_t due_us = landed_.empty() ? UINT64_MAX : 0;
  for (const Wanting& want : wants_) due_us = std::min({due_us, want.next_us, want.deadline_us});
  if (stage_ == Stage::opening && setup_.ticket) due_us = std::min(due_us, setup_.deadline_us);
  if (stage_ == Stage::leaving) due_us = std::min(due_us, close_by_us_);
  return stage_ == Stage::open && !reopens_ ? due_us : std::min(due_us, next_us_);
}

}  // namespace vmem::cluster::directory
