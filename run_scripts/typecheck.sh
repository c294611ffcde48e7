#!/usr/bin/env bash
# Check types with mypy. The folders kernels/, topo/ and data/ are imported as mpisim.kernels and so
# on, which mypy does not learn from setuptools: show it a tree of links laid out as installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf build/typing
mkdir -p build/typing/mpisim
for entry in mpisim/* kernels topo data; do
    ln -s "$PWD/$entry" build/typing/mpisim/
done
cd build/typing
exec mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p mpisim
