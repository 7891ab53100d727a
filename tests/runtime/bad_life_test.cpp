// Calls before the start and after the end, and starts that cannot succeed: each is refused with
// its reason, and a good start afterwards works.
#include <chrono>
#include <cstdlib>
#include <functional>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

struct AnyCall {
  const char* name;
  std::function<vmem_status(void*)> call;
};

// Every function of the interface that requires a runtime.
std::vector<AnyCall> every_call() {
  static std::byte host[16];
  static vmem_pointer_info info;
  return {
      {"shutdown", [](void*) { return vmem_shutdown(); }},
      {"malloc",
       [](void*) {
         void* out = nullptr;
         return vmem_malloc(&out, 100, 0, nullptr);
       }},
      {"free", [](void* p) { return vmem_free(p, nullptr); }},
      {"acquire", [](void* p) { return acquire(range_of(p, 10)); }},
      {"release", [](void* p) { return release(range_of(p, 10)); }},
      {"stream_close", [](void*) { return vmem_stream_close(nullptr); }},
      {"prefetch", [](void* p) { return vmem_prefetch(p, 10); }},
      {"advise", [](void* p) { return vmem_advise(p, 10, VMEM_ADVISE_EVICT); }},
      {"memcpy", [](void* p) { return vmem_memcpy(p, host, 10, nullptr); }},
      {"memset", [](void* p) { return vmem_memset(p, 1, 10, nullptr); }},
      {"read", [](void* p) { return vmem_read(host, p, 10); }},
      {"write", [](void* p) { return vmem_write(p, host, 10); }},
      {"query", [](void* p) { return vmem_query(p, &info); }},
      {"stats",
       [](void*) {
         vmem_statistics s{};
         s.struct_bytes = sizeof s;
         return vmem_stats(&s);
       }},
      {"quiesce", [](void*) { return vmem_quiesce(); }},
  };
}

class BadLife : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(vmem_shutdown(), VMEM_ERROR_NOT_INITIALIZED) << "the test has not ended the runtime";
    EXPECT_EQ(configure_emulated("devices=1"), "") << "something is left in the driver";
  }
  // On top of the remains of a failed start.
  static void expect_good_start() {
    ASSERT_OK(start_vmem({}));
    void* memory = nullptr;
    ASSERT_OK(vmem_malloc(&memory, 3 * kMiB, 0, nullptr));
    EXPECT_OK(vmem_memset(memory, 1, 3 * kMiB, nullptr));
    EXPECT_OK(vmem_shutdown());
  }
};

TEST_F(BadLife, EveryFunctionSaysThatTheRuntimeHasNotStarted) {
  void* memory = &memory;
  for (const AnyCall& each : every_call()) {
    EXPECT_REFUSED(each.call(memory), VMEM_ERROR_NOT_INITIALIZED, {"vmem_init"}) << each.name;
  }
}

TEST_F(BadLife, EveryFunctionSaysThatTheRuntimeHasEnded) {
  const EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  ASSERT_OK(start_vmem({}));
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, 3 * kMiB, 0, nullptr));
  ASSERT_OK(vmem_shutdown());
  for (const AnyCall& each : every_call()) {
    EXPECT_REFUSED(each.call(memory), VMEM_ERROR_NOT_INITIALIZED, {"vmem_init"}) << each.name;
  }
}

TEST_F(BadLife, ASecondStartIsRefusedAndTheFirstGoesOn) {
  const EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  ASSERT_OK(start_vmem({}));
  EXPECT_REFUSED(start_vmem({}), VMEM_ERROR_ALREADY_INITIALIZED, {"already"});
  EXPECT_REFUSED(start_vmem({{"nonsense", "1"}}), VMEM_ERROR_ALREADY_INITIALIZED);
  EXPECT_OK(vmem_quiesce());
  EXPECT_OK(vmem_shutdown());
}

TEST_F(BadLife, ThreadsOfAnEarlierRuntimeGoOnInALaterOne) {
  const EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(start_vmem({}));
    // The shutdown frees these: large, small, and cached by the thread.
    void *large = nullptr, *small = nullptr, *cached = nullptr;
    ASSERT_OK(vmem_malloc(&large, 3 * kMiB, 0, nullptr));
    ASSERT_OK(vmem_malloc(&small, 3000, 0, nullptr));
    ASSERT_OK(vmem_malloc(&cached, 3000, 0, nullptr));
    EXPECT_OK(vmem_memset(large, i, 3 * kMiB, nullptr));
    EXPECT_OK(vmem_memset(small, i, 3000, nullptr));
    EXPECT_OK(vmem_free(cached, nullptr));
    EXPECT_OK(vmem_shutdown());
  }
}

