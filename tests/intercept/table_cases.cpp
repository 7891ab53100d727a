// Pointer tables: memory that launches reach without naming it. The runs have 64 MiB of HBM.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

// A kernel reaches memory through a table that another kernel filled, and through a copy of that
// table.
CASE(pointer_tables) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"),
                   copy_table = machine.function("copy_table"), add = machine.function("add");
  Buffers buffers(10);
  std::size_t count = 16, stride = kMiB;
  for (std::size_t round = 0; round < 20; ++round) {
    CUdeviceptr table = 0, copy = 0;
    CALL(cuMemAllocAsync(&table, 1024, buffers.stream));
    CALL(cuMemAllocAsync(&copy, 1024, buffers.stream));
    CUdeviceptr& target = buffers.at[round % buffers.at.size()];
    launch(fill, buffers.stream, {&table, &target, &stride, &count});
    launch(copy_table, buffers.stream, {&copy, &table, &count});
    buffers.work(add);
    launch(follow, buffers.stream, {&copy, &count});
    CALL(cuMemFreeAsync(table, buffers.stream));
    CALL(cuMemFreeAsync(copy, buffers.stream));
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) {
    const auto data = read(buffers.at[i], 2, buffers.stream);
    REQUIRE(data[0] == i + 20 + 2 && data[1] == i + 20);
  }
}

// A table filled long ago, with pointers to a large and to a small allocation.
CASE(pointer_tables_that_last) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  std::array<CUdeviceptr, 2> tables{};
  CUdeviceptr small = 0;
  CALL(cuMemAllocAsync(&small, 1024, buffers.stream));
  CALL(cuMemsetD32Async(small, 0, 256, buffers.stream));
  std::size_t one = 1, stride = 0;
  for (CUdeviceptr& table : tables) {
    CALL(cuMemAllocAsync(&table, 1024, buffers.stream));
    CUdeviceptr& target = &table == tables.data() ? buffers.at[0] : small;
    launch(fill, buffers.stream, {&table, &target, &stride, &one});
  }
  for (std::size_t round = 0; round < 20; ++round) {
    buffers.work(add);
    for (CUdeviceptr& table : tables) launch(follow, buffers.stream, {&table, &one});
  }
  REQUIRE(read(buffers.at[0], 1, buffers.stream)[0] == 20 + 20);
  REQUIRE(read(small, 1, buffers.stream)[0] == 20);
}

// A kernel that copies numbers between small allocations writes no pointers, however far ahead of
// the GPU it is launched and in whatever order it is inspected. Otherwise all of its arguments
// would count as reachable from everywhere. The test reads the log.
CASE(numbers_are_no_pointers) {
  const Machine machine;
  const CUfunction copy_table = machine.function("copy_table");
  const Buffers buffers(0);
  Gate gate;
  std::array<CUdeviceptr, 8> small{};
  for (CUdeviceptr& each : small) {
    CALL(cuMemAllocAsync(&each, 1024, buffers.stream));
    CALL(cuMemsetD32Async(each, 0x3f800000, 256, buffers.stream));
  }
  CALL(cuStreamSynchronize(buffers.stream));
  std::size_t count = 16;
  for (unsigned round = 1; round <= 4; ++round) {
    gate.close(buffers.stream);
    for (std::size_t i = 0; i < 62; ++i)
      launch(copy_table, buffers.stream, {&small[i % small.size()], &small[(i + round) % small.size()], &count});
    gate.open();
    CALL(cuStreamSynchronize(buffers.stream));
  }
  REQUIRE(read(small[3], 2, buffers.stream)[1] == 0x3f800000);
}

// Tables that live for two launches each are freed with their targets, and reused by other tables,
// before the first is inspected. Inspection must still find that the kernel fills tables. The test
// reads the log.
CASE(pointer_tables_freed_before_they_are_looked_at) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(2);
  Gate gate;
  std::size_t one = 1, stride = 0, words = kWords;
  const std::string said = said_by([&] {
    gate.close(buffers.stream);
    for (int i = 0; i < 9; ++i) {
      CUdeviceptr table = 0, target = 0;
      CALL(cuMemAllocAsync(&table, 1024, buffers.stream));
      CALL(cuMemAllocAsync(&target, 4 * kMiB, buffers.stream));
      launch(fill, buffers.stream, {&table, &target, &stride, &one});
      launch(follow, buffers.stream, {&table, &one});
      CALL(cuMemFreeAsync(table, buffers.stream));
      CALL(cuMemFreeAsync(target, buffers.stream));
    }
    gate.open();
    CALL(cuStreamSynchronize(buffers.stream));
    for (int i = 0; i < 8; ++i) launch(add, buffers.stream, {&buffers.at[1], &words});
  });
  REQUIRE(said.find("fill fills pointer tables") != std::string::npos);
}

