// How launches name memory, and how programs come by the launch function. The runs have 64 MiB of HBM.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

CASE(pointers_in_structs_and_in_extra) {
  const Machine machine;
  const CUfunction gather = machine.function("gather"), add = machine.function("add");
  Buffers buffers(12);
  Lists lists{2, 1024, {}, reinterpret_cast<unsigned*>(buffers.at[11])};
  for (int round = 0; round < 3; ++round) {
    lists.inputs[0] = reinterpret_cast<unsigned*>(buffers.at[std::size_t(round)]);
    lists.inputs[1] = reinterpret_cast<unsigned*>(buffers.at[std::size_t(round) + 4]);
    if (round != 0) launch(gather, buffers.stream, {&lists});  // `extra` is seen first
    std::size_t bytes = sizeof lists;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &lists, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CALL(cuLaunchKernel(gather, 1, 1, 1, 1, 1, 1, 0, buffers.stream, nullptr, extra));
    if (round == 0) launch(gather, buffers.stream, {&lists});
    buffers.work(add);
  }
  // 11, and in each round twice the sum of two inputs, to which each round's work has added one; and the work's own.
  unsigned expected = 11;
  for (unsigned round = 0; round < 3; ++round) expected += 2 * (round + round + 4 + 2 * round) + 1;
  const auto data = read(buffers.at[11], 1024, buffers.stream);
  REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == expected; }));
}

// A kernel reaches memory through a table that another kernel filled, and through a copy of that table.
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

// A table that was filled long ago, of pointers to a large allocation and to a small one.
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

