// The driver fails at every call in turn, once or from then on. Each failure is reported or
// survived, readable bytes are right, and nothing hangs or leaks. Protection is on because it makes
// more calls.
#include <array>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

class Failures : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 5;

  // The byte each page should hold, if known.
  std::array<std::optional<unsigned char>, kPages> expected;
  Actor* a = nullptr;
  int failed_calls = 0;

  void note(const Status& status) {
    if (!status) ++failed_calls;
  }
  void write_page(Region& region, std::uint32_t index, unsigned char value) {
    const Status acquired = acquire(*a, writing(region, index));
    note(acquired);
    if (!acquired) return;
    fill(*a, writing(region, index), value);
    expected[index] = value;
    release(*a, writing(region, index));
  }
  void read_page(Region& region, std::uint32_t index) {
    const Status acquired = acquire(*a, reading(region, index));
    note(acquired);
    if (!acquired) return;
    const auto* at = reinterpret_cast<const unsigned char*>(space->address_of(region.granule_of(index)));
    bool right = true;
    enqueue(*driver, a->stream, [&] {
      for (std::uint64_t i = 0; i < region.page_bytes() && expected[index]; i += 997)
        right = right && at[i] == *expected[index];
    });
    (void)(*driver)->cuStreamSynchronize(a->stream);
    EXPECT_TRUE(right) << "page " << index;
    release(*a, reading(region, index));
  }
  void cpu_write_page(Region& region, std::uint32_t index, unsigned char value) {
    const Status written = cpu_write(region, index, value);
    note(written);
    if (written) expected[index] = value;
  }
  // Allocates, writes more than HBM holds, rereads, evicts, reloads, serves in place and frees.
  void scenario() {
    expected = {};
    auto made = try_allocate(kPages);
    note(made ? Status{} : Status(std::unexpected(made.error())));
    if (!made) return;
    Region& region = **made;
    for (std::uint32_t i = 0; i < kPages; ++i) write_page(region, i, std::uint8_t(10 + i));
    cpu_write_page(region, 1, 77);
    for (std::uint32_t i = 0; i < kPages; ++i) read_page(region, i);
    note(streams->close_epoch(*a->record));
    note(advise(reading(region, 0, kPages), VMEM_ADVISE_EVICT));
    PrefetchRequest ahead;
    ahead.run = {&region, 0, 2};
    note(ask(ahead));
    steps(5);
    write_page(region, 2, 99);
    note(advise(reading(region, 4), VMEM_ADVISE_IN_PLACE));
    for (std::uint32_t i = 0; i < kPages; ++i) read_page(region, i);
    note(free(region, a));
    steps(5);
  }
};

TEST_F(Failures, OfOneCallReachSomebodyOrAreSurvived) {
  bool reached = true;
  for (std::uint64_t n = 1; reached; ++n) {
    SCOPED_TRACE(::testing::Message() << "call " << n << " fails");
    start({.hbm_pages = 3, .host_pages = 12, .protect = true});
    a = &actor();
    faults->fail_nth(n, CUDA_ERROR_UNKNOWN);
    const std::uint64_t before = faults->calls();
    failed_calls = 0;
    scenario();
    reached = faults->calls() - before >= n;
    faults->clear_plans();
    EXPECT_FALSE(inside->lost()) << "one failure of no consequence";
    check();
    // Checks that all operations work again.
    Region& fresh = allocate(4);
    for (std::uint32_t i = 0; i < 4; ++i) write(*a, writing(fresh, i), std::uint8_t(50 + i));
    for (std::uint32_t i = 0; i < 4; ++i) expect_bytes(*a, fresh, i, std::uint8_t(50 + i));
    EXPECT_TRUE(free(fresh, a));
    if (!reached) {
      EXPECT_EQ(failed_calls, 0);
    }
    finish();
    if (HasFailure()) break;
  }
}