// The GPU is far behind. Of the launches that fill a table each, in large memory, only some are
// inspected before the verdict on the kernel. All of them count.
CASE(pointer_tables_filled_before_the_verdict) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(3);
  Gate gate;
  std::vector<CUdeviceptr> targets(12), tables;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    CALL(cuMemAllocAsync(&targets[i], 2 * kMiB, buffers.stream));
    CALL(cuMemsetD32Async(targets[i], 0, 2, buffers.stream));
    tables.push_back(buffers.at[0] + i * (kMiB / 2));
  }
  CALL(cuStreamSynchronize(buffers.stream));
  gate.close(buffers.stream);
  std::size_t one = 1, stride = 0;
  for (std::size_t i = 0; i < targets.size(); ++i)
    launch(fill, buffers.stream, {&tables[i], &targets[i], &stride, &one});
  gate.open();
  CALL(cuStreamSynchronize(buffers.stream));
  Buffers others(5);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    others.work(add);
    CALL(cuStreamSynchronize(others.stream));
    launch(follow, buffers.stream, {&tables[i], &one});
  }
  for (const CUdeviceptr each : targets) REQUIRE(read(each, 1, buffers.stream)[0] == 1);
}

// A copied table: within a large allocation, and into a small one.
CASE(pointer_tables_that_are_copied) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  CUdeviceptr table = buffers.at[9] + 3 * kMiB, copied = buffers.at[9] + 5 * kMiB, small = 0;
  CALL(cuMemAllocAsync(&small, 1024, buffers.stream));
  std::size_t one = 1, stride = 0;
  for (std::size_t round = 0; round < 9; ++round) {
    launch(fill, buffers.stream, {&table, &buffers.at[round], &stride, &one});
    CALL(cuMemcpyDtoDAsync(copied - 64, table - 64, 1024, buffers.stream));
    CALL(cuMemcpyDtoDAsync(small, copied, 8, buffers.stream));
    for (std::size_t i = 0; i < 9; ++i) {
      std::size_t words = kWords;
      launch(add, buffers.stream, {&buffers.at[i], &words});
    }
    launch(follow, buffers.stream, {&copied, &one});
    launch(follow, buffers.stream, {&small, &one});
  }
  for (std::size_t i = 0; i < 9; ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 9 + 2);
}

// A table copied in rows, densely and to rows with other gaps, in two and three dimensions.
CASE(pointer_tables_that_are_copied_in_rows) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  constexpr std::size_t kData = 5;  // more than fit beside the tables, which are in the last buffer
  Buffers buffers(kData + 1);
  constexpr std::size_t kWidth = 4096, kGapped = 3 * kWidth, kRows = 64, kRow = 40;
  struct Way {
    std::size_t from_pitch, to_pitch;
    bool deep;
  };
  const std::array ways{Way{kWidth, kWidth, false}, Way{kWidth, kGapped, false}, Way{kGapped, kWidth, false},
                        Way{kWidth, kWidth, true}, Way{kWidth, kGapped, true}};
  std::size_t one = 1, stride = 0, words = kWords;
  for (std::size_t round = 0; round < kData; ++round) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const Way& way = ways[w];
      CUDA_MEMCPY3D shape{};
      shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      shape.srcDevice = buffers.at[kData] + 2 * w * kMiB;
      shape.dstDevice = shape.srcDevice + kMiB;
      shape.srcPitch = way.from_pitch;
      shape.dstPitch = way.to_pitch;
      shape.WidthInBytes = kWidth;
      shape.srcHeight = shape.dstHeight = shape.Height = kRows / (way.deep ? 4 : 1);
      shape.Depth = way.deep ? 4 : 1;
      CUDA_MEMCPY2D flat{};
      flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      flat.srcDevice = shape.srcDevice;
      flat.dstDevice = shape.dstDevice;
      flat.srcPitch = shape.srcPitch;
      flat.dstPitch = shape.dstPitch;
      flat.WidthInBytes = kWidth;
      flat.Height = kRows;
      CUdeviceptr table = shape.srcDevice + kRow * way.from_pitch + 64;
      CUdeviceptr copied = shape.dstDevice + kRow * way.to_pitch + 64;
      launch(fill, buffers.stream, {&table, &buffers.at[round], &stride, &one});
      CALL(way.deep ? cuMemcpy3DAsync(&shape, buffers.stream) : cuMemcpy2DAsync(&flat, buffers.stream));
      for (std::size_t i = 0; i < kData; ++i) launch(add, buffers.stream, {&buffers.at[i], &words});
      launch(follow, buffers.stream, {&copied, &one});
    }
  }
  for (std::size_t i = 0; i < kData; ++i)
    REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + kData * ways.size() + ways.size());
}

