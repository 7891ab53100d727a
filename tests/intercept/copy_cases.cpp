// Compares every form of copy and fill with a CPU model, on more memory than fits in HBM. The runs
// have 64 MiB of HBM.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made((bytes + 7) / 8 * 8);
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < made.size(); at += 8) {
    const std::uint64_t word = random() & 0x7fffffffffffffff;  // never an address of vmem
    std::memcpy(&made[at], &word, 8);
  }
  made.resize(bytes);
  return made;
}

enum class Kind { device, pageable, pinned };

// Memory of one kind, and its expected contents.
class Memory {
 public:
  Memory(Kind kind, std::size_t bytes, unsigned seed) : kind_(kind), model_(noise(bytes, seed)) {
    if (kind == Kind::device) {
      CALL(cuMemAlloc(&address_, bytes));
      REQUIRE(ours(address_));
      CALL(cuMemcpyHtoD(address_, model_.data(), bytes));
      return;
    }
    if (kind == Kind::pinned) {
      void* memory = nullptr;
      CALL(cuMemAllocHost(&memory, bytes));
      address_ = reinterpret_cast<CUdeviceptr>(memory);
    } else {
      pageable_.resize(bytes);
      address_ = reinterpret_cast<CUdeviceptr>(pageable_.data());
    }
    std::ranges::copy(model_, static_cast<std::byte*>(host()));
  }
  ~Memory() {
    if (kind_ == Kind::device) CALL(cuMemFree(address_));
    if (kind_ == Kind::pinned) CALL(cuMemFreeHost(host()));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool on_device() const { return kind_ == Kind::device; }
  CUdeviceptr address() const { return address_; }
  void* host() const { return reinterpret_cast<void*>(address_); }
  std::span<std::byte> model() { return model_; }

  // Compares [from, from + bytes), or all.
  bool as_expected(std::size_t from, std::size_t bytes) const {
    const std::span expected(&model_[from], bytes);
    if (!on_device()) return std::memcmp(static_cast<std::byte*>(host()) + from, expected.data(), bytes) == 0;
    std::vector<std::byte> found(bytes);
    CALL(cuMemcpyDtoH(found.data(), address_ + from, bytes));
    return std::ranges::equal(found, expected);
  }
  bool as_expected() const { return as_expected(0, model_.size()); }

 private:
  Kind kind_;
  CUdeviceptr address_ = 0;
  std::vector<std::byte> pageable_;
  std::vector<std::byte> model_;
};

constexpr std::size_t kHuge = 96 * kMiB, kLarge = 16 * kMiB;

// One allocation larger than HBM, four smaller ones, and host memory of both kinds.
struct World {
  Machine machine;
  Stream stream;
  std::vector<std::unique_ptr<Memory>> device;
  Memory pageable{Kind::pageable, kLarge, 1};
  Memory pinned{Kind::pinned, kLarge, 2};
  unsigned turn = 0;
  // Number of copies: each reads from a new offset, so that its bytes are not at the target yet.
  std::size_t copies = 0;

