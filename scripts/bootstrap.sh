#!/usr/bin/env bash
# Installs missing packages for a build (Debian 12, Ubuntu 24.04): through apt, and cuda.h from the
# Python package index if there is no CUDA 13 toolkit. A second run changes nothing and is quick.
#   scripts/bootstrap.sh          what building and testing need
#   scripts/bootstrap.sh --lint   and what the format check and the linter need
#   scripts/bootstrap.sh --fuzz   and what scripts/fuzz.py needs
set -euo pipefail
cd "$(dirname "$0")/.."

# PACKAGE : command, header or path that shows that it is installed : what it is for
need=(
  "g++:g++:compiler"
  "cmake:cmake:build system"
  "ninja-build:ninja:build system"
  "ccache:ccache:makes repeated builds fast"
  "lld:ld.lld:links tests in a third of the time; a build does without"
  "git:git:the commit that results are labelled with"
  "pkg-config:pkg-config:test of the installed package"
  "python3:python3:test and release scripts"
  "libfmt-dev:fmt/format-inl.h:text formatting"
  "libspdlog-dev:spdlog/spdlog.h:logging"
  "libcli11-dev:CLI/CLI.hpp:command line of the vmem program"
  "nlohmann-json3-dev:nlohmann/json.hpp:JSON results"
  "libgtest-dev:gtest/gtest.h:tests"
  "libgmock-dev:gmock/gmock.h:tests"
  "libbenchmark-dev:benchmark/benchmark.h:micro-benchmarks"
  "libboost-dev:boost/version.hpp:intrusive and lock-free containers"
  "liburing-dev:liburing.h:disk I/O"
  "libxxhash-dev:xxhash.h:checksums"
  "liblz4-dev:lz4.h:fast compression of pages"
  "libzstd-dev:zstd.h:compression of pages"
  "libucx-dev:ucp/api/ucp.h:messages between nodes"
  "ucx-utils:ucx_perftest:the limit that the benchmark holds the network to"
  "libssl-dev:openssl/ssl.h:proofs and encryption between nodes"
  "openssl:openssl:certificates of tests"
  "libcurl4-openssl-dev:curl/curl.h:requests to etcd, the registry of a cluster"
  "etcd-server:etcd:tests of the registry, which start servers of their own"
  "libhwloc-dev:hwloc.h:NUMA nodes, PCIe and disks"
  "iproute2:ip:tests of partitions, in network namespaces"
)
if [[ "${1:-}" == --lint ]]; then
  need+=("clang-format-19:clang-format-19:format check" "clang-tidy-19:clang-tidy-19:linter"
    "universal-ctags:ctags:sizes of classes and functions" "doxygen:doxygen:API reference"
    "abigail-tools:abidw:changes of the C ABI")
elif [[ "${1:-}" == --fuzz ]]; then
  need+=("clang-19:clang++-19:compiler of fuzz targets" "llvm-19:llvm-symbolizer-19:names in stacks"
    "libclang-rt-19-dev:/usr/lib/llvm-19/lib/clang/19/lib/linux:libFuzzer and sanitizers of clang")
fi

fail() {
  printf 'bootstrap: %s\n' "$@" >&2
  exit 1
}

has() {
  case $1 in
    /*) [[ -e $1 ]] ;;
    *.h | *.hpp) [[ -e /usr/include/$1 || -e /usr/local/include/$1 || -e /usr/include/$(uname -m)-linux-gnu/$1 ]] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

has_cuda_header() {
  local folder
  for folder in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda/include /usr/include .deps/cuda/include; do
    grep -qsE '^#define CUDA_VERSION 1[3-9]' "$folder/cuda.h" && return
  done
  return 1
}

at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1) == "$2" ]]; }

# The package etcd-server starts and enables a service on port 2379, which nobody asked for here.
# While it is installed, a policy refuses the start (unless the machine has a policy of its own);
# then it is disabled.
policy=/usr/sbin/policy-rc.d
policy_is_ours=no
installs_etcd() { [[ " ${missing[*]} " == *" etcd-server "* ]]; }
refuse_etcd_service() {
  installs_etcd && [[ ! -e $policy ]] || return 0
  policy_is_ours=yes
  printf '#!/bin/sh\ncase "$*" in *etcd*) exit 101 ;; esac\n' | "${root[@]}" tee "$policy" >/dev/null
  "${root[@]}" chmod 755 "$policy"
}
forget_etcd_service() {
  [[ $policy_is_ours == no ]] || "${root[@]}" rm -f "$policy"
  policy_is_ours=no
  if installs_etcd && [[ -d /run/systemd/system ]]; then
    "${root[@]}" systemctl --quiet disable --now etcd 2>/dev/null || true
  fi
}

root=()
install_packages() {
  command -v apt-get >/dev/null || fail "apt-get is not there (known: Debian 12, Ubuntu 24.04). Install the equivalents of:" \
    "  ${missing[*]}"
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || fail "installing packages needs root, and sudo is not there. As root, run:" \
      "  apt-get install ${missing[*]}"
    root=(sudo)
  fi
  local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
  trap forget_etcd_service EXIT
  refuse_etcd_service
  # Package lists may be absent (containers) or stale: fetch them when a first try fails.
  "${install[@]}" >/dev/null 2>&1 && return
  "${root[@]}" apt-get update -qq && "${install[@]}" >/dev/null ||
    fail "apt-get could not install the packages (its message is above). Without network, install them beforehand:" \
      "  apt-get install ${missing[*]}"
}

missing=()
for line in "${need[@]}"; do
  IFS=: read -r package probe reason <<<"$line"
  has "$probe" && continue
  echo "bootstrap: missing $package ($reason)"
  missing+=("$package")
done
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "bootstrap: missing python3-pip (the wheel; cuda.h where there is no CUDA 13 toolkit)"
  missing+=(python3-pip)
fi
if ((${#missing[@]})); then
  install_packages
  forget_etcd_service
  trap - EXIT
  hash -r
fi

at_least "$(cmake --version | sed -n 's/^cmake version //p')" 3.25 || fail "cmake 3.25 or newer is needed: $(command -v cmake)"
if [[ -z ${CXX:-} ]]; then
  at_least "$(g++ -dumpfullversion)" 12 || fail "g++ 12 or newer is needed (C++23); set CXX to one, or use Debian 12 or Ubuntu 24.04"
fi

if ! has_cuda_header; then
  echo "bootstrap: fetching cuda.h (no CUDA 13 toolkit found) into .deps/cuda"
  download=$(mktemp -d)
  trap 'rm -rf "$download"' EXIT
  python3 -m pip download -q --retries 2 --no-deps --require-hashes --only-binary=:all: --platform manylinux2014_x86_64 \
    --dest "$download" -r scripts/cuda-headers.txt ||
    fail "the Python package index could not be reached. Install the CUDA 13 toolkit, or set CUDA_HOME to one, or put" \
      "  cuda.h into .deps/cuda/include"
  python3 -m zipfile -e "$download"/*.whl "$download/wheel"
  mkdir -p .deps/cuda
  rm -rf .deps/cuda/include
  mv "$download/wheel/nvidia/cu13/include" .deps/cuda/include
fi
