#include "runtime/runtime_fixture.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace vmem::test {
namespace {

constexpr std::size_t kBystanderBytes = 5 * kMiB;

std::byte bystander_byte(std::size_t i) { return std::byte((i * 2654435761u) >> 13); }

}  // namespace

::testing::AssertionResult refused(vmem_status got, vmem_status expected, std::initializer_list<std::string> parts) {
  const std::string message = vmem_last_error();
  if (got != expected) {
    return ::testing::AssertionFailure() << "the status is '" << vmem_status_string(got) << "', not '"
                                         << vmem_status_string(expected) << "': " << message;
  }
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "the message lacks '" << part << "': " << message;
    }
  }
  return ::testing::AssertionSuccess();
}

std::string hex(const void* pointer) { return fmt::format("{}", pointer); }

vmem_status start_vmem(std::vector<vmem_option> options) {
  std::vector<vmem_option> all = std::move(options);
  const auto add = [&](const char* name, const char* value) {
    for (const vmem_option& given : all) {
      if (given.name != nullptr && std::string(name) == given.name) return;
    }
    all.push_back({name, value});
  };
  add("driver", "emulated");
  add("log", "off");
  add("space", "4GiB");
  add("hbm", "64MiB");
  add("host", "256MiB");
  return vmem_init(all.data(), all.size());
}

vmem_statistics statistics() {
  vmem_statistics stats{};
  stats.struct_bytes = sizeof stats;
  EXPECT_OK(vmem_stats(&stats));
  return stats;
}

void RuntimeTest::SetUp() {
  gpu = std::make_unique<EmulatedGpu>(machine_);
  start();
}

void RuntimeTest::start() {
  ASSERT_OK(start_vmem(more_));
  bystander_ = static_cast<std::byte*>(allocate(kBystanderBytes));
  std::vector<std::byte> bytes(kBystanderBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = bystander_byte(i);
  ASSERT_OK(vmem_write(bystander_, bytes.data(), bytes.size()));
}

void* RuntimeTest::allocate(std::size_t bytes, int device) {
  void* memory = nullptr;
  EXPECT_OK(vmem_malloc(&memory, bytes, device, nullptr));
  return memory;
}

void RuntimeTest::verify_bystander() {
  if (bystander_ == nullptr) return;
  std::vector<std::byte> bytes(kBystanderBytes);
  ASSERT_OK(vmem_read(bytes.data(), bystander_, bytes.size()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != bystander_byte(i);
  EXPECT_EQ(wrong, 0u) << "bytes of an allocation that the test did not touch";
  EXPECT_OK(vmem_free(bystander_, nullptr));
  bystander_ = nullptr;
}

void RuntimeTest::expect_nothing_left() {
  verify_bystander();
  ASSERT_OK(vmem_quiesce());
  const vmem_statistics stats = statistics();
  EXPECT_EQ(stats.allocated_bytes, 0u);
  EXPECT_EQ(stats.committed_bytes, 0u);
  EXPECT_EQ(stats.pages, 0u);
  EXPECT_EQ(stats.hbm_used_bytes, 0u);
  EXPECT_EQ(stats.host_used_bytes, 0u);
}

void RuntimeTest::TearDown() {
  verify_bystander();
  const vmem_status ended = vmem_shutdown();
  EXPECT_TRUE(ended == VMEM_OK || ended == VMEM_ERROR_NOT_INITIALIZED) << vmem_last_error();
  gpu.reset();
  const std::string left = configure_emulated("devices=1");
  EXPECT_EQ(left, "") << "something is left in the driver";
  // No further test could start.
  if (!left.empty()) std::abort();
}

ChildEnd run_in_child(const std::function<int()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::_exit(body());
  }
  ::close(ends[1]);
  ChildEnd end;
  char buffer[1024];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) end.said.append(buffer, std::size_t(got));
  ::close(ends[0]);
  ::waitpid(child, &end.status, 0);
  return end;
}

}  // namespace vmem::test
