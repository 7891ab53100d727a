// What one seed of the model test runs: the machine, the options, and the amount of work.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vmem::test {

// splitmix64: equal numbers on every platform; any seed is good.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t end) { return next() % end; }
  std::uint64_t between(std::uint64_t first, std::uint64_t last) { return first + below(last - first + 1); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }

 private:
  std::uint64_t state_;
};

struct ModelPlan {
  explicit ModelPlan(std::uint64_t seed);
  std::string machine() const;  // for the emulated driver
  std::vector<std::pair<std::string, std::string>> options() const;
  std::string words() const;
  std::uint64_t below_mib() const { return nvme_mib + remote_mib; }

  std::uint64_t seed;
  int devices = 1;
  bool peers = true;
  std::string lending = "off";  // the option peers
  std::uint64_t hbm_mib = 0;
  std::uint64_t host_mib = 0, nvme_mib = 0;
  std::uint64_t remote_mib = 0;  // lent by another node
  bool encrypt = false;          // pages sent to that node
  std::string compress = "off";
  std::uint64_t working_mib = 0;  // allocated in total
  std::string page;
  std::string prefetch;
  std::string acquire_wait;
  int threads = 1;
  int steps = 0;  // per thread
  bool small = true;
  bool protect = false;
};

}  // namespace vmem::test
