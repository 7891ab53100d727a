// Memory exported as a file descriptor, within a process and to another one.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "gpu/driver_fixture.hpp"

extern char** environ;

namespace vmem::gpu {
namespace {

constexpr const char* child_variable = "VMEM_TEST_IMPORTED_FD";
constexpr int child_fd = 100;

class Sharing : public DriverTest {
 protected:
  CUmemAllocationProp host() const {
    int node = 0;
    cu().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0);
    return host_memory(std::max(node, 0), true);
  }
  Reservation map(const VmmHandle& handle) {
    Reservation range = must(Reservation::create(driver, granularity));
    const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_CU(cu().cuMemMap(range.begin(), granularity, 0, handle.get(), 0));
    EXPECT_CU(cu().cuMemSetAccess(range.begin(), granularity, &desc, 1));
    return range;
  }
  void expect_same_memory(const CUmemAllocationProp& properties) {
    const Page page(driver, granularity, properties);
    const int fd = must(page.handle().export_fd());
    const VmmHandle imported = must(VmmHandle::import_fd(driver, fd));
    close(fd);
    const Reservation other = map(imported);
    EXPECT_CU(fill(page, 7, stream.get()));
    EXPECT_EQ(read(other.begin(), 2), (std::vector<std::uint32_t>{7, 7}));
    EXPECT_CU(cu().cuMemsetD32Async(other.begin(), 8, granularity / 4, stream.get()));
    EXPECT_TRUE(holds(page, 8));
    EXPECT_CU(cu().cuMemUnmap(other.begin(), granularity));
  }
};

// Reruns this test in a child process, where the descriptor is number 100.
int run_in_child(const std::string& test, int fd) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd, child_fd);
  const std::string filter = "--gtest_filter=" + test;
  const std::string program = "/proc/self/exe";
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(filter.c_str()), nullptr};
  setenv(child_variable, "1", 1);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  unsetenv(child_variable);
  posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) return -1;
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(Sharing, AnExportedDeviceFrameImportsAsTheSameMemory) { expect_same_memory(device_memory(0, true)); }

TEST_F(Sharing, AnExportedHostFrameImportsAsTheSameMemory) { expect_same_memory(host()); }

TEST_F(Sharing, MemoryNotCreatedForExportIsNotExported) {
  const VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  EXPECT_FALSE(handle.export_fd());
}

TEST_F(Sharing, AMappingKeepsItsHandleAfterTheLastRelease) {
  void* const library = dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto retain =
      reinterpret_cast<decltype(&::cuMemRetainAllocationHandle)>(dlsym(library, "cuMemRetainAllocationHandle"));
  ASSERT_NE(retain, nullptr);
  VmmHandle created = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  const CUmemGenericAllocationHandle handle = created.get();
  const Reservation range = map(created);
  created.reset();
  EXPECT_EQ(cu().cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  for (int references = 0; references < 2; ++references) {
    CUmemGenericAllocationHandle retained = 0;
    EXPECT_CU(retain(&retained, reinterpret_cast<void*>(range.begin() + 1)));
    EXPECT_EQ(retained, handle);
  }
  EXPECT_CU(cu().cuMemRelease(handle));
  EXPECT_CU(cu().cuMemRelease(handle));
  EXPECT_EQ(cu().cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu().cuMemUnmap(range.begin(), granularity));
}

TEST_F(Sharing, AnyOtherDescriptorIsNotImported) {
  const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_FALSE(VmmHandle::import_fd(driver, fd));
  close(fd);
}

TEST_F(Sharing, AnotherProcessReadsAndWritesTheSameFrame) {
  if (std::getenv(child_variable)) {
    const VmmHandle imported = must(VmmHandle::import_fd(driver, child_fd));
    EXPECT_FALSE(imported.export_fd()) << "only its creator exports it";
    const Reservation range = map(imported);
    EXPECT_EQ(read(range.begin(), 1)[0], 11u);
    EXPECT_CU(cu().cuMemsetD32Async(range.begin(), 12, granularity / 4, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
    EXPECT_CU(cu().cuMemUnmap(range.begin(), granularity));
    return;
  }
  const Page page(driver, granularity, device_memory(0, true));
  EXPECT_CU(fill(page, 11, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  const int fd = must(page.handle().export_fd());
  EXPECT_EQ(run_in_child("Sharing.AnotherProcessReadsAndWritesTheSameFrame", fd), 0);
  close(fd);
  EXPECT_TRUE(holds(page, 12));
}

}  // namespace
}  // namespace vmem::gpu
