// Work outside the progress thread, and its failure for lack of memory.
#include "rdma/lending/workers.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <new>
#include <thread>

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;
using Ended = Workers::Ended;

class WorkersWith : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(WorkersWith, AJobThatLacksMemoryIsToldApartAndTheNextOneIsDone) {
  std::vector<Ended> ended;
  Workers workers(GetParam(), [] {});
  const auto then = [&](Ended how) { ended.push_back(how); };
  workers.post([] { throw std::bad_alloc(); }, then);
  workers.post([] {}, then);
  while (ended.size() < 2) {
    if (!workers.finish()) std::this_thread::yield();
  }
  EXPECT_THAT(ended, ElementsAre(Ended::no_memory, Ended::done));
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkersWith, ::testing::Values(0, 1));

}  // namespace
}  // namespace vmem::rdma
