// matmul: C = A·B out of core, tile by tile. Each C tile pages in a row of A and a column of B.
// Every other row of C runs backwards, so that it starts with tiles still in HBM. The limit is the
// same sequence of launches with all three matrices in plain device memory.
#include "bench/scenarios/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/sizes.hpp"
#include "bench/context.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 3;
constexpr std::uint64_t kDefaultHbmEmulated = std::uint64_t{32} << 20;  // small: a CPU multiplies
constexpr Goal kGoal{Goal::Bound::at_least, 0.95, true};
constexpr std::uint32_t kEdgeMin = 512;   // shorter launches cannot hide transfers
constexpr std::uint32_t kEdgeMax = 4096;  // 64 MiB tiles: about 4 ms of work for 128 MiB of input

struct Matrices {
  std::uint8_t* a;
  std::uint8_t* b;
  std::uint8_t* c;
  bool managed;  // by the runtime; else plain device memory
};

float* tile_at(std::uint8_t* matrix, const Tiling& tiling, std::uint32_t row, std::uint32_t column) {
  return reinterpret_cast<float*>(matrix + tiling.tile_offset(row, column));
}

// One product of tiles: C(i,j) = or += A(i,k)·B(k,j).
Status queue_tile(Context& context, const Tiling& tiling, const Matrices& matrices, CUstream stream, std::uint32_t i,
                  std::uint32_t j, std::uint32_t k) {
  float* a = tile_at(matrices.a, tiling, i, k);
  float* b = tile_at(matrices.b, tiling, k, j);
  float* c = tile_at(matrices.c, tiling, i, j);
  if (!matrices.managed) return context.launcher.launch_matmul(stream, a, b, c, tiling.edge, k > 0);
  const std::uint32_t access = k > 0 ? VMEM_READ_WRITE : VMEM_WRITE | VMEM_DISCARD;
  const vmem_range ranges[] = {{a, tiling.tile_bytes(), VMEM_READ, 0},
                               {b, tiling.tile_bytes(), VMEM_READ, 0},
                               {c, tiling.tile_bytes(), access, 0}};
  VMEM_TRY(check(vmem_acquire(ranges, std::size(ranges), stream)));
  const Status launched = context.launcher.launch_matmul(stream, a, b, c, tiling.edge, k > 0);
  VMEM_TRY(check(vmem_release(ranges, std::size(ranges), stream)));
  return launched;
}

// TFLOP/s of one whole product.
Result<double> time_product(Context& context, const Tiling& tiling, const Matrices& matrices, const Stream& stream) {
  const std::uint32_t blocks = tiling.blocks;
  context.progress.begin(matrices.managed ? "multiplying" : "multiplying, all resident",
                         std::uint64_t{blocks} * blocks);
  const Stopwatch watch;
  for (std::uint32_t i = 0; i < blocks; ++i)
    for (std::uint32_t step = 0; step < blocks; ++step) {
      const std::uint32_t j = i % 2 == 0 ? step : blocks - 1 - step;
      for (std::uint32_t k = 0; k < blocks; ++k) VMEM_TRY(queue_tile(context, tiling, matrices, stream.get(), i, j, k));
      context.progress.advance();
    }
  VMEM_TRY(stream.synchronize());
  return tiling.flops() / watch.seconds() / 1e12;
}

Status fill_matrix(Context& context, const Tiling& tiling, std::uint8_t* matrix, std::uint64_t seed, bool managed,
                   const Stream& stream) {
  for (std::uint32_t row = 0; row < tiling.blocks; ++row)
    for (std::uint32_t column = 0; column < tiling.blocks; ++column) {
      float* tile = tile_at(matrix, tiling, row, column);
      const auto fill = [&] {
        return context.launcher.launch(kernels::matrix_fill, context.launcher.full_grid(), stream.get(), tile,
                                       tiling.edge, std::uint64_t{row} * tiling.edge,
                                       std::uint64_t{column} * tiling.edge, seed);
      };
      if (managed)
        VMEM_TRY(with_range(tile, tiling.tile_bytes(), VMEM_WRITE | VMEM_DISCARD, stream.get(), fill));
      else
        VMEM_TRY(fill());
    }
  return stream.synchronize();
}

Status fill_inputs(Context& context, const Tiling& tiling, const Matrices& matrices, const Stream& stream) {
  const std::uint64_t seed = context.settings.seed;
  VMEM_TRY(fill_matrix(context, tiling, matrices.a, seed_a(seed), matrices.managed, stream));
  return fill_matrix(context, tiling, matrices.b, seed_b(seed), matrices.managed, stream);
}

