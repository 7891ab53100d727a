#include "cluster/enrollment/admission.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

std::string words(const VersionRange& range) { return fmt::format("{} to {}", range.least, range.most); }

Error versions_error(std::string_view key, const NodeRecord& other, const NodeRecord& self) {
  const std::string address = other.addresses.empty() ? "" : fmt::format(" at {}", printable(other.addresses.front()));
  const bool later = other.versions.least > self.versions.most;
  return {.status = VMEM_ERROR_INVALID_OPTION,
          .message = fmt::format("this node serves the protocol versions {}, and node {}, a {}{}, {}: {}",
                                 words(self.versions), printable(key.substr(kNodesPrefix.size())),
                                 printable(other.kind), address, words(other.versions),
                                 later ? "install a later vmem on this node" : "upgrade that node, or end it, first")};
}

}  // namespace

void Admission::restart() {
  if (refused_) return;
  call_.drop();
  lease_.end();
  stage_ = Stage::compare;
  due_us_ = 0;
  unsure_ = committed_ = false;
  seat_.reset();
  self_.token.clear();
  backoff_.reset();
}

std::optional<Seat> Admission::take_seat() { return std::exchange(seat_, std::nullopt); }

void Admission::describe(NodeRecord self) {
  self.incarnation = self_.incarnation;
  self.token = self_.token;
  self_ = std::move(self);
}

void Admission::refuse(Error error) {
  refused_ = std::move(error);
  stage_ = Stage::done;
  lease_.end();
}

void Admission::again(Stage stage, std::uint64_t now_us) {
  stage_ = stage;
  due_us_ = now_us + backoff_.next_us();
}

Commit Admission::admission() const {
  Commit commit;
  commit.conditions.push_back({.key = std::string(kParametersKey), .modified = compared_});
  count_up(counter_, 1, commit);
  commit.edits.push_back({.key = node_key(next_id()), .value = json_of(self_), .lease = lease_.lease()});
  return commit;
}

RegistryRequest Admission::request() const {
  switch (stage_) {
    case Stage::create:
      return Commit{.conditions = {{.key = std::string(kParametersKey), .modified = {}}},
                    .edits = {{.key = std::string(kParametersKey), .value = json_of(parameters_), .lease = {}}}};
    case Stage::count:
      return ReadPrefix{std::string(kSerialKey)};
    case Stage::meet:
      return ReadPrefix{std::string(kNodesPrefix)};
    case Stage::commit:
      return admission();
    case Stage::verify:
      return ReadPrefix{node_key(next_id())};
    default:
      return ReadPrefix{std::string(kParametersKey)};
  }
}

void Admission::compared(const Read& read) {
  const Record* const record = find_record(read, kParametersKey);
  if (record == nullptr) {
    stage_ = Stage::create;
    return;
  }
  const Result<ClusterParameters> cluster = parse_parameters(record->value);
  if (!cluster) return refuse(cluster.error());
  if (Status fits = compare(parameters_, *cluster); !fits) return refuse(std::move(fits).error());
  compared_ = record->modified;
  stage_ = Stage::lease;
}

void Admission::counted(const Read& read, std::uint64_t now_us) {
  const Result<SerialCounter> counter = read_counter(read);
  if (!counter) {
    trouble_ = counter.error();
    return again(Stage::count, now_us);
  }
  counter_ = *counter;
  unsure_ = false;
  stage_ = Stage::meet;
}

// The nodes until the counter's state: one that joins meanwhile takes a serial, so that the commit
// is not done.
void Admission::met(const Read& read, Revision revision, std::uint64_t now_us) {
  if (revision < counter_.modified) return again(Stage::meet, now_us);
  for (const Record& record : read.records) {
    const auto node = parse_node_record(record.key, record.value);
    if (node && !node->versions.overlaps(self_.versions)) return refuse(versions_error(record.key, *node, self_));
  }
  stage_ = Stage::commit;
}

void Admission::committed(bool done, Revision revision, std::uint64_t now_us) {
  if (!done && !unsure_) return again(Stage::compare, now_us);
  committed_ = done;
  answered_ = revision;
  stage_ = Stage::verify;
}

void Admission::verified(const Read& read, Revision revision, std::uint64_t now_us) {
  if (revision < answered_) return again(Stage::verify, now_us);
  const std::string key = node_key(next_id());
  const Record* const record = find_record(read, key);
  const Result<NodeRecord> node = record == nullptr ? NodeRecord{} : parse_node_record(key, record->value);
  if (record != nullptr && node && node->token == self_.token) {
    seat_ = Seat{.id = next_id(), .record = record->modified, .value = record->value};
    stage_ = Stage::done;
    trouble_.reset();
    return;
  }
  // The record was this node's and is erased already, or is another node's.
  if (committed_) return restart();
  again(Stage::compare, now_us);
}

void Admission::handle_error(const Error& error, std::uint64_t now_us) {
  trouble_ = error;
  if (stage_ == Stage::create) return again(Stage::compare, now_us);
  if (stage_ == Stage::commit && error.status == VMEM_ERROR_TIMEOUT) unsure_ = true;
  again(stage_ == Stage::commit && !unsure_ ? Stage::compare : stage_, now_us);
}

void Admission::handle(const Reply& reply, std::uint64_t now_us) {
  if (const auto* error = std::get_if<Error>(&reply.what)) return handle_error(*error, now_us);
  const auto* const read = std::get_if<Read>(&reply.what);
  const auto* const commit = std::get_if<Committed>(&reply.what);
  if (stage_ == Stage::create)
    stage_ = Stage::compare;
  else if (stage_ == Stage::compare && read)
    compared(*read);
  else if (stage_ == Stage::count && read)
    counted(*read, now_us);
  else if (stage_ == Stage::meet && read)
    met(*read, reply.revision, now_us);
  else if (stage_ == Stage::commit && commit)
    committed(commit->done, reply.revision, now_us);
  else if (stage_ == Stage::verify && read)
    verified(*read, reply.revision, now_us);
}

bool Admission::step_lease() {
  if (lease_.state() == LeaseKeeper::State::idle) {
    self_.token = fmt::format("{:016x}{:016x}", random_(), random_());
    lease_.begin();
    return true;
  }
  if (lease_.state() != LeaseKeeper::State::held) return false;
  stage_ = Stage::count;
  return true;
}

bool Admission::step(std::uint64_t now_us) {
  if (stage_ == Stage::done) return false;
  if (lease_.state() == LeaseKeeper::State::lost) {
    lease_.abandon();
    restart();
    return true;
  }
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    return true;
  }
  if (stage_ == Stage::lease) return step_lease();
  if (now_us < due_us()) return false;
  call_ = calls_.post(request());
  return true;
}

std::uint64_t Admission::due_us() const {
  if (stage_ == Stage::done || stage_ == Stage::lease || call_.pending()) return UINT64_MAX;
  return due_us_;
}

}  // namespace vmem::cluster
