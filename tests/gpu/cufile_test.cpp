// Reads from files into GPU memory through the table used for a real libcufile, and refusals of the
// emulated one.
#include "gpu/cufile.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <latch>
#include <numeric>
#include <thread>

#include "base/file_descriptor.hpp"
#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

using Accept = CuFile::Accept;
using CuFileRef = std::shared_ptr<const CuFile>;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t kUntouched = 0xee;

Bytes pattern(std::size_t bytes, unsigned seed = 1) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::uint8_t>((i * 2654435761U + seed) >> 8 & 0x7f);
  return result;
}

FileDescriptor fill(FileDescriptor file, const Bytes& content) {
  EXPECT_EQ(::pwrite(file.get(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  return file;
}

// On the build's disk; unlinked, so it vanishes with its descriptor.
FileDescriptor file_on_disk(const Bytes& content) {
  char name[] = "cufile_test_XXXXXX";
  FileDescriptor file(::mkstemp(name));
  EXPECT_TRUE(file) << std::strerror(errno);
  ::unlink(name);
  return fill(std::move(file), content);
}

FileDescriptor file_in_memory(const Bytes& content) {
  return fill(FileDescriptor(::memfd_create("cufile_test", MFD_CLOEXEC)), content);
}

template <class Function>
Function emulated_symbol(const Driver& driver, const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen(driver.path().c_str(), RTLD_NOW | RTLD_NOLOAD), name));
}

TEST(CuFileLoading, DirectIsRefusedWhereTheMachineOnlyHasCompatibilityMode) {
  const auto cufile = CuFile::load(*emulated_driver("cufile=compat"), Accept::direct);
  ASSERT_FALSE(cufile);
  EXPECT_EQ(cufile.error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(cufile.error().message,
            "cuFile would copy through host memory: there is neither nvidia-fs nor PCI P2PDMA here (cuFileDriverOpen: "
            "CU_FILE_DRIVER_NOT_INITIALIZED (5001))");
}

TEST(CuFileLoading, AnyTakesCompatibilityModeAndSaysSo) {
  const auto cufile = must(CuFile::load(*emulated_driver(""), Accept::any));
  EXPECT_FALSE(cufile->direct());
  EXPECT_EQ(cufile->describe(), "emulated cuFile through host memory (compatibility mode)");
}

TEST(CuFileLoading, BothAreDirectWhereTheMachineIs) {
  const DriverRef driver = emulated_driver("cufile=direct");
  for (const Accept accept : {Accept::direct, Accept::any}) {
    const auto cufile = must(CuFile::load(*driver, accept));
    EXPECT_TRUE(cufile->direct());
    EXPECT_EQ(cufile->describe(), "emulated cuFile");
  }
}

TEST(CuFileLoading, ThatDoesNotOpenSaysWhy) {
  const DriverRef driver = emulated_driver("cufile=none");
  for (const Accept accept : {Accept::direct, Accept::any}) {
    const auto cufile = CuFile::load(*driver, accept);
    ASSERT_FALSE(cufile);
    EXPECT_EQ(cufile.error().status, VMEM_ERROR_UNSUPPORTED);
    EXPECT_EQ(cufile.error().native, CU_FILE_DRIVER_NOT_INITIALIZED);
    EXPECT_NE(cufile.error().message.find("cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED (5001)"), std::string::npos)
        << cufile.error().message;
  }
}

TEST(CuFileLoading, WhatIsOpenIsSharedAndStaysAsItIs) {
  const DriverRef driver = emulated_driver("cufile=compat");
  auto cufile = must(CuFile::load(*driver, Accept::any));
  EXPECT_EQ(must(CuFile::load(*driver, Accept::any)), cufile);
  const auto direct = CuFile::load(*driver, Accept::direct);
  ASSERT_FALSE(direct);
  EXPECT_EQ(direct.error().message, "cuFile is in use already, and copies through host memory");
}

TEST(CuFileLoading, ARefusalLeavesNothingOpen) {
  EXPECT_FALSE(CuFile::load(*emulated_driver("cufile=compat"), Accept::direct));
  EXPECT_TRUE(must(CuFile::load(*emulated_driver("cufile=direct"), Accept::direct))->direct());
}

TEST(CuFileLoading, WithTheLastOwnerItClosesAndCanBeOpenedAnew) {
  must(CuFile::load(*emulated_driver("cufile=compat"), Accept::any)).reset();
  EXPECT_TRUE(must(CuFile::load(*emulated_driver("cufile=direct"), Accept::any))->direct());
}

TEST(CuFileLoading, AProgramThatHasOpenedItWithCompatibilityModeKeepsIt) {
  const DriverRef driver = emulated_driver("cufile=direct");
  const auto open = emulated_symbol<CuFileError (*)()>(*driver, "cuFileDriverOpen");
  const auto close = emulated_symbol<CuFileError (*)()>(*driver, "cuFileDriverClose_v2");
  ASSERT_EQ(open().code, CU_FILE_SUCCESS);
  {
    const auto cufile = must(CuFile::load(*driver, Accept::direct));
    EXPECT_EQ(cufile->describe(), "emulated cuFile, through host memory where a file system cannot");
    EXPECT_TRUE(cufile->open(file_in_memory(pattern(10)).get()));
  }
  EXPECT_EQ(close().code, CU_FILE_SUCCESS);
  EXPECT_EQ(close().code, CU_FILE_DRIVER_NOT_INITIALIZED);
}

// `spec` selects the cuFile modes of the emulated machine; the data read must not depend on them.
class CuFileTest : public DriverTest {
 protected:
  explicit CuFileTest(const char* spec = "cufile=direct,check_host_access=1") : DriverTest(emulated_driver(spec)) {}
  void SetUp() override {
    DriverTest::SetUp();
    cufile = must(CuFile::load(*driver, Accept::any));
  }
  void TearDown() override {
    cufile.reset();
    DriverTest::TearDown();
  }

  void wipe(const Page& page) {
    EXPECT_CU(cu().cuMemsetD8Async(page.address(), kUntouched, page.bytes(), stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  }
  Bytes bytes_of(const Page& page) {
    Bytes result(page.bytes());
    EXPECT_CU(cu().cuMemcpyDtoHAsync(result.data(), page.address(), result.size(), stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
    return result;
  }

  CuFileRef cufile;
};

class CuFileReading : public CuFileTest, public testing::WithParamInterface<const char*> {
 protected:
  CuFileReading() : CuFileTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Modes, CuFileReading, testing::Values("cufile=compat", "cufile=direct"),
                         [](const auto& mode) { return std::string(mode.param).substr(7); });

TEST_P(CuFileReading, BytesLandWhereTheyShouldAndNowhereElse) {
  const Bytes content = pattern(300'000);
  const FileDescriptor descriptor = file_on_disk(content);
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Page page(driver, granularity, device_memory(0, false));
  struct Case {
    std::uint64_t at, bytes, offset;
  };
  for (const Case& each : {Case{0, 4096, 0}, Case{0, 300'000, 0}, Case{4096, 8192, 4096}, Case{1, 1, 299'999},
                           Case{333, 1001, 77}, Case{granularity - 5, 5, 12'345}, Case{7, 0, 0}}) {
    wipe(page);
    EXPECT_EQ(must(file.read(page.address() + each.at, each.bytes, each.offset)), each.bytes);
    Bytes expected(page.bytes(), kUntouched);
    std::copy_n(content.begin() + std::ptrdiff_t(each.offset), each.bytes, expected.begin() + std::ptrdiff_t(each.at));
    EXPECT_TRUE(bytes_of(page) == expected) << each.bytes << " bytes at " << each.offset;
  }
}

TEST_P(CuFileReading, TheFilesEndEndsARead) {
  const Bytes content = pattern(10'001);
  const FileDescriptor descriptor = file_on_disk(content);
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Page page(driver, granularity, device_memory(0, false));
  wipe(page);
  EXPECT_EQ(must(file.read(page.address(), granularity, 9000)), 1001u);
  Bytes expected(page.bytes(), kUntouched);
  std::copy(content.begin() + 9000, content.end(), expected.begin());
  EXPECT_TRUE(bytes_of(page) == expected);
  EXPECT_EQ(must(file.read(page.address(), 1, 10'001)), 0u);
  EXPECT_EQ(must(file.read(page.address(), 4096, 1 << 30)), 0u);
  EXPECT_TRUE(bytes_of(page) == expected);
}

TEST_P(CuFileReading, OneReadFillsSeveralMappings) {
  const Bytes content = pattern(granularity + 8192);
  const FileDescriptor descriptor = file_on_disk(content);
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Reservation range = must(Reservation::create(driver, 2 * granularity));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (std::size_t at = 0; at < range.bytes(); at += granularity) {
    const VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
    ASSERT_CU(cu().cuMemMap(range.begin() + at, granularity, 0, handle.get(), 0));
  }
  ASSERT_CU(cu().cuMemSetAccess(range.begin(), range.bytes(), &desc, 1));
  EXPECT_EQ(must(file.read(range.begin() + 4000, content.size(), 0)), content.size());
  Bytes read(content.size());
  EXPECT_CU(cu().cuMemcpyDtoHAsync(read.data(), range.begin() + 4000, read.size(), stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(read == content);
  EXPECT_CU(cu().cuMemUnmap(range.begin(), range.bytes()));
}

TEST_P(CuFileReading, AFileOpenForDirectIoNeedsNoAlignment) {
  const Bytes content = pattern(20'000);
  const FileDescriptor descriptor = file_on_disk(content);
  if (::fcntl(descriptor.get(), F_SETFL, O_DIRECT) != 0) GTEST_SKIP() << "no O_DIRECT here";
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Page page(driver, granularity, device_memory(0, false));
  wipe(page);
  EXPECT_EQ(must(file.read(page.address() + 3, 1001, 77)), 1001u);
  EXPECT_TRUE(std::equal(content.begin() + 77, content.begin() + 77 + 1001, bytes_of(page).begin() + 3));
}

TEST_P(CuFileReading, ThreadsReadAtOnce) {
  constexpr std::size_t kThreads = 4, kPart = 100'003;
  const Bytes content = pattern(kThreads * kPart);
  const FileDescriptor descriptor = file_on_disk(content);
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Page page(driver, granularity, device_memory(0, false));
  wipe(page);
  {
    std::latch start(kThreads);
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        const ScopedContext here = must(ScopedContext::push(driver, context.context()));
        start.arrive_and_wait();
        for (int round = 0; round < 20; ++round)
          EXPECT_EQ(must(file.read(page.address() + i * kPart, kPart, i * kPart)), kPart);
      });
  }
  Bytes expected(page.bytes(), kUntouched);
  std::ranges::copy(content, expected.begin());
  EXPECT_TRUE(bytes_of(page) == expected);
}

class CuFileErrors : public CuFileTest {
 protected:
  CuFileErrors() : descriptor(file_on_disk(pattern(8192))) {}
  void SetUp() override {
    CuFileTest::SetUp();
    file = must(cufile->open(descriptor.get()));
  }
  void TearDown() override {
    file.reset();
    CuFileTest::TearDown();
  }
  // The error code of a read of a whole granule.
  int read_error(CUdeviceptr memory, std::uint64_t bytes = 4096) const {
    const auto count = file.read(memory, bytes, 0);
    if (count) return 0;
    EXPECT_EQ(count.error().status, VMEM_ERROR_DRIVER);
    return count.error().native;
  }

  FileDescriptor descriptor;
  CuFile::File file;
};

TEST_F(CuFileErrors, MemoryThatTheDriverDoesNotKnowIsRefused) {
  alignas(4096) static std::uint8_t host[4096];
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  const auto count = file.read(address, 4096, 16);
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().status, VMEM_ERROR_DRIVER);
  EXPECT_TRUE(count.error().message.starts_with("cuFileRead of 4096 bytes at 16 into 0x")) << count.error().message;
  EXPECT_TRUE(count.error().message.ends_with(": CU_FILE_CUDA_POINTER_INVALID (5012)")) << count.error().message;
  EXPECT_EQ(read_error(0), EINVAL);
  const Reservation reserved = must(Reservation::create(driver, granularity));
  EXPECT_EQ(read_error(reserved.begin()), CU_FILE_CUDA_POINTER_INVALID);
}

TEST_F(CuFileErrors, MemoryThatEndsTooEarlyIsRefusedAndLeftAlone) {
  const Page page(driver, granularity, device_memory(0, false));
  wipe(page);
  EXPECT_EQ(read_error(page.address() + granularity - 4095), CU_FILE_CUDA_POINTER_RANGE_ERROR);
  EXPECT_TRUE(bytes_of(page) == Bytes(page.bytes(), kUntouched));
}

TEST_F(CuFileErrors, MemoryThatTheDeviceMayNotWriteToIsRefused) {
  const Page page(driver, granularity, device_memory(0, false));
  ASSERT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(read_error(page.address()), CU_FILE_CUDA_POINTER_RANGE_ERROR);
  ASSERT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(read_error(page.address()), 0);
}

TEST_F(CuFileErrors, HostMemoryIsRefused) {
  const Page page(driver, granularity, host_memory(0, false));
  EXPECT_EQ(read_error(page.address()), CU_FILE_CUDA_MEMORY_TYPE_INVALID);
}

TEST_F(CuFileErrors, AReadNeedsAContext) {
  const Page page(driver, granularity, device_memory(0, false));
  int code = 0;
  std::thread([&] { code = read_error(page.address()); }).join();
  EXPECT_EQ(code, CU_FILE_CUDA_DRIVER_ERROR);
}

TEST_F(CuFileErrors, AnOffsetBeforeTheFileIsRefused) {
  const Page page(driver, granularity, device_memory(0, false));
  const auto count = file.read(page.address(), 16, std::uint64_t(-5));
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().native, CU_FILE_INVALID_VALUE);
}

TEST_F(CuFileErrors, ADescriptorThatWasClosedIsAnErrno) {
  const Page page(driver, granularity, device_memory(0, false));
  descriptor.reset();
  const auto count = file.read(page.address(), 16, 0);
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().native, EBADF);
  EXPECT_TRUE(count.error().message.ends_with(": Bad file descriptor")) << count.error().message;
}

TEST_F(CuFileErrors, ADescriptorHasOneFileAtATime) {
  const auto again = cufile->open(descriptor.get());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().status, VMEM_ERROR_DRIVER);
  EXPECT_EQ(again.error().message, "cuFileHandleRegister: CU_FILE_HANDLE_ALREADY_REGISTERED (5028)");
  CuFile::File moved = std::move(file);
  EXPECT_FALSE(cufile->open(descriptor.get()));
  moved.reset();
  EXPECT_TRUE(cufile->open(descriptor.get()));
}

TEST_F(CuFileErrors, WhatIsNoFileIsRefused) {
  const FileDescriptor folder(::open(".", O_RDONLY | O_CLOEXEC));
  const auto opened = cufile->open(folder.get());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(opened.error().message,
            "cuFile cannot read this file, or what it lies on: cuFileHandleRegister: CU_FILE_INVALID_FILE_TYPE (5018)");
  const auto closed = cufile->open(-1);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().status, VMEM_ERROR_DRIVER);
  EXPECT_EQ(closed.error().native, CU_FILE_INVALID_VALUE);
}

TEST_F(CuFileErrors, AFileSystemWithoutADirectWayIsRefused) {
  const FileDescriptor memory = file_in_memory(pattern(10));
  const auto opened = cufile->open(memory.get());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(opened.error().native, CU_FILE_IO_NOT_SUPPORTED);
}

class CuFileInCompatMode : public CuFileTest {
 protected:
  CuFileInCompatMode() : CuFileTest("cufile=compat") {}
};

TEST_F(CuFileInCompatMode, FilesOfAnyFileSystemAreRead) {
  const Bytes content = pattern(5000);
  const FileDescriptor descriptor = file_in_memory(content);
  const CuFile::File file = must(cufile->open(descriptor.get()));
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_EQ(must(file.read(page.address(), 5000, 0)), 5000u);
  EXPECT_TRUE(std::equal(content.begin(), content.end(), bytes_of(page).begin()));
}

TEST_F(CuFileInCompatMode, AFileKeepsItOpen) {
  const FileDescriptor descriptor = file_in_memory(pattern(10));
  CuFile::File file = must(cufile->open(descriptor.get()));
  cufile.reset();
  EXPECT_FALSE(CuFile::load(*driver, Accept::direct));
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_EQ(must(file.read(page.address(), 10, 0)), 10u);
  file.reset();
  EXPECT_EQ(emulated_symbol<CuFileError (*)()>(*driver, "cuFileDriverClose")().code, CU_FILE_DRIVER_NOT_INITIALIZED);
}

}  // namespace
}  // namespace vmem::gpu
