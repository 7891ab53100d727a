#include "tools/cluster/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"

namespace vmem::tools::local_cluster {
namespace {

using nlohmann::json;

constexpr std::uint64_t kVersion = 1;

json json_of(const ManagedProcess& process) {
  return {
      {"name", process.name}, {"pid", process.id.pid}, {"started", process.id.started}, {"command", process.command}};
}

std::unexpected<Error> damaged(const std::string& path, const std::string& why) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} is damaged ({}), so it cannot be said which processes belong to the cluster; end those "
                          "of `ps -fu $USER | grep -e etcd -e 'vmem daemon'` that do, and remove its folder",
                          path, printable(why)));
}

// A name becomes a file's, and a pid is signalled: 0, -1 and others would name whole groups.
bool is_usable(const ManagedProcess& process, std::size_t place) {
  const std::string expected = place == 0 ? kEtcdName : node_name(static_cast<std::uint32_t>(place));
  return process.name == expected && process.id.pid > 1;
}

template <class Number>
Number number(const json& fields, const char* name) {
  const json& value = fields.at(name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<Number>::max())
    throw json::out_of_range::create(401, fmt::format("{} is no number in its range", name), &value);
  return value.get<Number>();
}

ManagedProcess read_process(const json& fields) {
  ManagedProcess process;
  fields.at("name").get_to(process.name);
  process.id.pid = number<std::int32_t>(fields, "pid");
  process.id.started = number<std::uint64_t>(fields, "started");
  fields.at("command").get_to(process.command);
  return process;
}

State read_fields(const json& fields) {
  State state;
  fields.at("boot").get_to(state.boot);
  fields.at("address").get_to(state.address);
  state.client_port = number<std::uint16_t>(fields, "client_port");
  state.peer_port = number<std::uint16_t>(fields, "peer_port");
  state.nodes = number<std::uint32_t>(fields, "nodes");
  state.memory_bytes = number<std::uint64_t>(fields, "memory_bytes");
  fields.at("made_folder").get_to(state.made_folder);
  fields.at("started").get_to(state.started);
  for (const json& each : fields.at("processes")) state.processes.push_back(read_process(each));
  return state;
}

}  // namespace

std::string node_name(std::uint32_t number) { return fmt::format("n{}", number); }

std::vector<std::string> own_files(std::uint32_t nodes) {
  std::vector<std::string> names{kEtcdName, log_of(kEtcdName)};
  for (std::uint32_t number = 1; number <= nodes; ++number) names.push_back(log_of(node_name(number)));
  return names;
}

std::string text_of(const State& state) {
  json processes = json::array();
  for (const ManagedProcess& each : state.processes) processes.push_back(json_of(each));
  const json fields{{"version", kVersion},
                    {"boot", state.boot},
                    {"address", state.address},
                    {"client_port", state.client_port},
                    {"peer_port", state.peer_port},
                    {"nodes", state.nodes},
                    {"memory_bytes", state.memory_bytes},
                    {"made_folder", state.made_folder},
                    {"started", state.started},
                    {"processes", processes}};
  return fields.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<State> parse_state(const std::string& path, const std::string& text) {
  try {
    const json fields = json::parse(text);
    if (const auto version = number<std::uint64_t>(fields, "version"); version != kVersion)
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("{} is of version {}, and this vmem knows version {} only; use the vmem that started the "
                              "cluster",
                              path, version, kVersion));
    State state = read_fields(fields);
    if (state.nodes > kMostNodes || state.processes.size() > state.nodes + 1u)
      return damaged(path, fmt::format("it has {} processes for {} nodes", state.processes.size(), state.nodes));
    for (std::size_t place = 0; place < state.processes.size(); ++place)
      if (!is_usable(state.processes[place], place))
        return damaged(path, fmt::format("its process {} has a wrong name or pid", place));
    return state;
  } catch (const json::exception& error) {
    return damaged(path, error.what());
  }
}

Result<std::optional<State>> read_state(const Folder& folder) {
  VMEM_ASSIGN(const auto text, folder.read(kStateFile));
  if (!text) return std::nullopt;
  VMEM_ASSIGN(State state, parse_state(folder.file(kStateFile), *text));
  return state;
}

Status write_state(const Folder& folder, const State& state) { return folder.write(kStateFile, text_of(state)); }

bool lives(const State& state, const ManagedProcess& process) { return state.boot == this_boot() && lives(process.id); }

}  // namespace vmem::tools::local_cluster
