#include "tools/trace/shares.hpp"

#include <algorithm>
#include <vector>

namespace vmem::tools {
namespace {

using trace::Busy;
using trace::Event;
using trace::Transfer;

struct Span {
  std::uint64_t from = 0, to = 0;
};
using Spans = std::vector<Span>;  // ascending, without overlap, once united

Spans united(Spans spans) {
  std::ranges::sort(spans, {}, &Span::from);
  Spans result;
  for (const Span& span : spans) {
    if (result.empty() || span.from > result.back().to)
      result.push_back(span);
    else
      result.back().to = std::max(result.back().to, span.to);
  }
  return result;
}

std::uint64_t length(const Spans& spans) {
  std::uint64_t sum = 0;
  for (const Span& span : spans) sum += span.to - span.from;
  return sum;
}

std::uint64_t common(const Spans& a, const Spans& b) {
  std::uint64_t sum = 0;
  for (auto left = a.begin(), right = b.begin(); left != a.end() && right != b.end();) {
    const std::uint64_t from = std::max(left->from, right->from), to = std::min(left->to, right->to);
    if (from < to) sum += to - from;
    left->to < right->to ? ++left : ++right;
  }
  return sum;
}

struct Collector {
  Span part;
  Spans in, out, mover, waiting;

  void see(const Event& event) {
    std::visit([&](const auto& body) { add(event.at_ns, body); }, event.body);
  }

 private:
  void add(std::uint64_t at_ns, const Transfer& e) {
    if (e.copied && e.place != Transfer::Place::below)
      put(e.direction == Transfer::Direction::in ? in : out, at_ns, e.took_ns);
  }
  void add(std::uint64_t at_ns, const Busy& e) { put(mover, at_ns, e.took_ns); }
  void add(std::uint64_t at_ns, const trace::Wait& e) { put(waiting, at_ns, e.took_ns); }
  void add(std::uint64_t, const auto&) {}

  void put(Spans& spans, std::uint64_t at_ns, std::uint64_t took_ns) const {
    const Span span{std::max(at_ns, part.from), std::min(at_ns + took_ns, part.to)};
    if (span.from < span.to) spans.push_back(span);
  }
};

// From the middle launch to the last one. Events are in the order of time.
Span later_half(const trace::Trace& trace) {
  std::vector<std::uint64_t> launches;
  for (const Event& event : trace.events)
    if (std::holds_alternative<trace::Launch>(event.body)) launches.push_back(event.at_ns);
  if (launches.empty()) return {};
  return {launches[launches.size() / 2], launches.back()};
}

}  // namespace

Shares shares_of(const trace::Trace& trace) {
  Collector collected{.part = later_half(trace), .in = {}, .out = {}, .mover = {}, .waiting = {}};
  for (const Event& event : trace.events) collected.see(event);
  const Spans in = united(std::move(collected.in)), out = united(std::move(collected.out));
  return {.all = collected.part.to - collected.part.from,
          .in = length(in),
          .out = length(out),
          .both = common(in, out),
          .mover = length(united(std::move(collected.mover))),
          .waiting = length(united(std::move(collected.waiting)))};
}

}  // namespace vmem::tools
