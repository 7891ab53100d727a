#include "gpu/driver_fixture.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "gpu/emu/emu.h"

namespace vmem::gpu {
namespace {

constexpr unsigned gate_count = 16;
constexpr std::size_t flag_bytes = 4096;
constexpr int sticky_error_exit = 42;

}  // namespace

DriverRef driver_under_test() {
  static const DriverRef driver = [] {
    const char* which = std::getenv("VMEM_TEST_DRIVER");
    const std::string name = which ? which : "emulated";
    // A kernel loaded at its first launch waits for running kernels, some of which wait for the
    // test.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    // Two devices, to include tests that need two; a real machine has its own number. Without the
    // check, a page accessible to one device is accessible to all.
    return name == "emulated" ? emulated_driver("devices=2,check_host_access=1") : must(Driver::load(name));
  }();
  return driver;
}

DriverRef emulated_driver(const std::string& spec) {
  DriverRef driver = must(Driver::load("emulated"));
  void* library = dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto configure = reinterpret_cast<decltype(&vmem_emu_configure)>(dlsym(library, "vmem_emu_configure"));
  char error[512] = {};
  if (configure(spec.c_str(), error, sizeof error) != 0) {
    std::fprintf(stderr, "%s\n", error);
    std::abort();
  }
  return driver;
}

Page::Page(const DriverRef& driver, std::size_t bytes, const CUmemAllocationProp& properties, int device)
    : driver_(driver),
      handle_(must(VmmHandle::create(driver, bytes, properties))),
      reservation_(must(Reservation::create(driver, bytes))) {
  EXPECT_CU((*driver)->cuMemMap(address(), bytes, 0, handle_.get(), 0));
  if (device < 0) return;
  EXPECT_CU(set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, device));
}

Page::~Page() { (*driver_)->cuMemUnmap(address(), bytes()); }

CUresult Page::set_access(CUmemAccess_flags flags, int device) const {
  const CUmemAccessDesc desc = access_of_device(device, flags);
  return (*driver_)->cuMemSetAccess(address(), bytes(), &desc, 1);
}

CUmemAccessDesc access_of_device(int device, CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

CUmemAccessDesc access_of_host(int numa_node, CUmemAccess_flags flags) {
  return {{CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node}, flags};
}

void DriverTest::SetUp() {
  // A child process of its own, which starts the driver afresh.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  context = must(PrimaryContext::retain(driver, 0));
  current.emplace(must(ScopedContext::push(driver, context.context())));
  pinned_flags = must(PinnedBuffer::create(driver, flag_bytes));
  std::fill_n(pinned_flags.data(), flag_bytes, std::byte{0});
  stream = must(Stream::create(driver));
  kernels = must(load_test_kernels(driver));
  const CUmemAllocationProp properties = device_memory(0, false);
  ASSERT_CU(cu().cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
}

void DriverTest::TearDown() {
  // Opens all gates, because a failed test may leave a kernel waiting and everything below would
  // wait for it. A context that the test has reset took the flags with it.
  CUdeviceptr address = 0;
  const bool alive = pinned_flags && cu().cuMemHostGetDevicePointer(&address, pinned_flags.data(), 0) == CUDA_SUCCESS;
  for (unsigned gate = 0; alive && gate < gate_count; ++gate) open_gate(gate);
  kernels.reset();
  stream.reset();
  pinned_flags.reset();
  current.reset();
  context.reset();
}

CUresult DriverTest::close_gate(unsigned which, CUstream on) {
  return launch(driver, kernel("wait_for_flag"), on, flags() + which);
}

void DriverTest::open_gate(unsigned which) { std::atomic_ref(flags()[which]).store(1, std::memory_order_release); }

bool DriverTest::is_set(unsigned flag) const {
  return std::atomic_ref(flags()[flag]).load(std::memory_order_acquire) != 0;
}

void DriverTest::wait_until_set(unsigned flag) const {
  while (!is_set(flag)) sched_yield();
}

CUresult DriverTest::fill(const Page& page, std::uint32_t value, CUstream on) {
  return launch(driver, kernel("fill_words"), on, page.words(), value, std::uint64_t{page.word_count()});
}

std::vector<std::uint32_t> DriverTest::read(CUdeviceptr address, std::size_t words) {
  std::vector<std::uint32_t> result(words);
  EXPECT_CU(cu().cuMemcpyDtoHAsync(result.data(), address, words * 4, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  return result;
}

testing::AssertionResult DriverTest::holds(const Page& page, std::uint32_t value) {
  const auto words = read(page);
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] != value)
      return testing::AssertionFailure() << "word " << i << " is " << words[i] << ", not " << value;
  return testing::AssertionSuccess();
}

void exit_with_sticky_error(const DriverRef& driver, const std::function<void()>& work) {
  work();
  const CUresult first = (*driver)->cuCtxSynchronize();
  const CUresult second = (*driver)->cuCtxSynchronize();
  const bool sticky = first == CUDA_ERROR_ILLEGAL_ADDRESS && second == CUDA_ERROR_ILLEGAL_ADDRESS;
  _exit(sticky ? sticky_error_exit : 1);
}

bool EndsAsIllegalAccess::operator()(int exit_status) const {
  if (emulated) return WIFSIGNALED(exit_status) && WTERMSIG(exit_status) == SIGSEGV;
  return WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == sticky_error_exit;
}

}  // namespace vmem::gpu