// A table inside a large allocation, as libraries keep them in their workspaces.
CASE(pointer_tables_in_a_workspace) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add"),
                   copy_table = machine.function("copy_table");
  Buffers buffers(10);
  CUdeviceptr table = buffers.at[9] + 3 * kMiB, made_from = 0;
  CALL(cuMemAllocAsync(&made_from, 1024, buffers.stream));
  std::size_t one = 1, stride = 0;
  for (std::size_t round = 0; round < 20; ++round) {
    if (round % 2 == 0) {
      launch(fill, buffers.stream, {&table, &buffers.at[round % 9], &stride, &one});
    } else {
      launch(fill, buffers.stream, {&made_from, &buffers.at[round % 9], &stride, &one});
      launch(copy_table, buffers.stream, {&table, &made_from, &one});
      launch(follow, buffers.stream, {&table, &one});
      continue;
    }
    for (std::size_t i = 0; i < 9; ++i) {
      std::size_t words = kWords;
      launch(add, buffers.stream, {&buffers.at[i], &words});
    }
    launch(follow, buffers.stream, {&table, &one});
  }
  for (std::size_t i = 0; i < 9; ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 10 + (i < 2 ? 3 : 2));
}

// The same with a table made by the CPU.
CASE(pointer_tables_from_the_host) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  std::size_t count = 1;
  // The emulated driver lacks these functions, so they cannot be linked.
  auto* const copy_async = reinterpret_cast<decltype(&cuMemcpyAsync)>(dlsym(RTLD_DEFAULT, "cuMemcpyAsync"));
  auto* const copy = reinterpret_cast<decltype(&cuMemcpy)>(dlsym(RTLD_DEFAULT, "cuMemcpy"));
  for (std::size_t round = 0; round < 20; ++round) {
    CUdeviceptr table = 0;
    CALL(cuMemAllocAsync(&table, 1024, buffers.stream));
    CUdeviceptr* const target = &buffers.at[round % buffers.at.size()];
    if (round % 3 == 0) {
      CALL(cuMemcpyHtoDAsync(table, target, sizeof(CUdeviceptr), buffers.stream));
    } else if (round % 3 == 1) {
      CALL(copy_async(table, reinterpret_cast<CUdeviceptr>(target), sizeof(CUdeviceptr), buffers.stream));
    } else {
      CALL(cuStreamSynchronize(buffers.stream));
      CALL(copy(table, reinterpret_cast<CUdeviceptr>(target), sizeof(CUdeviceptr)));
    }
    buffers.work(add);
    launch(follow, buffers.stream, {&table, &count});
    CALL(cuMemFreeAsync(table, buffers.stream));
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 20 + 2);
}

