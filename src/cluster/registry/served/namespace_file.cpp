#define XXH_INLINE_ALL
#include "cluster/registry/served/namespace_file.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/printable.hpp"
#include "cluster/registry/served/record_codec.hpp"

namespace vmem::cluster::served {
namespace {

constexpr std::uint32_t kMagic = 0x47524d56;  // "VMRG"
constexpr std::uint16_t kFormat = 1;
constexpr std::uint8_t kOfIncarnation = 1, kOfNamespace = 2;
constexpr std::uint64_t kMostSigned = std::uint64_t{1} << 62;
constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
constexpr std::size_t kMostIdentityBytes = 64u << 10;

std::string seal(ByteWriter& out) {
  std::string bytes = out.take();
  ByteWriter sum;
  sum.number(static_cast<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));
  return bytes + sum.take();
}

ByteWriter begin(std::uint8_t kind) {
  ByteWriter out;
  out.number(kMagic);
  out.number(kFormat);
  out.number(kind);
  return out;
}

std::unexpected<Error> unusable(const std::string& name, const std::string& why) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("registry: its file '{}' {}: restore the directory from a copy; or end all nodes of the "
                          "clusters in it and remove it",
                          printable(name), why));
}

// Returns what lies between the head and the checksum.
Result<std::string_view> open_file(const std::string& name, std::string_view bytes, std::uint8_t kind) {
  if (bytes.size() < kSumBytes) return unusable(name, fmt::format("is damaged: it has {} bytes", bytes.size()));
  const std::string_view body = bytes.substr(0, bytes.size() - kSumBytes);
  ByteReader sum(bytes.substr(body.size())), head(body);
  if (sum.number<std::uint64_t>() != XXH3_64bits(body.data(), body.size()))
    return unusable(name, "is damaged: its checksum does not match");
  const auto magic = head.number<std::uint32_t>();
  const auto format = head.number<std::uint16_t>();
  if (magic != kMagic || head.number<std::uint8_t>() != kind) return unusable(name, "is no such file of a registry");
  if (format != kFormat)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("registry: its file '{}' has format {}, and this version of vmem reads format {}: run the "
                            "version that wrote it",
                            printable(name), format, kFormat));
  return body.substr(body.size() - head.left());
}

RegistryImage get_image(ByteReader& in) {
  RegistryImage image;
  image.revision = Revision{static_cast<std::int64_t>(in.number(kMostSigned))};
  image.last_lease = LeaseId{static_cast<std::int64_t>(in.number(kMostSigned))};
  const auto leases = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < leases && in.ok(); ++i) {
    const LeaseId id{static_cast<std::int64_t>(in.number(kMostSigned))};
    in.require(id <= image.last_lease && (image.leases.empty() || image.leases.back().id < id));
    image.leases.push_back({.id = id, .seconds = in.number(kMostLeaseSeconds)});
  }
  image.records = get_records(in, kMostCommitBytes);
  for (const Record& each : image.records) in.require(each.modified <= image.revision);
  return image;
}

}  // namespace

std::string file_name(const Place& place) {
  const std::string both = fmt::format("{}:{}{}", place.identity.size(), place.identity, place.cluster);
  const XXH128_hash_t hash = XXH3_128bits(both.data(), both.size());
  return fmt::format("cluster-{:016x}{:016x}", hash.high64, hash.low64);
}

std::string encode_file(const NamespaceFile& file) {
  ByteWriter out = begin(kOfNamespace);
  out.text(file.place.identity);
  out.text(file.place.cluster);
  out.number(static_cast<std::uint64_t>(file.image.revision));
  out.number(static_cast<std::uint64_t>(file.image.last_lease));
  out.number(static_cast<std::uint32_t>(file.image.leases.size()));
  for (const RegistryImage::Lease& each : file.image.leases) {
    out.number(static_cast<std::uint64_t>(each.id));
    out.number(each.seconds);
  }
  put_records(out, file.image.records);
  return seal(out);
}

std::string encode_file(Incarnation incarnation) {
  ByteWriter out = begin(kOfIncarnation);
  out.number(static_cast<std::uint64_t>(incarnation));
  return seal(out);
}

Result<NamespaceFile> decode_namespace(const std::string& name, std::string_view bytes) {
  VMEM_ASSIGN(const std::string_view body, open_file(name, bytes, kOfNamespace));
  ByteReader in(body);
  NamespaceFile file;
  file.place.identity = in.text(kMostIdentityBytes);
  file.place.cluster = in.text(kMostClusterBytes);
  file.image = get_image(in);
  if (!in.done() || file_name(file.place) != name)
    return unusable(name, "is damaged: its fields contradict each other");
  return file;
}

Result<Incarnation> decode_incarnation(const std::string& name, std::string_view bytes) {
  VMEM_ASSIGN(const std::string_view body, open_file(name, bytes, kOfIncarnation));
  ByteReader in(body);
  const Incarnation incarnation{in.number(kMostSigned)};
  if (!in.done() || incarnation == Incarnation{}) return unusable(name, "is damaged: it has no number");
  return incarnation;
}

}  // namespace vmem::cluster::served
