#include "rdma/lending/remote_tier/first_contacts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/log.hpp"
#include "rdma/transport/socket_address.hpp"

namespace vmem::rdma {
namespace {

using Credentials = RemoteConfig::Credentials;

// Removes the name before the address, which --listen does not take: "gpu07/10.0.0.1:7000".
std::string needed_there(const std::string& address, Credentials credentials) {
  const std::string listen = address.substr(address.find('/') + 1);
  const auto parsed = SocketAddress::parse(listen);
  const bool other_machine = parsed && !parsed->is_loopback();
  switch (credentials == Credentials::user && other_machine ? Credentials::secret : credentials) {
    case Credentials::secret:
      return fmt::format(
          "`vmem daemon --listen {} --lend SIZE --secret FILE` has to run there, with the same secret and version",
          listen);
    case Credentials::certificates:
      return fmt::format(
          "`vmem daemon --listen {} --lend SIZE --certificates DIR` has to run there, with a certificate of the same "
          "authority, and the same version",
          listen);
    case Credentials::user:
      break;
  }
  return fmt::format("`vmem daemon --listen {} --lend SIZE` has to run there, with the same version", listen);
}

}  // namespace

Obstacle obstacle_of(int error, Obstacle otherwise) {
  switch (error) {
    case ECONNREFUSED:
      return Obstacle::nobody_listens;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ETIMEDOUT:
      return Obstacle::unreachable;
    default:
      return otherwise;
  }
}

void FirstContacts::add(const std::string& address) {
  const std::lock_guard lock(mutex_);
  peers_.push_back(address);
  contacts_.emplace_back();
}

void FirstContacts::reached(std::uint32_t node, const std::string& path) {
  const std::lock_guard lock(mutex_);
  contacts_[node] = {.state = Contact::State::reached, .path = path, .why = {}};
  changed_.notify_all();
}

void FirstContacts::failed(std::uint32_t node, const std::string& why, Obstacle obstacle) {
  const std::lock_guard lock(mutex_);
  if (contacts_[node].state == Contact::State::untried)
    contacts_[node] = {.state = Contact::State::failed, .path = {}, .why = why, .obstacle = obstacle};
  changed_.notify_all();
}

// Nothing says that the peer would refuse us: it is off, or cut off.
bool FirstContacts::is_off(const Contact& contact) {
  return contact.state == Contact::State::untried || contact.obstacle == Obstacle::nobody_listens ||
         contact.obstacle == Obstacle::unreachable;
}

void FirstContacts::wait_for_outcomes(std::unique_lock<std::mutex>& lock, std::uint64_t most_us) {
  const auto untried = [](const Contact& each) { return each.state == Contact::State::untried; };
  changed_.wait_for(lock, std::chrono::microseconds(most_us), [&] { return std::ranges::none_of(contacts_, untried); });
}

void FirstContacts::settle(std::uint64_t most_us) {
  std::unique_lock lock(mutex_);
  wait_for_outcomes(lock, most_us);
  for (std::size_t i = 0; i < contacts_.size(); ++i) {
    if (contacts_[i].state == Contact::State::reached) continue;
    VMEM_LOG_WARN("the cluster's node at {}: {}; the program starts without it, and uses it once it answers", peers_[i],
                  failure_words(peers_[i], contacts_[i]));
  }
}

Status FirstContacts::wait(std::uint64_t most_us, std::size_t absent) {
  std::unique_lock lock(mutex_);
  wait_for_outcomes(lock, most_us);
  const bool any =
      std::ranges::any_of(contacts_, [](const Contact& each) { return each.state == Contact::State::reached; });
  for (std::size_t i = 0; i < contacts_.size(); ++i) {
    if (contacts_[i].state == Contact::State::reached) continue;
    const std::string words = fmt::format("--remote {}: {}", peers_[i], failure_words(peers_[i], contacts_[i]));
    if (!any || absent == 0 || !is_off(contacts_[i])) return fail(VMEM_ERROR_INVALID_OPTION, words);
    --absent;
    VMEM_LOG_WARN("{}; the program starts without it, and uses it once it answers", words);
  }
  return {};
}

std::string FirstContacts::failure_words(const std::string& address, const Contact& contact) const {
  std::string why = contact.state == Contact::State::failed ? contact.why : "it did not answer in time";
  if (contact.obstacle == Obstacle::full) return why;
  if (contact.obstacle == Obstacle::nobody_listens)
    why =
        fmt::format("nothing listens there{} ({})", credentials_ == Credentials::user ? " without a secret" : "", why);
  return why + "; " + needed_there(address, credentials_);
}

std::string FirstContacts::path(std::uint32_t node) const {
  const std::lock_guard lock(mutex_);
  return contacts_[node].path;
}

}  // namespace vmem::rdma
