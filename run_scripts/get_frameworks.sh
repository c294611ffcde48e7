#!/usr/bin/env bash
# Install the frameworks that tests/test_captured_frameworks.py captures, at the versions that docs/capture.md
# has figures of, into an environment of their own, build/frameworks: 5 minutes and 7 GB, at once if they
# are there. To see them from .venv:
#
#   bash run_scripts/get_frameworks.sh
#   PYTHONPATH=$(echo "$PWD"/build/frameworks/lib/python*/site-packages) pytest tests/test_captured_frameworks.py
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch="torch==2.14.1"
wanted=(accelerate==1.15.0 transformers==5.23.0 timm==1.0.31 diffusers==0.42.1 torchtitan==0.3.0
    megatron-core==0.16.1)
source_only=(deepspeed==0.19.8) # looks at PyTorch as it is built

stamp="$torch ${wanted[*]} ${source_only[*]}"
if [ "$(cat build/frameworks/installed 2> /dev/null)" = "$stamp" ]; then
    exit 0
fi
echo "Installing $stamp ..."
.venv/bin/python -m venv --clear build/frameworks
pip=(build/frameworks/bin/python -m pip --disable-pip-version-check --quiet install)
"${pip[@]}" "$torch" setuptools wheel
"${pip[@]}" "$torch" "${wanted[@]}"
DS_BUILD_OPS=0 "${pip[@]}" --no-build-isolation "$torch" "${source_only[@]}"
printf '%s\n' "$stamp" > build/frameworks/installed
