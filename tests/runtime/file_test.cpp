// Files mapped through the public API, on the emulated driver: 64 MiB of HBM.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

std::uint64_t word_at(std::uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

// A file of words that tell their positions, in the working directory; removed at the end.
class WordFile {
 public:
  explicit WordFile(std::size_t bytes) : bytes_(bytes) {
    std::vector<std::uint64_t> words(kMiB / 8);
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (std::size_t at = 0; at < bytes; at += kMiB) {
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_at(at / 8 + i);
      const std::size_t piece = std::min(kMiB, bytes - at);
      EXPECT_EQ(::pwrite(descriptor_, words.data(), piece, off_t(at)), ssize_t(piece));
    }
    EXPECT_EQ(::fsync(descriptor_), 0);
  }
  ~WordFile() {
    ::close(descriptor_);
    ::unlink(path.c_str());
  }
  WordFile(const WordFile&) = delete;
  WordFile& operator=(const WordFile&) = delete;
  std::size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

  const std::string path = fmt::format("words-{}.bin", ::getpid());

 private:
  const std::size_t bytes_;
  int descriptor_ = -1;
};

// The number of bytes of [at, at + bytes.size()) that differ from the file.
std::size_t wrong_bytes(const std::vector<std::byte>& bytes, std::uint64_t at) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint64_t word = word_at((at + i) / 8);
    wrong += bytes[i] != std::byte(word >> (at + i) % 8 * 8);
  }
  return wrong;
}

// How often this process has the file open.
std::ptrdiff_t times_open(const WordFile& file) {
  const std::filesystem::path path = std::filesystem::absolute(file.path);
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return std::count_if(begin(descriptors), end(descriptors), [&](const auto& each) {
    std::error_code closed;
    return std::filesystem::read_symlink(each, closed) == path;
  });
}

class FileMapping : public RuntimeTest {
 protected:
  using RuntimeTest::RuntimeTest;
  std::byte* map(const WordFile& file, std::uint64_t offset = 0, std::uint64_t bytes = 0) {
    void* memory = nullptr;
    EXPECT_OK(vmem_map_file(&memory, file.path.c_str(), offset, bytes, 0));
    return static_cast<std::byte*>(memory);
  }
  // Reads by a kernel, between acquire and release.
  std::vector<std::byte> read_by_kernel(const std::byte* from, std::size_t bytes, CUstream stream) {
    std::vector<std::byte> held(bytes);
    const vmem_range range = range_of(const_cast<std::byte*>(from), bytes, VMEM_READ);
    EXPECT_OK(acquire(range, stream));
    EXPECT_EQ(gpu->launch(stream, 0, [&held, from, bytes] { std::memcpy(held.data(), from, bytes); }), CUDA_SUCCESS);
    EXPECT_OK(release(range, stream));
    gpu->synchronize(stream);
    return held;
  }
};

class SmallHost : public FileMapping {
 protected:
  SmallHost() : FileMapping({{"host", "48MiB"}}) {}
};

TEST_F(SmallHost, EveryByteOfAFileOfFourTimesHbmIsRightAndHostMemoryStaysFlat) {
  const WordFile file(256 * kMiB + 4321);
  std::byte* const memory = map(file);
  CUstream const stream = gpu->create_stream(0);
  constexpr std::size_t kChunk = 4 * kMiB;
  std::uint64_t host_most = 0;
  const vmem_statistics before = statistics();
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t at = 0; at < file.bytes(); at += kChunk) {
      const auto held = read_by_kernel(memory + at, std::min(kChunk, file.bytes() - at), stream);
      ASSERT_EQ(wrong_bytes(held, at), 0u) << "from " << at;
      host_most = std::max(host_most, statistics().host_used_bytes);
    }
  }
  const vmem_statistics after = statistics();
  EXPECT_LE(host_most, 32 * kMiB) << "a few pages on their way";
  EXPECT_EQ(after.migrated_out_bytes, before.migrated_out_bytes) << "nothing is copied out";
  EXPECT_GE(after.file_read_bytes, file.bytes());
  EXPECT_LE(after.file_read_bytes, 2 * file.bytes() + 8 * kMiB) << "no page is read twice for one use";
  EXPECT_EQ(after.file_mapped_bytes, file.bytes());
  EXPECT_EQ(after.allocated_bytes, before.allocated_bytes);
  EXPECT_EQ(after.committed_bytes, before.committed_bytes);
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

