// Fixture of the driver tests: a loaded driver, device 0's context current, a stream, the test
// kernels, flags in pinned memory, and pages that unmap themselves.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpu/handles.hpp"
#include "gpu/test_kernels.hpp"

namespace vmem::gpu {

#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)

// The driver that VMEM_TEST_DRIVER names; "emulated" by default.
DriverRef driver_under_test();

// Configures the emulated driver ("devices=2,h2d=4") before it starts; aborts the test program on
// failure.
DriverRef emulated_driver(const std::string& spec);

// Returns the value, or aborts the test program with the message.
template <class T>
T must(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().message;
    std::abort();
  }
  return std::move(*result);
}

// Physical memory mapped at its own address.
class Page {
 public:
  // Access is read-write for `device`, or none if `device` is negative.
  Page(const DriverRef& driver, std::size_t bytes, const CUmemAllocationProp& properties, int device = 0);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  CUdeviceptr address() const { return reservation_.begin(); }
  std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(address()); }
  std::size_t bytes() const { return reservation_.bytes(); }
  std::size_t word_count() const { return bytes() / 4; }
  const VmmHandle& handle() const { return handle_; }
  CUresult set_access(CUmemAccess_flags flags, int device = 0) const;

 private:
  DriverRef driver_;
  VmmHandle handle_;
  Reservation reservation_;
};

CUmemAccessDesc access_of_device(int device, CUmemAccess_flags flags);
CUmemAccessDesc access_of_host(int numa_node, CUmemAccess_flags flags);

class DriverTest : public testing::Test {
 protected:
  explicit DriverTest(DriverRef under_test = driver_under_test()) : driver(std::move(under_test)) {}
  void SetUp() override;
  void TearDown() override;

  const DriverTable& cu() const { return driver->table(); }
  CUfunction kernel(const char* name) const { return must(kernels.function(name)); }
  std::uint32_t* flags() const { return reinterpret_cast<std::uint32_t*>(pinned_flags.data()); }

  // Kernels that block a stream until the test opens a gate; `which` is one of 16 gates.
  CUresult close_gate(unsigned which, CUstream on);
  void open_gate(unsigned which);
  // Waits until a kernel or host function has set a flag.
  void wait_until_set(unsigned flag) const;
  bool is_set(unsigned flag) const;

  CUresult fill(const Page& page, std::uint32_t value, CUstream on);
  std::vector<std::uint32_t> read(CUdeviceptr address, std::size_t words);
  std::vector<std::uint32_t> read(const Page& page) { return read(page.address(), page.word_count()); }
  // True if every word of the page has this value.
  testing::AssertionResult holds(const Page& page, std::uint32_t value);

  std::size_t granularity = 0;

  DriverRef driver;
  PrimaryContext context;
  std::optional<ScopedContext> current;
  PinnedBuffer pinned_flags;
  Stream stream;
  Module kernels;
};

// Runs `work` in a process of its own and checks that it ends as an illegal access does with this
// driver. On the emulated driver the process dies by a signal; on a GPU the context gets the sticky
// error 700.
#define EXPECT_ILLEGAL_ACCESS(work, message)                              \
  EXPECT_EXIT(::vmem::gpu::exit_with_sticky_error(driver, [&] { work; }), \
              ::vmem::gpu::EndsAsIllegalAccess{driver->emulated()}, driver->emulated() ? (message) : "")

[[noreturn]] void exit_with_sticky_error(const DriverRef& driver, const std::function<void()>& work);

struct EndsAsIllegalAccess {
  bool emulated;
  bool operator()(int exit_status) const;
};

}  // namespace vmem::gpu
