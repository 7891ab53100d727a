#include "cluster/registry/served/registry_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "cluster/registry/served/record_codec.hpp"

namespace vmem::cluster {
namespace {

using served::Answer, served::Declined, served::FetchPage, served::Incarnation, served::NamespaceFile,
    served::NoSession, served::Opened, served::Outcome, served::Page, served::Place, served::Question,
    served::ReadPages, served::Session, served::Taken, served::WritePiece;

constexpr std::uint64_t kSecondUs = 1'000'000;
constexpr std::uint64_t kKeepAgainUs = kSecondUs;
constexpr std::uint64_t kMostStartUs = std::uint64_t{1} << 53;  // numbers are made from it

std::int64_t as_signed(Incarnation incarnation) { return static_cast<std::int64_t>(incarnation); }

Outcome refusal(Error why) { return {.revision = {}, .what = std::move(why)}; }

Outcome outcome_of(Reply reply) {
  Outcome outcome{.revision = reply.revision, .what = Ended{}};
  if (auto* error = std::get_if<Error>(&reply.what)) outcome.what = std::move(*error);
  if (const auto* committed = std::get_if<Committed>(&reply.what)) outcome.what = *committed;
  if (const auto* granted = std::get_if<Granted>(&reply.what)) outcome.what = *granted;
  if (const auto* renewed = std::get_if<Renewed>(&reply.what)) outcome.what = *renewed;
  return outcome;
}

Status check_start(std::uint64_t started_us) {
  if (started_us != 0 && started_us < kMostStartUs) return {};
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("registry: the time of the start is {} us after 1970: set the clock of this machine", started_us));
}

Status check_first_records(const std::vector<Edit>& records, const RegistryLimits& limits) {
  std::size_t bytes = 0;
  for (const Edit& each : records) bytes += each.key.size() + each.value.value_or("").size();
  if (records.size() <= limits.records && bytes <= limits.bytes) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("registry: each cluster begins with {} records of {} bytes, and may have {} of {} bytes: "
                          "raise the limits, or begin with less",
                          records.size(), bytes, limits.records, limits.bytes));
}

struct Contents {
  std::optional<Incarnation> incarnation;
  std::vector<NamespaceFile> namespaces;
};

Result<Contents> read_store(RegistryStore& store) {
  Contents contents;
  VMEM_ASSIGN(const std::vector<RegistryStore::File> files, store.read_all());
  for (const RegistryStore::File& file : files) {
    if (file.name == served::kIncarnationFile) {
      VMEM_ASSIGN(contents.incarnation, served::decode_incarnation(file.name, file.bytes));
      continue;
    }
    VMEM_ASSIGN(NamespaceFile read, served::decode_namespace(file.name, file.bytes));
    contents.namespaces.push_back(std::move(read));
  }
  if (contents.incarnation || contents.namespaces.empty()) return contents;
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("registry: its file '{}' is missing beside those of {} clusters: restore the directory from a "
                  "copy; or end all nodes of the clusters in it and remove it",
                  served::kIncarnationFile, contents.namespaces.size()));
}

}  // namespace

// ---- start ----

Result<std::unique_ptr<RegistryServer>> RegistryServer::create(const Clock& clock, Setup setup) {
  VMEM_TRY(check_start(setup.started_us));
  if (setup.first_records) VMEM_TRY(check_first_records(setup.first_records(setup.started_us), setup.limits.each));
  RegistryStore* const store = setup.store;
  Contents contents;
  if (store != nullptr) {
    VMEM_ASSIGN(contents, read_store(*store));
  }
  const std::uint64_t before = contents.incarnation ? static_cast<std::uint64_t>(*contents.incarnation) : 0;
  const Incarnation incarnation{std::max(setup.started_us, before + 1)};
  if (store != nullptr) VMEM_TRY(store->write(std::string(served::kIncarnationFile), served::encode_file(incarnation)));
  const bool remembers = contents.incarnation.has_value();
  std::unique_ptr<RegistryServer> server(new RegistryServer(clock, std::move(setup), incarnation, remembers));
  for (const NamespaceFile& each : contents.namespaces) server->restore(each);
  return server;
}

RegistryServer::RegistryServer(const Clock& clock, Setup setup, Incarnation incarnation, bool remembers)
    : clock_(clock),
      setup_(std::move(setup)),
      incarnation_(incarnation),
      grants_from_us_(remembers || setup_.before == Before::nothing
                          ? 0
                          : clock.now_us() + setup_.limits.each.lease_seconds * kSecondUs),
      sessions_(incarnation, setup_.limits.sessions),
      readings_(setup_.limits.reading_bytes) {}

