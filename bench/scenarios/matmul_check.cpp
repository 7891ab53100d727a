#include <fmt/format.h>

#include <cmath>
#include <thread>
#include <vector>

#include "bench/kernels/word.hpp"
#include "bench/machine.hpp"
#include "bench/runtime.hpp"
#include "bench/scenarios/matmul.hpp"

namespace vmem::bench {
namespace {

using Vector = std::vector<std::int64_t>;

// 20 bits per entry: a wrong row passes with a chance of 2^-20, and no sum overflows for n up to
// 2^20.
Vector random_vector(std::uint64_t seed, std::uint64_t n) {
  Vector r(n);
  for (std::uint64_t i = 0; i < n; ++i) r[i] = static_cast<std::int64_t>(mix64(seed ^ mix64(i)) >> 44);
  return r;
}

// Calls body(row) for all rows, on all cores.
template <class Body>
void for_each_row(std::uint64_t n, Body body) {
  const std::uint64_t workers = std::max(1u, read_machine().cores);
  std::vector<std::jthread> threads;
  threads.reserve(workers);
  for (std::uint64_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([=] {
      for (std::uint64_t row = worker; row < n; row += workers) body(row);
    });
}

Vector multiply_pattern(std::uint64_t matrix_seed, const Vector& x) {
  Vector y(x.size());
  for_each_row(x.size(), [&](std::uint64_t row) {
    std::int64_t sum = 0;
    for (std::uint64_t column = 0; column < x.size(); ++column)
      sum += matrix_entry(matrix_seed, row, column) * x[column];
    y[row] = sum;
  });
  return y;
}

// Maps an entry of C that is not an integer, so wrong, to a huge value that breaks its row's sum.
std::int64_t to_integer(float entry) {
  return std::abs(entry) < 0x1p30f && entry == std::trunc(entry) ? static_cast<std::int64_t>(entry)
                                                                 : std::int64_t{1} << 40;
}

Result<Vector> multiply_stored(const Tiling& tiling, const std::uint8_t* c, const Vector& x) {
  Vector y(x.size());
  std::vector<float> tile(std::uint64_t{tiling.edge} * tiling.edge);
  for (std::uint32_t block_row = 0; block_row < tiling.blocks; ++block_row)
    for (std::uint32_t block_column = 0; block_column < tiling.blocks; ++block_column) {
      VMEM_TRY(check(vmem_read(tile.data(), c + tiling.tile_offset(block_row, block_column), tiling.tile_bytes())));
      for_each_row(tiling.edge, [&](std::uint64_t row) {
        std::int64_t sum = 0;
        for (std::uint64_t column = 0; column < tiling.edge; ++column)
          sum += to_integer(tile[row * tiling.edge + column]) * x[std::uint64_t{block_column} * tiling.edge + column];
        y[std::uint64_t{block_row} * tiling.edge + row] += sum;
      });
    }
  return y;
}

double exact_entry(const Tiling& tiling, std::uint64_t seed, std::uint64_t row, std::uint64_t column) {
  double sum = 0;
  for (std::uint64_t k = 0; k < tiling.n(); ++k)
    sum += static_cast<double>(matrix_entry(seed_a(seed), row, k)) * matrix_entry(seed_b(seed), k, column);
  return sum;
}

// Empty if the stored entry is exactly right.
Result<std::string> check_entry(const Tiling& tiling, std::uint64_t seed, const std::uint8_t* c, std::uint64_t row,
                                std::uint64_t column) {
  float found = 0;
  const std::uint64_t offset = tiling.entry_offset(row, column);
  VMEM_TRY(check(vmem_read(&found, c + offset, sizeof(found))));
  const double expected = exact_entry(tiling, seed, row, column);
  if (static_cast<double>(found) == expected) return std::string();
  return fmt::format("C[{}][{}] at byte offset {} is {}, expected {}", row, column, offset, found, expected);
}

Result<std::string> find_in_row(const Tiling& tiling, std::uint64_t seed, const std::uint8_t* c, std::uint64_t row) {
  for (std::uint64_t column = 0; column < tiling.n(); ++column) {
    VMEM_ASSIGN(std::string wrong, check_entry(tiling, seed, c, row, column));
    if (!wrong.empty()) return wrong;
  }
  return fmt::format("row {} of C failed Freivalds' check, but every entry of it is right now", row);
}

}  // namespace

Result<std::string> check_product(const Tiling& tiling, std::uint64_t seed, const std::uint8_t* c) {
  const Vector r = random_vector(seed, tiling.n());
  const Vector expected = multiply_pattern(seed_a(seed), multiply_pattern(seed_b(seed), r));
  VMEM_ASSIGN(const Vector found, multiply_stored(tiling, c, r));
  for (std::uint64_t row = 0; row < tiling.n(); ++row)
    if (found[row] != expected[row]) return find_in_row(tiling, seed, c, row);

  constexpr std::uint64_t kSamples = 64;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    const std::uint64_t place = mix64(seed + sample);
    VMEM_ASSIGN(std::string wrong, check_entry(tiling, seed, c, multiply_high(place, tiling.n()),
                                               multiply_high(mix64(place), tiling.n())));
    if (!wrong.empty()) return wrong;
  }
  return std::string();
}

}  // namespace vmem::bench
