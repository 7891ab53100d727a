// A network namespace connected by a veth pair: 10.77.0.1 on this side, 10.77.0.2 on the other.
// Both ends are private to this process, so the machine's network is untouched and everything ends
// with the process.
#pragma once

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace vmem::rdma {

class OtherNetwork {
 public:
  // Moves this thread, and threads that it starts later, to another network namespace. REQUIRES:
  // nothing else is set up yet.
  OtherNetwork() {
    if (::geteuid() != 0) {
      why_not_ = "network namespaces need root";
    } else if (!run("ip -V >/dev/null 2>&1")) {
      why_not_ = "network namespaces are made with ip (apt-get install iproute2)";
    } else if (!make()) {
      why_not_ = "no network namespace can be made here";
    }
  }
  ~OtherNetwork() {
    if (made_) run(fmt::format("ip netns del {}", name_));
    if (!secret_.empty()) ::unlink(secret_.c_str());
  }
  OtherNetwork(const OtherNetwork&) = delete;
  OtherNetwork& operator=(const OtherNetwork&) = delete;

  // Why there is no other network; "" if there is.
  const std::string& why_not() const { return why_not_; }
  const std::string& name() const { return name_; }
  // A file with a secret that both ends may share.
  const std::string& secret() const { return secret_; }
  // From now on packets in both directions go to a MAC address that nobody has, unnoticed by either
  // kernel.
  bool cut() const {
    constexpr const char* nobody = "lladdr 02:00:00:00:00:01 nud permanent";
    return run(fmt::format("ip neigh replace 10.77.0.2 dev veth0 {}", nobody)) &&
           run(fmt::format("ip -n {} neigh replace 10.77.0.1 dev veth1 {}", name_, nobody));
  }
  // Sets this side's link up or down.
  bool set_link(bool up) const { return run(fmt::format("ip link set veth0 {}", up ? "up" : "down")); }

 private:
  static bool run(const std::string& command) { return std::system(command.c_str()) == 0; }
  bool make() {
    name_ = fmt::format("vmem{}", ::getpid());
    // With a /sys of the new namespace.
    made_ = ::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
            ::mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0 && run(fmt::format("ip netns add {}", name_));
    if (!made_ || !run("ip link set lo up") || !run("ip link add veth0 type veth peer name veth1") ||
        !run(fmt::format("ip link set veth1 netns {}", name_)) || !run("ip addr add 10.77.0.1/24 dev veth0") ||
        !run("ip link set veth0 up") || !run(fmt::format("ip -n {} addr add 10.77.0.2/24 dev veth1", name_)) ||
        !run(fmt::format("ip -n {} link set veth1 up", name_)) || !run(fmt::format("ip -n {} link set lo up", name_)))
      return false;
    secret_ = fmt::format("/tmp/{}.secret", name_);
    std::ofstream(secret_) << "cluster n3ZQjTqJ0mVtYk8w1sLxR5c2UuFhG7oPaEiB4DdMCvI=\n";
    return ::chmod(secret_.c_str(), 0600) == 0;
  }

  std::string name_, secret_, why_not_;
  bool made_ = false;
};

}  // namespace vmem::rdma