void RegistryServer::restore(const NamespaceFile& file) {
  namespaces_.emplace(file.place, Namespace(RegistryState(clock_, file.image, setup_.limits.each)));
}

RegistryState RegistryServer::initial_state() const {
  RegistryImage image{.records = {},
                      .leases = {},
                      .revision = Revision{as_signed(incarnation_)},
                      .last_lease = LeaseId{as_signed(incarnation_)}};
  if (setup_.first_records) {
    for (const Edit& each : setup_.first_records(incarnation()))
      image.records.push_back(
          {.key = each.key, .value = each.value.value_or(""), .modified = image.revision, .lease = {}});
  }
  return {clock_, image, setup_.limits.each};
}

// ---- questions ----

std::string RegistryServer::answer(const std::string& identity, std::string_view message) {
  const std::optional<served::Header> header = served::decode_header(message);
  if (!header) return "";
  Answer answer{.client = header->client, .number = header->number, .incarnation = incarnation_, .what = {}};
  if (const std::optional<Question> question = served::decode_question(message)) {
    answer.what = answer_to({.identity = identity, .cluster = question->cluster}, *question);
  } else if (header->version != served::kProtocolVersion) {
    answer.what = Declined{{VMEM_ERROR_UNSUPPORTED, 0,
                            fmt::format("the client speaks version {} of the registry's protocol, the daemon version "
                                        "{}: run one version of vmem on both",
                                        header->version, served::kProtocolVersion)}};
  } else {
    answer.what = Declined{{VMEM_ERROR_INVALID_VALUE, 0, "a message that no client sends: it is damaged or too large"}};
  }
  return encode(answer);
}

RegistryServer::What RegistryServer::answer_to(const Place& place, const Question& question) {
  if (!served::is_cluster_name(place.cluster))
    return Declined{{VMEM_ERROR_INVALID_OPTION, 0,
                     fmt::format("'{}' is no name of a cluster: 1 to {} letters, digits, '.', '_' and '-' are possible",
                                 printable(place.cluster), served::kMostClusterBytes)}};
  What what = std::visit([&](const auto& each) { return carry_out(place, question.client, each); }, question.what);
  // Before the answer shows what has changed.
  if (const Status kept = keep(place); !kept) {
    Error why = kept.error();
    why.status = VMEM_ERROR_TIMEOUT;
    return Declined{std::move(why)};
  }
  return what;
}

RegistryServer::What RegistryServer::carry_out(const Place& place, std::uint64_t client, const served::Open&) {
  const Result<std::uint64_t> session = sessions_.open(place, client, clock_.now_us());
  if (!session) return Declined{session.error()};
  return Opened{*session};
}

RegistryServer::What RegistryServer::carry_out(const Place& place, std::uint64_t, const WritePiece& piece) {
  Session* const session = sessions_.find(place, piece.session, clock_.now_us());
  if (session == nullptr) return NoSession{};
  if (const Outcome* known = session->find(piece.order)) return *known;
  if (session->stale(piece.order))
    return Declined{{VMEM_ERROR_TIMEOUT, 0, "a write so old that its outcome is forgotten; send it anew"}};
  const bool whole = piece.bytes.size() == piece.total;
  if (!whole) {
    const std::uint32_t next = sessions_.add(*session, piece);
    if (next < piece.total) return Taken{next};
  }
  Outcome outcome = write(place, whole ? piece.bytes : sessions_.take(*session));
  session->carried_out(piece.order, outcome);
  return outcome;
}

Outcome RegistryServer::write(const Place& place, std::string_view bytes) {
  std::optional<served::Write> write = served::decode_write(bytes);
  if (!write) return refusal({VMEM_ERROR_INVALID_VALUE, 0, "a write that no client makes: it is damaged"});
  if (const auto* grant = std::get_if<GrantLease>(&*write)) {
    if (const Status checked = check_grant(); !checked) return refusal(checked.error());
    return apply(place, *grant);
  }
  return apply(place, std::get<Commit>(std::move(*write)));
}

Outcome RegistryServer::apply(const Place& place, const RegistryRequest& request) {
  const Result<Namespace*> of = need(place);
  if (!of) return refusal(of.error());
  return outcome_of((*of)->state.apply(RequestId{}, request));
}

RegistryServer::What RegistryServer::carry_out(const Place& place, std::uint64_t, const served::Renew& renew) {
  if (find(place) != nullptr) return apply(place, RenewLease{renew.lease});
  return Outcome{.revision = Revision{as_signed(incarnation_)}, .what = Renewed{.seconds = 0}};
}

