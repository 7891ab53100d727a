#include "runtime/model_plan.hpp"

#include <fmt/format.h>

namespace vmem::test {

ModelPlan::ModelPlan(std::uint64_t number) : seed(number) {
  Random random(number * 1000003);
  devices = random.one_in(3) ? 2 : 1;
  peers = devices == 1 || !random.one_in(4);
  hbm_mib = random.pick<std::uint64_t>({32, 32, 48, 64});
  host_mib = random.pick<std::uint64_t>({16, 48, 96, 192});
  const std::uint64_t hbm_in_all = hbm_mib * std::uint64_t(devices);
  working_mib = std::min(hbm_in_all * random.between(50, 300) / 100, hbm_in_all + host_mib);
  page = random.pick<std::string>({"auto", "2MiB", "4MiB", hbm_mib == 64 ? "8MiB" : "2MiB"});
  prefetch = random.pick<std::string>({"0", "1", "8", "64"});
  acquire_wait = random.pick<std::string>({"0us", "200us", "1ms", "5ms"});
  threads = int(random.between(1, 4));
  steps = int(random.between(20, 120)) / threads;
  small = !random.one_in(4);
  protect = random.one_in(3);
  // Two devices lend what they can spare, or an unused one lends all.
  if (peers && random.one_in(3)) lending = devices == 2 ? "0,1" : "1";
  nvme_mib = random.one_in(4) ? 256 : 0;
  remote_mib = random.one_in(5) ? 256 : 0;
  if (below_mib() == 0) return;
  encrypt = random.one_in(2);
  compress = random.pick<std::string>({"off", "auto", "lz4"});
  // On half of these machines, host memory holds little more than the threads use at a time; on the
  // others pages pass through it.
  if (random.one_in(2)) host_mib = std::max<std::uint64_t>(host_mib, 96);
  working_mib = hbm_in_all + host_mib + random.below(below_mib());
}

std::string ModelPlan::machine() const {
  // Little more than the budgets: a runtime that exceeds its budgets runs out.
  const int present = lending == "1" ? 2 : devices;
  std::string spec = fmt::format("devices={},hbm={}MiB,host={}MiB", present, hbm_mib + 16, host_mib + 16);
  if (!peers) spec += ",p2p=0-1:0,p2p=1-0:0";
  return spec;
}

std::vector<std::pair<std::string, std::string>> ModelPlan::options() const {
  const std::string nvme = nvme_mib == 0 ? "off" : fmt::format(".:{}MiB", nvme_mib);
  std::vector<std::pair<std::string, std::string>> all{{"driver", "emulated"},
                                                       {"nvme", nvme},
                                                       {"devices", devices == 2 ? "0,1" : "0"},
                                                       {"peers", lending},
                                                       {"log", "off"},
                                                       {"space", "4GiB"},
                                                       {"hbm", fmt::format("{}MiB", hbm_mib)},
                                                       {"host", fmt::format("{}MiB", host_mib)},
                                                       {"page", page},
                                                       {"prefetch", prefetch},
                                                       {"acquire_wait", acquire_wait},
                                                       {"protect", protect ? "on" : "off"}};
  if (nvme_mib != 0) all.emplace_back("compress", compress);
  if (remote_mib != 0) all.emplace_back("remote_encrypt", encrypt ? "on" : "off");
  return all;
}

std::string ModelPlan::words() const {
  return fmt::format(
      "devices={}{} lending={} hbm={}MiB host={}MiB nvme={}MiB remote={}MiB{} compress={} working={}MiB page={} "
      "prefetch={} acquire_wait={} "
      "threads={} "
      "steps={}{}{}",
      devices, peers ? "" : " (no peers)", lending, hbm_mib, host_mib, nvme_mib, remote_mib,
      encrypt ? " (encrypted)" : "", compress, working_mib, page, prefetch, acquire_wait, threads, steps,
      small ? "" : " (no small allocations)", protect ? " protect" : "");
}

}  // namespace vmem::test
