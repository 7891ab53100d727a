// Rows of one table that one, two and three processes read at the same time, each from end to end.
// This process owns the table and alone has it before: what it sends is its own counter's figure.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <sstream>
#include <vector>

#include "base/counted.hpp"
#include "base/sizes.hpp"
#include "bench/child_process.hpp"
#include "bench/scenarios/cluster/rows.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr std::uint64_t kChunk = 32 * kMiB;
constexpr std::size_t kReaders = 3;
constexpr const char* kBorrowed = "16MiB";
constexpr std::chrono::seconds kStart{60}, kStep{300};
constexpr std::uint64_t kLimitBytes = 2048 * kMiB, kLimitBytesOnce = 64 * kMiB;
// Over a link with a rate: without one all readers ask for a page before the first one has it.
constexpr Goal kSentGoal{Goal::Bound::at_most, 1.5, true, Goal::Needs::link};

// `vmem bench reader` in a process of its own.
class ReaderProcess {
 public:
  static Result<ReaderProcess> start(const Context& context, std::uint64_t bytes) {
    const Settings& settings = context.settings;
    const Sizes sizes = sizes_in_memory(settings, context.gpu, bytes);
    std::vector<std::string> words{vmem_program(), "bench", "reader"};
    const auto add = [&](const char* flag, auto value) { words.insert(words.end(), {flag, fmt::format("{}", value)}); };
    add("--driver", context.gpu.emulated() ? "emulated" : settings.driver);
    add("--device", context.gpu.ordinal());
    add("--working-set", bytes);
    add("--hbm", sizes.hbm_bytes);
    add("--host", sizes.host_bytes);
    add("--pages", *settings.page_bytes);
    add("--chunk", *settings.chunk_bytes);
    add("--seed", settings.seed);
    for (const auto& [name, value] : settings.runtime_options) add("--option", fmt::format("{}={}", name, value));
    VMEM_ASSIGN(auto process, ChildProcess::start(std::move(words), {}, ChildProcess::Input::lines));
    return ReaderProcess(std::move(process));
  }
  Status wait_until_ready() { return answer("ready", kStart); }
  Status open(const std::string& name) { return process_->write_line("open " + name); }
  Status wait_until_open() { return answer("opened", kStart); }
  Status close() {
    VMEM_TRY(process_->write_line("close"));
    return answer("closed", kStart);
  }
  Status begin_to_read() { return process_->write_line("read"); }

  struct Read {
    double seconds = 0;
    std::uint64_t fetched_bytes = 0;
    std::string mismatch;
  };
  Result<Read> wait_for_read() {
    VMEM_ASSIGN(const std::string line, process_->next_line_beginning("read ", kStep));
    std::istringstream words(line);
    std::string label;
    Read read;
    if (!(words >> label >> read.seconds >> read.fetched_bytes))
      return fail(VMEM_ERROR_INTERNAL, fmt::format("a reader answered '{}'", line));
    std::getline(words >> std::ws, read.mismatch);
    return read;
  }

