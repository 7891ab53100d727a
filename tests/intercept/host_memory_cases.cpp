// A program whose host memory runs out in the middle of its calls: each is refused as a whole, or
// succeeds, and nothing is lost. The program's malloc, which vmem's operator new calls, fails.
#if !defined(__SANITIZE_ADDRESS__)  // whose runtime brings a malloc of its own
#include <algorithm>
#include <cerrno>

#include "intercept/program.hpp"

namespace {
thread_local long allocations_left = -1;  // of this thread; negative: without limit
thread_local bool one_refused = false;
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);  // NOLINT(bugprone-reserved-identifier): glibc's
[[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
  if (allocations_left == 0) {
    one_refused = true;
    errno = ENOMEM;
    return nullptr;
  }
  if (allocations_left > 0) --allocations_left;
  return __libc_malloc(bytes);
}
}

namespace vmem::test {
namespace {

// Makes the call with room for no allocation, for one, and so on, until it needs no more.
// `made(succeeded)` hears of each. Returns how often the call was refused.
template <class Call, class Made>
long until_there_is_enough(Call&& call, Made&& made) {
  long refused = 0;
  for (long allowed = 0;; ++allowed) {
    REQUIRE(allowed < 1000);
    one_refused = false;
    allocations_left = allowed;
    const CUresult result = call();
    allocations_left = -1;
    REQUIRE(result == CUDA_SUCCESS || (result == CUDA_ERROR_OUT_OF_MEMORY && one_refused));
    refused += result != CUDA_SUCCESS;
    const bool enough = !one_refused;
    made(result == CUDA_SUCCESS);
    if (enough) return refused;
  }
}

CASE(calls_that_lack_host_memory) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  Buffers buffers(8);  // twice the size of HBM
  buffers.work(add);
  std::vector<unsigned> sums(buffers.at.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = unsigned(i) + 1;

  // Launches, of which every second needs a page that is not in HBM.
  std::size_t which = 0, words = kWords;
  const long launches = until_there_is_enough(
      [&] {
        void* parameters[] = {&buffers.at[which], &words};
        return cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, buffers.stream, parameters, nullptr);
      },
      [&](bool succeeded) {
        sums[which] += succeeded;
        which = (which + 3) % sums.size();
      });

  REQUIRE(launches > 0);

  // Copies and fills. One of many pages that was refused may have written some.
  std::vector<unsigned> data(kWords);
  const auto copy = [&] { return cuMemcpyHtoDAsync(buffers.at[which], data.data(), kBytes, buffers.stream); };
  const auto fill = [&] { return cuMemsetD32Async(buffers.at[which], sums[which], kWords, buffers.stream); };
  const auto next = [&] {
    which = (which + 3) % sums.size();
    sums[which] += 7;
    std::ranges::fill(data, sums[which]);
  };
  next();
  REQUIRE(until_there_is_enough(copy, [&](bool succeeded) {
            if (!succeeded) CALL(copy());
            next();
          }) > 0);
  REQUIRE(until_there_is_enough(fill, [&](bool succeeded) {
            if (!succeeded) CALL(fill());
            next();
          }) > 0);
  CALL(fill());
  CALL(cuStreamSynchronize(buffers.stream));

  // A free that was refused can be repeated, and leaves nothing behind.
  std::size_t free_before = 0, free_after = 0, total = 0;
  CALL(cuMemGetInfo(&free_before, &total));
  CUdeviceptr more = 0;
  // Too large to share pages: the free of a block that does needs no memory.
  const auto allocate = [&] { return cuMemAllocAsync(&more, 3 * kBytes, buffers.stream); };
  const auto free_it = [&] { return cuMemFreeAsync(more, buffers.stream); };
  CALL(allocate());
  REQUIRE(until_there_is_enough(free_it, [&](bool succeeded) {
            if (succeeded) CALL(allocate());
          }) > 0);
  CALL(free_it());
  CALL(cuMemGetInfo(&free_after, &total));
  REQUIRE(free_before == free_after);
  void* pinned = nullptr;
  REQUIRE(until_there_is_enough([&] { return cuMemAllocHost(&pinned, kMiB); },
                                [&](bool succeeded) {
                                  if (succeeded) CALL(cuMemFreeHost(pinned));
                                }) > 0);

  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto found = read(buffers.at[i], kWords, buffers.stream);
    REQUIRE(std::ranges::all_of(found, [&](unsigned word) { return word == sums[i]; }));
    CALL(cuMemFree(buffers.at[i]));
  }
}

}  // namespace
}  // namespace vmem::test
#endif
