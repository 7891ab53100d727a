#include "cluster/directory/directory_message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <span>
#include <type_traits>
#include <utility>

namespace vmem::cluster::directory {
namespace {

constexpr std::string_view kMark = "VD\x02";
constexpr std::size_t kKinds = std::variant_size_v<Body>;

template <class T>
concept Whole = std::unsigned_integral<T> && !std::same_as<T, bool>;

class Writer {
 public:
  std::string bytes{kMark};

  template <Whole T>
  void operator()(const T& value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes.push_back(char(std::uint8_t(value >> (8 * i))));
  }
  void operator()(const bool& value) { (*this)(std::uint8_t(value)); }
  template <class T>
    requires std::is_enum_v<T>
  void operator()(const T& value) {
    (*this)(static_cast<std::underlying_type_t<T>>(value));
  }
  template <class T>
  void list(const std::vector<T>& values, std::size_t) {
    (*this)(std::uint32_t(values.size()));
    for (const T& each : values) fields(*this, each);
  }
  void at_most(std::uint64_t, std::uint64_t) {}
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool right() const noexcept { return right_; }
  bool done() const noexcept { return right_ && rest_.empty(); }

  template <Whole T>
  void operator()(T& value) {
    std::uint64_t read = 0;
    if (rest_.size() < sizeof(T)) return refuse();
    for (std::size_t i = 0; i < sizeof(T); ++i) read |= std::uint64_t{std::uint8_t(rest_[i])} << (8 * i);
    rest_.remove_prefix(sizeof(T));
    value = T(read);
  }
  void operator()(bool& value) {
    std::uint8_t read = 0;
    (*this)(read);
    at_most(read, 1);
    value = read == 1;
  }
  template <class T>
    requires std::is_enum_v<T>
  void operator()(T& value) {
    std::underlying_type_t<T> read{};
    (*this)(read);
    value = T(read);
  }
  template <class T>
  void list(std::vector<T>& values, std::size_t most) {
    std::uint32_t count = 0;
    (*this)(count);
    at_most(count, most);
    for (std::uint32_t i = 0; i < count && right_; ++i) fields(*this, values.emplace_back());
    if (!right_) values.clear();
  }
  void at_most(std::uint64_t value, std::uint64_t most) {
    if (value > most) refuse();
  }
  void refuse() { right_ = false; }

 private:
  std::string_view rest_;
  bool right_ = true;
};

// Every structure's fields, in order, for both.
void fields(auto& with, auto& node)
  requires std::same_as<std::remove_const_t<std::remove_reference_t<decltype(node)>>, NodeId>
{
  with(node);
  with.at_most(node == NodeId{} ? 1 : 0, 0);
}
template <class T, class Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

void fields(auto& with, Is<Run> auto& run) {
  with(run.first);
  with(run.count);
  with.at_most(run.count == 0 ? 1 : 0, 0);
  with.at_most(run.end(), std::uint64_t{UINT32_MAX});
}
void fields(auto& with, Is<SourceRun> auto& run) {
  fields(with, run.pages);
  with(run.state);
  with.at_most(std::uint64_t(run.state), std::uint64_t(PageState::lost));
  with.list(run.nodes, kMostSources);
}
void fields(auto& with, Is<HaveRun> auto& run) {
  fields(with, run.pages);
  with(run.have);
  with.at_most(std::uint64_t(run.have), std::uint64_t(Have::free));
}
void fields(auto& with, Is<Open> auto& body) { with(body.from); }
void fields(auto& with, Is<Opened> auto& body) {
  with(body.place);
  with.at_most(body.place, kMostParticipants - 1);
  with(body.from);
  with(body.to);
  with.list(body.free, kMostRuns);
}
void fields(auto& with, Is<RefusedBy> auto& body) {
  with(body.why);
  with.at_most(std::uint64_t(body.why), std::uint64_t(Refusal::tenant));
}
void fields(auto&, Is<Close> auto&) {}
void fields(auto&, Is<Closed> auto&) {}
void fields(auto& with, Is<Want> auto& body) { fields(with, body.pages); }
void fields(auto& with, Is<Sources> auto& body) {
  with(body.round);
  with.list(body.runs, kMostRuns);
}
void fields(auto& with, Is<Landed> auto& body) {
  with.list(body.pages, kMostRuns);
  with(body.round);
}
void fields(auto& with, Is<Missing> auto& body) {
  with.list(body.pages, kMostRuns);
  fields(with, body.source);
  with(body.round);
}
void fields(auto& with, Is<Keep> auto& body) {
  with.list(body.pages, kMostRuns);
  with(body.round);
  with.list(body.sources, kMostSources);
}
void fields(auto& with, Is<Kept> auto& body) {
  with.list(body.pages, kMostRuns);
  with(body.round);
  with(body.answer);
  with.at_most(std::uint64_t(body.answer), std::uint64_t(KeepAnswer::cached));
}
void fields(auto& with, Is<Release> auto& body) {
  with.list(body.pages, kMostRuns);
  with(body.round);
}
void fields(auto& with, Is<NewTerm> auto& body) {
  fields(with, body.home);
  with(body.from);
}
void fields(auto& with, Is<Report> auto& body) {
  with(body.from);
  with(body.to);
  with.list(body.runs, kMostRuns);
}
void fields(auto& with, Is<Leaving> auto& body) {
  with(body.left_us);
  with(body.from);
}
void fields(auto& with, Is<LeaveDone> auto& body) {
  with(body.from);
  with(body.to);
  with.list(body.lost, kMostRuns);
}
void fields(auto&, Is<Remove> auto&) {}
void fields(auto&, Is<Removed> auto&) {}
void fields(auto& with, Is<Stale> auto& body) { fields(with, body.home); }

Run run_of(const Run& run) { return run; }
Run run_of(const auto& run) { return run.pages; }

bool ascend(const auto& runs) {
  std::uint64_t end = 0;
  for (const auto& each : runs) {
    if (run_of(each).first < end) return false;
    end = run_of(each).end();
  }
  return true;
}

bool lies_in(const auto& runs, std::uint32_t from, std::uint32_t to) {
  return from <= to && ascend(runs) &&
         (runs.empty() || (run_of(runs.front()).first >= from && run_of(runs.back()).end() <= to));
}

struct Consistent {
  bool operator()(const Opened& body) const { return lies_in(body.free, body.from, body.to); }
  bool operator()(const Report& body) const { return lies_in(body.runs, body.from, body.to); }
  bool operator()(const LeaveDone& body) const { return lies_in(body.lost, body.from, body.to); }
  bool operator()(const Sources& body) const { return ascend(body.runs); }
  bool operator()(const auto& body) const {
    if constexpr (requires { body.pages.size(); }) return ascend(body.pages);
    return true;
  }
};

template <std::size_t... Kind>
void emplace(Body& body, std::size_t kind, std::index_sequence<Kind...>) {
  (void)((Kind == kind && (body.emplace<Kind>(), true)) || ...);
}

std::unexpected<Error> refuse(std::string_view what, std::size_t size) {
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("a message of {} bytes to the directory of regions {}; it is ignored", size, what));
}

}  // namespace

