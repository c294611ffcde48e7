#!/usr/bin/env bash
# Install Chromium for the tests of report pages (tests/test_page_browser.py, test_page_screens.py),
# where that is a matter of seconds: as root on Debian or Ubuntu. Elsewhere says why not, and those
# tests are skipped.
#
#   bash run_scripts/get_browser.sh
set -euo pipefail

for browser in chromium chromium-browser google-chrome; do
    if command -v "$browser" > /dev/null; then
        exit 0
    fi
done
if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "skipped: no Chromium is installed; it takes root and apt-get: apt-get install chromium"
    exit 0
fi

echo "Installing chromium ..."
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes --quiet=2 --no-install-recommends chromium fonts-dejavu-core)
"${install[@]}" > /dev/null 2>&1 || { apt-get update --quiet=2 && "${install[@]}" > /dev/null; } || {
    echo "skipped: Chromium cannot be installed: apt-get install chromium fails"
}