// A kernel that copies numbers between small allocations writes no pointers, however far ahead of the GPU it is launched and in whatever
// order it is found out: else all that it names would be led to from everywhere. The test is told by the log.
CASE(numbers_are_no_pointers) {
  const Machine machine;
  const CUfunction copy_table = machine.function("copy_table");
  const Buffers buffers(0);
  unsigned* gate = nullptr;
  CALL(cuMemHostAlloc(reinterpret_cast<void**>(&gate), sizeof *gate, CU_MEMHOSTALLOC_PORTABLE));
  std::array<CUdeviceptr, 8> small{};
  for (CUdeviceptr& each : small) {
    CALL(cuMemAllocAsync(&each, 1024, buffers.stream));
    CALL(cuMemsetD32Async(each, 0x3f800000, 256, buffers.stream));
  }
  CALL(cuStreamSynchronize(buffers.stream));
  std::size_t count = 16;
  for (unsigned round = 1; round <= 4; ++round) {
    *gate = 0;
    CALL(cuStreamWaitValue32(buffers.stream, reinterpret_cast<CUdeviceptr>(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (std::size_t i = 0; i < 62; ++i)
      launch(copy_table, buffers.stream, {&small[i % small.size()], &small[(i + round) % small.size()], &count});
    std::atomic_ref(*gate).store(1);
    CALL(cuStreamSynchronize(buffers.stream));
  }
  REQUIRE(read(small[3], 2, buffers.stream)[1] == 0x3f800000);
}

// Tables that live for two launches each are freed, with what they lead to, and their memory is another table's, before it is known what the
// first one held. It has to be learnt from them all the same that the kernel fills tables; the log tells the test.
CASE(pointer_tables_freed_before_they_are_looked_at) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(2);
  unsigned* gate = nullptr;
  CALL(cuMemHostAlloc(reinterpret_cast<void**>(&gate), sizeof *gate, CU_MEMHOSTALLOC_PORTABLE));
  std::size_t one = 1, stride = 0, words = kWords;
  const std::string said = said_by([&] {
    *gate = 0;
    CALL(cuStreamWaitValue32(buffers.stream, reinterpret_cast<CUdeviceptr>(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (int i = 0; i < 9; ++i) {
      CUdeviceptr table = 0, target = 0;
      CALL(cuMemAllocAsync(&table, 1024, buffers.stream));
      CALL(cuMemAllocAsync(&target, 4 * kMiB, buffers.stream));
      launch(fill, buffers.stream, {&table, &target, &stride, &one});
      launch(follow, buffers.stream, {&table, &one});
      CALL(cuMemFreeAsync(table, buffers.stream));
      CALL(cuMemFreeAsync(target, buffers.stream));
    }
    std::atomic_ref(*gate).store(1);
    CALL(cuStreamSynchronize(buffers.stream));
    for (int i = 0; i < 8; ++i) launch(add, buffers.stream, {&buffers.at[1], &words});
  });
  REQUIRE(said.find("fill fills pointer tables") != std::string::npos);
}

// The GPU is far behind: of the launches that fill a table each, in large memory, only some are looked at before it is known what the
// kernel does. All of them count.
CASE(pointer_tables_filled_before_the_verdict) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(3);
  unsigned* gate = nullptr;
  CALL(cuMemHostAlloc(reinterpret_cast<void**>(&gate), sizeof *gate, CU_MEMHOSTALLOC_PORTABLE));
  std::vector<CUdeviceptr> targets(12), tables;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    CALL(cuMemAllocAsync(&targets[i], 2 * kMiB, buffers.stream));
    CALL(cuMemsetD32Async(targets[i], 0, 2, buffers.stream));
    tables.push_back(buffers.at[0] + i * (kMiB / 2));
  }
  CALL(cuStreamSynchronize(buffers.stream));
  *gate = 0;
  CALL(cuStreamWaitValue32(buffers.stream, reinterpret_cast<CUdeviceptr>(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
  std::size_t one = 1, stride = 0;
  for (std::size_t i = 0; i < targets.size(); ++i)
    launch(fill, buffers.stream, {&tables[i], &targets[i], &stride, &one});
  std::atomic_ref(*gate).store(1);
  CALL(cuStreamSynchronize(buffers.stream));
  Buffers others(5);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    others.work(add);
    CALL(cuStreamSynchronize(others.stream));
    launch(follow, buffers.stream, {&tables[i], &one});
  }
  for (const CUdeviceptr each : targets) REQUIRE(read(each, 1, buffers.stream)[0] == 1);
}

// Allocations that share pages with others do not begin with a page.
CASE(small_blocks_across_pages) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Buffers buffers(0);
  constexpr std::size_t kSmall = 768 << 10;
  std::size_t words = kSmall / sizeof(unsigned), across = 0;
  for (int i = 0; i < 12; ++i) {
    CUdeviceptr block = 0;
    CALL(cuMemAllocAsync(&block, kSmall, buffers.stream));
    if (block / (2 * kMiB) == (block + kSmall - 1) / (2 * kMiB)) continue;
    ++across;
    launch(add, buffers.stream, {&block, &words});
  }
  CALL(cuStreamSynchronize(buffers.stream));
  REQUIRE(across > 0);
}

// A table that was copied: within a large allocation, and into a small one.
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

// A table in the middle of a large allocation, as libraries keep them in their workspaces.
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

// A kernel reaches memory through a table that another thread filled: what strict mode is there to find.
CASE(reaches_what_it_does_not_name) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow");
  Buffers buffers(2);
  std::size_t count = 1, stride = kMiB;
  CUdeviceptr table = buffers.at[0] + kMiB;
  std::jthread([&] {
    CALL(cuCtxSetCurrent(machine.context));
    launch(fill, buffers.stream, {&table, &buffers.at[1], &stride, &count});
  }).join();
  launch(follow, buffers.stream, {&table, &count});
  REQUIRE(read(buffers.at[1], 1, buffers.stream)[0] == 2);
}

// A list through memory larger than HBM, of which a launch names the first node only; nodes come and go.
CASE(a_list_that_nobody_can_follow) {
  const Machine machine;
  const CUfunction walk = machine.function("walk"), add = machine.function("add");
  CUstream stream = nullptr;
  CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> nodes;
  CUdeviceptr small = 0;
  CALL(cuMemAllocAsync(&small, 256, stream));
  const auto link = [&](CUdeviceptr node, CUdeviceptr next, std::uint64_t count) {
    const Node contents{next, count};
    CALL(cuMemcpyHtoDAsync(node, &contents, sizeof contents, stream));
    CALL(cuStreamSynchronize(stream));
  };
  link(small, 0, 0);
  std::uint64_t walks = 0;
  std::vector<std::uint64_t> born;
  for (std::size_t i = 0; i < 12; ++i) {
    CUdeviceptr node = 0;
    CALL(cuMemAllocAsync(&node, kBytes, stream));
    link(node, nodes.empty() ? small : nodes.back(), 0);
    nodes.push_back(node);
    born.push_back(walks);
    for (int again = 0; again < 3; ++again, ++walks) launch(walk, stream, {&nodes.back()});
    if (i % 4 != 3) continue;
    // The last is freed, and what comes next may be where it was.
    CALL(cuMemFreeAsync(nodes.back(), stream));
    nodes.pop_back();
    born.pop_back();
    CUdeviceptr other = 0;
    std::size_t words = 4 * kWords;
    CALL(cuMemAllocAsync(&other, 4 * kBytes, stream));
    CALL(cuMemsetD32Async(other, 0, words, stream));
    launch(add, stream, {&other, &words});
    for (int again = 0; again < 3; ++again, ++walks) launch(walk, stream, {&nodes.back()});
    CALL(cuMemFreeAsync(other, stream));
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Node contents{};
    CALL(cuMemcpyDtoHAsync(&contents, nodes[i], sizeof contents, stream));
    CALL(cuStreamSynchronize(stream));
    REQUIRE(contents.count == walks - born[i]);
    REQUIRE(contents.next == (i == 0 ? small : nodes[i - 1]));
  }
}

// A pointer in a variable of the kernel's module, as cudaMemcpyToSymbol puts it there: in memory that is not vmem's.
CASE(pointers_in_a_kernels_variables) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  CUdeviceptr variable = map_own(2 * kMiB), small = 0;
  CALL(cuMemAllocAsync(&small, 1024, buffers.stream));
  CALL(cuMemsetD32Async(small, 0, 256, buffers.stream));
  const std::array<CUdeviceptr, 2> pointers{buffers.at[0] + kMiB, small};
  CALL(cuMemcpyHtoDAsync(variable, pointers.data(), sizeof pointers, buffers.stream));
  std::size_t count = pointers.size();
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 1; i < buffers.at.size(); ++i) {
      std::size_t words = kWords;
      launch(add, buffers.stream, {&buffers.at[i], &words});
    }
    launch(follow, buffers.stream, {&variable, &count});
  }
  REQUIRE(read(pointers[0], 1, buffers.stream)[0] == 5);
  REQUIRE(read(small, 1, buffers.stream)[0] == 5);
}

