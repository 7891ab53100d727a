// The files of a RegistryServer: its incarnation, and the records and leases of each place. A
// checksum covers all of a file. Pure.
#pragma once

#include <string>
#include <string_view>

#include "cluster/registry/registry_state.hpp"
#include "cluster/registry/served/sessions.hpp"

namespace vmem::cluster::served {

inline constexpr std::string_view kIncarnationFile = "incarnation";

struct NamespaceFile {
  Place place;
  RegistryImage image;
  bool operator==(const NamespaceFile&) const = default;
};

std::string file_name(const Place& place);
std::string encode_file(const NamespaceFile& file);
std::string encode_file(Incarnation incarnation);
// Errors: INVALID_OPTION, with the name: of another version, of another kind, or damaged.
Result<NamespaceFile> decode_namespace(const std::string& name, std::string_view bytes);
Result<Incarnation> decode_incarnation(const std::string& name, std::string_view bytes);

}  // namespace vmem::cluster::served
