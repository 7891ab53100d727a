#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>

#include "base/log.hpp"
#include "base/options.hpp"
#include "base/printable.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kGiB = 1ull << 30;
constexpr std::uint64_t kTiB = 1ull << 40;
constexpr std::uint64_t kGranule = 2 * kMiB;
constexpr std::uint64_t kMaxAddress = 1ull << 47;
constexpr int kLargestDevice = 255;
constexpr std::uint64_t kMostPrefetchPages = 65536;
constexpr std::uint64_t kLongestWindow = 1023;  // so many are remembered (PointerTables)
constexpr std::uint64_t kLongestWaitUs = 3'600'000'000;

using Field = std::uint64_t Options::*;
using OptionalField = std::optional<std::uint64_t> Options::*;

struct Limits {
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t multiple = 1;
};

Status refuse(const OptionDefinition& option, std::string_view value, std::string_view why) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("option {}='{}': {}; accepted: {}", option.name,
                                                     printable(value, 128), printable(why), option.values));
}

Result<std::uint64_t> parse_size(std::string_view text, const Limits& limits) {
  VMEM_ASSIGN(const std::uint64_t bytes, parse_bytes(text));
  std::string why;
  if (bytes < limits.least) why = fmt::format("less than {}", format_bytes(limits.least));
  if (bytes > limits.most) why = fmt::format("more than {}", format_bytes(limits.most));
  if (bytes % limits.multiple != 0) why = fmt::format("not a multiple of {}", format_bytes(limits.multiple));
  if (!why.empty()) return fail(VMEM_ERROR_INVALID_OPTION, why);
  return bytes;
}

// Binds a reader of values to a field; the failure of the reader is worded with the option's name and what it accepts.
template <class T, class Read>
OptionDefinition define(OptionDefinition option, T Options::* field, Read read) {
  option.parse = [option, field, read](Options& options, std::string_view text) -> Status {
    auto value = read(text);
    if (!value) return refuse(option, text, value.error().message);
    options.*field = *std::move(value);
    return {};
  };
  return option;
}

OptionDefinition switch_option(OptionDefinition option, bool Options::* field) {
  option.default_value = "off";
  option.values = "on or off";
  option.is_switch = true;
  option.print = [field](const Options& options) { return options.*field ? "on" : "off"; };
  return define(std::move(option), field, [](std::string_view text) -> Result<bool> {
    if (text == "on" || text == "off") return text == "on";
    return fail(VMEM_ERROR_INVALID_OPTION, "neither on nor off");
  });
}

OptionDefinition size_option(OptionDefinition option, Field field, Limits limits) {
  option.print = [field](const Options& options) { return exact_bytes(options.*field); };
  return define(std::move(option), field, [limits](std::string_view text) { return parse_size(text, limits); });
}

OptionDefinition automatic_size_option(OptionDefinition option, OptionalField field, Limits limits) {
  option.print = [field](const Options& options) { return options.*field ? exact_bytes(*(options.*field)) : "auto"; };
  return define(std::move(option), field, [limits](std::string_view text) -> Result<std::optional<std::uint64_t>> {
    if (text == "auto") return std::nullopt;
    return parse_size(text, limits);
  });
}

Result<std::uint64_t> parse_address(std::string_view text) {
  std::uint64_t address = 0;
  const char* const end = text.data() + text.size();
  const bool prefixed = text.starts_with("0x") || text.starts_with("0X");
  const char* const digits = text.data() + (prefixed ? 2 : 0);
  const auto [stop, error] = std::from_chars(digits, end, address, 16);
  if (!prefixed || error != std::errc() || stop != end)
    return fail(VMEM_ERROR_INVALID_OPTION, "not a hexadecimal address");
  if (address % kGranule != 0) return fail(VMEM_ERROR_INVALID_OPTION, "not aligned to 2 MiB");
  if (address < 4 * kGiB) return fail(VMEM_ERROR_INVALID_OPTION, "below 4 GiB, where programs are loaded");
  if (address >= kMaxAddress) return fail(VMEM_ERROR_INVALID_OPTION, "beyond the 47-bit limit of user addresses");
  return address;
}