// The program's own memory, unmapped too early.
CASE(fails_for_good) {
  const Machine machine;
  Buffers buffers(1);
  const CUfunction add = machine.function("add");
  buffers.work(add);
  const CUdeviceptr own = map_own(2 * kMiB);
  std::atomic<bool> unmapped{false};
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  CALL(cuLaunchHostFunc(buffers.stream, wait, &unmapped));
  CALL(cuMemcpyDtoDAsync(own, own + kMiB, 1024, buffers.stream));
  CALL(cuMemUnmap(own, 2 * kMiB));
  unmapped = true;
  unmapped.notify_all();
  REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

// The same with a table that the CPU made.
CASE(pointer_tables_from_the_host) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  std::size_t count = 1;
  // The emulated driver does not have them, so they cannot be linked.
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

// The same with tables that take up the beginning of long copies, or the end of one that is searched as a whole.
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

template <class F>
bool allocates_ours(F* allocate) {
  CUdeviceptr pointer = 0;
  CALL(allocate(&pointer, 3 * kMiB));
  const bool is_ours = ours(pointer);
  CALL(cuMemFree(pointer));
  return is_ours;
}

// Whatever way the program takes to the driver, it arrives at the hooks.
CASE(every_way_to_the_driver) {
  const Machine machine;
  using Allocate = CUresult(CUdeviceptr*, std::size_t);
  REQUIRE(allocates_ours(&cuMemAlloc));
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(dlsym(library, "cuMemAlloc_v2"))));
  REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"))));
  using GetV2 = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  for (const char* get_name : {"cuGetProcAddress_v2"}) {
    auto* const get = reinterpret_cast<GetV2*>(dlsym(library, get_name));
    REQUIRE(get != nullptr);
    for (const int version : {12000, 13000}) {
      void* function = nullptr;
      CALL(get("cuMemAlloc", &function, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(function)));
      void* again = nullptr;
      CALL(get("cuGetProcAddress", &again, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      CALL(reinterpret_cast<GetV2*>(again)("cuMemAlloc", &function, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(function)));
    }
  }
  // What is not hooked is the driver's own, and other names are nobody's business.
  REQUIRE(dlsym(library, "cuDeviceGetCount") != nullptr);
  REQUIRE(dlsym(library, "cuNoSuchFunction") == nullptr);
  REQUIRE(dlsym(RTLD_NEXT, "malloc") != nullptr);
}

CASE(threads_and_their_streams) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const auto work = [&](unsigned seed) {
    CALL(cuCtxSetCurrent(machine.context));
    Buffers buffers(4);
    for (int round = 0; round < 8; ++round) buffers.work(add);
    for (std::size_t i = 0; i < buffers.at.size(); ++i) {
      const auto data = read(buffers.at[i], kWords, buffers.stream);
      REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == i + 8; }));
      CALL(cuMemFreeAsync(buffers.at[i], buffers.stream));
    }
    if (seed % 2 == 0) CALL(cuStreamDestroy(buffers.stream));
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
}

}  // namespace
}  // namespace vmem::test
