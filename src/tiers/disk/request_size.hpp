// How large requests to a disk are to be. The kernel cuts a request that is larger than the device takes, or whose memory is in more
// pieces than it takes: of a MiB of 4 KiB pages a device with 254 segments gets 1016 KiB and then 8 KiB, and the second costs about what the
// first does. So requests are as large as goes through uncut, and all of a page about the same.
#pragma once

#include <cstdint>
#include <string>

namespace vmem::tiers {

inline constexpr std::uint32_t kRequestBytesMax = 1u << 20;  // larger ones gain nothing, and come back later

// A multiple of 4 KiB, at most `most`; that much where the file system does not say which device it is on.
std::uint32_t uncut_request_bytes(int file, std::uint32_t most);
// The same by a device's limits, which are files in `queue`.
std::uint32_t uncut_request_bytes(const std::string& queue, std::uint32_t most);

// The size of the requests that `bytes` take, the last of which may be smaller.
std::uint32_t even_request_bytes(std::uint64_t bytes, std::uint32_t most);

}  // namespace vmem::tiers