 private:
  explicit ReaderProcess(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  Status answer(std::string_view line, std::chrono::milliseconds most) {
    VMEM_TRY(process_->next_line_beginning(line, most));
    return {};
  }
  std::unique_ptr<ChildProcess> process_;
};

struct FanOut {
  Context& context;
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<ReaderProcess> readers;
  // By the number of readers, less one.
  std::array<Samples, kReaders> rates, tables;
  Samples bare;  // GB/s
  std::string mismatch;
};

// All readers have the table open before the first one reads, and close it once all have read: a
// reader has pages for the others until then.
Status sample(FanOut& fan_out, std::size_t count) {
  const std::span readers(fan_out.readers.data(), count);
  for (ReaderProcess& reader : readers) VMEM_TRY(reader.open(fan_out.name));
  for (ReaderProcess& reader : readers) VMEM_TRY(reader.wait_until_open());
  VMEM_ASSIGN(const vmem_published_statistics before, read_published_statistics());
  const Stopwatch watch;
  for (ReaderProcess& reader : readers) VMEM_TRY(reader.begin_to_read());
  double slowest_s = 0;
  for (ReaderProcess& reader : readers) {
    VMEM_ASSIGN(const ReaderProcess::Read read, reader.wait_for_read());
    slowest_s = std::max(slowest_s, read.seconds);
    if (fan_out.mismatch.empty()) fan_out.mismatch = read.mismatch;
    if (read.fetched_bytes < fan_out.bytes)
      return fail(VMEM_ERROR_INTERNAL, fmt::format("a reader had {} of the table before it read",
                                                   format_bytes(fan_out.bytes - read.fetched_bytes)));
  }
  // By the readers' clocks for one: this process hears of the end later than it is there.
  const double seconds = count == 1 ? slowest_s : watch.seconds();
  for (ReaderProcess& reader : readers) VMEM_TRY(reader.close());
  VMEM_ASSIGN(const vmem_published_statistics after, read_published_statistics());
  fan_out.rates[count - 1].add(double(count * fan_out.bytes) / 1e9 / seconds);
  fan_out.tables[count - 1].add(double(after.sent_bytes - before.sent_bytes) / double(fan_out.bytes));
  fan_out.context.progress.advance();
  return {};
}

// The rates, and then what the owner sent. `bare`: the limit of one reader's rate, in words.
void add_records(const FanOut& fan_out, const NodePath& path, const std::string& bare) {
  Context& context = fan_out.context;
  Record record;
  record.scenario = "cluster";
  record.options = {{"page_bytes", *context.settings.page_bytes},
                    {"working_set_bytes", fan_out.bytes},
                    {"channels", path.connections},
                    {"repeats", context.settings.repeats},
                    {"seed", context.settings.seed}};
  record.mismatch = fan_out.mismatch;
  record.verified = record.mismatch.empty();
  record.limit_is = Record::LimitIs::reference;
  for (std::size_t count = 1; count <= kReaders; ++count) {
    record.variant = fmt::format("table for {}, all together", counted(count, "reader", "readers"));
    record.unit = "GB/s";
    record.limit_name = count == 1 ? bare : "one reader alone";
    record.set({.limit = count == 1 ? fan_out.bare : fan_out.rates[0], .achieved = fan_out.rates[count - 1]});
    record.options["readers"] = count;
    context.records.push_back(record);
  }
  Samples once;
  once.add(1);
  record.goal = kSentGoal;
  for (std::size_t count = 1; count <= kReaders; ++count) {
    record.variant = fmt::format("table for {}, sent by its owner", counted(count, "reader", "readers"));
    record.unit = "tables";
    record.limit_name = "each page once; sent bytes by the owner's counter";
    record.set({.limit = once, .achieved = fan_out.tables[count - 1]});
    record.options["readers"] = count;
    context.records.push_back(record);
  }
  context.records.back().notes.push_back(
      "the goal is judged over links with a rate alone (tests/campaign/cluster_links.py): here all readers ask for a "
      "page before the first one has it");
}

Status measure_samples(FanOut& fan_out) {
  Context& context = fan_out.context;
  const std::uint64_t limit_bytes = context.settings.passes == 1 ? kLimitBytesOnce : kLimitBytes;
  VMEM_ASSIGN(const NodePath path, path_here(context.settings));
  VMEM_ASSIGN(const auto bare, BareNetwork::create(path, *context.settings.page_bytes));
  context.progress.begin("cluster fan-out", kReaders * static_cast<std::uint64_t>(context.settings.repeats));
  for (int repeat = 0; repeat < context.settings.repeats; ++repeat) {
    VMEM_ASSIGN(const double rate, bare->one_way(limit_bytes));
    fan_out.bare.add(rate);
    for (std::size_t count = 1; count <= kReaders; ++count) VMEM_TRY(sample(fan_out, count));
  }
  add_records(fan_out, path, bare->name());
  return {};
}

}  // namespace

Status measure_fan_out(Context& context) {
  Settings settings = context.settings;
  if (!settings.page_bytes) settings.page_bytes = kPage;
  if (!settings.chunk_bytes) settings.chunk_bytes = kChunk;
  const std::uint64_t page_bytes = *settings.page_bytes;
  const std::uint64_t bytes = std::max(working_set_bytes(settings) / page_bytes, std::uint64_t{1}) * page_bytes;
  const Sizes sizes = sizes_in_memory(settings, context.gpu, bytes);
  VMEM_TRY(check_host_memory("cluster", (kReaders + 1) * sizes.host_bytes));
  VMEM_ASSIGN(const auto own, cluster_for(settings, {}));
  // The table stays in host memory; without this the first process would borrow all that the daemon
  // lends, and the others would warn of it.
  VMEM_ASSIGN(const Options given, options_named(settings, {"borrow"}));
  if (!given.borrow_bytes) settings.runtime_options.emplace_back("borrow", kBorrowed);
  Context part = context.with(settings);
  FanOut fan_out{.context = part, .name = name_of_region("table"), .bytes = bytes};
  for (std::size_t count = 0; count < kReaders; ++count) {
    VMEM_ASSIGN(ReaderProcess reader, ReaderProcess::start(part, bytes));
    fan_out.readers.push_back(std::move(reader));
  }
  VMEM_ASSIGN(const Session session, Session::start(settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const Region table, publish_pattern(part, stream, fan_out.name, bytes, 0));
  for (ReaderProcess& reader : fan_out.readers) VMEM_TRY(reader.wait_until_ready());
  return measure_samples(fan_out);
}

}  // namespace vmem::bench