struct BadStart {
  const char* name;
  std::vector<vmem_option> options;
  vmem_status status;
  std::vector<std::string> parts;
  std::string machine = "devices=2,hbm=128MiB,host=512MiB";
};
std::ostream& operator<<(std::ostream& out, const BadStart& start) { return out << start.name; }

class BadOption : public BadLife, public ::testing::WithParamInterface<BadStart> {};

TEST_P(BadOption, IsRefusedWithItsReasonAndLeavesNothing) {
  const BadStart& start = GetParam();
  {
    const EmulatedGpu gpu(start.machine);
    EXPECT_REFUSED(start_vmem(start.options), start.status);
    const std::string message = vmem_last_error();
    for (const std::string& part : start.parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    EXPECT_REFUSED(vmem_quiesce(), VMEM_ERROR_NOT_INITIALIZED);
  }
  const EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  expect_good_start();
}

constexpr auto kOption = VMEM_ERROR_INVALID_OPTION;
const std::string kLongPath = std::string("/").append(5000, 'x');
INSTANTIATE_TEST_SUITE_P(
    Starts, BadOption,
    ::testing::Values(
        BadStart{"unknown", {{"hmb", "64MiB"}}, kOption, {"'hmb'", "hbm"}},
        BadStart{"malformed_size", {{"hbm", "lots"}}, kOption, {"hbm", "lots", "16GiB"}},
        BadStart{"negative_size", {{"hbm", "-64MiB"}}, kOption, {"hbm", "-64MiB"}},
        BadStart{
            "overflowing_size", {{"host", "99999999999999999999GiB"}}, kOption, {"host", "99999999999999999999GiB"}},
        BadStart{"empty_value", {{"page", ""}}, kOption, {"page", "2MiB"}},
        BadStart{"page_no_power_of_two", {{"page", "3MiB"}}, kOption, {"page", "3MiB", "power of two"}},
        BadStart{"given_twice", {{"prefetch", "1"}, {"prefetch", "2"}}, kOption, {"prefetch", "twice"}},
        BadStart{"malformed_wait", {{"acquire_wait", "soon"}}, kOption, {"acquire_wait", "soon", "100ms"}},
        BadStart{"malformed_log", {{"log", "loud"}}, kOption, {"log", "loud", "warn"}},
        BadStart{"headroom_with_hbm", {{"headroom", "1MiB"}}, kOption, {"headroom", "hbm=", "auto"}},
        BadStart{"page_above_hbm", {{"page", "128MiB"}}, kOption, {"page", "hbm", "smaller"}},
        BadStart{"page_too_large_for_hbm", {{"page", "16MiB"}}, kOption, {"page=16MiB", "8MiB", "hbm=64MiB"}},
        BadStart{"base_and_space_beyond_addresses",
                 {{"base", "0x7ff000000000"}, {"space", "1TiB"}},
                 kOption,
                 {"base", "space", "47-bit"}},
        BadStart{"hbm_above_device", {{"hbm", "256MiB"}}, kOption, {"256 MiB", "128 MiB", "lower --hbm"}},
        BadStart{"hbm_too_small", {{"hbm", "4MiB"}}, kOption, {"hbm", "4MiB", "32 MiB"}},
        BadStart{"host_above_machine", {{"host", "60TiB"}}, kOption, {"--host", "60 TiB"}},
        BadStart{"host_too_small", {{"host", "4MiB"}}, kOption, {"host", "4MiB", "16 MiB"}},
        BadStart{"unknown_device", {{"devices", "0,5"}}, kOption, {"device 5", "0 to 1"}},
        BadStart{"device_twice", {{"devices", "1,1"}}, kOption, {"devices", "1,1"}},
        BadStart{"negative_device", {{"devices", "-1"}}, kOption, {"devices", "-1"}},
        BadStart{"missing_driver",
                 {{"driver", "/nowhere/libcuda.so"}},
                 VMEM_ERROR_NO_DRIVER,
                 {"/nowhere/libcuda.so", "--driver"}},
        BadStart{"not_a_driver", {{"driver", "libm.so.6"}}, VMEM_ERROR_NO_DRIVER, {"libm.so.6", "cuInit"}},
        BadStart{"remote_without_a_port", {{"remote", "nowhere.invalid:0x50"}}, kOption, {"--remote", "0x50"}},
        BadStart{"peers_that_are_no_socket", {{"peers", "/dev/null"}}, kOption, {"--peers", "/dev/null"}},
        BadStart{"lend_where_a_file_is", {{"lend", "0:/dev/null"}}, kOption, {"--lend", "/dev/null"}},
        BadStart{"very_long_path", {{"nvme", kLongPath.c_str()}}, kOption, {"--nvme", "File name too long"}},
        BadStart{"value_of_several_lines", {{"page", "2MiB\n\x1b"}}, kOption, {"page='2MiB\\n\\x1b'"}},
        BadStart{"null_name", {{nullptr, "1"}}, VMEM_ERROR_INVALID_VALUE, {"NULL"}},
        BadStart{"null_value", {{"page", nullptr}}, VMEM_ERROR_INVALID_VALUE, {"NULL"}},
        BadStart{"no_virtual_memory",
                 {},
                 VMEM_ERROR_UNSUPPORTED,
                 {"virtual memory management"},
                 "devices=1,hbm=128MiB,vmm=0"},
        BadStart{"no_host_handles",
                 {},
                 VMEM_ERROR_UNSUPPORTED,
                 {"HOST_NUMA", "vmem doctor"},
                 "devices=1,hbm=128MiB,host_vmm=0"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_F(BadLife, AnOrderlyEndSaysNothing) {
  ASSERT_OK(start_vmem({}));
  std::vector<void*> blocks(40);
  for (void*& block : blocks) ASSERT_OK(vmem_malloc(&block, kMiB, 0, nullptr));
  for (void* block : blocks) ASSERT_OK(vmem_free(block, nullptr));
  ::testing::internal::CaptureStderr();
  EXPECT_OK(vmem_shutdown());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// The disk tier's workers wake the mover after freeing space, even while the mover ends.
TEST_F(BadLife, TheEndDoesNotWaitForADisksWorkersThatWaitForTheMover) {
  const std::vector<std::byte> bytes(150 * kMiB, std::byte{1});
  for (int round = 0; round < 12 && !HasFailure(); ++round) {
    ASSERT_OK(start_vmem({{"hbm", "32MiB"}, {"host", "32MiB"}, {"nvme", ".:128MiB"}, {"compress", "off"}}));
    void* memory = nullptr;
    ASSERT_OK(vmem_malloc(&memory, bytes.size(), 0, nullptr));
    ASSERT_OK(vmem_write(memory, bytes.data(), bytes.size()));
    ASSERT_OK(vmem_free(memory, nullptr));
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_OK(vmem_shutdown());
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20)) << "round " << round;
  }
}

// Destructors of thread-local variables may run after vmem's own on that thread.
struct LateCaller {
  void* small = nullptr;
  void* large = nullptr;
  ~LateCaller() {
    if (small == nullptr) return;
    EXPECT_REFUSED(acquire(range_of(large, 10)), VMEM_ERROR_UNSUPPORTED, {"ending"});
    EXPECT_REFUSED(vmem_memset(large, 1, 10, nullptr), VMEM_ERROR_UNSUPPORTED, {"ending"});
    EXPECT_OK(vmem_free(small, nullptr));
    EXPECT_OK(vmem_free(large, nullptr));
  }
};
thread_local LateCaller late_caller;

TEST_F(BadLife, AnEndingThreadCanFreeAndHoldsNothing) {
  ASSERT_OK(start_vmem({}));
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      late_caller.small = nullptr;  // constructed before vmem's thread-local variables
      ASSERT_OK(vmem_malloc(&late_caller.small, 3000, 0, nullptr));
      ASSERT_OK(vmem_malloc(&late_caller.large, 4 * kMiB, 0, nullptr));
      for (void* memory : {late_caller.small, late_caller.large}) {
        ASSERT_OK(acquire(range_of(memory, 10), CU_STREAM_PER_THREAD));
        ASSERT_OK(release(range_of(memory, 10), CU_STREAM_PER_THREAD));
      }
    }).join();
  }
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(statistics().allocated_bytes, 0u);
  EXPECT_OK(vmem_shutdown());
}

TEST_F(BadLife, OptionsThatAreNullAreRefused) {
  EXPECT_REFUSED(vmem_init(nullptr, 1), VMEM_ERROR_INVALID_VALUE, {"options", "NULL"});
}

TEST_F(BadLife, AMisspeltEnvironmentVariableIsRefusedWithTheNearest) {
  const EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  ::setenv("VMEM_HMB", "64MiB", 1);
  EXPECT_REFUSED(start_vmem({}), VMEM_ERROR_INVALID_OPTION, {"VMEM_HMB", "VMEM_HBM"});
  ::unsetenv("VMEM_HMB");
  ::setenv("VMEM_PAGE", "3MiB", 1);
  EXPECT_REFUSED(start_vmem({}), VMEM_ERROR_INVALID_OPTION, {"VMEM_PAGE", "3MiB"});
  ::unsetenv("VMEM_PAGE");
  expect_good_start();
}

}  // namespace
}  // namespace vmem::test