std::string write(const Message& message) {
  Writer writer;
  writer(std::uint8_t(message.body.index()));
  writer(message.serial);
  writer(message.term);
  writer(message.session);
  std::visit([&](const auto& body) { fields(writer, body); }, message.body);
  return std::move(writer.bytes);
}

Result<Message> parse(std::string_view bytes) {
  if (!bytes.starts_with(kMark)) return refuse("has another format", bytes.size());
  Reader reader(bytes.substr(kMark.size()));
  std::uint8_t kind = 0;
  reader(kind);
  if (kind >= kKinds) return refuse(fmt::format("is of the unknown kind {}", kind), bytes.size());
  Message message;
  emplace(message.body, kind, std::make_index_sequence<kKinds>{});
  reader(message.serial);
  reader(message.term);
  reader(message.session);
  std::visit([&](auto& body) { fields(reader, body); }, message.body);
  if (!reader.done() || !std::visit(Consistent{}, message.body))
    return refuse(fmt::format("is damaged ('{}')", kind_name(message)), bytes.size());
  return message;
}

std::string_view kind_name(const Message& message) noexcept {
  static constexpr std::string_view kNames[kKinds] = {
      "open", "opened",  "refused", "close",  "closed",  "want",       "sources", "landed",  "missing", "keep",
      "kept", "release", "newterm", "report", "leaving", "leave_done", "remove",  "removed", "stale"};
  return kNames[message.body.index()];
}

bool is_for_home(const Body& body) {
  return std::holds_alternative<Open>(body) || std::holds_alternative<Close>(body) ||
         std::holds_alternative<Want>(body) || std::holds_alternative<Landed>(body) ||
         std::holds_alternative<Missing>(body) || std::holds_alternative<Kept>(body) ||
         std::holds_alternative<Report>(body) || std::holds_alternative<Leaving>(body) ||
         std::holds_alternative<Remove>(body);
}

void append(Runs& runs, std::uint32_t page) {
  if (!runs.empty() && runs.back().end() == page)
    ++runs.back().count;
  else
    runs.push_back({.first = page, .count = 1});
}

std::string words_of(const Runs& runs) {
  constexpr std::size_t kNamed = 16;
  std::string words = runs.size() == 1 && runs.front().count == 1 ? "page" : "pages";
  for (const Run& run : std::span(runs).first(std::min(runs.size(), kNamed))) {
    words += fmt::format("{} {}", &run == &runs.front() ? "" : ",", run.first);
    if (run.count > 1) words += fmt::format(" to {}", run.end() - 1);
  }
  if (runs.size() > kNamed) words += fmt::format(" and {} ranges more", runs.size() - kNamed);
  return words;
}

}  // namespace vmem::cluster::directory
