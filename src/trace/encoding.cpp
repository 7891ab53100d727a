#include "trace/encoding.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>

namespace vmem::trace {

void Encoder::integer(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_.push_back(std::byte((value & 0x7f) | 0x80));
  out_.push_back(std::byte(value));
}

void Encoder::text(const std::string& value) {
  integer(value.size());
  const auto* const from = reinterpret_cast<const std::byte*>(value.data());
  out_.insert(out_.end(), from, from + value.size());
}

std::uint64_t Decoder::integer() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && at_ != end_; shift += 7) {
    const auto byte = std::to_integer<std::uint64_t>(*at_++);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail();
  return 0;
}

std::string Decoder::text() {
  const std::uint64_t size = integer();
  if (size > left()) {
    fail();
    return {};
  }
  std::string value(reinterpret_cast<const char*>(at_), size);
  at_ += size;
  return value;
}

namespace {

// Writes fields, or reads them.
class Write {
 public:
  explicit Write(Encoder& to) : to_(to) {}
  template <class Each>
  void operator()(const Each& value) {
    if constexpr (std::is_same_v<Each, std::string>) {
      to_.text(value);
    } else {
      to_.integer(std::uint64_t(value));
    }
  }
  template <class Each>
  void choice(const Each& value, Each) {
    to_.integer(std::uint64_t(value));
  }
  template <class Each, class Fields>
  void list(const std::vector<Each>& values, Fields&& fields) {
    to_.integer(values.size());
    for (const Each& value : values) fields(value);
  }

 private:
  Encoder& to_;
};

class Read {
 public:
  explicit Read(Decoder& from) : from_(from) {}
  template <class Each>
  void operator()(Each& value) {
    if constexpr (std::is_same_v<Each, std::string>) {
      value = from_.text();
    } else {
      const std::uint64_t read = from_.integer();
      value = Each(read);
      if (std::uint64_t(value) != read) from_.fail();
    }
  }
  template <class Each>
  void choice(Each& value, Each last) {
    const std::uint64_t read = from_.integer();
    if (read > std::uint64_t(last)) return from_.fail();
    value = Each(read);
  }
  template <class Each, class Fields>
  void list(std::vector<Each>& values, Fields&& fields) {
    const std::uint64_t count = from_.integer();
    if (count > from_.left()) return from_.fail();  // each takes a byte at least
    values.resize(count);
    for (Each& value : values) fields(value);
  }

 private:
  Decoder& from_;
};

template <class T, class Plain>
concept Of = std::is_same_v<std::remove_const_t<T>, Plain>;

void fields(auto& io, Of<Name> auto& e) { io(e.id), io(e.text); }
void fields(auto& io, Of<BlockBegins> auto& e) {
  io(e.block), io(e.bytes), io(e.granule), io(e.granules), io(e.device), io.choice(e.kind, kLastBlockKind);
}
void fields(auto& io, Of<BlockEnds> auto& e) { io(e.block); }
void fields(auto& io, Of<Named> auto& e) {
  io(e.block), io.choice(e.flags, Named::kFlags);
  if ((e.flags & Named::kPart) != 0) io(e.first), io(e.granules);
}
void fields(auto& io, Of<Launch> auto& e) {
  io(e.thread), io(e.stream), io(e.device), io(e.epoch), io(e.what), io(e.tracing_us);
  io.list(e.named, [&](auto& each) { fields(io, each); });
}
void fields(auto& io, Of<EpochEnds> auto& e) { io(e.stream), io(e.epoch), io(e.gpu_ns); }
void fields(auto& io, Of<Signal> auto& e) { io(e.thread), io(e.stream), io(e.event), io.choice(e.waits, true); }
void fields(auto& io, Of<PageChanges> auto& e) { io.choice(e.what, kLastHappened), io(e.granule), io(e.granules); }
void fields(auto& io, Of<Transfer> auto& e) {
  io(e.took_ns), io.choice(e.direction, Transfer::Direction::out), io.choice(e.place, Transfer::kLastPlace);
  io(e.granule), io(e.granules), io.choice(e.copied, true);
}
void fields(auto& io, Of<Wait> auto& e) { io(e.took_ns), io(e.granule); }
void fields(auto& io, Of<Busy> auto& e) { io(e.took_ns); }
void fields(auto& io, Of<Frames> auto& e) { io(e.made), io(e.unmade); }
void fields(auto& io, Of<End> auto& e) { io.choice(e.why, End::kLastWhy); }
void fields(auto& io, Of<Device> auto& e) { io(e.name), io(e.hbm_bytes), io(e.in_bytes_per_s), io(e.out_bytes_per_s); }
void fields(auto& io, Of<Header> auto& e) {
  io(e.version), io(e.command), io.choice(e.emulated, true), io(e.base);
  io.list(e.devices, [&](auto& each) { fields(io, each); });
}

// Times may go back a little: each thread's events are in order, not all of them.
std::uint64_t zigzag(std::int64_t value) { return (std::uint64_t(value) << 1) ^ std::uint64_t(value >> 63); }
std::int64_t unzigzag(std::uint64_t value) { return std::int64_t((value >> 1) ^ -(value & 1)); }

template <std::size_t... Index>
bool make(std::size_t kind, Body& body, std::index_sequence<Index...>) {
  return ((kind == Index && (body.emplace<Index>(), true)) || ...);
}

}  // namespace

void EventEncoder::add(std::uint64_t at_ns, const Body& body) {
  Encoder to(out_);
  to.integer(body.index());
  to.integer(zigzag(std::int64_t(at_ns - last_ns_)));
  last_ns_ = at_ns;
  Write write(to);
  std::visit([&](const auto& each) { fields(write, each); }, body);
}

std::vector<std::byte> EventEncoder::take(std::vector<std::byte> room) {
  last_ns_ = 0;
  return std::exchange(out_, std::move(room));
}

bool decode(const std::vector<std::byte>& chunk, std::vector<Event>& events) {
  Decoder from(chunk.data(), chunk.data() + chunk.size());
  std::uint64_t last_ns = 0;
  while (!from.at_end()) {
    Event event;
    const std::uint64_t kind = from.integer();
    if (!make(kind, event.body, std::make_index_sequence<std::variant_size_v<Body>>())) return false;
    event.at_ns = last_ns += std::uint64_t(unzigzag(from.integer()));
    Read read(from);
    std::visit([&](auto& body) { fields(read, body); }, event.body);
    if (from.failed()) return false;
    events.push_back(std::move(event));
  }
  return true;
}

std::vector<std::byte> encode(const Header& header) {
  std::vector<std::byte> out;
  Encoder to(out);
  Write write(to);
  fields(write, header);
  return out;
}

bool decode(const std::vector<std::byte>& bytes, Header& header) {
  Decoder from(bytes.data(), bytes.data() + bytes.size());
  Read read(from);
  fields(read, header);
  return !from.failed() && from.at_end();
}

}  // namespace vmem::trace
