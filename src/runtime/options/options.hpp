// All settings of vmem. vmem_init, the command's flags and `vmem options` read this table; only
// this module calls getenv for options.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/log_options.hpp"
#include "base/option.hpp"
#include "base/status.hpp"
#include "compress/compress_options.hpp"
#include "gpu/driver_options.hpp"
#include "migration/mover_options.hpp"
#include "pagetable/space_options.hpp"
#include "peer/peer_options.hpp"
#include "rdma/remote_options.hpp"
#include "runtime/launch/launch_options.hpp"
#include "tiers/disk/disk_options.hpp"
#include "tiers/host_options.hpp"
#include "topology/topology_options.hpp"
#include "trace/trace_options.hpp"

namespace vmem {

struct Options : SpaceOptions,
                 MoverOptions,
                 HostOptions,
                 PeerOptions,
                 DiskOptions,
                 CompressOptions,
                 RemoteOptions,
                 DriverOptions,
                 LaunchOptions,
                 TopologyOptions,
                 TraceOptions,
                 LogOptions {};

using OptionDefinition = Option<Options>;
std::span<const OptionDefinition> option_table();
std::string option_flag(const OptionDefinition&);         // "--acquire-wait"
std::string option_values(const OptionDefinition&);       // "1 or 2; only with remote"
std::string option_environment(const OptionDefinition&);  // "VMEM_ACQUIRE_WAIT"
// The option's value in the environment; nullopt: not set.
std::optional<std::string> option_in_environment(const OptionDefinition&);

// The origin of a program's options: the caller of vmem_init, or the flags of a command. Messages
// name a value's source.
enum class GivenBy : std::uint8_t { caller, flags };

// Defaults, overlaid by the environment, overlaid by `given` (name, value). INVALID_OPTION, naming
// the source and the nearest valid name: unknown names, names given twice, malformed values
// (overridden ones too), contradictions, and a VMEM_ variable without an option, except VMEM_EMU,
// VMEM_GUARD, VMEM_RUN, VMEM_TEST_* and the variables that Kubernetes sets for a service named vmem
// or vmem-....
Result<Options> resolve_options(std::span<const std::pair<std::string, std::string>> given,
                                GivenBy by = GivenBy::caller);

}  // namespace vmem
