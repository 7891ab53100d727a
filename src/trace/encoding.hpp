// Bytes of a trace: integers of 7 bits a byte, low ones first. One list of fields for each event
// serves both directions, so that they cannot disagree.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/events.hpp"

namespace vmem::trace {

class Encoder {
 public:
  explicit Encoder(std::vector<std::byte>& out) : out_(out) {}
  void integer(std::uint64_t value);
  void text(const std::string& value);

 private:
  std::vector<std::byte>& out_;
};

// Reads what an Encoder wrote, or anything else: never beyond the end. After a failure all values
// are 0, and failed() is true.
class Decoder {
 public:
  Decoder(const std::byte* from, const std::byte* end) : at_(from), end_(end) {}
  std::uint64_t integer();
  std::string text();
  bool failed() const { return failed_; }
  bool at_end() const { return at_ == end_; }
  std::uint64_t left() const { return std::uint64_t(end_ - at_); }
  void fail() { failed_ = true, at_ = end_; }

 private:
  const std::byte* at_;
  const std::byte* end_;
  bool failed_ = false;
};

// Events of one chunk, in order. Each chunk is decoded by itself.
class EventEncoder {
 public:
  void add(std::uint64_t at_ns, const Body& body);
  std::size_t bytes() const { return out_.size(); }
  // The chunk so far. The next event begins another, in `room`, which is empty.
  std::vector<std::byte> take(std::vector<std::byte> room = {});

 private:
  std::vector<std::byte> out_;
  std::uint64_t last_ns_ = 0;
};

// Appends the events of a chunk. False: these bytes are not such a chunk.
bool decode(const std::vector<std::byte>& chunk, std::vector<Event>& events);

std::vector<std::byte> encode(const Header& header);
bool decode(const std::vector<std::byte>& bytes, Header& header);

}  // namespace vmem::trace
