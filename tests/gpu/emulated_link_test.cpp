// Copies take the time of the configured links. Lower bounds are exact; upper bounds allow for a
// busy machine.
#include <algorithm>
#include <chrono>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t mib = std::size_t{1} << 20;

class Links : public DriverTest {
 protected:
  explicit Links(const std::string& spec) : DriverTest(emulated_driver(spec)) {}
  void SetUp() override {
    DriverTest::SetUp();
    page.emplace(driver, bytes, device_memory(0, false));
    in = must(PinnedBuffer::create(driver, bytes));
    out = must(PinnedBuffer::create(driver, bytes));
    other = must(Stream::create(driver));
    // First touches here, so that its time does not count as the link's.
    EXPECT_CU(cu().cuMemsetD8Async(page->address(), 1, bytes, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
    std::fill_n(in.data(), bytes, std::byte{1});
    std::fill_n(out.data(), bytes, std::byte{1});
  }
  void TearDown() override {
    other.reset();
    in.reset();
    out.reset();
    page.reset();
    DriverTest::TearDown();
  }
  void copy_in(const Stream& on, std::size_t count = bytes, std::size_t offset = 0) {
    EXPECT_CU(cu().cuMemcpyHtoDAsync(page->address() + offset, in.data() + offset, count, on.get()));
  }
  void copy_out(const Stream& on, std::size_t count = bytes, std::size_t offset = 0) {
    EXPECT_CU(cu().cuMemcpyDtoHAsync(out.data() + offset, page->address() + offset, count, on.get()));
  }
  template <class Work>
  double milliseconds(Work work) {
    const auto start = Clock::now();
    work();
    EXPECT_CU(cu().cuCtxSynchronize());
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

  static constexpr std::size_t bytes = 8 * mib;
  static constexpr double copy_ms = bytes / 0.1e6;  // at 0.1 GB/s: 84 ms
  std::optional<Page> page;
  PinnedBuffer in, out;
  Stream other;
};

class TwoRates : public Links {
 protected:
  TwoRates() : Links("h2d=0.1,d2h=0.1") {}
};
class SharedRate : public Links {
 protected:
  SharedRate() : Links("h2d=0.1,d2h=0.1,duplex=0.1") {}
};
class FixedCost : public Links {
 protected:
  FixedCost() : Links("copy_us=2000") {}
};
class SharedSwitch : public Links {
 protected:
  SharedSwitch() : Links("devices=2,switch=0+1:0.1") {}
};
class SlowSocket : public Links {
 protected:
  SlowSocket() : Links("numa=2,near=0:1,socket=0.1") {}
};
class PeersOverPcie : public Links {
 protected:
  PeersOverPcie() : Links("devices=2,nvlink=0,h2d=0.1,switch=0+1:0.001") {}
};
class PeerRate : public Links {
 protected:
  PeerRate() : Links("devices=2,p2p=0-1:0.1") {}
};

TEST_F(TwoRates, ACopyTakesItsBytesAtTheLinksRate) {
  EXPECT_GE(milliseconds([&] { copy_in(stream); }), copy_ms);
  EXPECT_GE(milliseconds([&] { copy_out(stream); }), copy_ms);
}

TEST_F(TwoRates, CopiesInOneDirectionShareTheLink) {
  EXPECT_GE(milliseconds([&] {
              copy_in(stream, bytes / 2);
              copy_in(other, bytes / 2, bytes / 2);
            }),
            copy_ms);
}

// If the directions shared a link, no attempt could be shorter. Repeats because the machine may be
// busy during some attempts.
TEST_F(TwoRates, TheTwoDirectionsOverlap) {
  double best_ms = copy_ms;
  for (int attempt = 0; attempt < 20 && best_ms >= 0.9 * copy_ms; ++attempt) {
    best_ms = std::min(best_ms, double(milliseconds([&] {
                         copy_in(stream, bytes / 2);
                         copy_out(other, bytes / 2, bytes / 2);
                       })));
  }
  EXPECT_LT(best_ms, 0.9 * copy_ms);
}

TEST_F(SharedRate, ADuplexLimitHoldsForTheSumOfBothDirections) {
  EXPECT_GE(milliseconds([&] {
              copy_in(stream, bytes / 2);
              copy_out(other, bytes / 2, bytes / 2);
            }),
            copy_ms);
}

TEST_F(TwoRates, CopiesInsideADeviceUseNoLink) {
  EXPECT_LT(milliseconds([&] {
              EXPECT_CU(cu().cuMemcpyDtoDAsync(page->address() + bytes / 2, page->address(), bytes / 2, stream.get()));
            }),
            copy_ms / 2);
}

TEST_F(FixedCost, EveryCopyCostsItsFixedTime) {
  EXPECT_GE(milliseconds([&] {
              for (int i = 0; i < 10; ++i) copy_in(stream, 4096);
            }),
            20);
}

TEST_F(FixedCost, ABatchCostsItOnce) {
  std::vector<CUdeviceptr> targets, sources;
  for (std::size_t i = 0; i < 100; ++i) {
    targets.push_back(page->address() + i * 4096);
    sources.push_back(reinterpret_cast<CUdeviceptr>(in.data()) + i * 4096);
  }
  std::vector<std::size_t> sizes(targets.size(), 4096);
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t index = 0;
  EXPECT_LT(milliseconds([&] {
              EXPECT_CU(cu().cuMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(), &attributes,
                                                &index, 1, stream.get()));
            }),
            100);
}

TEST_F(PeerRate, PeerCopiesTakeTheirLinksTime) {
  const Page peer(driver, bytes, device_memory(1, false), 0);
  EXPECT_GE(
      milliseconds([&] { EXPECT_CU(cu().cuMemcpyDtoDAsync(peer.address(), page->address(), bytes, stream.get())); }),
      copy_ms);
}

TEST_F(SharedSwitch, DevicesBelowOneSwitchShareItsWayUp) {
  const Page other_device(driver, bytes / 2, device_memory(1, false), 0);
  EXPECT_GE(milliseconds([&] {
              copy_in(stream, bytes / 2);
              EXPECT_CU(cu().cuMemcpyHtoDAsync(other_device.address(), in.data(), bytes / 2, other.get()));
            }),
            copy_ms);
}

TEST_F(SlowSocket, HostMemoryOfTheOtherNodeIsBeyondTheSocket) {
  const Page far(driver, bytes, host_memory(0, false));
  const Page near(driver, bytes, host_memory(1, false));
  EXPECT_GE(
      milliseconds([&] { EXPECT_CU(cu().cuMemcpyDtoDAsync(page->address(), far.address(), bytes, stream.get())); }),
      copy_ms);
  double best_ms = copy_ms;
  for (int attempt = 0; attempt < 20 && best_ms >= copy_ms; ++attempt) {
    best_ms = std::min(best_ms, milliseconds([&] {
                         EXPECT_CU(cu().cuMemcpyDtoDAsync(page->address(), near.address(), bytes, stream.get()));
                       }));
  }
  EXPECT_LT(best_ms, copy_ms);
}

// The path above the switch would take a hundred times as long.
TEST_F(PeersOverPcie, CopiesBelowOneSwitchTakeTheDevicesLinksOnly) {
  const Page peer(driver, bytes, device_memory(1, false), 0);
  const double ms =
      milliseconds([&] { EXPECT_CU(cu().cuMemcpyDtoDAsync(peer.address(), page->address(), bytes, stream.get())); });
  EXPECT_GE(ms, copy_ms);
  EXPECT_LT(ms, 50 * copy_ms);
}

}  // namespace
}  // namespace vmem::gpu
