#include <filesystem>

#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/folder_store.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

struct ServedWorld {
  ServedWorld() { daemon.start(); }
  Registry& client(int i) { return i == 0 ? *a : *b; }
  void pass() {
    daemon.clock.advance(kSecondUs / 10);
    daemon.server->step();
  }

  ServedDaemon daemon;
  GoodChannel to_a{daemon}, to_b{daemon};
  std::unique_ptr<ServedRegistry> a = served_client(daemon.clock, to_a, 1), b = served_client(daemon.clock, to_b, 2);
};

// The deadline is far beyond what repetitions need.
struct LossyWorld {
  LossyWorld() { daemon.start(); }
  Registry& client(int i) { return i == 0 ? *a : *b; }
  void pass() {
    daemon.clock.advance(5'000);
    daemon.server->step();
  }

  ServedDaemon daemon;
  const Weather weather{.lost = 200, .doubled = 200, .late = 100};
  BadChannel to_a{daemon, weather, 11}, to_b{daemon, weather, 12};
  std::unique_ptr<ServedRegistry> a = served_client(daemon.clock, to_a, 1, 900 * kSecondUs),
                                  b = served_client(daemon.clock, to_b, 2, 900 * kSecondUs);
};

// A server that writes to a directory.
struct FolderWorld {
  FolderWorld() {
    auto opened = FolderStore::open(path);
    EXPECT_TRUE(opened) << opened.error().message;
    store = *std::move(opened);
    daemon.store = store.get();
    daemon.start();
  }
  ~FolderWorld() { std::filesystem::remove_all(path); }
  FolderWorld(const FolderWorld&) = delete;
  FolderWorld& operator=(const FolderWorld&) = delete;
  Registry& client(int i) { return i == 0 ? *a : *b; }
  void pass() {
    daemon.clock.advance(kSecondUs / 10);
    daemon.server->step();
  }

  const std::string path = new_folder();
  std::unique_ptr<FolderStore> store;
  ServedDaemon daemon;
  GoodChannel to_a{daemon}, to_b{daemon};
  std::unique_ptr<ServedRegistry> a = served_client(daemon.clock, to_a, 1), b = served_client(daemon.clock, to_b, 2);
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Served, RegistryConformance, ServedWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(ServedLossy, RegistryConformance, LossyWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(ServedFolder, RegistryConformance, FolderWorld);

}  // namespace vmem::cluster