// As SmallHost, through cuFile.
class StraightToHbm : public FileMapping {
 protected:
  explicit StraightToHbm(std::vector<vmem_option> more = {{"host", "48MiB"}, {"gds", "auto"}},
                         std::string cufile = "direct")
      : FileMapping(std::move(more), "devices=2,hbm=256MiB,host=512MiB,cufile=" + cufile) {}
};

TEST_F(StraightToHbm, EveryByteIsRightAndNoneButTheLastPagesGoesThroughHostMemory) {
  const WordFile file(256 * kMiB + 4321);
  std::byte* const memory = map(file);
  CUstream const stream = gpu->create_stream(0);
  constexpr std::size_t kChunk = 4 * kMiB;
  const vmem_statistics before = statistics();
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t at = 0; at < file.bytes(); at += kChunk) {
      const auto held = read_by_kernel(memory + at, std::min(kChunk, file.bytes() - at), stream);
      ASSERT_EQ(wrong_bytes(held, at), 0u) << "from " << at;
    }
  }
  const vmem_statistics after = statistics();
  EXPECT_GE(after.read_to_hbm_bytes, file.bytes());
  EXPECT_GE(after.file_read_bytes, after.read_to_hbm_bytes);
  EXPECT_LE(after.file_read_bytes - after.read_to_hbm_bytes, 2 * 32 * kMiB);
  EXPECT_EQ(after.migrated_out_bytes, before.migrated_out_bytes);
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

class FewFrames : public StraightToHbm {
 protected:
  FewFrames() : StraightToHbm({{"host", "96MiB"}, {"gds", "auto"}, {"page", "8MiB"}}, "direct,h2d=1") {}
};
TEST_F(FewFrames, APrefetchOfMoreThanHbmEnds) {
  const WordFile file(256 * kMiB);
  std::byte* const memory = map(file);
  ASSERT_OK(vmem_prefetch(memory, file.bytes()));
  ASSERT_OK(vmem_quiesce());
  EXPECT_LE(statistics().file_read_bytes, 2 * file.bytes());
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_GT(info.bytes_hbm, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
}

TEST_F(StraightToHbm, MappingAFileLeavesTheCaptureOfAnotherThreadAlone) {
  const WordFile file(32 * kMiB);
  CUstream const stream = gpu->create_stream(0);
  ASSERT_EQ((*gpu->driver())->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  void* memory = nullptr;
  std::thread([&] { EXPECT_OK(vmem_map_file(&memory, file.path.c_str(), 0, 0, 0)); }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ((*gpu->driver())->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_OK(vmem_free(memory, nullptr));
}

// A range larger than HBM: pages that find no frame are served in place at once.
class LargerThanHbm : public StraightToHbm {
 protected:
  LargerThanHbm() : StraightToHbm({{"host", "160MiB"}, {"gds", "auto"}}) {}
};
TEST_F(LargerThanHbm, IsAcquiredWithoutWaitingForFrames) {
  const WordFile file(160 * kMiB);
  std::byte* const memory = map(file);
  CUstream const stream = gpu->create_stream(0);
  for (int round = 0; round < 3; ++round) {
    const vmem_range range = range_of(memory, file.bytes(), VMEM_READ);
    ASSERT_OK(acquire(range, stream));
    ASSERT_OK(release(range, stream));
    gpu->synchronize(stream);
  }
  EXPECT_EQ(statistics().acquire_waits, 0u);
  EXPECT_GT(statistics().read_to_hbm_bytes, 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
}

class ThroughHost : public StraightToHbm {
 protected:
  ThroughHost() : StraightToHbm({{"host", "48MiB"}, {"gds", "auto"}}, "compat") {}
};
TEST_F(ThroughHost, IsWhereFilesGoWithoutAWayStraightToHbm) {
  const WordFile file(32 * kMiB);
  std::byte* const memory = map(file);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, file.bytes(), gpu->create_stream(0)), 0), 0u);
  EXPECT_EQ(statistics().read_to_hbm_bytes, 0u);
}

class Compatibility : public StraightToHbm {
 protected:
  Compatibility() : StraightToHbm({{"host", "48MiB"}, {"gds", "on"}}, "compat") {}
};
TEST_F(Compatibility, ModeIsTakenIfItIsAskedFor) {
  const WordFile file(32 * kMiB);
  std::byte* const memory = map(file);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, file.bytes(), gpu->create_stream(0)), 0), 0u);
  EXPECT_EQ(statistics().read_to_hbm_bytes, file.bytes());
}

class Off : public StraightToHbm {
 protected:
  Off() : StraightToHbm({{"host", "48MiB"}, {"gds", "off"}}) {}
};
TEST_F(Off, MeansThatNothingGoesStraightToHbm) {
  const WordFile file(32 * kMiB);
  std::byte* const memory = map(file);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, file.bytes(), gpu->create_stream(0)), 0), 0u);
  EXPECT_EQ(statistics().read_to_hbm_bytes, 0u);
}

