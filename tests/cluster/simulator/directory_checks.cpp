#include "cluster/simulator/directory_checks.hpp"

namespace vmem::cluster::simulator {
namespace {

using namespace directory;  // all of it is checked here

constexpr std::uint64_t kSlackUs = 1'000'000;

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }
std::uint64_t number(Serial serial) { return static_cast<std::uint64_t>(serial); }

}  // namespace

void DirectoryChecks::wrong(const std::string& what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} us: {}", registry_.queue().now_us(), what);
}

std::optional<std::uint32_t> DirectoryChecks::owner(NodeId id) const {
  const auto found = owners_.find(id);
  return found == owners_.end() ? std::nullopt : std::optional(found->second);
}

const ObservedNode* DirectoryChecks::member(NodeId id) const {
  const std::optional<std::uint32_t> at = owner(id);
  return at && nodes_[*at]->is_member() && nodes_[*at]->id() == id ? nodes_[*at] : nullptr;
}

bool DirectoryChecks::is_written(Serial serial, std::uint32_t page) const {
  const auto written = written_.find(serial);
  return written != written_.end() && written->second[page];
}

bool DirectoryChecks::is_somewhere(Serial serial, std::uint32_t page) const {
  return std::ranges::any_of(
      nodes_, [&](const ObservedNode* node) { return node->open_part(serial) != nullptr && node->has(serial, page); });
}

std::vector<Serial> DirectoryChecks::open_at(const ObservedNode& node) const {
  std::vector<Serial> serials;
  if (!node.acts()) return serials;
  for (const auto& [serial, region] : node.directory().regions().regions())
    if (node.open_part(serial) != nullptr) serials.push_back(serial);
  return serials;
}

bool DirectoryChecks::is_current(const HomeDirectory& home) const {
  const auto record = current_.find(home.desk().record().serial);
  return record != current_.end() && record->second.home == home.desk().record().home &&
         record->second.term == home.desk().record().term;
}

// ---- at any time ----

void DirectoryChecks::check_lost(const ObservedNode& at, const PagesLost& pages) {
  const HomeDirectory* const home = at.directory().home(pages.serial);
  if (home == nullptr || !is_current(*home)) return;
  for (const Run& run : pages.pages) {
    lost += run.count;
    for (std::uint32_t page = run.first; page < run.end(); ++page) {
      for (const ObservedNode* each : nodes_) {
        if (!each->is_member() || !each->has(pages.serial, page)) continue;
        const Participant* const there = each->directory().participant(pages.serial);
        const std::optional<std::uint32_t> place =
            there == nullptr ? std::nullopt : home->table().find(each->id(), there->session());
        const bool closing = there != nullptr && there->stage() == Participant::Stage::closing;
        if (!place || closing || home->table()[*place].left) continue;
        expect(false, "page {} of region {} is said to be LOST, and node {} has it", page, number(pages.serial),
               number(each->id()));
      }
    }
  }
}

void DirectoryChecks::check_freed(Serial serial) {
  ++freed;
  for (const ObservedNode* each : nodes_) {
    if (!each->is_member()) continue;
    const Participant* const there = each->directory().participant(serial);
    expect(there == nullptr || there->stage() == Participant::Stage::closing ||
               there->stage() == Participant::Stage::opening || there->stage() == Participant::Stage::over,
           "the addresses of region {} are given up, and node {} has it open", number(serial), number(each->id()));
  }
}

void DirectoryChecks::check_keeper(const HomeDirectory& home, std::uint32_t page, std::uint32_t place) {
  const RegionRecord::Participant& who = home.table()[place].who;
  const ObservedNode* const node = member(who.node);
  if (node == nullptr) return;
  const Serial serial = home.desk().record().serial;
  const Participant* const there = node->directory().participant(serial);
  const bool gone = there == nullptr || there->session() != who.session ||
                    there->stage() == Participant::Stage::closing || there->stage() == Participant::Stage::over;
  if (gone) return;                          // it went at its deadline
  if (node->has_lost(serial, page)) return;  // the home may not have heard of it
  expect(there->have(page) == Have::kept && node->has(serial, page),
         "node {} is counted as a keeper of page {} of region {}, and is none", number(who.node), page, number(serial));
}

void DirectoryChecks::check_home(const ObservedNode& node, const HomeDirectory& home) {
  const RegionRecord& record = home.desk().record();
  if (home.over() || !is_current(home)) return;
  expect(record.home == node.id(), "node {} acts as the home of region {} for another", number(node.id()),
         number(record.serial));
  if (home.rebuilding()) return;
  for (std::uint32_t page = 0; page < home.pages().size(); ++page)
    for_each_place(home.pages()[page].keepers & home.table().all(),
                   [&](std::uint32_t place) { check_keeper(home, page, place); });
}

const std::map<Serial, RegionRecord>& DirectoryChecks::read_records() {
  const auto& records = registry_.records();
  if (current_at_ == registry_.state().revision()) return current_;
  for (const auto& [key, record] : records) {
    const std::optional<Serial> serial = serial_in_key(key);
    if (!serial) continue;
    const Result<RegionRecord> region = parse_region(key, record.value);
    expect(region.has_value(), "{} is damaged", key);
    if (!region) continue;
    Term& term = terms_[*serial];
    expect(region->term >= term, "the term of {} went back", key);
    takeovers += region->term > term && term != Term{};
    term = region->term;
    current_[*serial] = *region;
  }
  std::erase_if(current_, [this](const auto& each) { return !registry_.records().contains(region_key(each.first)); });
  current_at_ = registry_.state().revision();
  return current_;
}

