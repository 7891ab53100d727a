// Traces for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "trace/file.hpp"
#include "trace/writer.hpp"

namespace vmem::trace {

// A folder of its own for each test.
class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    std::string name = (std::filesystem::temp_directory_path() / "vmem-trace-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TraceTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name = "a.trace") const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

inline Header some_header() {
  return {.version = "1.2.3",
          .command = "python train.py",
          .emulated = true,
          .base = 0x7e8000000000,
          .devices = {{"a GPU", std::uint64_t{6} << 30, 55'000'000'000, 54'000'000'000}, {"another", 0, 0, 0}}};
}

// One event of each kind, with the least and the greatest values.
inline std::vector<Event> one_of_each() {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  constexpr std::uint32_t kMost32 = ~std::uint32_t{0};
  return {
      {0, Name{1, "void kernel<float>(float*, int)"}},
      {5, BlockBegins{1, 6 << 20, 0xfff'ffff, 3, 1, BlockKind::file}},
      {7, Launch{4095,
                 65535,
                 31,
                 (std::uint64_t{1} << 48) - 1,
                 1,
                 255,
                 {{1, Named::kWrites, 0, 0}, {2, Named::kFlags, 7, kMost32}}}},
      {6, Launch{}},
      {1'000'000'000'000, EpochEnds{1, 2, kMost}},
      {1'000'000'000'001, PageChanges{Happened::freed, 8, 1}},
      {900'000'000'000, Transfer{1234, Transfer::Direction::out, Transfer::Place::below, 9, 32, false}},
      {1'000'000'000'002, Wait{77, 9}},
      {1'000'000'000'003, Busy{1}},
      {1'000'000'000'004, Frames{3, kMost32}},
      {1'000'000'000'005, BlockEnds{1}},
      {1'000'000'000'005, Signal{4095, 65535, kMost32, true}},
      {1'000'000'000'006, End{End::Why::limit}},
  };
}

inline std::vector<std::byte> bytes_of(const std::vector<Event>& events) {
  EventEncoder encoder;
  for (const Event& event : events) encoder.add(event.at_ns, event.body);
  return encoder.take();
}

}  // namespace vmem::trace
