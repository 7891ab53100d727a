// Several state machines share one registry: each keeps a RegistryCall for its request and asks it
// for the reply.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

class RegistryCalls;

// A posted request. Destroying it drops the reply; the request may be carried out all the same.
class RegistryCall {
 public:
  RegistryCall() = default;
  RegistryCall(RegistryCalls& calls, RequestId id, std::uint64_t sent_us)
      : calls_(&calls), id_(id), sent_us_(sent_us) {}
  ~RegistryCall() { drop(); }
  RegistryCall(RegistryCall&& other) noexcept;
  RegistryCall& operator=(RegistryCall&& other) noexcept;

  bool pending() const noexcept { return calls_ != nullptr; }  // posted, and the reply not taken
  std::uint64_t sent_us() const noexcept { return sent_us_; }  // kept after the reply was taken
  std::optional<Reply> take();
  void drop() noexcept;

 private:
  RegistryCalls* calls_ = nullptr;
  RequestId id_{};
  std::uint64_t sent_us_ = 0;
};

// Outlives its Calls.
class RegistryCalls {
 public:
  RegistryCalls(Registry& registry, const Clock& clock) : registry_(registry), clock_(clock) {}
  RegistryCalls(const RegistryCalls&) = delete;
  RegistryCalls& operator=(const RegistryCalls&) = delete;

  RegistryCall post(RegistryRequest request);
  // Fetches replies; returns whether one came that a RegistryCall waits for.
  bool poll();
  const Clock& clock() const noexcept { return clock_; }

  // For RegistryCall.
  std::optional<Reply> take(RequestId id);
  void drop(RequestId id) noexcept;

 private:
  Registry& registry_;
  const Clock& clock_;
  std::unordered_map<std::uint64_t, std::optional<Reply>> waiting_;  // by request
  std::vector<Reply> replies_;
};

// Whether the registry did not answer. Its client logs that, so that those who ask do not.
inline bool is_away(const Error& error) { return error.status == VMEM_ERROR_TIMEOUT; }

// For replies to reads of one key: the record with exactly this key, or null.
const Record* find_record(const Read& read, std::string_view key);

}  // namespace vmem::cluster
