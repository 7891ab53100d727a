// Sizes of requests to a disk. The kernel splits a request that exceeds the device's maximum size
// or segment count: of 1 MiB in 4 KiB pages, a device with 254 segments gets 1016 KiB and then 8
// KiB, and the second costs about as much as the first. So requests are as large as the device
// takes unsplit, and all requests of a page have about the same size.
#pragma once

#include <cstdint>
#include <string>

namespace vmem::tiers {

inline constexpr std::uint32_t kRequestBytesMax = 1u << 20;  // larger: no gain, more latency

// The largest unsplit request: a multiple of 4 KiB, at most `most`. `most` for unknown devices.
std::uint32_t uncut_request_bytes(int file, std::uint32_t most);
// The same from a device's limits, which are files in directory `queue`.
std::uint32_t uncut_request_bytes(const std::string& queue, std::uint32_t most);

// Size of each request for `bytes`; the last request may be smaller.
std::uint32_t even_request_bytes(std::uint64_t bytes, std::uint32_t most);

}  // namespace vmem::tiers
