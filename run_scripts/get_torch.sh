#!/usr/bin/env bash
# Install PyTorch from PyPI into .venv for the tests of captured scripts (tests/test_capture*.py) and of
# recorded ones: 2 minutes and 5 GB, at once if it is there. Where pip cannot, says so and ends with 77;
# those tests are then skipped. Its oldest release is in pyproject.toml.
#
#   bash run_scripts/get_torch.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if .venv/bin/python -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)'; then
    exit 0
fi
wanted=$(.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"], sep="\n")')
echo "Installing $wanted ..."
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
timeout 420 "${pip[@]}" install "$wanted" || {
    # A half of it would be found, and fail to be imported.
    "${pip[@]}" uninstall --yes torch > /dev/null 2>&1 || true
    echo "skipped: PyTorch cannot be installed: pip install '$wanted' fails, or takes 7 minutes"
    exit 77
}