Result<std::optional<std::uint64_t>> parse_page(std::string_view text) {
  if (text == "auto") return std::nullopt;
  VMEM_ASSIGN(const std::uint64_t bytes, parse_size(text, {.least = kGranule, .most = 256 * kMiB}));
  if (!std::has_single_bit(bytes)) return fail(VMEM_ERROR_INVALID_OPTION, "not a power of two");
  return bytes;
}

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t most) {
  std::uint64_t count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (text.starts_with('-')) return fail(VMEM_ERROR_INVALID_OPTION, "negative");
  if (error == std::errc::result_out_of_range || (error == std::errc() && count > most)) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("more than {}", most));
  }
  if (error != std::errc() || stop != text.data() + text.size()) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is not a whole number", text));
  }
  return count;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<std::vector<int>> parse_devices(std::string_view text) {
  std::vector<int> devices;
  if (text == "all") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    VMEM_ASSIGN(const std::uint64_t device, parse_count(part, kLargestDevice));
    if (std::ranges::find(devices, int(device)) != devices.end()) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", device));
    }
    devices.push_back(int(device));
  }
  return devices;
}

Result<std::string> parse_driver(std::string_view text) {
  const bool path = text.contains('/') || text.contains(".so");
  if (text == "auto" || text == "emulated" || path) return std::string(text);
  return fail(VMEM_ERROR_INVALID_OPTION, "neither a known driver nor a path");
}

Result<std::string> parse_log(std::string_view text) {
  VMEM_TRY(log::parse_level(text));
  return std::string(text);
}

Result<std::uint64_t> parse_wait(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t us, parse_duration_us(text));
  if (us > kLongestWaitUs) return fail(VMEM_ERROR_INVALID_OPTION, "longer than an hour");
  return us;
}

Result<std::uint64_t> parse_long_wait(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t us, parse_wait(text));
  if (us < 100'000) return fail(VMEM_ERROR_INVALID_OPTION, "shorter than 100ms");
  return us;
}

Result<std::uint32_t> parse_prefetch(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t pages, parse_count(text, kMostPrefetchPages));
  return std::uint32_t(pages);
}

OptionDefinition base_option() {
  return define(
      {.name = "base",
       .default_value = "0x7d0000000000",
       .values = "a hexadecimal address from 0x100000000, 2 MiB aligned; base + space end at 0x800000000000 or below",
       .help = "First address of the address space; a hint on a single node.",
       .print = [](const Options& options) { return fmt::format("{:#x}", options.base); }},
      &Options::base, parse_address);
}

OptionDefinition space_option() {
  return size_option({.name = "space",
                      .default_value = "1TiB",
                      .values = "a multiple of 2MiB from 64MiB to 64TiB",
                      .help = "Size of the address space: the most that can be allocated at once."},
                     &Options::space_bytes, {.least = 64 * kMiB, .most = 64 * kTiB, .multiple = kGranule});
}

OptionDefinition hbm_option() {
  return automatic_size_option({.name = "hbm",
                                .default_value = "auto",
                                .values = "auto, or a size from " + exact_bytes(kSmallestHbm) + " such as 16GiB",
                                .help = "GPU memory used per device; auto: what is free at the start, less headroom."},
                               &Options::hbm_bytes, {.least = kSmallestHbm, .most = 64 * kTiB});
}

OptionDefinition headroom_option() {
  return size_option({.name = "headroom",
                      .default_value = "1GiB",
                      .values = "a size such as 1GiB",
                      .only_with = "hbm=auto",
                      .help = "GPU memory per device left to others (libraries, other programs) when hbm is auto."},
                     &Options::headroom_bytes, {.most = 64 * kTiB});
}

OptionDefinition host_option() {
  return automatic_size_option({.name = "host",
                                .default_value = "auto",
                                .values = "auto, or a size from " + exact_bytes(kSmallestHost) + " such as 64GiB",
                                .help = "Most pinned host memory used; auto: half of what is available at the start."},
                               &Options::host_bytes, {.least = kSmallestHost, .most = 64 * kTiB});
}

// DIRECTORY or DIRECTORY:SIZE; a directory's name may contain colons as long as no size follows the last.
Result<StoreDirectory> parse_directory(std::string_view text) {
  StoreDirectory directory{std::string(text), std::nullopt};
  const std::size_t colon = text.rfind(':');
  const bool sized =
      colon != std::string_view::npos && colon + 1 < text.size() && text[colon + 1] >= '0' && text[colon + 1] <= '9';
  if (sized) {
    directory.path = text.substr(0, colon);
    VMEM_ASSIGN(directory.bytes, parse_size(text.substr(colon + 1), {.least = kSmallestNvme, .most = 4096 * kTiB}));
  }
  if (directory.path.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a directory without a name");
  return directory;
}

Result<std::vector<StoreDirectory>> parse_nvme(std::string_view text) {
  std::vector<StoreDirectory> directories;
  if (text == "off") return directories;
  for (const std::string_view part : split_at_commas(text)) {
    VMEM_ASSIGN(StoreDirectory directory, parse_directory(part));
    if (std::ranges::find(directories, directory.path, &StoreDirectory::path) != directories.end()) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} is named twice", directory.path));
    }
    directories.push_back(std::move(directory));
  }
  return directories;
}

