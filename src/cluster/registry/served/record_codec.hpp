// Records, commits and grants as bytes: what messages carry in pieces, and what files keep.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/registry/registry.hpp"
#include "cluster/registry/served/byte_codec.hpp"

namespace vmem::cluster::served {

// The requests that must not be carried out twice.
using Write = std::variant<Commit, GrantLease>;

// Of a commit within the limits of request_check.hpp, and more than one record takes.
inline constexpr std::size_t kMostWriteBytes = (1u << 20) + (64u << 10);
inline constexpr std::size_t kMostReadBytes = std::size_t{256} << 20;

std::string encode_write(const Write& write);
// Returns none for what no encoder makes.
std::optional<Write> decode_write(std::string_view bytes);

void put_records(ByteWriter& out, const std::vector<Record>& records);
// In the order of keys, without repetition. `most_bytes`: of a key, and of a value
std::vector<Record> get_records(ByteReader& in, std::size_t most_bytes);

std::string encode_records(const std::vector<Record>& records);
std::optional<std::vector<Record>> decode_records(std::string_view bytes);

}  // namespace vmem::cluster::served
