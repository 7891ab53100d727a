#!/usr/bin/env bash
# Writes dist/vmem_gpu-VERSION-py3-none-manylinux_GLIBC_x86_64.whl, which `pip install .` would
# install, after scripts/check_wheel.py has tested it. auditwheel finds the platform it runs on.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The same compiler, warnings and depth of the folder as in the release build: ccache then has the
# objects.
export CC=${CC:-cc} CXX=${CXX:-c++}
options=(--config-settings=cmake.define.VMEM_WERROR=ON)
# Where the build's requirements are installed, no network is needed.
if python3 -c 'import scikit_build_core' 2>/dev/null; then options+=(--no-build-isolation); fi
python3 -m pip wheel . --quiet --no-deps --wheel-dir "$work" "${options[@]}"

# auditwheel only names the platform: the wheel is self-contained, so there is nothing to patch.
audit=build/auditwheel
if ! PYTHONPATH=$audit python3 -c 'import auditwheel' 2>/dev/null; then
  python3 -m pip install --quiet --root-user-action=ignore --target "$audit" 'auditwheel>=6.8'
fi
PYTHONPATH=$audit python3 -m auditwheel repair --patcher none --wheel-dir "$work/tagged" "$work"/*.whl
scripts/check_wheel.py "$work"/tagged/*.whl
mkdir -p dist
mv "$work"/tagged/*.whl dist/
