// A pipeline in simulated time, for trying choosers on: workers that compress, a path that takes pages in order, and what codecs really do
// with the data, which the chooser learns of with errors, and only when a page is through.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "compress/chooser.hpp"

namespace vmem::compress {

struct Truth {  // of a codec, on some data
  double fraction = 1;
  double compress_bytes_s = 1e9, decompress_bytes_s = 1e9;
};
struct Phase {  // pages of one kind, while the path is as it is
  std::string name;
  std::uint32_t pages = 0;
  double path_bytes_s = 1e9;
  double fill = 0;
  std::vector<Truth> truths;  // by candidate
};

struct World {
  std::uint64_t page_bytes = 0;
  std::uint32_t workers = 1;
  double page_error = 0, sample_error = 0;  // standard deviation of the logarithm of measured seconds
  double sample_slowness = 1;               // how much longer a byte takes in a sample than in a page
  std::vector<Candidate> candidates;
  std::vector<Phase> phases;
  std::string describe() const;
};

struct Outcome {
  double write_s = 0, read_s = 0;
  double plain_s = 0;    // what either way takes with every page as it is
  double sampled_s = 0;  // of workers' time
  std::uint32_t compressed = 0, changes = 0;
};

// One codec for every page (an index of candidates), or what a chooser says.
Outcome run_static(const World& world, std::size_t candidate);
Outcome run_chosen(const World& world, std::uint64_t seed);

}  // namespace vmem::compress