std::string print_nvme(const Options& options) {
  std::vector<std::string> texts;
  for (const StoreDirectory& each : options.nvme)
    texts.push_back(each.bytes ? fmt::format("{}:{}", each.path, exact_bytes(*each.bytes)) : each.path);
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

OptionDefinition nvme_option() {
  return define(
      {.name = "nvme",
       .default_value = "off",
       .values = "off, or directories such as /mnt/a:200GiB,/mnt/b, each with a size from " +
                 exact_bytes(kSmallestNvme) + " or with half of what is free there",
       .help = "Where pages go that host memory has no room for: files on disks, read and written with direct I/O.",
       .print = print_nvme},
      &Options::nvme, parse_nvme);
}

OptionDefinition nvme_poll_option() {
  return switch_option({.name = "nvme_poll",
                        .help = "A thread of the kernel polls for requests to the disks of nvme and, where they can be "
                                "polled, for what they have done; it takes a core while they work."},
                       &Options::nvme_poll);
}

constexpr std::array<std::pair<std::string_view, Gds>, 3> kGdsWords{
    {{"off", Gds::off}, {"auto", Gds::automatic}, {"on", Gds::on}}};

OptionDefinition gds_option() {
  return define(
      {.name = "gds",
       .default_value = "auto",
       .values = "off, auto (where libcufile moves bytes without host memory), or on (also where it copies through it)",
       .help = "GPUDirect Storage: whole pages of mapped files, and pages of nvme that were read before and are "
               "stored uncompressed, go from disks straight to HBM. Each file system is tried out first.",
       .print =
           [](const Options& options) {
             return std::string(
                 std::ranges::find(kGdsWords, options.gds, &std::pair<std::string_view, Gds>::second)->first);
           }},
      &Options::gds, [](std::string_view text) -> Result<Gds> {
        const auto* const found = std::ranges::find(kGdsWords, text, &std::pair<std::string_view, Gds>::first);
        if (found != kGdsWords.end()) return found->second;
        return fail(VMEM_ERROR_INVALID_OPTION, "neither off, auto nor on");
      });
}

// DEVICE or DEVICE:SIZE, or the same with a socket's path.
Result<std::vector<LendingDevice>> parse_peers(std::string_view text) {
  std::vector<LendingDevice> devices;
  if (text == "off") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    LendingDevice lender{.device = -1};
    if (name.starts_with('/')) {
      lender.socket = name;
    } else {
      VMEM_ASSIGN(const std::uint64_t device, parse_count(name, kLargestDevice));
      lender.device = int(device);
    }
    if (colon != std::string_view::npos) {
      VMEM_ASSIGN(lender.bytes, parse_size(part.substr(colon + 1), {.least = kSmallestLent, .most = 64 * kTiB}));
    }
    const auto same = [&](const LendingDevice& other) {
      return other.device == lender.device && other.socket == lender.socket;
    };
    if (std::ranges::any_of(devices, same))
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", name));
    devices.push_back(lender);
  }
  return devices;
}

std::string print_peers(const Options& options) {
  std::vector<std::string> texts;
  for (const LendingDevice& each : options.peers) {
    const std::string name = each.socket.empty() ? fmt::format("{}", each.device) : each.socket;
    texts.push_back(each.bytes ? fmt::format("{}:{}", name, exact_bytes(*each.bytes)) : name);
  }
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

OptionDefinition peers_option() {
  return define({.name = "peers",
                 .default_value = "off",
                 .values = "off, or GPUs such as 1:40GiB,2, each with the most that it lends or with all that it has "
                           "left; or the path of "
                           "the socket where another process lends one (see lend)",
                 .help = "GPUs whose memory takes pages of the others' before host memory does, over NVLink or PCIe.",
                 .print = print_peers},
                &Options::peers, parse_peers);
}

// DEVICE:PATH or DEVICE:SIZE:PATH.
Result<std::vector<LentDevice>> parse_lend(std::string_view text) {
  std::vector<LentDevice> devices;
  if (text == "off") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t path = part.find(":/"), colon = part.find(':');
    if (path == std::string_view::npos)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' does not end with the path of a socket, /...", part));
    LentDevice lent;
    lent.socket = part.substr(path + 1);
    VMEM_ASSIGN(const std::uint64_t device, parse_count(part.substr(0, colon), kLargestDevice));
    lent.device = int(device);
    if (colon != path) {
      VMEM_ASSIGN(lent.bytes,
                  parse_size(part.substr(colon + 1, path - colon - 1), {.least = kSmallestLent, .most = 64 * kTiB}));
    }
    if (std::ranges::find(devices, lent.device, &LentDevice::device) != devices.end())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", lent.device));
    devices.push_back(lent);
  }
  return devices;
}

