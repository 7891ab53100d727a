// A program whose pages go to other nodes: `vmem daemon` processes on this machine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "rdma/process.hpp"
#include "vmem/vmem.h"

namespace vmem {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kPage = 2 * kMiB;

#define ASSERT_OK(call) ASSERT_EQ(call, VMEM_OK) << vmem_last_error()
#define EXPECT_OK(call) EXPECT_EQ(call, VMEM_OK) << vmem_last_error()

inline std::string program() {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  for (const char* folder : {".", "bin", "../bin", "../../bin", "../../../bin"})
    if (const auto path = here / folder / "vmem"; std::filesystem::is_regular_file(path)) return path.string();
  return "vmem";
}

// The process's first line is "... listens on 127.0.0.1:PORT and ...".
class DaemonProcess {
 public:
  explicit DaemonProcess(std::string listen = "127.0.0.1:0", std::vector<std::string> more = {},
                         const std::string& network_namespace = "")
      : process_(arguments(std::move(listen), std::move(more), network_namespace)) {
    ready_ = process_.first_line();
    const auto at = ready_.find("listens on ");
    EXPECT_NE(at, std::string::npos) << ready_;
    if (at != std::string::npos) address_ = ready_.substr(at + 11, ready_.find(' ', at + 11) - at - 11);
  }
  const std::string& ready() const { return ready_; }
  const std::string& address() const { return address_; }
  rdma::Process& process() { return process_; }

 private:
  static std::vector<std::string> arguments(std::string listen, std::vector<std::string> more,
                                            const std::string& network_namespace) {
    std::vector<std::string> all{program(), "daemon", "--listen", std::move(listen)};
    if (!network_namespace.empty()) {
      const std::vector<std::string> prefix{"ip", "netns", "exec", network_namespace};
      all.insert(all.begin(), prefix.begin(), prefix.end());
    }
    if (more.empty()) more = {"--lend", "512MiB"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  rdma::Process process_;
  std::string ready_, address_;
};

class RemoteApi : public ::testing::Test {
 protected:
  vmem_status start(std::vector<std::pair<std::string, std::string>> more) {
    ::setenv("VMEM_EMU", "devices=1,hbm=256MiB,host=1GiB", 1);
    std::vector<std::pair<std::string, std::string>> all{
        {"driver", "emulated"}, {"hbm", "32MiB"}, {"host", "32MiB"}, {"page", "2MiB"}, {"log", "error"}};
    for (const auto& option : more) std::erase_if(all, [&](const auto& usual) { return usual.first == option.first; });
    all.insert(all.end(), more.begin(), more.end());
    std::vector<vmem_option> options;
    for (const auto& [name, value] : all) options.push_back({name.c_str(), value.c_str()});
    return vmem_init(options.data(), options.size());
  }
  void TearDown() override { vmem_shutdown(); }
  static vmem_statistics stats() {
    vmem_statistics out{};
    out.struct_bytes = sizeof(out);
    EXPECT_EQ(vmem_stats(&out), VMEM_OK);
    return out;
  }
  // A page's words tell its number and version.
  static std::vector<std::uint64_t> page_words(std::uint64_t page, std::uint64_t version) {
    std::vector<std::uint64_t> words(kPage / 8);
    std::iota(words.begin(), words.end(), page << 40 | version << 24);
    return words;
  }
  void write_page(std::uint64_t page, std::uint64_t version) {
    const auto words = page_words(page, version);
    ASSERT_OK(vmem_write(base + page * kPage, words.data(), kPage));
  }
  // Allocates pages at `base` and writes version 1 of each.
  void hold_pages(std::uint64_t pages) {
    void* memory = nullptr;
    ASSERT_OK(vmem_malloc(&memory, pages * kPage, 0, nullptr));
    base = static_cast<std::byte*>(memory);
    for (std::uint64_t page = 0; page < pages; ++page) write_page(page, 1);
  }
  // What hold_pages() wrote, as the GPU has it.
  void expect_pages(std::uint64_t pages) {
    std::vector<std::uint64_t> read(kPage / 8);
    for (std::uint64_t page = 0; page < pages; ++page) {
      ASSERT_OK(vmem_memcpy(read.data(), base + page * kPage, kPage, nullptr));
      ASSERT_EQ(read, page_words(page, 1)) << page;
    }
  }
  std::byte* base = nullptr;
};

}  // namespace vmem