// Pages below host memory load straight to HBM, as pages of mapped files do.
class BelowHost : public StraightToHbm {
 protected:
  BelowHost() : StraightToHbm({{"host", "48MiB"}, {"nvme", ".:1GiB"}, {"compress", "off"}, {"page", "2MiB"}}) {}
};
TEST_F(BelowHost, PagesThatAreReadAgainAndAgainComeStraightToHbm) {
  constexpr std::size_t kBytes = 192 * kMiB, kChunk = 4 * kMiB;
  auto* const memory = static_cast<std::byte*>(allocate(kBytes));
  for (std::size_t at = 0; at < kBytes; at += kChunk)
    ASSERT_OK(vmem_memset(memory + at, int(at / kChunk), kChunk, nullptr));
  CUstream const stream = gpu->create_stream(0);
  for (int pass = 0; pass < 4; ++pass) {
    for (std::size_t at = 0; at < kBytes; at += kChunk) {
      const auto held = read_by_kernel(memory + at, kChunk, stream);
      ASSERT_EQ(std::size_t(std::ranges::count(held, std::byte(at / kChunk))), kChunk) << "from " << at;
    }
  }
  const vmem_statistics after = statistics();
  EXPECT_GT(after.read_to_hbm_bytes, kBytes);
  EXPECT_GE(after.recalled_bytes, after.read_to_hbm_bytes);
}

class WithoutCuFile : public RuntimeTest {
 protected:
  WithoutCuFile() : RuntimeTest({}, "devices=2,hbm=256MiB,host=512MiB,cufile=none") {}
};
TEST_F(WithoutCuFile, AskingForItStopsTheStart) {
  give_up_bystander();
  ASSERT_OK(vmem_shutdown());
  EXPECT_REFUSED(start_vmem({{"gds", "on"}}), VMEM_ERROR_INVALID_OPTION, {"--gds on", "give auto"});
}

TEST_F(SmallHost, AllocationsThatFillHostMemoryLeaveFilesAWayThrough) {
  const WordFile file(128 * kMiB);
  std::byte* const memory = map(file);
  const vmem_statistics before = statistics();
  std::size_t bytes = 96 * kMiB;
  void* allocated = nullptr;
  while (vmem_malloc(&allocated, bytes, 0, nullptr) != VMEM_OK) bytes -= kMiB;
  EXPECT_GT(bytes, 80 * kMiB);
  ASSERT_OK(vmem_memset(allocated, 7, bytes, nullptr));
  CUstream const stream = gpu->create_stream(0);
  for (std::size_t at = 0; at < file.bytes(); at += 2 * kMiB)
    ASSERT_EQ(wrong_bytes(read_by_kernel(memory + at, 2 * kMiB, stream), at), 0u) << "from " << at;
  std::vector<std::byte> read(bytes);
  ASSERT_OK(vmem_read(read.data(), allocated, bytes));
  EXPECT_EQ(std::ranges::count(read, std::byte{7}), std::ptrdiff_t(bytes));
  EXPECT_EQ(before.file_mapped_bytes, file.bytes());
  ASSERT_OK(vmem_free(allocated, nullptr));
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

TEST_F(FileMapping, AnyRangeOfBytesIsWhereThePointerSays) {
  const WordFile file(9 * kMiB + 17);
  CUstream const stream = gpu->create_stream(0);
  for (const auto& [offset, bytes] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {1, 0}, {4097, 3 * kMiB}, {5 * kMiB - 3, 7}, {file.bytes() - 1, 1}}) {
    SCOPED_TRACE(fmt::format("{} bytes from {}", bytes, offset));
    std::byte* const memory = map(file, offset, bytes);
    const std::uint64_t asked = bytes == 0 ? file.bytes() - offset : bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 4096, offset % 4096);
    EXPECT_EQ(wrong_bytes(read_by_kernel(memory, asked, stream), offset), 0u);
    std::vector<std::byte> read(asked);
    ASSERT_OK(vmem_read(read.data(), memory, asked));
    EXPECT_EQ(wrong_bytes(read, offset), 0u);
    EXPECT_REFUSED(vmem_read(read.data(), memory, asked + 1), VMEM_ERROR_INVALID_RANGE);
    if (offset % 4096 != 0) {
      EXPECT_REFUSED(vmem_read(read.data(), memory - 1, 1), VMEM_ERROR_INVALID_POINTER, {"before the mapping"});
    }
    vmem_pointer_info info{};
    ASSERT_OK(vmem_query(memory, &info));
    EXPECT_EQ(info.base, memory);
    EXPECT_EQ(info.bytes, asked);
    ASSERT_OK(vmem_free(memory, nullptr));
  }
  expect_nothing_left();
}

