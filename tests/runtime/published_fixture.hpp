// Programs of a cluster that publish regions to each other, over real sockets.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cluster_fixture.hpp"
#include "vmem/cluster.hpp"

namespace vmem {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A program in a process of its own (joint_peer.cpp).
class Peer {
 public:
  explicit Peer(const std::string& cluster, const std::vector<std::pair<std::string, std::string>>& more = {})
      : process_(arguments(cluster, more)) {
    EXPECT_THAT(answer(), StartsWith("ok"));
  }
  std::string operator()(const std::string& command) {
    process_.tell(command + "\n");
    return answer();
  }
  rdma::Process& process() { return process_; }

 private:
  static std::vector<std::string> arguments(const std::string& cluster,
                                            const std::vector<std::pair<std::string, std::string>>& more) {
    const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
    std::vector<std::string> all{(here / "vmem_joint_peer").string()};
    std::vector<std::pair<std::string, std::string>> options{{"driver", "emulated"}, {"hbm", "32MiB"},
                                                             {"host", "64MiB"},      {"page", "2MiB"},
                                                             {"log", "error"},       {"cluster", cluster}};
    for (const auto& option : more)
      std::erase_if(options, [&](const auto& usual) { return usual.first == option.first; });
    options.insert(options.end(), more.begin(), more.end());
    for (const auto& [name, value] : options) {
      all.push_back(name);
      all.push_back(value);
    }
    return all;
  }
  std::string answer() { return process_.line(lines_++); }
  rdma::Process process_;
  std::size_t lines_ = 0;
};

class PublishedApi : public ClusterApi {
 protected:
  void SetUp() override { ::setenv("VMEM_EMU", "devices=1,hbm=256MiB,host=1GiB", 1); }
  // Compares all words of a page of what is open at `base`.
  vmem_status read_page(std::uint64_t page, std::uint64_t version) {
    std::vector<std::uint64_t> read(kPage / 8);
    const vmem_status status = vmem_read(read.data(), base + page * kPage, kPage);
    if (status != VMEM_OK) return status;
    EXPECT_EQ(read, page_words(page, version)) << page;
    return status;
  }
  vmem_status open(const std::string& name, std::uint64_t wait_us = 5'000'000) {
    void* opened = nullptr;
    const vmem_status status = vmem_open(&opened, &bytes, name.c_str(), 0, wait_us);
    if (status == VMEM_OK) base = static_cast<std::byte*>(opened);
    return status;
  }
  static vmem_status read_back(const void* from) {
    std::uint64_t word = 0;
    return vmem_read(&word, from, sizeof(word));
  }
  // Memory with bytes, for publishing.
  static std::byte* written(std::uint64_t pages) {
    void* made = nullptr;
    EXPECT_OK(vmem_malloc(&made, pages * kPage, 0, nullptr));
    const std::vector<std::byte> some(pages * kPage, std::byte{7});
    EXPECT_OK(vmem_write(made, some.data(), some.size()));
    return static_cast<std::byte*>(made);
  }
  static vmem_published_statistics shared() {
    vmem_published_statistics out{};
    out.struct_bytes = sizeof(out);
    EXPECT_OK(vmem_published_stats(&out));
    return out;
  }
  static bool is_writable(void* memory) {
    const std::uint64_t word = 7;
    return vmem_write(memory, &word, sizeof(word)) == VMEM_OK;
  }
  nlohmann::json regions() const { return nlohmann::json::parse(output("region list --json --cluster " + cluster())); }
  // The registry has the only region under another name, too, with another serial.
  void copy_record(const std::string& name, const std::string& to) const {
    const std::string script = fmt::format(
        "import base64, json, urllib.request as r\n"
        "b = lambda text: base64.b64encode(text.encode()).decode()\n"
        "ask = lambda what, body: json.load(r.urlopen('http://' + '{0}'.split('/')[2] + '/v3/kv/' + what, "
        "json.dumps(body).encode()))\n"
        "value = lambda reply: json.loads(base64.b64decode(reply['kvs'][0]['value']))\n"
        "put = lambda key, value: ask('put', dict(key=b('/vmem/demo/' + key), value=b(json.dumps(value))))\n"
        "region = value(ask('range', dict(key=b('/vmem/demo/regions/'), range_end=b('/vmem/demo/regions0'))))\n"
        "name = value(ask('range', dict(key=b('/vmem/demo/names/{1}'))))\n"
        "put('regions/99', dict(region, name='{2}', participants=[]))\n"
        "put('names/{2}', dict(name, serial=99))\n",
        cluster(), name, to);
    ASSERT_EQ(std::system(fmt::format("python3 -c \"{}\"", script).c_str()), 0);
  }
  static std::chrono::milliseconds time_of(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  }
  std::uint64_t bytes = 0;
};

}  // namespace vmem