// The same with tables at the beginning of long copies, or at the end of a copy that is searched as
// a whole.
CASE(pointer_tables_in_long_copies) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  std::size_t count = 1;
  void* combined = nullptr;
  CALL(cuMemHostAlloc(&combined, kMiB, CU_MEMHOSTALLOC_WRITECOMBINED));
  for (std::size_t round = 0; round < 20; ++round) {
    const bool short_enough = round % 2 == 0, from_combined = round % 4 == 1;
    std::vector<CUdeviceptr> words((short_enough || from_combined ? kMiB : 3 * kMiB) / sizeof(CUdeviceptr));
    const std::size_t place = short_enough ? words.size() - 1 : 0;
    words[place] = buffers.at[round % buffers.at.size()];
    CUdeviceptr table = 0;
    CALL(cuMemAllocAsync(&table, words.size() * sizeof words[0], buffers.stream));
    if (from_combined) std::memcpy(combined, words.data(), kMiB);
    CALL(cuMemcpyHtoDAsync(table, from_combined ? combined : words.data(), words.size() * sizeof words[0],
                           buffers.stream));
    buffers.work(add);
    CUdeviceptr entry = table + place * sizeof words[0];
    launch(follow, buffers.stream, {&entry, &count});
    CALL(cuMemFreeAsync(table, buffers.stream));
    CALL(cuStreamSynchronize(buffers.stream));
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 20 + 2);
}

// The same with a table that stays in pinned host memory, where the kernel reads it.
CASE(pointer_tables_in_pinned_memory) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  void* memory = nullptr;
  CALL(cuMemHostAlloc(&memory, 4096, 0));
  std::size_t count = 3;
  for (std::size_t round = 0; round < 20; ++round) {
    CALL(cuStreamSynchronize(buffers.stream));
    auto* table = static_cast<CUdeviceptr*>(memory) + round;
    for (std::size_t i = 0; i < count; ++i) table[i] = buffers.at[(round + i) % buffers.at.size()];
    buffers.work(add);
    launch(follow, buffers.stream, {&table, &count});
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 20 + 6);
  CALL(cuMemFreeHost(memory));
}

// Pointer tables that arrive by other calls than the plain copies; each launch names only its
// table.
CASE(pointer_tables_in_other_copies) {
  const Machine machine;
  const Stream stream;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  std::vector<CUdeviceptr> buffers(10);
  std::size_t words = 12 * kMiB / 4, count = 1;
  for (CUdeviceptr& buffer : buffers) {
    CALL(cuMemAlloc(&buffer, 12 * kMiB));
    CALL(cuMemsetD32(buffer, 0, words));
  }
  constexpr std::size_t kTable = 3 * kMiB;
  std::vector<CUdeviceptr> entries(kTable / 8);
  using Bring = std::function<CUresult(CUdeviceptr)>;
  const std::vector<Bring> ways{[&](CUdeviceptr table) {
                                  return copy_as_batch(table, reinterpret_cast<CUdeviceptr>(entries.data()), kTable,
                                                       stream.handle);
                                },
                                [&](CUdeviceptr table) {
                                  CUDA_MEMCPY2D rows{};
                                  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
                                  rows.srcHost = entries.data();
                                  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
                                  rows.dstDevice = table;
                                  rows.WidthInBytes = rows.dstPitch = rows.srcPitch = 4096;
                                  rows.Height = kTable / 4096;
                                  return cuMemcpy2DAsync(&rows, stream.handle);
                                },
                                [&](CUdeviceptr table) {
                                  CUDA_MEMCPY3D rows{};
                                  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
                                  rows.srcHost = entries.data();
                                  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
                                  rows.dstDevice = table;
                                  rows.WidthInBytes = rows.dstPitch = rows.srcPitch = 4096;
                                  rows.srcHeight = rows.dstHeight = rows.Height = kTable / 4096;
                                  rows.Depth = 1;
                                  return cuMemcpy3DAsync(&rows, stream.handle);
                                }};
  unsigned round = 0;
  for (int pass = 0; pass < 7; ++pass) {
    for (const Bring& bring : ways) {
      CUdeviceptr table = 0;
      CALL(cuMemAllocAsync(&table, kTable, stream.handle));
      entries[0] = buffers[round++ % buffers.size()];
      CALL(bring(table));
      for (CUdeviceptr& buffer : buffers) launch(add, stream.handle, {&buffer, &words});
      launch(follow, stream.handle, {&table, &count});
      CALL(cuMemFreeAsync(table, stream.handle));
      CALL(cuStreamSynchronize(stream.handle));
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const unsigned followed = round / unsigned(buffers.size()) + (i < round % buffers.size() ? 1 : 0);
    REQUIRE(read(buffers[i], 1, stream.handle)[0] == round + followed);
  }
}

}  // namespace
}  // namespace vmem::test
