// A pipeline in simulated time, for testing choosers: compressing workers and a path that moves
// pages in order. The chooser sees each codec's true results only once a page is through, and with
// errors.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "compress/chooser.hpp"

namespace vmem::compress {

// One codec's true behaviour on some data.
struct Truth {
  double fraction = 1;
  double compress_bytes_s = 1e9, decompress_bytes_s = 1e9;
};
// Pages of one kind, while the path does not change.
struct Phase {
  std::string name;
  std::uint32_t pages = 0;
  double path_bytes_s = 1e9;
  double fill = 0;
  std::vector<Truth> truths;  // by candidate
};

struct World {
  std::uint64_t page_bytes = 0;
  std::uint32_t workers = 1;
  // Standard deviations of the logarithm of measured seconds.
  double page_error = 0, sample_error = 0;
  // Time per byte of a sample, relative to a page.
  double sample_slowness = 1;
  std::vector<Candidate> candidates;
  std::vector<Phase> phases;
  std::string describe() const;
};

struct Outcome {
  double write_s = 0, read_s = 0;
  double plain_s = 0;    // time of either direction with no page compressed
  double sampled_s = 0;  // workers' time for samples
  std::uint32_t compressed = 0, changes = 0;
};

// Every page with one codec (an index of candidates), or as a chooser decides.
Outcome run_static(const World& world, std::size_t candidate);
Outcome run_chosen(const World& world, std::uint64_t seed);

}  // namespace vmem::compress
