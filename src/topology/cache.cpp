#include "topology/cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/cache_folder.hpp"
#include "base/file_descriptor.hpp"
#include "gpu/device_info.hpp"

namespace vmem::topology {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // limit on the size of a file to read
constexpr std::size_t kMostNodes = 1 << 16;                // limit on the nodes of a file

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// ---- enumerations ----

constexpr std::array kNodeKinds = {NodeKind::device,        NodeKind::host, NodeKind::root,    NodeKind::pcie_switch,
                                   NodeKind::nvlink_switch, NodeKind::disk, NodeKind::network, NodeKind::fabric};
constexpr std::array kLinkKinds = {LinkKind::nvlink, LinkKind::pcie, LinkKind::socket, LinkKind::memory,
                                   LinkKind::network};
constexpr std::array kOrigins = {Origin::unknown, Origin::nominal, Origin::measured};

// A defect of a file, thrown up to load_saved. The JSON library's own exceptions for other defects
// take the same path.
struct Wrong {
  std::string what;
};

template <class Enum, std::size_t N>
Enum enum_of(const Json& json, const std::array<Enum, N>& values, std::string_view (*name)(Enum)) {
  const auto text = json.get<std::string>();
  for (const Enum value : values)
    if (name(value) == text) return value;
  throw Wrong{fmt::format("'{}' is not known", text)};
}

// ---- to JSON ----

Json json_of(const Rate& rate) {
  if (!rate.known()) return nullptr;
  return {{"bytes_per_s", rate.bytes_per_s}, {"origin", origin_name(rate.origin)}};
}

Json json_of(const Node& node) {
  return {{"kind", kind_name(node.kind)},
          {"number", node.number},
          {"name", node.name},
          {"address", node.address},
          {"bytes", node.bytes}};
}

Json json_of(const Link& link) {
  return {{"a", link.a.value},
          {"b", link.b.value},
          {"kind", kind_name(link.kind)},
          {"forward", json_of(link.forward)},
          {"backward", json_of(link.backward)},
          {"both", json_of(link.both)},
          {"lanes", link.lanes}};
}

Json json_of(const Copy& copy) {
  return {{"from", copy.from.value}, {"to", copy.to.value}, {"rate", json_of(copy.rate)}};
}

Json json_of(const PeerAccess& access) { return {{"reachable", access.reachable}, {"rank", access.rank}}; }

template <class Element>
Json json_of(const std::vector<Element>& elements) {
  Json list = Json::array();
  for (const Element& element : elements) list.push_back(json_of(element));
  return list;
}

Json json_of(const Topology& topology) {
  Json peers = Json::array();
  for (const auto& row : topology.peers) peers.push_back(json_of(row));
  return {{"emulated", topology.emulated},
          {"nodes", json_of(topology.nodes)},
          {"links", json_of(topology.links)},
          {"copies", json_of(topology.copies)},
          {"peers", peers},
          {"unknown", topology.unknown}};
}

Json json_of(const MachineKey& key) {
  return {{"machine", key.machine}, {"driver", key.driver}, {"devices", key.devices}};
}

// ---- and back ----

// The library's own conversion wraps integers, and is undefined for floating-point numbers out of
// range.
template <class Integer>
Integer integer_of(const Json& json) {
  if (json.is_number_unsigned()) {
    if (const auto value = json.get<std::uint64_t>(); std::in_range<Integer>(value)) return static_cast<Integer>(value);
  } else if (json.is_number_integer()) {
    if (const auto value = json.get<std::int64_t>(); std::in_range<Integer>(value)) return static_cast<Integer>(value);
  }
  throw Wrong{"a number that is not whole, or out of range"};
}

Rate rate_of(const Json& json) {
  if (json.is_null()) return {};
  const Rate rate{json.at("bytes_per_s").get<double>(), enum_of(json.at("origin"), kOrigins, origin_name)};
  if (!rate.known() || !std::isfinite(rate.bytes_per_s) || rate.bytes_per_s <= 0)
    throw Wrong{fmt::format("a rate of {} bytes a second", rate.bytes_per_s)};
  return rate;
}

NodeIndex node_id_of(const Json& json, const Topology& topology) {
  const auto value = integer_of<std::uint32_t>(json);
  if (value >= topology.nodes.size()) throw Wrong{fmt::format("node {} of {} is named", value, topology.nodes.size())};
  return {value};
}

Topology topology_of(const Json& json) {
  Topology topology;
  topology.emulated = json.at("emulated").get<bool>();
  if (json.at("nodes").size() > kMostNodes) throw Wrong{"too many nodes"};
  for (const Json& node : json.at("nodes"))
    topology.nodes.push_back({enum_of(node.at("kind"), kNodeKinds, kind_name), integer_of<int>(node.at("number")),
                              node.at("name").get<std::string>(), node.at("address").get<std::string>(),
                              integer_of<std::uint64_t>(node.at("bytes"))});
  for (const Json& link : json.at("links"))
    topology.links.push_back({node_id_of(link.at("a"), topology), node_id_of(link.at("b"), topology),
                              enum_of(link.at("kind"), kLinkKinds, kind_name), rate_of(link.at("forward")),
                              rate_of(link.at("backward")), rate_of(link.at("both")),
                              integer_of<int>(link.at("lanes"))});
  for (const Json& copy : json.at("copies"))
    topology.copies.push_back(
        {node_id_of(copy.at("from"), topology), node_id_of(copy.at("to"), topology), rate_of(copy.at("rate"))});
  for (const Json& row : json.at("peers")) {
    auto& accesses = topology.peers.emplace_back();
    for (const Json& access : row)
      accesses.push_back({access.at("reachable").get<bool>(), integer_of<int>(access.at("rank"))});
    if (accesses.size() != json.at("peers").size()) throw Wrong{"peers that are no square"};
  }
  topology.unknown = json.at("unknown").get<std::vector<std::string>>();
  return topology;
}

MachineKey key_of(const Json& json) {
  return {json.at("machine").get<std::string>(), json.at("driver").get<std::string>(),
          json.at("devices").get<std::vector<std::string>>()};
}

Saved saved_of(const std::string& text) {
  const Json json = Json::parse(text);
  if (const int format = integer_of<int>(json.at("format")); format != kFormat)
    throw Wrong{fmt::format("its format is {}, and {} is known", format, kFormat)};
  return {key_of(json.at("key")), json.at("measured_at").get<std::string>(), topology_of(json.at("topology"))};
}

std::string difference(const MachineKey& saved, const MachineKey& here) {
  if (saved.machine != here.machine) return fmt::format("measured on {}, and this is {}", saved.machine, here.machine);
  if (saved.driver != here.driver)
    return fmt::format("measured with driver {}, and this is {}", saved.driver, here.driver);
  return "measured with other GPUs, or in another order";
}

// ---- files ----

std::unexpected<Error> cannot_save(const std::string& path, int error) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the topology cannot be saved in {}: {}; name another file with --topology", path,
                          std::strerror(error)),
              error);
}