std::string print_lend(const Options& options) {
  std::vector<std::string> texts;
  for (const LentDevice& each : options.lend)
    texts.push_back(each.bytes ? fmt::format("{}:{}:{}", each.device, exact_bytes(*each.bytes), each.socket)
                               : fmt::format("{}:{}", each.device, each.socket));
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

OptionDefinition lend_option() {
  return define(
      {.name = "lend",
       .default_value = "off",
       .values = "off, or GPUs such as 0:20GiB:/run/user/1000/gpu0, each with the most to lend, or without, and a "
                 "socket's path",
       .help =
           "What this process's GPUs have left, to other processes of the same user (see peers), until it is needed.",
       .print = print_lend},
      &Options::lend, parse_lend);
}

Result<std::vector<std::string>> parse_remote(std::string_view text) {
  std::vector<std::string> addresses;
  if (text == "off") return addresses;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t colon = part.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == part.size())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is not HOST:PORT", part));
    if (std::ranges::find(addresses, part) != addresses.end())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} is named twice", part));
    addresses.emplace_back(part);
  }
  return addresses;
}

// "ucx:mlx5_0:1,mlx5_1:1": the devices, by UCX's names.
Result<std::string> parse_fabric(std::string_view text) {
  constexpr std::string_view kPrefix = "ucx:";
  if (text == "off") return std::string();
  if (!text.starts_with(kPrefix) || text.size() == kPrefix.size())
    return fail(VMEM_ERROR_INVALID_OPTION, "neither off nor ucx: and devices");
  return std::string(text.substr(kPrefix.size()));
}

OptionDefinition remote_option() {
  return define({.name = "remote",
                 .default_value = "off",
                 .values = "off, or addresses such as 10.0.0.1:7000,10.0.0.2:7000",
                 .help = "Where pages go that host memory has no room for: other nodes, on which `vmem daemon` runs.",
                 .print =
                     [](const Options& options) {
                       return options.remote.empty() ? "off" : fmt::format("{}", fmt::join(options.remote, ","));
                     }},
                &Options::remote, parse_remote);
}

OptionDefinition borrow_option() {
  return automatic_size_option(
      {.name = "borrow",
       .default_value = "auto",
       .values = "auto, or a size from 16MiB such as 64GiB",
       .only_with = "remote",
       .help = "How much is borrowed of each node's memory, and of its disks; auto: all it lends."},
      &Options::borrow_bytes, {.least = 16 * kMiB, .most = 4096 * kTiB});
}

OptionDefinition replicas_option() {
  return define({.name = "replicas",
                 .default_value = "1",
                 .values = "1 or 2",
                 .only_with = "remote",
                 .help = "How many nodes each page goes to: 2 survive the death of one.",
                 .print = [](const Options& options) { return fmt::to_string(options.replicas); }},
                &Options::replicas, [](std::string_view text) -> Result<std::uint32_t> {
                  if (text == "1" || text == "2") return text == "1" ? 1u : 2u;
                  return fail(VMEM_ERROR_INVALID_OPTION, "neither 1 nor 2");
                });
}

OptionDefinition call_wait_option() {
  return define(
      {.name = "call_wait",
       .default_value = "30s",
       .values = "a duration from 100ms to an hour such as 5s",
       .help =
           "How long a call waits for a page that a disk or another node does not bring, or for room that they do not "
           "make. Then it fails with TIMEOUT, and the page is kept.",
       .print = [](const Options& options) { return exact_duration_us(options.call_wait_us); }},
      &Options::call_wait_us, parse_long_wait);
}

