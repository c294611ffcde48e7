#!/usr/bin/env bash
# Install torchtitan from PyPI, with what it needs but for PyTorch, which is .venv's, into build/torchtitan: a
# minute and 0.5 GB, at once if it is there. Tests of tests/test_captured_frameworks.py find it by
#
#   bash run_scripts/get_torchtitan.sh
#   PYTHONPATH=$(echo "$PWD"/build/torchtitan/lib/python*/site-packages) pytest tests/test_captured_frameworks.py
#
# Where there is no PyTorch (get_torch.sh), or pip cannot install it, says so and ends with 77: its tests
# are then skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wanted=$(grep -o 'torchtitan==[0-9.]*' run_scripts/get_frameworks.sh) # the version of docs/capture.md
if [ "$(cat build/torchtitan/installed 2> /dev/null)" = "$wanted" ]; then
    exit 0
fi
if ! .venv/bin/python -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)'; then
    echo "skipped: torchtitan, without PyTorch"
    exit 77
fi
echo "Installing $wanted ..."
.venv/bin/python -m venv --clear build/torchtitan
# pip finds PyTorch where this file points to, and does not fetch another.
for packages in build/torchtitan/lib/python*/site-packages; do
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/venv.pth"
done
timeout 420 build/torchtitan/bin/python -m pip --disable-pip-version-check --quiet install "$wanted" || {
    rm -rf build/torchtitan
    echo "skipped: torchtitan cannot be installed: pip install '$wanted' fails, or takes 7 minutes"
    exit 77
}
printf '%s\n' "$wanted" > build/torchtitan/installed
