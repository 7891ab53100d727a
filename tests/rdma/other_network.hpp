// A network namespace with a virtual cable to it: 10.77.0.1 is here, 10.77.0.2 there. Both ends are namespaces of this process's own, so
// nothing of the machine's is touched, and what is made here ends with the process.
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
  // From now on this thread, and those it starts, are in another network. Before anything else is set up.
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

  // "": it is there.
  const std::string& why_not() const { return why_not_; }
  const std::string& name() const { return name_; }
  // A file with one that both ends may share.
  const std::string& secret() const { return secret_; }
  // From here on packets go to a card that nobody has, in both directions: no side's kernel knows.
  bool cut() const {
    constexpr const char* nobody = "lladdr 02:00:00:00:00:01 nud permanent";
    return run(fmt::format("ip neigh replace 10.77.0.2 dev veth0 {}", nobody)) &&
           run(fmt::format("ip -n {} neigh replace 10.77.0.1 dev veth1 {}", name_, nobody));
  }
  // The cable's end here.
  bool set_link(bool up) const { return run(fmt::format("ip link set veth0 {}", up ? "up" : "down")); }

 private:
  static bool run(const std::string& command) { return std::system(command.c_str()) == 0; }
  bool make() {
    name_ = fmt::format("vmem{}", ::getpid());
    // With the /sys that belongs to them.
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