// Never blocks on a FIFO's writer, and stops beyond kMostBytes: the user may name any file.
std::expected<std::string, Miss> read_whole(const std::string& path) {
  const auto refuse = [](Miss::Reason reason, std::string why) {
    return std::unexpected(Miss{reason, std::move(why)});
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat about{};
  if (!file || ::fstat(file.get(), &about) != 0) return refuse(Miss::Reason::absent, std::strerror(errno));
  if (S_ISDIR(about.st_mode)) return refuse(Miss::Reason::damaged, "is a directory; name a file with --topology");
  if (!S_ISREG(about.st_mode)) return refuse(Miss::Reason::damaged, "is no regular file; name one with --topology");
  std::string text;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(Miss::Reason::damaged, std::strerror(errno));
    if (got == 0) return text;
    text.append(part.data(), std::size_t(got));
    if (text.size() > kMostBytes) {
      return refuse(Miss::Reason::damaged,
                    fmt::format("has more than {} MiB, which no topology has; name another file with --topology",
                                kMostBytes >> 20));
    }
  }
}

int write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(std::size_t(written));
  }
  return ::fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

Result<MachineKey> machine_key(const gpu::Driver& driver) {
  MachineKey key;
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  key.machine = fmt::format("{} with {} processors", host.data(), std::thread::hardware_concurrency());
  const std::string module = driver.emulated() ? "emulated" : first_line("/sys/module/nvidia/version");
  key.driver = fmt::format("CUDA {}{}{}", driver.version(), module.empty() ? "" : ", ", module);
  VMEM_ASSIGN(const gpu::DeviceList list, gpu::query_devices(driver));
  for (const gpu::DeviceInfo& device : list.devices)
    key.devices.push_back(fmt::format("{} {} {}", device.pci_bus_id, gpu::format_uuid(device.uuid), device.name));
  return key;
}

std::expected<Saved, Miss> load_saved(const std::string& path, const MachineKey& key) {
  const auto miss = [&](Miss::Reason reason, const std::string& what) {
    return std::unexpected(Miss{reason, fmt::format("{}: {}", path, what)});
  };
  const auto text = read_whole(path);
  if (!text) return miss(text.error().reason, text.error().message);
  try {
    Saved saved = saved_of(*text);
    if (saved.key != key) return miss(Miss::Reason::stale, difference(saved.key, key));
    return saved;
  } catch (const Wrong& wrong) {
    return miss(Miss::Reason::damaged, "damaged: " + wrong.what);
  } catch (const Json::exception& error) {
    return miss(Miss::Reason::damaged, fmt::format("damaged: {}", error.what()));
  }
}

std::string to_json(const Saved& saved) {
  const Json json = {{"format", kFormat},
                     {"key", json_of(saved.key)},
                     {"measured_at", saved.measured_at},
                     {"topology", json_of(saved.topology)}};
  // Names of disks and folders are bytes from the system, not necessarily UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status save(const std::string& path, const Saved& saved) {
  const std::filesystem::path file(path);
  std::error_code code;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), code);
  if (code) return cannot_save(path, code.value());
  std::string beside = path + ".XXXXXX";
  const int fd = ::mkostemp(beside.data(), O_CLOEXEC);
  if (fd < 0) return cannot_save(path, errno);
  int error = write_whole(fd, to_json(saved));
  if (::fchmod(fd, 0644) != 0 && error == 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  (void)::unlink(beside.c_str());
  return cannot_save(path, error);
}

std::string cache_path(const std::string& option, bool emulated) {
  if (option == "off") return "";
  if (option != "auto") return option;
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  return folder + (emulated ? "/vmem/topology-emulated.json" : "/vmem/topology.json");
}

}  // namespace vmem::topology
