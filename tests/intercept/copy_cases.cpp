// Compares every form of copy and fill with a CPU model, on more memory than fits in HBM. The runs
// have 64 MiB of HBM.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "intercept/copy_model.hpp"

namespace vmem::test {
namespace {

// The sides of a form that can be in host memory.
enum class Sides { any, from_host, to_host, device };

bool suits(Sides sides, const Memory& to, const Memory& from) {
  const bool wants_host_target = sides == Sides::to_host, wants_host_source = sides == Sides::from_host;
  if (!to.on_device() && !from.on_device()) return false;
  return sides == Sides::any || (to.on_device() != wants_host_target && from.on_device() != wants_host_source);
}

// The pairs on which every form is tried: between device allocations, and with both kinds of host
// memory.
template <class Try>
void each_pair(World& world, Sides sides, Try&& attempt) {
  for (int round = 0; round < 5; ++round) {
    Memory& one = world.next_device();
    Memory& other = world.next_device();
    for (const auto& [to, from] : {std::pair<Memory*, Memory*>{&one, &other},
                                   {&one, &world.pageable},
                                   {&one, &world.pinned},
                                   {&world.pageable, &one},
                                   {&world.pinned, &one}}) {
      if (suits(sides, *to, *from)) attempt(*to, *from);
    }
  }
}

struct Form {
  const char* name;
  Sides sides;
  bool queued;
  std::function<CUresult(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream)> copy;
};

CUcontext current() {
  CUcontext context = nullptr;
  CALL(cuCtxGetCurrent(&context));
  return context;
}

const std::vector<Form>& forms() {
  const auto on_host = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  static const std::vector<Form> all{
      {"cuMemcpy", Sides::any, false, [](auto to, auto from, auto bytes, auto) { return cuMemcpy(to, from, bytes); }},
      {"cuMemcpyAsync", Sides::any, true,
       [](auto to, auto from, auto bytes, auto stream) { return cuMemcpyAsync(to, from, bytes, stream); }},
      {"cuMemcpyHtoD", Sides::from_host, false,
       [=](auto to, auto from, auto bytes, auto) { return cuMemcpyHtoD(to, on_host(from), bytes); }},
      {"cuMemcpyHtoDAsync", Sides::from_host, true,
       [=](auto to, auto from, auto bytes, auto stream) {
         return cuMemcpyHtoDAsync(to, on_host(from), bytes, stream);
       }},
      {"cuMemcpyDtoH", Sides::to_host, false,
       [=](auto to, auto from, auto bytes, auto) { return cuMemcpyDtoH(on_host(to), from, bytes); }},
      {"cuMemcpyDtoHAsync", Sides::to_host, true,
       [=](auto to, auto from, auto bytes, auto stream) {
         return cuMemcpyDtoHAsync(on_host(to), from, bytes, stream);
       }},
      {"cuMemcpyDtoD", Sides::device, false,
       [](auto to, auto from, auto bytes, auto) { return cuMemcpyDtoD(to, from, bytes); }},
      {"cuMemcpyDtoDAsync", Sides::device, true,
       [](auto to, auto from, auto bytes, auto stream) { return cuMemcpyDtoDAsync(to, from, bytes, stream); }},
      {"cuMemcpyPeer", Sides::device, false,
       [](auto to, auto from, auto bytes, auto) { return cuMemcpyPeer(to, current(), from, current(), bytes); }},
      {"cuMemcpyPeerAsync", Sides::device, true,
       [](auto to, auto from, auto bytes, auto stream) {
         return cuMemcpyPeerAsync(to, current(), from, current(), bytes, stream);
       }},
      {"cuMemcpyBatchAsync", Sides::any, true, copy_as_batch},
  };
  return all;
}

CASE(copies_of_every_form) {
  World world;
  struct Piece {
    std::size_t to, from, bytes;
  };
  // Within a page, across a page boundary, and over several pages with both ends inside a page.
  constexpr Piece pieces[] = {
      {100, 300, 1000}, {2 * kMiB - 57, 4 * kMiB - 91, 4099}, {3 * kMiB + 13, 5 * kMiB + 7, 9 * kMiB + 5}};
  for (const Form& form : forms()) {
    each_pair(world, form.sides, [&](Memory& to, Memory& from) {
      for (const Piece& piece : pieces) {
        const std::size_t source = piece.from + 8 * ++world.copies;
        CALL(form.copy(to.address() + piece.to, from.address() + source, piece.bytes, world.stream.handle));
        std::memcpy(&to.model()[piece.to], &from.model()[source], piece.bytes);
        if (form.queued) CALL(cuStreamSynchronize(world.stream.handle));
        World::require(to.as_expected(piece.to - 64, piece.bytes + 128), form.name);
      }
    });
  }
  world.require_all("all copies");
}

struct Form2d {
  const char* name;
  bool queued;
  std::function<CUresult(const CUDA_MEMCPY2D*, CUstream)> copy;
};
struct Form3d {
  const char* name;
  bool queued;
  std::function<CUresult(const CUDA_MEMCPY3D*, CUstream)> copy;
};

CASE(copies_with_rows) {
  World world;
  const Form2d forms_2d[] = {
      {"cuMemcpy2D", false, [](auto* shape, auto) { return cuMemcpy2D(shape); }},
      {"cuMemcpy2DUnaligned", false, [](auto* shape, auto) { return cuMemcpy2DUnaligned(shape); }},
      {"cuMemcpy2DAsync", true, [](auto* shape, auto stream) { return cuMemcpy2DAsync(shape, stream); }}};
  const Form3d forms_3d[] = {
      {"cuMemcpy3D", false, [](auto* shape, auto) { return cuMemcpy3D(shape); }},
      {"cuMemcpy3DAsync", true, [](auto* shape, auto stream) { return cuMemcpy3DAsync(shape, stream); }}};
  const auto check = [&](const char* name, bool queued, Memory& to, const Layout& target, Memory& from,
                         const Layout& source, const Shape& shape) {
    copy_model(to, target, from, source, shape);
    if (queued) CALL(cuStreamSynchronize(world.stream.handle));
    const std::size_t begin = target.offset(0, 0) - 64, last = target.offset(shape.rows - 1, shape.slices - 1);
    World::require(to.as_expected(begin, last + shape.width + 64 - begin), name);
  };
  // No pitch divides a page, so some rows cross a page boundary.
  for (bool unified : {false, true}) {
    for (const Form2d& form : forms_2d) {
      each_pair(world, Sides::any, [&](Memory& to, Memory& from) {
        const Layout target{4096 + 512, 0, 24, 300, 0}, source{3 * 1024, 0, 8, 500 + ++world.copies, 0};
        const Shape shape{3000, 1000, 1};
        CUDA_MEMCPY2D parameters{};
        describe(parameters, to, target, from, source, shape, unified);
        CALL(form.copy(&parameters, world.stream.handle));
        check(form.name, form.queued, to, target, from, source, shape);
      });
    }
    for (const Form3d& form : forms_3d) {
      each_pair(world, Sides::any, [&](Memory& to, Memory& from) {
        const Layout target{1536, 90, 16, 5, 2}, source{2560, 70, 40 + 8 * (++world.copies % 100), 3, 1};
        const Shape shape{1200, 60, 30};
        CUDA_MEMCPY3D parameters{};
        describe(parameters, to, target, from, source, shape, unified);
        parameters.srcZ = source.z;
        parameters.srcHeight = source.height;
        parameters.dstZ = target.z;
        parameters.dstHeight = target.height;
        parameters.Depth = shape.slices;
        CALL(form.copy(&parameters, world.stream.handle));
        check(form.name, form.queued, to, target, from, source, shape);
      });
    }
  }
  world.require_all("all copies with rows");
}

// A shape that the driver refuses is refused for any kind of memory, and nothing is copied.
CASE(copies_of_impossible_shapes) {
  World world;
  const Layout layout{4608, 70, 0, 0, 0};
  const Shape shape{3000, 100, 1};
  for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
    Memory& to = *world.device[which];
    const auto refused = [&](auto&& spoil) {
      CUDA_MEMCPY2D parameters{};
      describe(parameters, to, layout, world.pinned, layout, shape, false);
      spoil(parameters);
      REQUIRE(cuMemcpy2D(&parameters) == CUDA_ERROR_INVALID_VALUE);
      REQUIRE(cuMemcpy2DAsync(&parameters, world.stream.handle) == CUDA_ERROR_INVALID_VALUE);
    };
    refused([](auto& p) { p.dstPitch = p.WidthInBytes - 1; });
    refused([](auto& p) { p.srcPitch = p.WidthInBytes - 1; });
    refused([](auto& p) { p.dstXInBytes = p.dstPitch - p.WidthInBytes + 1; });
    refused([](auto& p) { p.srcPitch = 0; });
    refused([](auto& p) { p.srcPitch = std::size_t{1} << 31; });
    refused([](auto& p) { p.srcMemoryType = CUmemorytype(9); });
    refused([](auto& p) { p.srcHost = nullptr; });
    refused([](auto& p) { p.Height = kHuge / p.dstPitch + 1; });  // beyond the end
    CUDA_MEMCPY3D parameters{};
    describe(parameters, to, layout, world.pinned, layout, shape, false);
    parameters.Depth = 2;
    parameters.srcHeight = parameters.dstHeight = shape.rows - 1;
    REQUIRE(cuMemcpy3D(&parameters) == CUDA_ERROR_INVALID_VALUE);
    parameters.Depth = 1;
    REQUIRE(cuMemcpy3D(&parameters) == CUDA_ERROR_INVALID_VALUE);
    parameters.srcHeight = parameters.dstHeight = 0;
    parameters.dstZ = 1;
    REQUIRE(cuMemcpy3D(&parameters) == CUDA_ERROR_INVALID_VALUE);
    parameters.dstZ = 0;
    parameters.srcHeight = parameters.dstHeight = shape.rows;
    parameters.srcLOD = 1;
    REQUIRE(cuMemcpy3DAsync(&parameters, world.stream.handle) == CUDA_ERROR_INVALID_VALUE);
    // A copy of nothing may omit parameters.
    CUDA_MEMCPY2D nothing{};
    describe(nothing, to, layout, world.pinned, layout, {0, 100, 1}, false);
    CALL(cuMemcpy2D(&nothing));
  }
  REQUIRE(cuMemcpy2D(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuStreamSynchronize(world.stream.handle));
  world.require_all("refused copies");
}

struct Fill {
  const char* name;
  std::size_t element_bytes;
  bool queued;
  // The pitch is 0 for forms without rows.
  std::function<CUresult(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width, std::size_t rows,
                         CUstream)>
      fill;
};

const std::vector<Fill>& fills() {
  static const std::vector<Fill> all{
#define VMEM_FILL(bits, type)                                                                                      \
  {"cuMemsetD" #bits, bits / 8, false,                                                                             \
   [](auto to, auto, unsigned value, auto width, auto, auto) { return cuMemsetD##bits(to, type(value), width); }}, \
      {"cuMemsetD" #bits "Async", bits / 8, true,                                                                  \
       [](auto to, auto, unsigned value, auto width, auto, auto stream) {                                          \
         return cuMemsetD##bits##Async(to, type(value), width, stream);                                            \
       }},                                                                                                         \
      {"cuMemsetD2D" #bits, bits / 8, false,                                                                       \
       [](auto to, auto pitch, unsigned value, auto width, auto rows, auto) {                                      \
         return cuMemsetD2D##bits(to, pitch, type(value), width, rows);                                            \
       }},                                                                                                         \
      {"cuMemsetD2D" #bits "Async", bits / 8, true,                                                                \
       [](auto to, auto pitch, unsigned value, auto width, auto rows, auto stream) {                               \
         return cuMemsetD2D##bits##Async(to, pitch, type(value), width, rows, stream);                             \
       }},
      VMEM_FILL(8, static_cast<unsigned char>) VMEM_FILL(16, static_cast<unsigned short>)
          VMEM_FILL(32, static_cast<unsigned>)
#undef VMEM_FILL
  };
  return all;
}

void fill_model(Memory& to, std::size_t at, std::size_t pitch, unsigned value, std::size_t element_bytes,
                std::size_t width, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < width; ++i)
      std::memcpy(&to.model()[at + row * pitch + i * element_bytes], &value, element_bytes);
  }
}

bool has_rows(const Fill& form) { return std::strstr(form.name, "D2D") != nullptr; }

CASE(fills_of_every_form) {
  World world;
  struct Piece {
    std::size_t to, pitch, bytes, rows;
  };
  constexpr Piece flat[] = {{300, 0, 1000, 1}, {2 * kMiB - 60, 0, 4100, 1}, {3 * kMiB + 12, 0, 9 * kMiB + 4, 1}};
  // Rows that cross pages, rows without a gap, and a single row with an unused pitch.
  constexpr Piece rows[] = {{kMiB + 20, 4608, 3000, 1500}, {kMiB + 4, 1000, 1000, 5000}, {2 * kMiB - 8, 0, 2000, 1}};
  unsigned value = 0x1badcafe;
  for (const Fill& form : fills()) {
    for (int round = 0; round < 5; ++round) {
      Memory& to = world.next_device();
      for (const Piece& piece : has_rows(form) ? std::span<const Piece>(rows) : std::span<const Piece>(flat)) {
        value = value * 5 + 0x01020304;
        const std::size_t width = piece.bytes / form.element_bytes;
        CALL(form.fill(to.address() + piece.to, piece.pitch, value, width, piece.rows, world.stream.handle));
        fill_model(to, piece.to, piece.pitch, value, form.element_bytes, width, piece.rows);
        if (form.queued) CALL(cuStreamSynchronize(world.stream.handle));
        const std::size_t covered = (piece.rows - 1) * piece.pitch + piece.bytes;
        World::require(to.as_expected(piece.to - 64, covered + 128), form.name);
      }
    }
  }
  // Fills that the driver refuses.
  for (const Fill& form : fills()) {
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      Memory& to = *world.device[which];
      const auto fill = [&](std::size_t at, std::size_t pitch, std::size_t width, std::size_t count) {
        return form.fill(to.address() + at, pitch, 7, width, count, world.stream.handle);
      };
      if (form.element_bytes > 1) {
        REQUIRE(fill(2 * kMiB - 5, 4096, 100, 1) == CUDA_ERROR_INVALID_VALUE);
        if (has_rows(form)) REQUIRE(fill(0, 4097, 100, 3) == CUDA_ERROR_INVALID_VALUE);
      }
      if (has_rows(form)) REQUIRE(fill(0, 399, 400 / form.element_bytes, 3) == CUDA_ERROR_INVALID_VALUE);
      CALL(fill(0, 0, 0, 1));
    }
  }
  CALL(cuStreamSynchronize(world.stream.handle));
  world.require_all("all fills");
}

// A copy to the host is complete when the call returns, and so is earlier work on streams that the
// default stream waits for. The memory is pinned, because copies with pageable memory wait in any
// case.
CASE(synchronous_copies_wait) {
  World world;
  const Stream ordered(CU_STREAM_DEFAULT);
  const CUfunction add = world.machine.function("add");
  const auto wanted = [&](Memory& from, std::size_t at) {
    unsigned word = 0;
    std::memcpy(&word, &from.model()[at], 4);
    return word;
  };
  const auto found = [&](std::size_t at) { return *reinterpret_cast<unsigned*>(world.pinned.address() + at); };
  const std::vector<std::function<CUresult(CUdeviceptr)>> to_host{
      [&](CUdeviceptr from) { return cuMemcpyDtoH(world.pinned.host(), from, kLarge); },
      [&](CUdeviceptr from) { return cuMemcpy(world.pinned.address(), from, kLarge); },
      [&](CUdeviceptr from) {
        CUDA_MEMCPY2D rows{};
        rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        rows.srcDevice = from;
        rows.dstMemoryType = CU_MEMORYTYPE_HOST;
        rows.dstHost = world.pinned.host();
        rows.srcPitch = rows.dstPitch = rows.WidthInBytes = kMiB;
        rows.Height = kLarge / kMiB;
        return cuMemcpy2D(&rows);
      },
      [&](CUdeviceptr from) {
        CUDA_MEMCPY3D rows{};
        rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        rows.srcDevice = from;
        rows.dstMemoryType = CU_MEMORYTYPE_HOST;
        rows.dstHost = world.pinned.host();
        rows.srcPitch = rows.dstPitch = rows.WidthInBytes = kMiB;
        rows.srcHeight = rows.dstHeight = rows.Height = 4;
        rows.Depth = kLarge / kMiB / 4;
        return cuMemcpy3D(&rows);
      }};
  for (const auto& copy : to_host) {
    for (std::size_t which = 0; which < world.device.size(); ++which) {
      Memory& from = *world.device[which];
      // The allocation larger than HBM cannot be used by a kernel as a whole.
      constexpr unsigned kTimes = 5;
      std::size_t words = kLarge / 4;
      CUdeviceptr address = from.address();
      if (which != 0) {
        for (unsigned i = 0; i < kTimes; ++i) launch(add, ordered.handle, {&address, &words});
        for (std::size_t at = 0; at < kLarge; at += 4) {
          const unsigned word = wanted(from, at) + kTimes;
          std::memcpy(&from.model()[at], &word, 4);
        }
      }
      CALL(copy(address));
      for (const std::size_t at : {std::size_t{0}, kLarge / 2, kLarge - 4}) REQUIRE(found(at) == wanted(from, at));
      std::memcpy(world.pinned.model().data(), from.model().data(), kLarge);
    }
  }
  // Conversely, the source may be overwritten at once.
  const std::vector<std::function<CUresult(CUdeviceptr)>> from_host{
      [&](CUdeviceptr to) { return cuMemcpyHtoD(to, world.pinned.host(), kLarge); },
      [&](CUdeviceptr to) { return cuMemcpy(to, world.pinned.address(), kLarge); },
      [&](CUdeviceptr to) {
        CUdeviceptr from = world.pinned.address();
        std::size_t bytes = kLarge, first = 0;
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        return cuMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first, 1, world.stream.handle);
      }};
  for (const auto& copy : from_host) {
    for (const auto& to : world.device) {
      std::memcpy(to->model().data(), world.pinned.model().data(), kLarge);
      CALL(copy(to->address()));
      for (std::size_t at = 0; at < kLarge; at += 4096) {
        world.pinned.model()[at] ^= std::byte{0xff};
        std::memcpy(reinterpret_cast<void*>(world.pinned.address() + at), &world.pinned.model()[at], 1);
      }
    }
  }
  CALL(cuStreamSynchronize(world.stream.handle));
  world.require_all("synchronous copies");
}

}  // namespace
}  // namespace vmem::test
