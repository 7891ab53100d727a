// The options table: every setting has one definition that gives its name, environment variable, flag, default, check and
// documentation. vmem_init, the program's flags and `vmem options` all read this table; getenv is called here only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sizes.hpp"
#include "base/status.hpp"

namespace vmem {

// Below these the runtime has no room to move pages; budgets that it chooses itself are held to them too.
inline constexpr std::uint64_t kSmallestHbm = std::uint64_t{32} << 20;
inline constexpr std::uint64_t kSmallestHost = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kSmallestLent = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kSmallestNvme = std::uint64_t{16} << 20;
// And a page is at most this part of the HBM budget.
inline constexpr std::uint64_t kPagesInHbm = 8;

// A place for pages on a disk.
struct StoreDirectory {
  std::string path;
  std::optional<std::uint64_t> bytes;  // nullopt: half of what is free there
};

// A GPU whose memory takes pages of others.
struct LendingDevice {
  int device = 0;
  std::optional<std::uint64_t> bytes;  // nullopt: all that it has left
  std::string socket;                  // not empty: of the process that lends it, in place of `device`
};

// What other processes may borrow.
struct LentDevice {
  int device = 0;
  std::optional<std::uint64_t> bytes;  // nullopt: all that this process leaves
  std::string socket;                  // where
};

// Of GPUDirect Storage: none; what libcufile does without copies through host memory; also what it does with them.
enum class Gds : std::uint8_t { off, automatic, on };

inline constexpr std::uint32_t kMostRemoteChannels = 8;

struct Options {
  std::uint64_t base = 0x7d0000000000;  // --base: first address of the space (hex); a hint on a single node
  std::uint64_t space_bytes = std::uint64_t{1} << 40;  // --space: 2 MiB multiple, 64 MiB .. 64 TiB
  std::optional<std::uint64_t> hbm_bytes;  // --hbm: frames per device; "auto" (nullopt): free memory less headroom
  std::uint64_t headroom_bytes = std::uint64_t{1} << 30;  // --headroom: HBM left for others when --hbm is auto
  std::optional<std::uint64_t> host_bytes;  // --host: pinned host pool; "auto": half of the memory available
  std::vector<LendingDevice> peers;         // --peers: "off" (empty) or "1:40GiB,2,/tmp/gpu3"
  std::vector<LentDevice> lend;             // --lend: "off" (empty) or "0:20GiB:/tmp/gpu0"
  std::vector<StoreDirectory> nvme;         // --nvme: "off" (empty) or "/mnt/a:200GiB,/mnt/b"
  Gds gds = Gds::automatic;                 // --gds: pages of files straight to HBM
  bool nvme_poll = false;                   // --nvme-poll: on: a thread of the kernel polls for requests and disks
  std::string compress = "auto";    // --compress: off, auto, or a codec for every page; checked where codecs are known
  std::vector<std::string> remote;  // --remote: "off" (empty) or "10.0.0.1:7000,10.0.0.2:7000"
  std::optional<std::uint64_t> borrow_bytes;  // --borrow: of memory, and of disk, from each; "auto": all it lends
  std::uint32_t replicas = 1;                 // --replicas: nodes that a page goes to
  std::uint64_t remote_wait_us = 20'000'000;  // --remote-wait: for a node that has the only copy of a page
  std::uint64_t call_wait_us = 30'000'000;    // --call-wait: for a disk or node that a page waits for
  bool remote_encrypt = false;                // --remote-encrypt: on: other nodes cannot read the pages they keep
  std::optional<std::uint32_t>
      remote_channels;                      // --remote-channels: connections to each node; "auto": by the processors
  std::string secret;                       // --secret: "off" (empty) or a file
  std::string certificates;                 // --certificates: "off" (empty) or a folder
  std::string fabric;                       // --fabric: "off" (empty) or UCX device names, "mlx5_0:1,mlx5_1:1"
  std::optional<std::uint64_t> page_bytes;  // --page: "auto" or a power of two from 2 MiB to 256 MiB
  std::vector<int> devices;                 // --devices: "all" (empty) or "0,1"
  std::string driver = "auto";              // --driver: auto, emulated, or a path
  std::uint64_t acquire_wait_us = 100'000;  // --acquire-wait: e.g. "100ms"; no GPU progress for this long → in place
  std::uint32_t prefetch_pages = 8;         // --prefetch: pages to keep ahead of a scan; 0 turns prefetch off
  bool protect = false;                     // --protect: on: read acquires are mapped read-only
  bool strict = false;                      // --strict: on: launches reach nothing that they do not name
  bool drained = false;            // --drained: on: launches reach everything, pages move while none is under way
  std::uint32_t window = 64;       // --window: how many launches back a pointer table may have been filled
  bool call_times = false;         // --call-times: on: how long the driver's functions take is told at the end
  std::string topology = "auto";   // --topology: auto, off, or a file that `vmem topo` wrote
  std::string log_level = "warn";  // --log: trace debug info warn error off
};

struct OptionDefinition {
  std::string name;  // "acquire_wait": as in vmem_option; the flag is --acquire-wait, the variable VMEM_ACQUIRE_WAIT
  std::string default_value;   // as written by a user
  std::string values;          // what is accepted, in words
  std::string only_with = {};  // the options that it needs, in words; "": it stands alone
  std::string help;            // one sentence
  std::function<Status(Options&, std::string_view)>
      parse;  // checks and stores; the error names option, value and what is accepted
  std::function<std::string(const Options&)> print;
  bool is_switch = false;  // on or off: its flag alone says on
};
std::span<const OptionDefinition> option_table();
std::string option_flag(const OptionDefinition&);         // "--acquire-wait"
std::string option_values(const OptionDefinition&);       // "1 or 2; only with remote"
std::string option_environment(const OptionDefinition&);  // "VMEM_ACQUIRE_WAIT"
// What the environment says of it; nullopt: nothing.
std::optional<std::string> option_in_environment(const OptionDefinition&);

// Where the user's programs keep what they can make again: $XDG_CACHE_HOME, or ~/.cache; "" where there is neither.
std::string cache_folder();

// The one of `known` that takes the fewest edits to become `name`, whatever the case; "" where none is known.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

// Who gives a program's options: the caller of vmem_init, or the flags of a command. Messages name
// the source of a value.
enum class GivenBy : std::uint8_t { caller, flags };

// Defaults, overlaid by the environment, overlaid by `given` (name, value). INVALID_OPTION, naming
// the source and the nearest valid name: unknown names, names given twice, malformed values
// (overridden ones too), contradictions, and a VMEM_ variable that no option has, other than
// VMEM_EMU, VMEM_TEST_* and what Kubernetes sets for a service named vmem or vmem-....
Result<Options> resolve_options(std::span<const std::pair<std::string, std::string>> given,
                                GivenBy by = GivenBy::caller);

}  // namespace vmem
