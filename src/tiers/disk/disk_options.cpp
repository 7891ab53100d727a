#include "tiers/disk/disk_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/option_parse.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kTiB = 1ull << 40;

// DIRECTORY or DIRECTORY:SIZE; a directory's name may contain colons unless a size follows the
// last.
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

std::string print_nvme(const DiskOptions& options) {
  std::vector<std::string> texts;
  for (const StoreDirectory& each : options.nvme)
    texts.push_back(each.bytes ? fmt::format("{}:{}", each.path, exact_bytes(*each.bytes)) : each.path);
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

constexpr std::array<std::pair<std::string_view, Gds>, 3> kGdsWords{
    {{"off", Gds::off}, {"auto", Gds::automatic}, {"on", Gds::on}}};

Option<DiskOptions> nvme_option() {
  return define(
      {.name = "nvme",
       .values = "off, or directories such as /mnt/a:200GiB,/mnt/b, each with a size from " +
                 exact_bytes(kSmallestNvme) + " or with half of what is free there",
       .help = "Where pages go that host memory has no room for: files on disks, read and written with direct I/O.",
       .print = print_nvme},
      &DiskOptions::nvme, parse_nvme);
}

Option<DiskOptions> nvme_poll_option() {
  return switch_option({.name = "nvme_poll",
                        .help = "A thread of the kernel polls for requests to the disks of nvme and, where they can be "
                                "polled, for what they have done; it takes a core while they work."},
                       &DiskOptions::nvme_poll);
}

Option<DiskOptions> gds_option() {
  return define(
      {.name = "gds",
       .values = "off, auto (where libcufile moves bytes without host memory), or on (also where it copies through it)",
       .help = "GPUDirect Storage: whole pages of mapped files, and pages of nvme that were read before and are "
               "stored uncompressed, go from disks straight to HBM. Each file system is tried out first.",
       .print =
           [](const DiskOptions& options) {
             return std::string(
                 std::ranges::find(kGdsWords, options.gds, &std::pair<std::string_view, Gds>::second)->first);
           }},
      &DiskOptions::gds, [](std::string_view text) -> Result<Gds> {
        const auto* const found = std::ranges::find(kGdsWords, text, &std::pair<std::string_view, Gds>::first);
        if (found != kGdsWords.end()) return found->second;
        return fail(VMEM_ERROR_INVALID_OPTION, "neither off, auto nor on");
      });
}

Option<DiskOptions> published_cache_disk_option() {
  return automatic_size_option(
      {.name = "published_cache_disk",
       .values = "auto, or a size such as 100GiB; 0: none",
       .only_with = "cluster",
       .help = "The most room of nvme that copies of other nodes' published pages take. A page gets a copy once it "
               "was fetched again, while the disks are faster than other nodes. auto: what the program's own pages, "
               "which come first, leave of four fifths of nvme."},
      &DiskOptions::published_cache_disk, {.most = 4096 * kTiB});
}

}  // namespace

std::vector<Option<DiskOptions>> disk_options() {
  return {nvme_option(), nvme_poll_option(), gds_option(), published_cache_disk_option()};
}

}  // namespace vmem