RegistryServer::What RegistryServer::carry_out(const Place& place, std::uint64_t, const served::End& end) {
  if (find(place) != nullptr) return apply(place, EndLease{end.lease});
  return Outcome{.revision = {}, .what = Ended{}};
}

RegistryServer::What RegistryServer::carry_out(const Place& place, std::uint64_t, const FetchPage& fetch) {
  const ReadPages::Reading& reading = read(place, fetch);
  const auto total = static_cast<std::uint32_t>(reading.bytes.size());
  const bool goes_on = reading.revision == fetch.revision && fetch.offset < total;
  const std::uint32_t offset = goes_on ? fetch.offset : 0;
  return Page{.revision = reading.revision,
              .total = total,
              .offset = offset,
              .bytes = reading.bytes.substr(offset, served::kPieceBytes)};
}

// As of the revision that the client has begun with, if that is still known; else as of now.
const ReadPages::Reading& RegistryServer::read(const Place& place, const FetchPage& fetch) {
  if (fetch.offset != 0) {
    if (const auto* begun = readings_.find(place, fetch.prefix, fetch.revision)) return *begun;
  }
  Namespace* const of = find(place);
  RegistryState fresh = of == nullptr ? initial_state() : RegistryState(clock_);
  RegistryState& state = of == nullptr ? fresh : of->state;
  state.expire();
  if (const auto* same = readings_.find(place, fetch.prefix, state.revision())) return *same;
  const Reply reply = state.apply(RequestId{}, ReadPrefix{fetch.prefix});
  return readings_.keep({.place = place,
                         .prefix = fetch.prefix,
                         .revision = reply.revision,
                         .bytes = served::encode_records(std::get<Read>(reply.what).records)});
}

// ---- namespaces ----

RegistryServer::Namespace* RegistryServer::find(const Place& place) {
  const auto found = namespaces_.find(place);
  return found == namespaces_.end() ? nullptr : &found->second;
}

Result<RegistryServer::Namespace*> RegistryServer::need(const Place& place) {
  if (Namespace* const known = find(place)) return known;
  const auto of_identity = static_cast<std::size_t>(
      std::ranges::count_if(namespaces_, [&](const auto& each) { return each.first.identity == place.identity; }));
  if (namespaces_.size() >= setup_.limits.namespaces || of_identity >= setup_.limits.of_identity)
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("'{}' would be another cluster of this daemon, which has {}, {} of them of this identity: "
                            "at most {} and {} are possible; use another daemon",
                            printable(place.cluster), namespaces_.size(), of_identity, setup_.limits.namespaces,
                            setup_.limits.of_identity));
  return &namespaces_.emplace(place, Namespace(initial_state())).first->second;
}

Status RegistryServer::check_grant() const {
  const std::uint64_t now_us = clock_.now_us();
  if (now_us >= grants_from_us_) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("the registry has started anew and grants no lease for another {} s, until the leases of the "
                          "run before have ended; it will then, or give the daemon a directory for its registry",
                          (grants_from_us_ - now_us + kSecondUs - 1) / kSecondUs));
}

Status RegistryServer::keep(const Place& place) {
  Namespace* const of = find(place);
  return of == nullptr ? Status{} : keep(place, *of);
}

Status RegistryServer::keep(const Place& place, Namespace& kept) {
  const std::uint64_t changes = kept.state.changes();
  if (setup_.store == nullptr || kept.kept_changes == changes) return {};
  const Status written = setup_.store->write(
      served::file_name(place), served::encode_file(NamespaceFile{.place = place, .image = kept.state.image()}));
  if (written) {
    kept.kept_changes = changes;
    return {};
  }
  keep_again_us_ = clock_.now_us() + kKeepAgainUs;
  if (const auto failure = failures_.next(); failure.logged)
    VMEM_LOG_WARN("{}; nothing is answered for cluster '{}' until it is written ({} such failures)",
                  written.error().message, printable(place.cluster), failure.count);
  return written;
}

// ---- time ----

void RegistryServer::step() {
  for (auto& [place, each] : namespaces_) {
    each.state.expire();
    const bool waits = clock_.now_us() < keep_again_us_;
    if (!waits) (void)keep(place, each);
  }
}

std::uint64_t RegistryServer::next_due_us() const noexcept {
  std::uint64_t due_us = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [place, each] : namespaces_) {
    due_us = std::min(due_us, each.state.next_expiry_us());
    if (setup_.store != nullptr && each.kept_changes != each.state.changes()) due_us = std::min(due_us, keep_again_us_);
  }
  return due_us;
}

}  // namespace vmem::cluster
