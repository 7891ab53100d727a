#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/file_descriptor.hpp"
#include "bench/exit_code.hpp"
#include "rdma/trust/keyring.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

struct Arguments {
  std::string file;
  std::string identity = "cluster";
};

Result<std::string> make_line(const std::string& identity) {
  VMEM_ASSIGN(const rdma::CryptoRef crypto, rdma::Crypto::load());
  return rdma::make_secret_line(*crypto, identity);
}

Status write(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(VMEM_ERROR_INTERNAL, std::strerror(errno), errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

int refuse(int code, std::string_view why) {
  fmt::print(stderr, "vmem secret new: {}\n", why);
  return code;
}

int make_secret(const Arguments& arguments) {
  const auto line = make_line(arguments.identity);
  if (!line) return refuse(bench::kExitBadOptions, line.error().message);
  if (arguments.file == "-") {
    const Status written = write(STDOUT_FILENO, *line);
    return written ? bench::kExitOk : refuse(bench::kExitFailed, written.error().message);
  }
  const char* const path = arguments.file.c_str();
  const FileDescriptor file(::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file && errno == EEXIST)
    return refuse(bench::kExitBadOptions,
                  fmt::format("{} exists, and is left as it is; add a secret to it with `vmem secret new - --identity "
                              "NAME >> {}`",
                              path, path));
  if (!file) return refuse(bench::kExitBadOptions, fmt::format("{}: {}", path, std::strerror(errno)));
  const Status written = write(file.get(), *line);
  if (written && ::fsync(file.get()) == 0) return bench::kExitOk;
  const int code = written ? errno : written.error().native;
  ::unlink(path);
  return refuse(bench::kExitFailed, fmt::format("{}: {}", path, std::strerror(code)));
}

}  // namespace

Command add_secret(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* const make = app.add_subcommand("new", "Make a file with a secret of 256 random bits");
  make->add_option("FILE", arguments->file, "Where it goes, for its owner only; - for standard output")->required();
  make->add_option("--identity", arguments->identity,
                   "The secret's name: TENANT, or TENANT#2, TENANT#3 and so on for further secrets of one tenant")
      ->type_name("NAME")
      ->capture_default_str();
  app.require_subcommand(1);
  app.footer(
      "A file holds a secret a line. A node connects with its first one and accepts all; it reads the file again when "
      "it changes. To replace the secret NAME: add NAME#2 below it on all nodes, then move that to the top on all, "
      "then take NAME out: connections that it proved end, and are made again with NAME#2. No page is lost, since both "
      "are secrets of one tenant. A name with another part before '#' is another tenant, who gets none of its pages.");
  return [arguments] { return make_secret(*arguments); };
}

}  // namespace vmem::tools
