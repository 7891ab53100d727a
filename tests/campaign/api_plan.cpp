#include "campaign/api_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/model_plan.hpp"

namespace vmem::test {

ApiPlan::ApiPlan(std::uint64_t number, const std::string& daemon) : seed(number) {
  Random random(number * 7368787);
  hbm_mib = random.pick<std::uint64_t>({32, 32, 48, 64});
  host_mib = random.pick<std::uint64_t>({16, 32, 64, 96});
  devices = random.one_in(3) ? 2 : 1;
  peers = devices == 2 && random.one_in(2);
  if (random.one_in(3)) nvme_mib = 128;
  if (random.one_in(3)) remote = daemon;
  page = random.pick<std::string>({"auto", "auto", "2MiB", "4MiB"});
  prefetch = random.pick<std::string>({"0", "1", "8", "64"});
  acquire_wait = random.pick<std::string>({"0us", "200us", "5ms"});
  compress = random.pick<std::string>({"auto", "off", "lz4", "shuffle4+zstd-1"});
  protect = random.one_in(3);
  wild = random.one_in(4);
  ends_full = random.one_in(4);
  threads = int(random.between(1, 4));
  steps = int(random.between(60, 400)) / threads;
  const std::uint64_t below = nvme_mib + (remote.empty() ? 0 : 64);
  working_mib = (hbm_mib * std::uint64_t(devices) + host_mib + below) * random.between(20, 110) / 100;
}

std::string ApiPlan::machine() const {
  return fmt::format("devices={},hbm={}MiB,host={}MiB", devices, hbm_mib + 16, host_mib + 16);
}

std::vector<std::pair<std::string, std::string>> ApiPlan::options() const {
  std::vector<std::pair<std::string, std::string>> all{{"driver", "emulated"},
                                                       {"log", "off"},
                                                       {"topology", "off"},
                                                       {"base", fmt::format("{:#x}", kBase)},
                                                       {"space", fmt::format("{}MiB", kSpaceBytes >> 20)},
                                                       {"hbm", fmt::format("{}MiB", hbm_mib)},
                                                       {"host", fmt::format("{}MiB", host_mib)},
                                                       {"page", page},
                                                       {"prefetch", prefetch},
                                                       {"acquire_wait", acquire_wait},
                                                       {"call_wait", fmt::format("{}ms", kCallWaitMs)},
                                                       {"compress", compress},
                                                       {"protect", protect ? "on" : "off"}};
  if (peers) all.emplace_back("peers", "0,1");
  if (nvme_mib != 0) all.emplace_back("nvme", fmt::format(".:{}MiB", nvme_mib));
  if (!remote.empty()) {
    all.emplace_back("remote", remote);
    all.emplace_back("remote_wait", fmt::format("{}ms", kCallWaitMs));
    all.emplace_back("borrow", "64MiB");
  }
  return all;
}

std::string ApiPlan::words() const {
  return fmt::format(
      "devices={}{} hbm={}MiB host={}MiB nvme={}MiB{} working={}MiB page={} prefetch={} acquire_wait={} compress={} "
      "threads={} steps={}{}{}{}",
      devices, peers ? " (peers)" : "", hbm_mib, host_mib, nvme_mib, remote.empty() ? "" : " remote", working_mib, page,
      prefetch, acquire_wait, compress, threads, steps, protect ? " protect" : "", wild ? " wild" : "",
      ends_full ? " ends full" : "");
}

}  // namespace vmem::test
