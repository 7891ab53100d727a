// Programs and daemons of a cluster on this machine, with an etcd server.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/registry/etcd_server.hpp"
#include "runtime/remote_fixture.hpp"

namespace vmem {

inline std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    text.append(buffer.data(), bytes);
  return text;
}

// All output of a command of this program.
inline std::string output(const std::string& arguments) { return output_of(program() + " " + arguments); }

class ClusterApi : public RemoteApi {
 protected:
  void expect_page(std::uint64_t page, std::uint64_t version) {
    std::vector<std::uint64_t> read(kPage / 8);
    ASSERT_OK(vmem_read(read.data(), base + page * kPage, kPage));
    ASSERT_EQ(read, page_words(page, version)) << page;
  }
  std::string cluster() const { return fmt::format("etcd://{}/demo", etcd_.endpoint(0)); }
  std::unique_ptr<DaemonProcess> join(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"--cluster", cluster()};
    if (std::ranges::find(more, "--lend") == more.end()) more.insert(more.begin(), {"--lend", "64MiB"});
    all.insert(all.end(), more.begin(), more.end());
    return std::make_unique<DaemonProcess>("127.0.0.1:0", all);
  }
  // Whether it becomes true within the time.
  static bool within(std::chrono::milliseconds most, const std::function<bool()>& true_now) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!true_now()) {
      if (std::chrono::steady_clock::now() > end) return false;
      ::usleep(5'000);
    }
    return true;
  }

  void stop_registry() { etcd_[0].stop(); }
  void resume_registry() { etcd_[0].resume(); }
  void kill_registry() { etcd_[0].kill(); }
  void restart_registry() { etcd_[0].start(); }
  // As when the node's lease has ended.
  void forget_node(int id) const { ask_registry("deleterange", fmt::format("'key': b('nodes/{}')", id)); }
  void put_record(const std::string& key, const std::string& value) const {
    ask_registry("put", fmt::format("'key': b('{}'), 'value': base64.b64encode(b'{}').decode()", key, value));
  }

 private:
  void ask_registry(const std::string& what, const std::string& fields) const {
    const std::string script = fmt::format(
        "import base64, json, urllib.request as r; "
        "b = lambda key: base64.b64encode(('/vmem/demo/' + key).encode()).decode(); "
        "r.urlopen('http://{}/v3/kv/{}', json.dumps({{{}}}).encode()).read()",
        etcd_.endpoint(0), what, fields);
    ASSERT_EQ(std::system(("python3 -c \"" + script + "\"").c_str()), 0);
  }

  cluster::EtcdServers etcd_{1};
};

}  // namespace vmem
