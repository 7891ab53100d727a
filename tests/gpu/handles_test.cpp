#include "gpu/handles.hpp"

#include <gtest/gtest.h>

#include <type_traits>

#include "gpu/driver_fixture.hpp"
#include "gpu/fault_injection.hpp"

namespace vmem::gpu {
namespace {

constexpr std::size_t page_bytes = std::size_t{2} << 20;

template <class T>
constexpr bool is_move_only =
    std::is_nothrow_move_constructible_v<T> && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(is_move_only<PrimaryContext> && is_move_only<ScopedContext> && is_move_only<Stream> &&
              is_move_only<Event>);
static_assert(is_move_only<VmmHandle> && is_move_only<Reservation> && is_move_only<PinnedBuffer> &&
              is_move_only<Module>);

class Handles : public testing::Test {
 protected:
  FaultInjector injector{emulated_driver("")};
  DriverRef driver = injector.driver();
  PrimaryContext context = must(PrimaryContext::retain(driver, 0));
  ScopedContext current = must(ScopedContext::push(driver, context.context()));
};

TEST_F(Handles, AHandleIsGivenBackOnce) {
  {
    VmmHandle a = must(VmmHandle::create(driver, page_bytes, device_memory(0, false)));
    VmmHandle b = std::move(a);
    EXPECT_FALSE(a);
    EXPECT_TRUE(b);
    VmmHandle c;
    c = std::move(b);
    EXPECT_TRUE(c);
    EXPECT_EQ(injector.calls("cuMemRelease"), 0u);
  }
  EXPECT_EQ(injector.calls("cuMemRelease"), 1u);
}

TEST_F(Handles, AssignmentGivesTheOldHandleBack) {
  VmmHandle a = must(VmmHandle::create(driver, page_bytes, device_memory(0, false)));
  a = must(VmmHandle::create(driver, page_bytes, device_memory(0, false)));
  EXPECT_EQ(injector.calls("cuMemRelease"), 1u);
  a.reset();
  a.reset();
  EXPECT_EQ(injector.calls("cuMemRelease"), 2u);
}

TEST_F(Handles, EveryTypeGivesBackWithItsOwnCall) {
  {
    const Stream stream = must(Stream::create(driver));
    const Event event = must(Event::create(driver));
    const Reservation range = must(Reservation::create(driver, page_bytes));
    const PinnedBuffer pinned = must(PinnedBuffer::create(driver, 4096));
    const Module module = must(Module::load(driver, "VMEMEMU"));
    const PrimaryContext retained = must(PrimaryContext::retain(driver, 0));
    const ScopedContext scoped = must(ScopedContext::push(driver, retained.context()));
  }
  for (const char* call : {"cuStreamDestroy", "cuEventDestroy", "cuMemAddressFree", "cuMemFreeHost", "cuModuleUnload",
                           "cuDevicePrimaryCtxRelease", "cuCtxPopCurrent"})
    EXPECT_EQ(injector.calls(call), 1u) << call;
}

TEST_F(Handles, AFailedCreationOwnsNothingAndNamesTheCall) {
  injector.fail_always("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
  const auto handle = VmmHandle::create(driver, page_bytes, device_memory(0, false));
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(handle.error().message.find("cuMemCreate"), std::string::npos);
  EXPECT_EQ(injector.calls("cuMemRelease"), 0u);
}

TEST_F(Handles, AFailedEndIsSurvived) {
  VmmHandle handle = must(VmmHandle::create(driver, page_bytes, device_memory(0, false)));
  const CUmemGenericAllocationHandle value = handle.get();
  injector.fail_nth("cuMemRelease", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  handle.reset();
  EXPECT_FALSE(handle);
  EXPECT_CU((*driver)->cuMemRelease(value));  // the failed call did not reach the driver
}

TEST_F(Handles, EventsAreMadeWithoutTimingUnlessAsked) {
  const Stream stream = must(Stream::create(driver));
  const Event plain = must(Event::create(driver)), timed = must(Event::create(driver, Timing::on));
  EXPECT_TRUE(plain.record(stream.get()));
  EXPECT_TRUE(timed.record(stream.get()));
  EXPECT_TRUE(stream.synchronize());
  float milliseconds = 0;
  EXPECT_EQ((*driver)->cuEventElapsedTime(&milliseconds, plain.get(), plain.get()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU((*driver)->cuEventElapsedTime(&milliseconds, timed.get(), timed.get()));
}

TEST_F(Handles, AnUnfinishedEventIsNoError) {
  const Stream stream = must(Stream::create(driver));
  const Event event = must(Event::create(driver));
  injector.fail_nth("cuEventQuery", 1, CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(must(event.complete()));
  EXPECT_TRUE(must(event.complete()));
}

TEST_F(Handles, AMissingKernelIsNamed) {
  const Module module = must(Module::load(driver, "VMEMEMU"));
  const auto function = module.function("nobody");
  ASSERT_FALSE(function);
  EXPECT_NE(function.error().message.find("'nobody'"), std::string::npos);
}

}  // namespace
}  // namespace vmem::gpu