void DirectoryChecks::check() {
  (void)read_records();
  std::set<std::pair<Serial, Term>> acting;
  for (std::uint32_t at = 0; at < nodes_.size(); ++at) {
    const ObservedNode& node = *nodes_[at];
    if (const std::string trouble = node.wrong(); !trouble.empty()) wrong(trouble);
    if (!node.running()) continue;
    if (node.id() != NodeId{}) owners_[node.id()] = at;
    if (const char* const late = node.overdue(kSlackUs))
      wrong(fmt::format("{}'s {} waits beyond the deadline", node.name(), late));
    if (!node.is_member()) continue;
    for (const auto& [serial, region] : current_) {
      const HomeDirectory* const home = node.directory().home(serial);
      if (home == nullptr || home->over()) continue;
      expect(acting.emplace(serial, home->desk().record().term).second, "two nodes are home of region {} in one term",
             number(serial));
      check_home(node, *home);
    }
  }
}

// ---- in the end ----

void DirectoryChecks::check_page(const HomeDirectory& home, std::uint32_t page) {
  const Serial serial = home.desk().record().serial;
  const bool somebody = is_somewhere(serial, page);
  const HomeState state = home.pages()[page].state;
  if (!is_written(serial, page)) {
    expect(state == HomeState::free || state == HomeState::lost, "page {} of region {} is not FREE", page,
           number(serial));
    return;
  }
  check_promises(home, page);
  expect((state == HomeState::held || state == HomeState::unkept) == somebody,
         "page {} of region {} has state {}, and somebody has it: {}", page, number(serial), int(state), somebody);
  if (!somebody) return;
  check_copies(home, page);
  for (const ObservedNode* node : nodes_) {
    const Participant* const part = node->open_part(serial);
    expect(part == nullptr || node->has(serial, page) || part->is_invited(), "{} could not read page {} of region {}",
           node->name(), page, number(serial));
  }
}

// A copy that its home does not know to be kept could never be dropped.
void DirectoryChecks::check_promises(const HomeDirectory& home, std::uint32_t page) {
  const Serial serial = home.desk().record().serial;
  for (const ObservedNode* node : nodes_) {
    const Participant* const there = node->open_part(serial);
    if (there == nullptr) continue;
    const std::optional<std::uint32_t> place = home.table().find(node->id(), there->session());
    const bool known = place && (home.pages()[page].keepers & place_bit(*place)) != 0;
    expect(there->have(page) != Have::kept || known, "{} keeps page {} of region {} for ever", node->name(), page,
           number(serial));
  }
}

// As many as the daemons can have; the publisher's own does not count.
void DirectoryChecks::check_copies(const HomeDirectory& home, std::uint32_t page) {
  const RegionRecord& record = home.desk().record();
  std::uint32_t daemons = 0, copies = 0;
  for (const ObservedNode* node : nodes_) {
    if (!node->is_daemon() || !node->is_member() || node->id() == record.publisher) continue;
    ++daemons;
    const std::optional<std::uint32_t> place = home.table().place_of(node->id());
    copies += place && (home.pages()[page].keepers & place_bit(*place)) != 0 ? 1 : 0;
  }
  expect(copies >= std::min(record.copies, daemons), "page {} of region {} has {} copies of {} on {} daemons", page,
         number(record.serial), copies, record.copies, daemons);
}

// Records and participants agree.
void DirectoryChecks::check_parts() {
  for (const auto& [serial, record] : current_)
    for (const RegionRecord::Participant& part : record.participants)
      expect(part.node == NodeId{} || member(part.node) != nullptr, "region {} lists node {}, which is no member",
             number(serial), number(part.node));
  for (const ObservedNode* node : nodes_) {
    if (!node->is_member()) continue;
    for (const auto& [serial, written] : written_) {
      if (current_.contains(serial)) continue;
      expect(node->directory().participant(serial) == nullptr, "{} takes part in region {}, which has no record",
             node->name(), number(serial));
      expect(node->directory().home(serial) == nullptr, "{} is home of region {}, which has no record", node->name(),
             number(serial));
    }
  }
}

void DirectoryChecks::check_end() {
  check();
  for (const auto& [serial, record] : current_) {
    const ObservedNode* const node = member(record.home);
    expect(node != nullptr, "region {} has no home that is a member: node {}", number(serial), number(record.home));
    if (node == nullptr) return;
    const HomeDirectory* const home = node->directory().home(serial);
    expect(home != nullptr && !home->rebuilding(), "the home of region {} does not act", number(serial));
    expect(!record.removed, "region {} is removed, and its record stays", number(serial));
    if (!wrong_.empty()) return;
    for (std::uint32_t page = 0; page < pages_; ++page) check_page(*home, page);
  }
  for (const auto& [key, value] : registry_.records()) {
    if (!key.starts_with(kNamesPrefix)) continue;
    const Result<NameRecord> name = parse_name(key, value.value);
    expect(name && current_.contains(name->serial), "{} names no region", key);
  }
  check_parts();
}

}  // namespace vmem::cluster::simulator