struct Products {
  Measured rates;
  Traffic traffic;
  std::uint64_t page_bytes = 0;
  std::string mismatch;
};

Result<Products> measure_products(Context& context, const Sizes& sizes, const Tiling& tiling) {
  const Gpu& gpu = context.gpu;
  VMEM_ASSIGN(const DeviceMemory plain, allocate_device(gpu, 3 * tiling.matrix_bytes()));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(gpu));
  VMEM_ASSIGN(const Region a, Region::allocate(tiling.matrix_bytes(), gpu.ordinal(), stream.get()));
  VMEM_ASSIGN(const Region b, Region::allocate(tiling.matrix_bytes(), gpu.ordinal(), stream.get()));
  VMEM_ASSIGN(const Region c, Region::allocate(tiling.matrix_bytes(), gpu.ordinal(), stream.get()));
  auto* const base = reinterpret_cast<std::uint8_t*>(plain.get());
  const Matrices resident{base, base + tiling.matrix_bytes(), base + 2 * tiling.matrix_bytes(), false};
  const Matrices managed{a.at(0), b.at(0), c.at(0), true};
  VMEM_TRY(fill_inputs(context, tiling, resident, stream));
  VMEM_TRY(fill_inputs(context, tiling, managed, stream));

  Products products;
  products.page_bytes = a.page_bytes();
  VMEM_ASSIGN(const vmem_statistics before, read_statistics());
  VMEM_ASSIGN(products.rates,
              measure_interleaved(
                  context.settings.repeats, [&] { return time_product(context, tiling, resident, stream); },
                  [&]() -> Result<double> {
                    VMEM_ASSIGN(const double rate, time_product(context, tiling, managed, stream));
                    VMEM_TRY(check(vmem_quiesce()));  // copies ahead would slow the limit down
                    return rate;
                  }));
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  products.traffic = traffic_between(before, after);
  VMEM_ASSIGN(products.mismatch, check_product(tiling, context.settings.seed, c.at(0)));
  return products;
}

}  // namespace

Tiling choose_tiling(std::uint64_t bytes) {
  constexpr std::uint32_t kGrain = kernels::kMatmulBlock;
  const auto n = static_cast<std::uint32_t>(std::sqrt(static_cast<double>(bytes) / (3 * sizeof(float))));
  Tiling tiling;
  tiling.edge =
      std::clamp(n / 8 / kGrain * kGrain, std::min(kEdgeMin, std::max(n / kGrain * kGrain, kGrain)), kEdgeMax);
  tiling.blocks = std::max(n / tiling.edge, 1u);
  return tiling;
}

Status run_matmul(Context& context) {
  Settings settings = context.settings;
  if (context.gpu.emulated() && !settings.hbm_bytes && !settings.working_set_bytes)
    settings.hbm_bytes = kDefaultHbmEmulated;
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(settings, context.gpu, kDefaultRatio));
  const Tiling tiling = choose_tiling(sizes.working_set_bytes);
  VMEM_ASSIGN(const Products products, measure_products(context, sizes, tiling));

  Record record;
  record.scenario = "matmul";
  record.variant = fmt::format("{} n={}", ratio_text(sizes.ratio), tiling.n());
  record.options = size_options(context.settings, sizes);
  record.options["n"] = tiling.n();
  record.options["tile_edge"] = tiling.edge;
  record.options["matrices_bytes"] = 3 * tiling.matrix_bytes();
  record.options["page_bytes"] = products.page_bytes;
  record.unit = "TFLOP/s";
  record.limit_name = "the same launches with everything in plain device memory";
  record.goal = kGoal;
  record.set(products.rates);
  record.mismatch = products.mismatch;
  record.verified = products.mismatch.empty();
  record.details["moved_in_bytes"] = products.traffic.in_bytes;
  record.details["moved_out_bytes"] = products.traffic.out_bytes;
  record.notes.push_back(
      fmt::format("{}: tiles of {}, pages of {}; {} moved a product; limit spread {:.1f} %", record.variant,
                  format_bytes(tiling.tile_bytes()), format_bytes(products.page_bytes),
                  format_bytes(products.traffic.moved() / static_cast<std::uint64_t>(settings.repeats)),
                  100 * products.rates.limit.spread()));
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace vmem::bench