  World() {
    device.push_back(std::make_unique<Memory>(Kind::device, kHuge, 3));
    for (unsigned i = 0; i < 4; ++i) device.push_back(std::make_unique<Memory>(Kind::device, kLarge, 4 + i));
  }
  // Another allocation each time, sometimes the one that does not fit in HBM.
  Memory& next_device() { return *device[turn++ % device.size()]; }
  void require_all(const char* after) {
    for (const auto& each : device) require(each->as_expected(), after);
    require(pageable.as_expected() && pinned.as_expected(), after);
  }
  static void require(bool holds, const char* after) {
    if (!holds) std::fprintf(stderr, "wrong bytes after %s\n", after);
    REQUIRE(holds);
  }
};

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

// Rows of `width` bytes, in slices of a layout that has more rows than are copied.
struct Shape {
  std::size_t width, rows, slices;
};
struct Layout {
  std::size_t pitch, height, x, y, z;
  std::size_t offset(std::size_t row, std::size_t slice) const { return ((z + slice) * height + y + row) * pitch + x; }
};

void copy_model(Memory& to, const Layout& target, Memory& from, const Layout& source, const Shape& shape) {
  for (std::size_t slice = 0; slice < shape.slices; ++slice) {
    for (std::size_t row = 0; row < shape.rows; ++row)
      std::memcpy(&to.model()[target.offset(row, slice)], &from.model()[source.offset(row, slice)], shape.width);
  }
}

template <class Parameters>
void describe(Parameters& p, const Memory& to, const Layout& target, const Memory& from, const Layout& source,
              const Shape& shape, bool unified) {
  const auto type = [&](const Memory& side) {
    if (unified) return CU_MEMORYTYPE_UNIFIED;
    return side.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  };
  p.srcMemoryType = type(from);
  p.dstMemoryType = type(to);
  if (p.srcMemoryType == CU_MEMORYTYPE_HOST) {
    p.srcHost = from.host();
  } else {
    p.srcDevice = from.address();
  }
  if (p.dstMemoryType == CU_MEMORYTYPE_HOST) {
    p.dstHost = to.host();
  } else {
    p.dstDevice = to.address();
  }
  p.srcXInBytes = source.x;
  p.srcY = source.y;
  p.srcPitch = source.pitch;
  p.dstXInBytes = target.x;
  p.dstY = target.y;
  p.dstPitch = target.pitch;
  p.WidthInBytes = shape.width;
  p.Height = shape.rows;
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

CUarray make_array(std::size_t width, std::size_t height) {
  CUDA_ARRAY_DESCRIPTOR descriptor{};
  descriptor.Width = width;
  descriptor.Height = height;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  CUarray made = nullptr;
  CALL(cuArrayCreate(&made, &descriptor));
  return made;
}

// Copies to arrays and back. If the linear side does not fit in HBM, the copy is refused and no
// data is lost.
CASE(copies_with_arrays) {
  World world;
  constexpr std::size_t kWidth = 600, kRows = 400, kLine = 16 << 10, kOffset = 256;
  const CUarray rows = make_array(kWidth, kRows), line = make_array(kLine, 0);
  const Layout layout{4608, 0, 40, 7, 0};
  const Shape shape{kWidth * 4, kRows, 1};
  const auto to_array = [&](const Memory& from) {
    CUDA_MEMCPY2D parameters{};
    describe(parameters, from, layout, from, layout, shape, false);
    parameters.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    parameters.dstArray = rows;
    parameters.dstXInBytes = parameters.dstY = 0;
    return parameters;
  };
  const auto from_array = [&](const Memory& to) {
    CUDA_MEMCPY2D parameters{};
    describe(parameters, to, layout, to, layout, shape, false);
    parameters.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    parameters.srcArray = rows;
    parameters.srcXInBytes = parameters.srcY = 0;
    return parameters;
  };
  for (std::size_t round = 0; round < 8; ++round) {
    Memory& from = *world.device[1 + round % 4];
    Memory& to = *world.device[1 + (round + 1) % 4];
    const auto in = to_array(from), out = from_array(to);
    if (round % 2 == 0) {
      CALL(cuMemcpy2D(&in));
      CALL(cuMemcpy2D(&out));
    } else {
      CALL(cuMemcpy2DAsync(&in, world.stream.handle));
      CALL(cuMemcpy2DAsync(&out, world.stream.handle));
      CALL(cuStreamSynchronize(world.stream.handle));
    }
    copy_model(to, layout, from, layout, shape);
    World::require(to.as_expected(0, 4 * kMiB), "copies with an array of rows");
    const std::size_t at = 2 * kMiB - 5000 * (round + 1), bytes = (kLine - kOffset) * 4;
    CALL(cuMemcpyDtoA(line, kOffset * 4, from.address() + at, bytes));
    CALL(cuMemcpyAtoD(to.address() + at, line, kOffset * 4, bytes));
    std::memcpy(&to.model()[at], &from.model()[at], bytes);
    World::require(to.as_expected(0, 4 * kMiB), "copies with an array");
  }
  const Memory& huge = *world.device[0];
  const auto in = to_array(huge), out = from_array(huge);
  const std::string said = said_by([&] {
    REQUIRE(cuMemcpy2D(&in) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy2DAsync(&out, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpyDtoA(line, 0, huge.address(), 4096) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpyAtoD(huge.address(), line, 0, 4096) == CUDA_ERROR_NOT_SUPPORTED);
  });
  REQUIRE(said.contains("CUDA array while HBM is full"));
  REQUIRE(cuMemcpyDtoA(line, 0, world.device[1]->address(), kLine * 4 + 4) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuArrayDestroy(line));
  CALL(cuArrayDestroy(rows));
  world.require_all("copies with arrays");
}

// Copies that vmem does not support are refused as a whole, with a message. Copies without memory
// of vmem go to the driver.
CASE(copies_that_are_refused) {
  World world;
  const auto operand = [](CUdeviceptr address) {
    CUmemcpy3DOperand made{};
    made.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    made.op.ptr.ptr = address;
    return made;
  };
  const auto operation = [&](CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D_BATCH_OP made{};
    made.dst = operand(to);
    made.src = operand(from);
    made.extent = {512, 16, 4};
    made.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return made;
  };
  constexpr std::size_t kBytes = 512 * 16 * 4;
  std::array operations{operation(world.pinned.address(), world.pinned.address() + kMiB),
                        operation(world.device[1]->address(), world.pinned.address()),
                        operation(world.pinned.address(), world.device[2]->address())};
  CUDA_MEMCPY3D_PEER peer{};
  describe(peer, *world.device[1], {512, 16, 0, 0, 0}, *world.device[2], {512, 16, 0, 0, 0}, {512, 16, 1}, false);
  peer.srcHeight = peer.dstHeight = 16;
  peer.Depth = 4;
  peer.srcContext = peer.dstContext = world.machine.context;
  std::string said = said_by([&] {
    REQUIRE(cuMemcpy3DBatchAsync(3, operations.data(), 0, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy3DPeer(&peer) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy3DPeerAsync(&peer, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
  });
  REQUIRE(said.contains("a batch of three-dimensional copies"));
  REQUIRE(said.contains("a three-dimensional copy between devices"));
  CALL(cuStreamSynchronize(world.stream.handle));
  world.require_all("refused copies");

  // The driver's own memory.
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  CALL(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr theirs = 0;
  CALL(cuMemAllocFromPoolAsync(&theirs, 2 * kBytes, pool, world.stream.handle));
  REQUIRE(!ours(theirs));
  std::array passed{operation(theirs, world.pinned.address())};
  CALL(cuMemcpy3DBatchAsync(1, passed.data(), 0, world.stream.handle));
  peer.srcDevice = theirs;
  peer.dstDevice = theirs + kBytes;
  CALL(cuMemcpy3DPeerAsync(&peer, world.stream.handle));
  CALL(cuStreamSynchronize(world.stream.handle));
  CALL(cuMemcpy3DPeer(&peer));
  std::vector<std::byte> back(kBytes);
  CALL(cuMemcpyDtoH(back.data(), theirs + kBytes, kBytes));
  REQUIRE(std::memcmp(back.data(), world.pinned.host(), kBytes) == 0);
  CALL(cuMemFreeAsync(theirs, world.stream.handle));
  CALL(cuMemPoolDestroy(pool));
}

}  // namespace
}  // namespace vmem::test