OptionDefinition remote_wait_option() {
  return define(
      {.name = "remote_wait",
       .default_value = "20s",
       .values = "a duration from 100ms to an hour such as 5s",
       .only_with = "remote",
       .help =
           "How long a page whose only copy is on a node that does not answer is waited for. Then the call fails with "
           "TIMEOUT, and the page is kept.",
       .print = [](const Options& options) { return exact_duration_us(options.remote_wait_us); }},
      &Options::remote_wait_us, parse_long_wait);
}

OptionDefinition remote_encrypt_option() {
  return switch_option({.name = "remote_encrypt",
                        .help = "Encrypts pages with a key that only this process has before they go to other nodes, "
                                "so that these cannot read them; only with remote. Takes a copy of each page."},
                       &Options::remote_encrypt);
}

OptionDefinition remote_channels_option() {
  return define(
      {.name = "remote_channels",
       .default_value = "auto",
       .values = fmt::format("auto, or 1 to {}", kMostRemoteChannels),
       .only_with = "remote",
       .help = "Connections to each node that pages go over, from two on each with a thread; auto: by the number "
               "of processors. The smaller of the two nodes' numbers counts.",
       .print =
           [](const Options& options) {
             return options.remote_channels ? fmt::to_string(*options.remote_channels) : "auto";
           }},
      &Options::remote_channels, [](std::string_view text) -> Result<std::optional<std::uint32_t>> {
        if (text == "auto") return std::nullopt;
        VMEM_ASSIGN(const std::uint64_t channels, parse_count(text, kMostRemoteChannels));
        if (channels == 0) return fail(VMEM_ERROR_INVALID_OPTION, "none");
        return static_cast<std::uint32_t>(channels);
      });
}

OptionDefinition secret_option() {
  return define(
      {.name = "secret",
       .default_value = "off",
       .values = "off, or a file of `vmem secret new`",
       .only_with = "remote",
       .help = "Secrets that the nodes share, and prove to each other; without them, or certificates, the nodes "
               "must be on this machine.",
       .print = [](const Options& options) { return options.secret.empty() ? "off" : options.secret; }},
      &Options::secret, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a file without a name");
        return std::string(text == "off" ? "" : text);
      });
}

OptionDefinition certificates_option() {
  return define(
      {.name = "certificates",
       .default_value = "off",
       .values = "off, or a folder with ca.crt, tls.crt and tls.key",
       .only_with = "remote, and without secret",
       .help = "Certificates instead of secrets: this node's, its key, and the authority that signs those of others.",
       .print = [](const Options& options) { return options.certificates.empty() ? "off" : options.certificates; }},
      &Options::certificates, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a folder without a name");
        return std::string(text == "off" ? "" : text);
      });
}

OptionDefinition fabric_option() {
  return define(
      {.name = "fabric",
       .default_value = "off",
       .values = "off, or ucx:DEVICES such as ucx:mlx5_0:1,mlx5_1:1 (`ucx_info -d` lists them)",
       .only_with = "remote",
       .help = "RDMA devices that carry pages instead of TLS. Neither authenticated nor encrypted there: whoever is "
               "on that fabric can read and change lent memory (SECURITY.md).",
       .print = [](const Options& options) { return options.fabric.empty() ? "off" : "ucx:" + options.fabric; }},
      &Options::fabric, parse_fabric);
}

OptionDefinition compress_option() {
  return define(
      {.name = "compress",
       .default_value = "auto",
       .values = "off, auto, or a codec: lz4, lz4-2 to lz4-16, zstd, zstd-1 to zstd-19 or zstd-huffman, also behind "
                 "shuffle2+, shuffle4+ or shuffle8+ (bytes of numbers of that width)",
       .help = "How pages are compressed on their way to files; auto: by what makes the way faster, measured, "
               "and otherwise not.",
       .print = [](const Options& options) { return options.compress; }},
      &Options::compress, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "no codec is named");
        return std::string(text);
      });
}

OptionDefinition page_option() {
  return define(
      {.name = "page",
       .default_value = "auto",
       .values = "auto, or a power of two from 2MiB to 256MiB",
       .help = "Unit of migration; auto: by the size of the allocation.",
       .print = [](const Options& o) { return o.page_bytes ? exact_bytes(*o.page_bytes) : std::string("auto"); }},
      &Options::page_bytes, parse_page);
}

OptionDefinition devices_option() {
  return define({.name = "devices",
                 .default_value = "all",
                 .values = "all, or CUDA ordinals such as 0,1, each once",
                 .help = "The GPUs in use.",
                 .print =
                     [](const Options& options) {
                       return options.devices.empty() ? "all" : fmt::format("{}", fmt::join(options.devices, ","));
                     }},
                &Options::devices, parse_devices);
}

