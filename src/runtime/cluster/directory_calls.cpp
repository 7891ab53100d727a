#include "runtime/cluster/directory_calls.hpp"

#include <future>
#include <utility>

namespace vmem::runtime {
namespace {

// What `begin` passes to its callback.
template <class Value>
Value wait_for(const std::function<void(DirectoryCalls::Done<Value>)>& begin) {
  std::promise<Value> promise;
  std::future<Value> ended = promise.get_future();
  begin([promise = std::move(promise)](Value value) mutable { promise.set_value(std::move(value)); });
  return ended.get();
}

}  // namespace

DirectoryCalls::Published DirectoryCalls::publish(Publication what, std::uint64_t wait_us) {
  return wait_for<Published>([&](auto done) { publish(std::move(what), wait_us, std::move(done)); });
}

Result<DirectoryCalls::RegionRecord> DirectoryCalls::open(const std::string& name, std::uint64_t wait_us) {
  return wait_for<Result<RegionRecord>>([&](auto done) { open(name, wait_us, std::move(done)); });
}

Result<DirectoryCalls::Runs> DirectoryCalls::close(Serial serial, std::uint64_t wait_us) {
  return wait_for<Result<Runs>>([&](auto done) { close(serial, wait_us, std::move(done)); });
}

Status DirectoryCalls::remove(const std::string& name, std::uint64_t wait_us) {
  return wait_for<Status>([&](auto done) { remove(name, wait_us, std::move(done)); });
}

Status DirectoryCalls::leave(std::uint64_t wait_us) {
  return wait_for<Status>([&](auto done) { leave(wait_us, std::move(done)); });
}

}  // namespace vmem::runtime
