// The secrets that a node shares with other nodes, each under a name. A node connects with the
// first secret of its file and accepts each of them. The file may change while the process runs.
//
//   # vmem secrets: NAME KEY
//   team-a#2 qL0x…=
//   team-a y3Vd…=
//
// A name is TENANT or TENANT#REST, so that a tenant can have several secrets, and replace them
// while its nodes run. A key is 32 random bytes in base64, as `vmem secret new` makes them.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/trust/crypto.hpp"
#include "rdma/trust/key_memory.hpp"

namespace vmem::rdma {

struct Secret {
  explicit Secret(std::string named) : name(std::move(named)) {}
  Key key() const;
  // The part of the name before '#'.
  std::string_view tenant() const noexcept { return std::string_view(name).substr(0, name.find('#')); }

  std::string name;
  KeyMemory memory{sizeof(Key)};
  std::uint64_t serial = 0;  // changes with the key
};

// A line for a secret file, with a new random key. Errors: INVALID_VALUE for an invalid name.
Result<std::string> make_secret_line(const Crypto& crypto, std::string_view name);

class Keyring;
using KeyringRef = std::shared_ptr<Keyring>;

// Thread: one at a time.
class Keyring {
 public:
  // Errors: INVALID_OPTION if the file cannot be read, if others may use it, or for an invalid
  // line, with its number.
  static Result<KeyringRef> open(std::string path);

  // The secret that this node connects with.
  const Secret& own() const noexcept { return secrets_.front(); }
  const Secret* find(std::string_view name) const noexcept;
  bool holds(std::uint64_t serial) const noexcept;
  // Reads the file again if it has changed; true if the secrets changed. If the file cannot be
  // used, logs the error and keeps the secrets.
  bool refresh();

 private:
  struct Version {  // of the file
    dev_t device = 0;
    ino_t inode = 0;
    off_t bytes = 0;
    timespec modified{}, changed{};
    bool operator==(const Version& other) const noexcept;
  };
  struct Content {
    std::vector<Secret> secrets;
    Version version;
  };
  static Result<Content> read(const std::string& path);
  static Result<std::vector<Secret>> parse(const std::string& path, std::string_view text);
  void adopt(Content content);

  explicit Keyring(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::vector<Secret> secrets_;  // never empty
  Version version_;
  std::uint64_t last_serial_ = 0;
  std::string refused_;  // the last error of refresh(), to log it once
};

}  // namespace vmem::rdma