OptionDefinition driver_option() {
  return define({.name = "driver",
                 .default_value = "auto",
                 .values = "auto, emulated, or the path of a driver library",
                 .help = "The CUDA driver; emulated: one over host memory, for machines without a GPU.",
                 .print = [](const Options& options) { return options.driver; }},
                &Options::driver, parse_driver);
}

OptionDefinition acquire_wait_option() {
  return define(
      {.name = "acquire_wait",
       .default_value = "100ms",
       .values = "a duration up to an hour such as 250us, 100ms or 2s",
       .help = "How long an acquire that finds no GPU memory waits without GPU progress before it is served in place.",
       .print = [](const Options& options) { return exact_duration_us(options.acquire_wait_us); }},
      &Options::acquire_wait_us, parse_wait);
}

OptionDefinition prefetch_option() {
  return define({.name = "prefetch",
                 .default_value = "8",
                 .values = "0 to 65536 pages",
                 .help = "Pages fetched ahead of a sequential scan; 0 turns it off.",
                 .print = [](const Options& options) { return fmt::to_string(options.prefetch_pages); }},
                &Options::prefetch_pages, parse_prefetch);
}

OptionDefinition protect_option() {
  return switch_option(
      {.name = "protect",
       .help = "Maps what is acquired for reading read-only, so that stray writes fault; for checking a program. "
               "Allocations up to 1 MiB share pages, and are left out."},
      &Options::protect);
}

OptionDefinition strict_option() {
  return switch_option({.name = "strict",
                        .help = "Under `vmem run`: a launch can reach only what vmem sees it name, one launch at a "
                                "time; for checking a program."},
                       &Options::strict);
}

OptionDefinition drained_option() {
  return switch_option(
      {.name = "drained",
       .help = "Under `vmem run`: every launch can reach everything, and pages move only while none runs; "
               "for programs that reach what they do not name. Slow."},
      &Options::drained);
}

OptionDefinition window_option() {
  return define({.name = "window",
                 .default_value = "64",
                 .values = "0 to 1023 launches",
                 .help = "Under `vmem run`: how many launches back a pointer table in memory may have been filled.",
                 .print = [](const Options& options) { return fmt::to_string(options.window); }},
                &Options::window, [](std::string_view text) -> Result<std::uint32_t> {
                  VMEM_ASSIGN(const std::uint64_t launches, parse_count(text, kLongestWindow));
                  return std::uint32_t(launches);
                });
}

OptionDefinition call_times_option() {
  return switch_option({.name = "call_times",
                        .help = "Writes to stderr at the end how often vmem's threads called which functions of the "
                                "driver, and how long these took."},
                       &Options::call_times);
}

OptionDefinition topology_option() {
  return define({.name = "topology",
                 .default_value = "auto",
                 .values = "auto (the file in the user's cache folder), off, or the path of a file",
                 .help = "Where `vmem topo` keeps the machine's measured links, and placement finds them.",
                 .print = [](const Options& options) { return options.topology; }},
                &Options::topology, [](std::string_view text) -> Result<std::string> {
                  if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a file without a name");
                  return std::string(text);
                });
}

OptionDefinition log_option() {
  return define({.name = "log",
                 .default_value = "warn",
                 .values = "trace, debug, info, warn, error or off",
                 .help = "Messages of this level and above go to stderr.",
                 .print = [](const Options& options) { return options.log_level; }},
                &Options::log_level, parse_log);
}

}  // namespace

std::span<const OptionDefinition> option_table() {
  static const std::array table{
      base_option(),
      space_option(),
      hbm_option(),
      headroom_option(),
      host_option(),
      peers_option(),
      lend_option(),
      nvme_option(),
      nvme_poll_option(),
      gds_option(),
      compress_option(),
      remote_option(),
      borrow_option(),
      replicas_option(),
      remote_wait_option(),
      remote_encrypt_option(),
      remote_channels_option(),
      secret_option(),
      certificates_option(),
      fabric_option(),
      page_option(),
      devices_option(),
      driver_option(),
      acquire_wait_option(),
      call_wait_option(),
      prefetch_option(),
      protect_option(),
      strict_option(),
      drained_option(),
      window_option(),
      call_times_option(),
      topology_option(),
      log_option(),  // the comma and this comment keep the list one to a line
  };
  return table;
}

}  // namespace vmem