TEST_F(Failures, OfTheContextEndEverythingAndHangNothing) {
  const auto fail_all = [&](CUresult result) {
#define VMEM_FAIL(name) faults->fail_always(#name, result);
    VMEM_DRIVER_REQUIRED(VMEM_FAIL)
#undef VMEM_FAIL
    // Error names and texts come from the driver, too.
    faults->fail_always("cuGetErrorName", CUDA_SUCCESS);
    faults->fail_always("cuGetErrorString", CUDA_SUCCESS);
  };
  bool reached = true;
  for (std::uint64_t n = 1; reached; n += 3) {
    SCOPED_TRACE(::testing::Message() << "the context is lost at call " << n);
    start({.hbm_pages = 3, .host_pages = 12, .protect = true});
    a = &actor();
    const std::uint64_t last_good = faults->calls() + n;
    reached = false;
    faults->on_call([&](std::string_view) {
      if (reached || faults->calls() < last_good) return;
      reached = true;
      fail_all(CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    scenario();
    if (reached) {
      // The first call that touches the device detects the loss. From then on every request fails
      // at once.
      AllocateRequest probe;
      probe.bytes = kPageBytes;
      const Status answered = ask(probe);
      if (inside->lost()) {
        ASSERT_FALSE(answered);
        EXPECT_EQ(answered.error().status, VMEM_ERROR_DEVICE_LOST);
        QuiesceRequest quiesce;
        EXPECT_EQ(ask(quiesce).error().status, VMEM_ERROR_DEVICE_LOST);
        EndAllRequest end;
        EXPECT_EQ(ask(end).error().status, VMEM_ERROR_DEVICE_LOST);
        EXPECT_EQ(mover->step(), Mover::Next::sleep);
      }
    }
    faults->on_call(nullptr);
    faults->clear_plans();
    finish();
    if (HasFailure()) break;
  }
}

TEST_F(Failures, OfTheContextAnswerRequestsThatWait) {
  start({.hbm_pages = 2});
  Region& region = allocate(3);
  Actor &first = actor(), &second = actor();
  ASSERT_TRUE(acquire(first, writing(region, 0, 2)));
  Gate kernel = gate(first);
  release(first, writing(region, 0, 2));
  const auto waiting = begin(second, writing(region, 2));
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  mover->post(open);
  steps();
  ASSERT_FALSE(waiting->done());
  ASSERT_FALSE(open.done());
  faults->fail_always("cuEventQuery", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(complete(*waiting).error().status, VMEM_ERROR_DEVICE_LOST);
  EXPECT_TRUE(step_until([&] { return open.done(); }));
  EXPECT_EQ(open.result().error().status, VMEM_ERROR_DEVICE_LOST);
  faults->clear_plans();
}

// The context is lost in background work, after the requests of the step ran.
TEST_F(Failures, OfTheContextDuringAPrefetchAnswerRequestsThatWait) {
  start({.hbm_pages = 4});
  Region& region = allocate(3);
  Actor& first = actor();
  ASSERT_TRUE(cpu_write(region, 1, 1));
  ASSERT_TRUE(acquire(first, writing(region, 0)));
  Gate kernel = gate(first);
  release(first, writing(region, 0));
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  mover->post(open);
  steps();
  ASSERT_FALSE(open.done());
  faults->fail_always("cuMemMap", CUDA_ERROR_ILLEGAL_ADDRESS);
  policy->ahead = {region.page_id(1)};
  Mover::Next next = Mover::Next::again;
  for (int i = 0; i < 100 && next != Mover::Next::sleep; ++i) next = mover->step();
  EXPECT_TRUE(inside->lost());
  ASSERT_TRUE(open.done()) << "the mover sleeps on a request that it will never answer";
  faults->clear_plans();
}

TEST_F(Failures, OfQueriesForAWhileAreSurvivedAndForEverAreNot) {
  start();
  Region& region = allocate(1);
  Actor& first = actor();
  write(first, writing(region, 0), 1);
  faults->fail_always("cuEventQuery", CUDA_ERROR_UNKNOWN);
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  mover->post(open);
  steps(100);
  EXPECT_FALSE(open.done());
  faults->clear_plans();
  EXPECT_TRUE(step_until([&] { return open.done(); }));
  EXPECT_TRUE(open.result());
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
  write(first, writing(region, 0), 2);
  faults->fail_always("cuEventQuery", CUDA_ERROR_UNKNOWN);
  OpenPageRequest again;
  again.run = {&region, 0, 1};
  EXPECT_EQ(ask(again).error().status, VMEM_ERROR_DEVICE_LOST);
  faults->clear_plans();
}

}  // namespace
}  // namespace vmem::migration
