#include "campaign/option_values.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace vmem::test {
namespace {

using Values = std::vector<std::string>;

enum class Sort : std::uint8_t { size, duration, count, word, path, list, address };

const std::map<std::string, Sort>& sorts() {
  static const std::map<std::string, Sort> all{{"base", Sort::word},
                                               {"space", Sort::size},
                                               {"hbm", Sort::size},
                                               {"headroom", Sort::size},
                                               {"host", Sort::size},
                                               {"borrow", Sort::size},
                                               {"published_cache", Sort::size},
                                               {"published_cache_disk", Sort::size},
                                               {"page", Sort::size},
                                               {"remote_wait", Sort::duration},
                                               {"call_wait", Sort::duration},
                                               {"acquire_wait", Sort::duration},
                                               {"replicas", Sort::count},
                                               {"remote_channels", Sort::count},
                                               {"prefetch", Sort::count},
                                               {"window", Sort::count},
                                               {"peers", Sort::list},
                                               {"lend", Sort::list},
                                               {"nvme", Sort::list},
                                               {"devices", Sort::list},
                                               {"remote", Sort::address},
                                               {"secret", Sort::path},
                                               {"certificates", Sort::path},
                                               {"topology", Sort::path},
                                               {"driver", Sort::path},
                                               {"node_lease", Sort::duration}};
  return all;
}

void append(std::string& list, const std::string& part) {
  if (!list.empty()) list += ',';
  list += part;
}

std::string new_folder() {
  std::string name = std::filesystem::temp_directory_path() / "vmem-options-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

}  // namespace

Places::Places() : folder_(new_folder()) {
  std::ofstream(in("file")) << "text\n";
  std::ofstream(in("empty")) << "";
  std::ofstream(in("bytes")) << std::string("\0\xff{[\"", 5);
  std::ofstream(in("noone")) << "no rights\n";
  ::chmod(in("noone").c_str(), 0);
  std::ofstream(in("secret")) << "node AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
  std::ofstream(in("open-secret")) << "node AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
  ::chmod(in("secret").c_str(), 0600);
  ::mkfifo(in("fifo").c_str(), 0600);
  std::filesystem::create_directory(in("folder"));
  std::filesystem::create_symlink(in("loop"), in("loop"));
}

Places::~Places() {
  std::error_code code;
  std::filesystem::remove_all(folder_, code);
}

std::string Places::own(Random& random) const {
  static const Values kNames{"file",
                             "empty",
                             "bytes",
                             "noone",
                             "secret",
                             "open-secret",
                             "fifo",
                             "folder",
                             "loop",
                             "missing",
                             "folder/deep/missing",
                             "lend.sock",
                             "file/below"};
  if (random.one_in(12)) return in(std::string(random.pick<std::size_t>({90, 107, 108, 300, 5000}), 'x'));
  return in(random.pick(kNames));
}

std::string Places::any(Random& random) const {
  static const Values kElsewhere{
      "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/proc/self/fd/0", "/", ".", "..", "/sys",
      "/dev/shm",  "relative",  "",          "/nowhere/at/all"};
  if (random.one_in(12))
    return std::string("/").append(random.pick<std::size_t>({107, 108, 255, 256, 4096, 20000}), 'x');
  if (random.one_in(12)) return in("folder") + std::string(random.between(1, 3000), '/');
  return random.one_in(3) ? random.pick(kElsewhere) : own(random);
}

std::string OptionValues::good(const std::string& option) {
  static const std::map<std::string, Values> kGood{
      {"base", {"0x7d0000000000", "0x100000000", "0x600000000000"}},
      {"space", {"64MiB", "1GiB", "1TiB", "2TiB", "66MiB"}},
      {"hbm", {"32MiB", "64MiB", "0.125GiB", "auto", "100MiB", "67108864"}},
      {"headroom", {"0", "1GiB", "64TiB", "1"}},
      {"host", {"16MiB", "64MiB", "auto", "17MiB"}},
      {"published_cache", {"0", "0%", "64MiB", "50%", "100%", "64TiB"}},
      {"published_cache_disk", {"auto", "0", "64MiB", "4096TiB"}},
      {"borrow", {"auto", "16MiB", "4096TiB"}},
      {"page", {"auto", "2MiB", "4MiB"}},
      {"remote_wait", {"100ms", "5s", "60min"}},
      {"node_lease", {"5s", "90s", "60min"}},
      {"call_wait", {"100ms", "5s", "60min"}},
      {"acquire_wait", {"0us", "0", "100ms", "60min", "1.5s"}},
      {"replicas", {"1"}},
      {"remote_channels", {"auto", "1", "8"}},
      {"prefetch", {"0", "1", "65536"}},
      {"window", {"0", "1023"}},
      {"peers", {"off", "0:2MiB,1", "0,1"}},
      {"lend", {"off"}},
      {"devices", {"all", "0", "1", "0,1", "1,0"}},
      {"gds", {"off", "auto", "on"}},
      {"compress",
       {"off", "auto", "lz4", "lz4-16", "zstd", "zstd-19", "zstd-huffman", "shuffle2+lz4", "shuffle8+zstd-3"}},
      {"secret", {"off"}},
      {"certificates", {"off"}},
      {"fabric", {"off"}},
      {"remote", {"off"}},
      {"nvme", {"off"}},
      {"driver", {"emulated"}},
      {"topology", {"off", "auto"}},
      {"log", {"error", "off"}}};
  if (option == "nvme" && random_.one_in(2)) return places_.in("folder") + (random_.one_in(2) ? ":16MiB" : ":64MiB");
  if (option == "lend" && random_.one_in(2)) return "0:2MiB:" + places_.in("lend.sock");
  if (option == "secret" && random_.one_in(2)) return places_.in("secret");
  if (option == "topology" && random_.one_in(2)) {
    const std::string place = places_.any(random_);
    return place.empty() ? "off" : place;
  }
  const auto found = kGood.find(option);
  return found == kGood.end() ? random_.pick<std::string>({"on", "off"}) : random_.pick(found->second);
}

std::string OptionValues::any(const OptionDefinition& option) {
  if (random_.one_in(3)) return good(option.name);
  if (random_.one_in(3)) return mutated(good(option.name));
  const auto sort = sorts().find(option.name);
  if (random_.one_in(6) || sort == sorts().end()) return bad_word();
  switch (sort->second) {
    case Sort::size:
    case Sort::duration:
    case Sort::count:
      return bad_size();
    case Sort::list:
      return bad_list(option.name);
    case Sort::address:
      return bad_address();
    case Sort::path:
      return places_.any(random_);
    case Sort::word:
      break;
  }
  return bad_word();
}

std::string OptionValues::bad_size() {
  static const Values kSizes{"-1",
                             "0",
                             "1",
                             "0.5GiB",
                             "1e9",
                             "1.",
                             ".5GiB",
                             "1 GiB",
                             "1GiBs",
                             "1gib",
                             "GiB",
                             "18446744073709551615",
                             "18446744073709551616",
                             "99999999999999999999999",
                             "16EiB",
                             "17EiB",
                             "15.99999EiB",
                             "4096TiB",
                             "0x40000000",
                             "1,5GiB",
                             "+1GiB",
                             "1MiB",
                             "3MiB",
                             "2097151",
                             "64TiB",
                             "65TiB",
                             "1us",
                             "0.1us",
                             "61min",
                             "3600s",
                             "3600.000001s",
                             "3 h",
                             "nan",
                             "inf",
                             "1GiB ",
                             " 1GiB",
                             "٣MiB",
                             "1GiB\n",
                             "65537",
                             "1024",
                             "256MiB",
                             "512MiB",
                             "auto ",
                             "AUTO"};
  return random_.pick(kSizes);
}

std::string OptionValues::bad_word() {
  static const Values kWords{"",
                             "on",
                             "off",
                             "ON",
                             "true",
                             "1",
                             "-",
                             "--",
                             ",",
                             ":",
                             "=",
                             "%s%n%n",
                             "{}",
                             "{0}",
                             "auto",
                             "null",
                             "\x01\x02",
                             "\xff\xfe",
                             "a\nb",
                             "a\tb",
                             "'",
                             "\"",
                             "$(id)",
                             "`id`",
                             "ucx:",
                             "ucx:mlx5_9:1",
                             "ucx:\xc3",
                             "lz4-99",
                             "lz4-",
                             "zstd-0",
                             "zstd-20",
                             "shuffle3+lz4",
                             "shuffle2+",
                             "shuffle2+shuffle2+lz4",
                             "0x7d0000000001",
                             "0xffffffffffffffff",
                             "0x7fffffe00000",
                             "7d0000000000",
                             "0x"};
  if (random_.one_in(10)) return std::string(random_.pick<std::size_t>({1000, 1023, 1024, 5000, 100'000}), 'x');
  return random_.pick(kWords);
}

std::string OptionValues::bad_address() {
  static const Values kHosts{"127.0.0.1",       "[::1]", "::1", "[::1",  "localhost", "256.1.1.1",
                             "nowhere.invalid", "a b",   "",    "1.2.3", "%",         "[fe80::1%lo]"};
  static const Values kPorts{":1", ":0",    ":65535", ":65536",       ":-1",   ":",
                             "",   ":http", ":7000x", ":99999999999", ":0x50", ": 1"};
  std::string text;
  for (std::uint64_t left = random_.one_in(3) ? random_.between(2, 4) : 1; left > 0; --left)
    append(text, fmt::format("{}{}", random_.pick(kHosts), random_.pick(kPorts)));
  if (random_.one_in(30)) text = std::string(random_.pick<std::size_t>({253, 300, 5000}), 'h') + ":7000";
  return text;
}

std::string OptionValues::bad_list(const std::string& option) {
  static const Values kDevices{"0",  "0",   "1",          "1",   "2",   "255", "256", "-1",
                               "00", "0x1", "4294967296", "all", "off", "",    " 0"};
  std::string text;
  for (std::uint64_t left = random_.between(1, random_.one_in(3) ? 3 : 1); left > 0; --left) {
    std::string part = option == "nvme" ? places_.any(random_) : random_.pick(kDevices);
    if (option == "peers" && random_.one_in(2)) part = places_.any(random_);
    if (option != "devices" && random_.one_in(3)) part.append(":").append(random_.one_in(2) ? "16MiB" : bad_size());
    // Sockets may be created and removed only in the test's own folder.
    if (option == "lend") part.append(":").append(places_.own(random_));
    append(text, part);
  }
  if (random_.one_in(20)) {
    for (int i = 0; i < 1000; ++i) append(text, random_.pick(kDevices));
  }
  return text;
}

std::string OptionValues::mutated(std::string text) {
  static const std::string kLetters = "0123456789abxX,:;.-+ /\\\n\t\x7f\xc3=%";
  for (std::uint64_t left = random_.between(1, 3); left > 0; --left) {
    const std::size_t at = random_.below(text.size() + 1);
    const char letter = kLetters[random_.below(kLetters.size())];
    switch (random_.below(4)) {
      case 0:
        text.insert(at, 1, letter);
        break;
      case 1:
        if (at < text.size()) text.erase(at, 1);
        break;
      case 2:
        if (at < text.size()) text[at] = letter;
        break;
      default:
        append(text, std::string(text));
        break;
    }
  }
  return text;
}

std::string OptionValues::any_name() {
  const auto table = option_table();
  std::string name = table[random_.below(table.size())].name;
  return random_.one_in(4) ? mutated(name) : name;
}

}  // namespace vmem::test
