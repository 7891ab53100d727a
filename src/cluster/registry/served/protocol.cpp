#include "cluster/registry/served/protocol.hpp"

#include <algorithm>
#include <limits>

#include "base/printable.hpp"
#include "cluster/registry/request_check.hpp"
#include "cluster/registry/served/byte_codec.hpp"
#include "cluster/registry/served/record_codec.hpp"

namespace vmem::cluster::served {
namespace {

constexpr std::uint32_t kQuestionMagic = 0x51524d56, kAnswerMagic = 0x41524d56;  // "VMRQ", "VMRA"
constexpr std::uint64_t kMostSigned = std::uint64_t{1} << 62;
constexpr std::size_t kMostSaidBytes = kMostTextBytes / 4 - 64;  // printable() may make four of one
constexpr auto kMostTotal = static_cast<std::uint32_t>(kMostReadBytes);

void put_header(ByteWriter& out, std::uint32_t magic, std::uint64_t client, std::uint64_t number) {
  out.number(magic);
  out.number(kProtocolVersion);
  out.number(client);
  out.number(number);
}

std::optional<Header> get_header(ByteReader& in, std::uint32_t magic) {
  in.require(in.number<std::uint32_t>() == magic);
  Header header;
  header.version = in.number<std::uint16_t>();
  header.client = in.number<std::uint64_t>();
  header.number = in.number<std::uint64_t>();
  if (!in.ok()) return std::nullopt;
  return header;
}

template <class Id>
Id get_id(ByteReader& in) {
  return Id{static_cast<std::int64_t>(in.number(kMostSigned))};
}

// ---- parts of messages ----

void put(ByteWriter&, const Open&) {}
void put(ByteWriter& out, const WritePiece& piece) {
  out.number(static_cast<std::uint64_t>(piece.session.incarnation));
  out.number(piece.session.number);
  out.number(piece.order);
  out.number(piece.total);
  out.number(piece.offset);
  out.text(piece.bytes);
}
void put(ByteWriter& out, const FetchPage& fetch) {
  out.text(fetch.prefix);
  out.number(static_cast<std::uint64_t>(fetch.revision));
  out.number(fetch.offset);
}
void put(ByteWriter& out, const Renew& renew) { out.number(static_cast<std::uint64_t>(renew.lease)); }
void put(ByteWriter& out, const End& end) { out.number(static_cast<std::uint64_t>(end.lease)); }

void put(ByteWriter& out, const Error& error) {
  out.number(static_cast<std::uint32_t>(error.status));
  out.text(printable(error.message, kMostSaidBytes));
}
void put(ByteWriter& out, const Committed& committed) { out.number(static_cast<std::uint8_t>(committed.done)); }
void put(ByteWriter& out, const Granted& granted) {
  out.number(static_cast<std::uint64_t>(granted.lease));
  out.number(granted.seconds);
}
void put(ByteWriter& out, const Renewed& renewed) { out.number(renewed.seconds); }
void put(ByteWriter&, const Ended&) {}

void put(ByteWriter& out, const Opened& opened) { out.number(opened.session); }
void put(ByteWriter& out, const Taken& taken) { out.number(taken.next_offset); }
void put(ByteWriter& out, const Page& page) {
  out.number(static_cast<std::uint64_t>(page.revision));
  out.number(page.total);
  out.number(page.offset);
  out.text(page.bytes);
}
void put(ByteWriter& out, const Outcome& outcome) {
  out.number(static_cast<std::uint64_t>(outcome.revision));
  out.number(static_cast<std::uint8_t>(outcome.what.index()));
  std::visit([&out](const auto& each) { put(out, each); }, outcome.what);
}
void put(ByteWriter& out, const Declined& declined) { put(out, declined.why); }
void put(ByteWriter&, const NoSession&) {}

template <class What>
struct Get;

template <>
struct Get<Open> {
  static Open from(ByteReader&) { return {}; }
};
template <>
struct Get<WritePiece> {
  static WritePiece from(ByteReader& in) {
    WritePiece piece;
    piece.session.incarnation = Incarnation{in.number(kMostSigned)};
    piece.session.number = in.number<std::uint64_t>();
    piece.order = in.number(kMostSigned);
    piece.total = in.number(static_cast<std::uint32_t>(kMostWriteBytes));
    piece.offset = in.number(piece.total);
    piece.bytes = in.text(std::min<std::size_t>(kPieceBytes, piece.total - piece.offset));
    in.require(piece.order != 0 && !piece.bytes.empty());
    return piece;
  }
};
template <>
struct Get<FetchPage> {
  static FetchPage from(ByteReader& in) {
    FetchPage fetch;
    fetch.prefix = in.text(kMostPrefixBytes);
    fetch.revision = get_id<Revision>(in);
    fetch.offset = in.number(kMostTotal);
    return fetch;
  }
};
template <>
struct Get<Renew> {
  static Renew from(ByteReader& in) { return {get_id<LeaseId>(in)}; }
};
template <>
struct Get<End> {
  static End from(ByteReader& in) { return {get_id<LeaseId>(in)}; }
};
template <>
struct Get<Error> {
  static Error from(ByteReader& in) {
    Error error;
    const auto status = in.number(static_cast<std::uint32_t>(VMEM_ERROR_INTERNAL));
    in.require(status != VMEM_OK);
    error.status = static_cast<vmem_status>(status);
    error.message = printable(in.text(kMostTextBytes), kMostTextBytes);
    return error;
  }
};
template <>
struct Get<Committed> {
  static Committed from(ByteReader& in) { return {in.flag()}; }
};
template <>
struct Get<Granted> {
  static Granted from(ByteReader& in) {
    const auto lease = get_id<LeaseId>(in);
    const auto seconds = in.number(kMostLeaseSeconds);
    in.require(lease != LeaseId{} && seconds != 0);
    return {lease, seconds};
  }
};
template <>
struct Get<Renewed> {
  static Renewed from(ByteReader& in) { return {in.number(kMostLeaseSeconds)}; }
};
template <>
struct Get<Ended> {
  static Ended from(ByteReader&) { return {}; }
};
template <>
struct Get<Opened> {
  static Opened from(ByteReader& in) {
    const Opened opened{in.number<std::uint64_t>()};
    in.require(opened.session != 0);
    return opened;
  }
};
template <>
struct Get<Taken> {
  static Taken from(ByteReader& in) { return {in.number(static_cast<std::uint32_t>(kMostWriteBytes))}; }
};
template <>
struct Get<Page> {
  static Page from(ByteReader& in) {
    Page page;
    page.revision = get_id<Revision>(in);
    page.total = in.number(kMostTotal);
    page.offset = in.number(page.total);
    page.bytes = in.text(std::min<std::size_t>(kPieceBytes, page.total - page.offset));
    in.require(page.revision != Revision{} && !page.bytes.empty());
    return page;
  }
};
template <>
struct Get<Declined> {
  static Declined from(ByteReader& in) { return {Get<Error>::from(in)}; }
};
template <>
struct Get<NoSession> {
  static NoSession from(ByteReader&) { return {}; }
};

// One of the alternatives of a variant, by its number.
template <class... Kinds>
void get(ByteReader& in, std::uint8_t kind, std::variant<Kinds...>& what) {
  std::uint8_t tried = 0;
  const auto take = [&]<class Kind>(Kind*) {
    if (tried++ == kind) what = Get<Kind>::from(in);
  };
  in.require(kind < sizeof...(Kinds));
  if (in.ok()) (take(static_cast<Kinds*>(nullptr)), ...);
}

template <>
struct Get<Outcome> {
  static Outcome from(ByteReader& in) {
    Outcome outcome;
    outcome.revision = get_id<Revision>(in);
    get(in, in.number<std::uint8_t>(), outcome.what);
    const bool without = std::holds_alternative<Error>(outcome.what) || std::holds_alternative<Ended>(outcome.what);
    in.require((outcome.revision == Revision{}) == without);
    return outcome;
  }
};

}  // namespace

std::string encode(const Question& question) {
  ByteWriter out;
  put_header(out, kQuestionMagic, question.client, question.number);
  out.text(question.cluster);
  out.number(static_cast<std::uint8_t>(question.what.index()));
  std::visit([&out](const auto& each) { put(out, each); }, question.what);
  return out.take();
}

std::string encode(const Answer& answer) {
  ByteWriter out;
  put_header(out, kAnswerMagic, answer.client, answer.number);
  out.number(static_cast<std::uint64_t>(answer.incarnation));
  out.number(static_cast<std::uint8_t>(answer.what.index()));
  std::visit([&out](const auto& each) { put(out, each); }, answer.what);
  return out.take();
}

std::optional<Header> decode_header(std::string_view bytes) {
  ByteReader in(bytes);
  return get_header(in, kQuestionMagic);
}

std::optional<Question> decode_question(std::string_view bytes) {
  ByteReader in(bytes);
  const std::optional<Header> header = get_header(in, kQuestionMagic);
  if (!header || header->version != kProtocolVersion || bytes.size() > kMostMessageBytes) return std::nullopt;
  Question question{
      .client = header->client, .number = header->number, .cluster = in.text(kMostClusterBytes), .what = {}};
  get(in, in.number<std::uint8_t>(), question.what);
  if (!in.done()) return std::nullopt;
  return question;
}

std::optional<Answer> decode_answer(std::string_view bytes) {
  ByteReader in(bytes);
  const std::optional<Header> header = get_header(in, kAnswerMagic);
  if (!header || header->version != kProtocolVersion || bytes.size() > kMostMessageBytes) return std::nullopt;
  Answer answer{.client = header->client, .number = header->number, .incarnation = {}, .what = {}};
  answer.incarnation = Incarnation{in.number(kMostSigned)};
  get(in, in.number<std::uint8_t>(), answer.what);
  if (!in.done() || answer.incarnation == Incarnation{}) return std::nullopt;
  return answer;
}

bool is_cluster_name(std::string_view name) {
  const auto fits = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
           each == '.' || each == '_' || each == '-';
  };
  return !name.empty() && name.size() <= kMostClusterBytes && std::ranges::all_of(name, fits);
}

}  // namespace vmem::cluster::served