TEST_F(FileMapping, NothingCanWriteToItAndItIsNamed) {
  const WordFile file(6 * kMiB);
  std::byte* const memory = map(file);
  std::byte* const other = static_cast<std::byte*>(allocate(2 * kMiB));
  std::vector<std::byte> bytes(kMiB);
  EXPECT_REFUSED(acquire(range_of(memory, kMiB, VMEM_READ_WRITE)), VMEM_ERROR_INVALID_VALUE, {file.path, hex(memory)});
  EXPECT_REFUSED(acquire(range_of(memory, kMiB, VMEM_WRITE | VMEM_DISCARD)), VMEM_ERROR_INVALID_VALUE, {file.path});
  EXPECT_REFUSED(vmem_memcpy(memory, other, kMiB, nullptr), VMEM_ERROR_INVALID_VALUE, {file.path});
  EXPECT_REFUSED(vmem_memset(memory, 1, kMiB, nullptr), VMEM_ERROR_INVALID_VALUE, {file.path});
  EXPECT_REFUSED(vmem_write(memory, bytes.data(), kMiB), VMEM_ERROR_INVALID_VALUE, {file.path});
  ASSERT_OK(vmem_memcpy(other, memory, 2 * kMiB, nullptr));
  ASSERT_OK(vmem_read(bytes.data(), other, kMiB));
  EXPECT_EQ(wrong_bytes(bytes, 0), 0u) << "copied from";
  EXPECT_REFUSED(vmem_free(memory + 1, nullptr), VMEM_ERROR_INVALID_POINTER, {"vmem_map_file"});
  ASSERT_OK(vmem_free(other, nullptr));
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

TEST_F(FileMapping, WhatCannotBeMappedIsRefused) {
  const WordFile file(kMiB);
  const char* const path = file.path.c_str();
  void* memory = &memory;
  EXPECT_REFUSED(vmem_map_file(nullptr, path, 0, 0, 0), VMEM_ERROR_INVALID_VALUE, {"out is NULL"});
  EXPECT_REFUSED(vmem_map_file(&memory, nullptr, 0, 0, 0), VMEM_ERROR_INVALID_VALUE, {"path is NULL"});
  EXPECT_REFUSED(vmem_map_file(&memory, path, 0, 0, 9), VMEM_ERROR_INVALID_VALUE, {"device 9"});
  EXPECT_REFUSED(vmem_map_file(&memory, "/nonexistent", 0, 0, 0), VMEM_ERROR_INVALID_VALUE,
                 {"/nonexistent", "No such"});
  EXPECT_REFUSED(vmem_map_file(&memory, ".", 0, 0, 0), VMEM_ERROR_INVALID_VALUE, {"directory"});
  EXPECT_REFUSED(vmem_map_file(&memory, path, kMiB + 1, 0, 0), VMEM_ERROR_INVALID_RANGE, {path});
  EXPECT_REFUSED(vmem_map_file(&memory, path, kMiB, 0, 0), VMEM_ERROR_INVALID_VALUE, {"nothing to map"});
  EXPECT_REFUSED(vmem_map_file(&memory, path, 0, kMiB + 1, 0), VMEM_ERROR_INVALID_RANGE, {path});
  EXPECT_EQ(memory, static_cast<void*>(&memory)) << "unchanged";
  expect_nothing_left();
}

TEST_F(FileMapping, AFileThatShrinksLosesWhatIsReadLaterAndNothingElse) {
  const WordFile file(32 * kMiB);
  std::byte* const memory = map(file);
  CUstream const stream = gpu->create_stream(0);
  ASSERT_EQ(wrong_bytes(read_by_kernel(memory, 2 * kMiB, stream), 0), 0u);
  ASSERT_OK(vmem_quiesce());
  ASSERT_EQ(::ftruncate(file.descriptor(), off_t(8 * kMiB)), 0);
  std::byte* const late = memory + 30 * kMiB;
  for (int round = 0; round < 2; ++round) {
    EXPECT_REFUSED(
        acquire(range_of(late, kMiB, VMEM_READ), stream), VMEM_ERROR_LOST,
        {file.path, "shrank", fmt::format("it had {} bytes and has {}", 32 * kMiB, 8 * kMiB), "map the file again"});
  }
  std::byte byte{};
  EXPECT_REFUSED(vmem_read(&byte, late, 1), VMEM_ERROR_LOST, {file.path, "shrank"});
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_GE(info.bytes_lost, info.page_bytes);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, 2 * kMiB, stream), 0), 0u) << "what is in memory stays readable";
  ASSERT_OK(vmem_free(memory, nullptr));
  std::byte* const again = map(file);
  EXPECT_EQ(wrong_bytes(read_by_kernel(again, 8 * kMiB, stream), 0), 0u);
  ASSERT_OK(vmem_free(again, nullptr));
  expect_nothing_left();
}

