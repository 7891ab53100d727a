// Host twins of the GPU kernels for the emulated driver: same names, parameters and results.
#pragma once

#include <string>

#include "base/status.hpp"
#include "bench/kernels/kernels.hpp"

namespace vmem::bench {

// Registers every twin with the emulated driver that was loaded from `driver_path`. Errors:
// NO_DRIVER (not the emulated driver).
Status register_twins(const std::string& driver_path);

// The twins, with the parameters listed in kernels.hpp; tests call them directly.
namespace twins {

using kernels::Count;
using kernels::Word;

void fill(Word* words, Count first, Count count, Count seed);
void checksum(const Word* words, Count first, Count count, Word* sum);
void increment(Word* words, Count count, Word delta);
void verify(const Word* words, Count first, Count count, Count seed, Word delta, Word* bad);
void blocks(const Word* words, Count count, std::uint32_t strided, Word* sum);
void random(const Word* words, Count lines, Count reads, Count seed, Word* sum);
void histogram(const std::uint8_t* bytes, Count count, Count* bins);
void matrix_fill(float* tile, std::uint32_t edge, Count row, Count column, Count seed);
void matmul(const float* a, const float* b, float* c, std::uint32_t edge, std::uint32_t accumulate);

}  // namespace twins
}  // namespace vmem::bench
