#include "trace/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>

#include "trace/recorded.hpp"

namespace vmem::trace {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// Launches that zstd cannot shrink much.
Event launch(std::uint64_t number) {
  Launch launch{.thread = 0, .stream = 1, .epoch = number, .what = 0, .named = {}};
  std::uint64_t state = number;
  for (int i = 0; i < 20; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    launch.named.push_back({std::uint32_t(state >> 33), 0, 0, 0});
  }
  return {number * 1000, launch};
}

std::uint64_t write(const std::string& path, std::uint64_t launches, std::uint64_t limit = kNoLimit) {
  auto writer = std::move(*Writer::create(path, limit, some_header()));
  std::uint64_t taken = 0;
  for (; taken < launches && !writer->ended(); ++taken) {
    const Event event = launch(taken);
    writer->add(event.at_ns, event.body);
  }
  writer->finish();
  return taken;
}

class TraceFile : public TraceTest {};

TEST_F(TraceFile, HoldsWhatWasAdded) {
  auto writer = std::move(*Writer::create(path(), kNoLimit, some_header()));
  for (const Event& event : one_of_each()) {
    if (!std::holds_alternative<End>(event.body)) writer->add(event.at_ns, event.body);
  }
  writer->finish();
  const auto trace = read(path());
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->header.command, "python train.py");
  EXPECT_EQ(trace->events.size(), one_of_each().size());
  EXPECT_TRUE(std::ranges::is_sorted(trace->events, {}, &Event::at_ns));
  EXPECT_EQ(trace->names.at(1), "void kernel<float>(float*, int)");
  EXPECT_EQ(trace->ended, End::Why::finished);
  EXPECT_EQ(trace->cut_short, "");
}

TEST_F(TraceFile, OfManyChunksIsWhole) {
  EXPECT_EQ(write(path(), 50'000), 50'000u);
  const auto trace = read(path());
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->events.size(), 50'001u);
  for (std::uint64_t i = 0; i < 50'000; ++i) ASSERT_EQ(std::get<Launch>(trace->events[i].body).epoch, i);
}

TEST_F(TraceFile, AnExistingOneIsLeftAloneAndAnotherMade) {
  put(path(), "precious");
  auto writer = std::move(*Writer::create(path(), kNoLimit, some_header()));
  EXPECT_EQ(writer->path(), path() + "." + std::to_string(::getpid()));
  writer->finish();
  EXPECT_EQ(content(path()), "precious");
  EXPECT_TRUE(read(writer->path()));
}

TEST_F(TraceFile, ThatCannotBeMadeIsSaid) {
  const auto writer = Writer::create(path("no/such/folder"), kNoLimit, some_header());
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(writer.error().message, HasSubstr("No such file or directory"));
}

TEST_F(TraceFile, EndsAtItsLimit) {
  constexpr std::uint64_t kLimit = 3 << 20;
  write(path(), 60'000, kLimit);  // twice that
  EXPECT_LE(std::filesystem::file_size(path()), kLimit);
  const auto trace = read(path());
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->ended, End::Why::limit);
  EXPECT_EQ(trace->cut_short, "");
  for (std::size_t i = 0; i + 1 < trace->events.size(); ++i)
    ASSERT_EQ(std::get<Launch>(trace->events[i].body).epoch, i) << "there is a gap";
}

// As a full disk: the kernel refuses further bytes.
TEST_F(TraceFile, OnAFullDiskEndsWithItsLastWholeChunk) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit most{2'500'000, 2'500'000};
    ::setrlimit(RLIMIT_FSIZE, &most);
    write(path(), 60'000);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const auto trace = read(path());
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_THAT(trace->cut_short, HasSubstr("the disk was full"));
  EXPECT_GT(trace->events.size(), 1000u);
}

TEST_F(TraceFile, OfAKilledProgramIsReadAsFarAsItGoes) {
  write(path(), 30'000);
  const std::string whole = content(path());
  const std::size_t all = read(path())->events.size();
  std::size_t before = 0;
  for (std::size_t size = 200; size < whole.size(); size += 50'001) {
    put(path("cut"), whole.substr(0, size));
    const auto trace = read(path("cut"));
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_THAT(trace->cut_short, HasSubstr("the program was killed"));
    EXPECT_GE(trace->events.size(), before);
    EXPECT_LT(trace->events.size(), all);
    before = trace->events.size();
  }
  EXPECT_GT(before, 0u);
}

TEST_F(TraceFile, EachDamagedByteIsFound) {
  write(path(), 300);
  const std::string whole = content(path());
  for (std::size_t at = 0; at < whole.size(); at += whole.size() > 20'000 ? 7 : 1) {
    std::string damaged = whole;
    damaged[at] = char(damaged[at] ^ 0x10);
    put(path("damaged"), damaged);
    const auto trace = read(path("damaged"));
    if (trace) {
      // A length that reaches beyond the end looks like a file that was cut short.
      EXPECT_NE(trace->cut_short, "") << "byte " << at;
    } else {
      EXPECT_EQ(trace.error().status, VMEM_ERROR_INVALID_VALUE);
    }
  }
}

TEST_F(TraceFile, OtherFilesAreRefusedWithWords) {
  put(path("text"), "#!/bin/sh\necho hello\n");
  EXPECT_THAT(read(path("text")).error().message, HasSubstr("is no trace of vmem"));
  put(path("empty"), "");
  EXPECT_THAT(read(path("empty")).error().message, HasSubstr("is no trace of vmem"));
  EXPECT_THAT(read(path("none")).error().message, HasSubstr("No such file or directory"));
  write(path(), 1);
  std::string newer = content(path());
  newer[kMark.size()] = 3;
  put(path("newer"), newer);
  EXPECT_THAT(read(path("newer")).error().message, HasSubstr("has version 3, and this vmem reads version 2"));
}

}  // namespace
}  // namespace vmem::trace
