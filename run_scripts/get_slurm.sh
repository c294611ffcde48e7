#!/usr/bin/env bash
# Install Slurm for the tests of batch jobs (tests/test_batch_systems.py), where that is a matter of
# seconds: as root on Debian or Ubuntu. Starts nothing. Elsewhere says why not, and those tests are
# skipped.
#
#   bash run_scripts/get_slurm.sh
set -euo pipefail

# srun starts MPI processes by PMIx if its plug-in finds libpmix.so, which Slurm's packages do not
# bring; of libpmix-dev, since the plug-in asks for no version.
packages=(slurmctld slurmd slurm-client munge libpmix-dev)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q '^install ok installed$' \
        || missing+=("$package")
done
if [ "${#missing[@]}" = 0 ]; then
    exit 0
elif ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "skipped: Slurm is not installed; it takes root and apt-get: apt-get install ${packages[*]}"
    exit 0
fi

echo "Installing ${missing[*]} ..."
# Their services are not wanted here: invoke-rc.d asks this script before it starts any.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}")
"${install[@]}" > /dev/null 2>&1 || { apt-get update --quiet=2 && "${install[@]}" > /dev/null; } || {
    echo "skipped: Slurm cannot be installed: apt-get install ${missing[*]} fails"
}
