#include <algorithm>
#include <atomic>

#include "bench/kernels/twins.hpp"
#include "bench/kernels/wide.hpp"
#include "bench/kernels/word.hpp"

namespace vmem::bench::twins {
namespace {

// Atomic because kernels of other streams may add to the same word.
void add(Word* to, Word value) { std::atomic_ref<Word>(*to).fetch_add(value, std::memory_order_relaxed); }

[[gnu::always_inline]] inline void fill_loop(Word* words, Count first, Count count, Count seed) {
  for (Count i = 0; i < count; ++i) words[i] = pattern_word(seed, first + i);
}

[[gnu::always_inline]] inline Word checksum_loop(const Word* words, Count first, Count count) {
  Word total = 0;
  for (Count i = 0; i < count; ++i) total += checksum_term(first + i, words[i]);
  return total;
}

[[gnu::always_inline]] inline Word random_loop(const Word* words, Count lines, Count reads, Count seed) {
  Word total = 0;
  for (Count read = 0; read < reads; ++read) {
    const Count first = random_line(seed, read, lines) * kLineWords;
    for (Count i = first; i < first + kLineWords; ++i) total += checksum_term(i, words[i]);
  }
  return total;
}

[[gnu::always_inline]] inline void increment_loop(Word* words, Count count, Word delta) {
  for (Count i = 0; i < count; ++i) words[i] += delta;
}

}  // namespace

void fill(Word* words, Count first, Count count, Count seed) { run_wide<&fill_loop>(words, first, count, seed); }

void checksum(const Word* words, Count first, Count count, Word* sum) {
  add(sum, run_wide<&checksum_loop>(words, first, count));
}

void increment(Word* words, Count count, Word delta) { run_wide<&increment_loop>(words, count, delta); }

void verify(const Word* words, Count first, Count count, Count seed, Word delta, Word* bad) {
  for (Count i = 0; i < count; ++i) {
    if (words[i] == pattern_word(seed, first + i) + delta) continue;
    bad[0] = std::min(bad[0], first + i);
    ++bad[1];
  }
}

void blocks(const Word* words, Count count, std::uint32_t, Word* sum) { checksum(words, 0, count, sum); }

void random(const Word* words, Count lines, Count reads, Count seed, Word* sum) {
  add(sum, run_wide<&random_loop>(words, lines, reads, seed));
}

void histogram(const std::uint8_t* bytes, Count count, Count* bins) {
  // Four sets of bins: with one set, runs of one byte would wait for their own store.
  Count partial[4][256] = {};
  Count i = 0;
  for (; i + 4 <= count; i += 4)
    for (Count k = 0; k < 4; ++k) ++partial[k][bytes[i + k]];
  for (; i < count; ++i) ++partial[0][bytes[i]];
  for (int bin = 0; bin < 256; ++bin)
    add(&bins[bin], partial[0][bin] + partial[1][bin] + partial[2][bin] + partial[3][bin]);
}

}  // namespace vmem::bench::twins