TEST_F(FileMapping, PrefetchBringsPagesToHbmAndEvictionDropsThem) {
  const WordFile file(16 * kMiB);
  std::byte* const memory = map(file);
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_EQ(info.bytes_file, 16 * kMiB);
  ASSERT_OK(vmem_prefetch(memory, 16 * kMiB));
  ASSERT_OK(vmem_quiesce());
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_EQ(info.bytes_hbm, 16 * kMiB);
  EXPECT_EQ(info.bytes_file + info.bytes_host, 0u);
  EXPECT_LE(statistics().host_used_bytes, 8 * kMiB) << "the bystander's";
  ASSERT_OK(vmem_advise(memory, 16 * kMiB, VMEM_ADVISE_EVICT));
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_EQ(info.bytes_file, 16 * kMiB);
  EXPECT_EQ(statistics().migrated_out_bytes, 0u);
  ASSERT_OK(vmem_advise(memory, 16 * kMiB, VMEM_ADVISE_IN_PLACE));
  CUstream const stream = gpu->create_stream(0);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory + 4 * kMiB, 3 * kMiB, stream), 4 * kMiB), 0u);
  ASSERT_OK(vmem_query(memory, &info));
  EXPECT_GE(info.bytes_host_mapped, 3 * kMiB);
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

TEST_F(FileMapping, ARangeLargerThanHbmIsServedPartlyInPlace) {
  const WordFile file(160 * kMiB);
  std::byte* const memory = map(file);
  CUstream const stream = gpu->create_stream(0);
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, file.bytes(), stream), 0), 0u);
  // Then its slots serve other pages.
  EXPECT_EQ(wrong_bytes(read_by_kernel(memory, 4 * kMiB, stream), 0), 0u);
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

TEST_F(FileMapping, AFreedMappingClosesItsFileAfterItsLastUse) {
  const WordFile file(8 * kMiB);
  const std::ptrdiff_t before = times_open(file);  // opened by the test
  std::byte* const memory = map(file);
  EXPECT_EQ(times_open(file), before + 1);
  const vmem_range held = range_of(memory, kMiB, VMEM_READ);
  ASSERT_OK(acquire(held));
  EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_IN_USE);
  ASSERT_OK(release(held));
  ASSERT_OK(vmem_free(memory, nullptr));
  ASSERT_OK(vmem_quiesce());
  // A separate thread closes it, so that a silent file system delays no call.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (times_open(file) != before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(times_open(file), before);
  expect_nothing_left();
}

class WithNvme : public FileMapping {
 protected:
  WithNvme() : FileMapping({{"host", "48MiB"}, {"nvme", ".:256MiB"}}) {}
};

TEST_F(WithNvme, FilesAndSpilledPagesShareHostMemory) {
  const WordFile file(96 * kMiB);
  std::byte* const memory = map(file);
  constexpr std::size_t kBytes = 160 * kMiB;
  auto* const allocated = static_cast<std::byte*>(allocate(kBytes));
  CUstream const stream = gpu->create_stream(0);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t at = 0; at < kBytes; at += 4 * kMiB) {
      ASSERT_OK(vmem_memset(allocated + at, int(at / kMiB) + round, 4 * kMiB, nullptr));
      const std::size_t there = at % file.bytes();
      ASSERT_EQ(wrong_bytes(read_by_kernel(memory + there, 4 * kMiB, stream), there), 0u) << "from " << there;
    }
  }
  std::vector<std::byte> read(4 * kMiB);
  for (std::size_t at = 0; at < kBytes; at += 4 * kMiB) {
    ASSERT_OK(vmem_read(read.data(), allocated + at, read.size()));
    ASSERT_EQ(std::ranges::count(read, std::byte(at / kMiB + 1)), std::ptrdiff_t(read.size())) << "from " << at;
  }
  EXPECT_GT(statistics().spilled_bytes, 0u);
  ASSERT_OK(vmem_free(allocated, nullptr));
  ASSERT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

}  // namespace
}  // namespace vmem::test
