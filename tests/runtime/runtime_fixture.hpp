// A runtime on a small emulated machine, with a bystander: an allocation that no test touches and
// that must be intact at the end. At the end nothing may be left in the driver.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "vmem/vmem.h"

namespace vmem::test {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

#define ASSERT_OK(call) ASSERT_EQ(call, VMEM_OK) << vmem_last_error()
#define EXPECT_OK(call) EXPECT_EQ(call, VMEM_OK) << vmem_last_error()

// The call failed with this status, and its message contains these parts.
::testing::AssertionResult refused(vmem_status got, vmem_status expected,
                                   std::initializer_list<std::string> parts = {});
#define EXPECT_REFUSED(...) EXPECT_TRUE(::vmem::test::refused(__VA_ARGS__))

std::string hex(const void* pointer);
vmem_status start_vmem(std::vector<vmem_option> options);
vmem_statistics statistics();

inline vmem_range range_of(void* pointer, std::size_t bytes, std::uint32_t access = VMEM_READ_WRITE) {
  return {pointer, bytes, access, 0};
}
inline vmem_status acquire(const vmem_range& range, CUstream stream = nullptr) {
  return vmem_acquire(&range, 1, stream);
}
inline vmem_status release(const vmem_range& range, CUstream stream = nullptr) {
  return vmem_release(&range, 1, stream);
}

// Two devices with 64 MiB of HBM for vmem each, and 256 MiB of host memory.
class RuntimeTest : public ::testing::Test {
 protected:
  explicit RuntimeTest(std::vector<vmem_option> more = {}, std::string machine = "devices=2,hbm=256MiB,host=512MiB")
      : more_(std::move(more)), machine_(std::move(machine)) {}
  void SetUp() override;
  void TearDown() override;
  void start();
  void* allocate(std::size_t bytes, int device = 0);
  // The memory was lost with its context, so nothing is verified.
  void give_up_bystander() { bystander_ = nullptr; }
  // Frees all allocations of the test and expects the statistics of an empty runtime.
  void expect_nothing_left();

  std::unique_ptr<EmulatedGpu> gpu;

 private:
  void verify_bystander();

  const std::vector<vmem_option> more_;
  const std::string machine_;
  std::byte* bystander_ = nullptr;
};

// How a forked child ended; killed after half a minute.
struct ChildEnd {
  int status = 0;    // as from waitpid
  std::string said;  // what the child wrote
};
ChildEnd run_in_child(const std::function<int()>& body);

}  // namespace vmem::test
