#!/usr/bin/env bash
# dist/vmem-VERSION-py3-none-linux_x86_64.whl, what `pip install .` installs, once scripts/check_wheel.py has found that it works.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Compiler, warnings and depth of the folder are the release build's, so that ccache has the objects of one for the other.
export CC=${CC:-cc} CXX=${CXX:-c++}
options=(--config-settings=build-dir=build/wheel --config-settings=cmake.define.VMEM_WERROR=ON)
# Where the build's requirements are installed, no network is needed.
if python3 -c 'import scikit_build_core' 2>/dev/null; then options+=(--no-build-isolation); fi
python3 -m pip wheel . --quiet --no-deps --wheel-dir "$work" "${options[@]}"

scripts/check_wheel.py "$work"/*.whl
mkdir -p dist
mv "$work"/*.whl dist/
