// What errors of calls for regions say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/directory_message.hpp"
#include "cluster/directory/region_record.hpp"

namespace vmem::cluster::directory {

Error not_a_member();
// `what`: the rest of the sentence.
Error not_open(Serial serial, std::string_view what);

// "its home, node 4 (term 1),"
std::string home_of(const RegionRecord& region);
// `tenant`: of the node that was refused.
Error refused(const RegionRecord& region, const std::string& tenant, Refusal why);
// An opening ends: its home refuses the connection, or did not answer in time.
Error unopened(const RegionRecord& region, const std::optional<NoPath>& trouble, bool is_refused);
Error closed(const RegionRecord& region);
// The membership of a node ended that kept these pages.
Error left_behind(const RegionRecord& region, const Runs& kept);
// `self` has asked the home who has the page.
Error late(const RegionRecord& region, NodeId self, std::uint64_t page);

// Why copies are not made. `trouble`: what the home has met, "": nothing. `impossible`: no daemon
// takes any.
std::string why_too_few(const RegionRecord& record, const NodesView& view, std::string trouble, bool impossible);
Error too_few_copies(const RegionRecord& record, std::uint32_t fewest, std::uint32_t lacking, std::string_view why);

}  // namespace vmem::cluster::directory
