#!/bin/sh
# Make a minimal Debian root that systemd boots in a container: systemd, python3, mosquitto, nothing of this project.
#
#   tests/appliance/root.sh TAR [SUITE]     SUITE: bookworm (default) or trixie
#
# Needs root, mmdebstrap and a mirror; takes a minute and 250 MB. The tar is made once and unpacked for each test
# (`tar -C ROOT -xf TAR`), so a test starts from a root that no other test has touched. Boot it with
# `systemd-nspawn -b -D ROOT --register=no --keep-unit --console=pipe`.
set -eu
tar=$1
suite=${2:-bookworm}
packages=systemd,systemd-sysv,dbus,python3,mosquitto,iproute2
[ -e "$tar" ] && exit 0
mkdir -p "$(dirname "$tar")"
mmdebstrap --variant=minbase --include="$packages" "$suite" "$tar.part"
mv "$tar.part" "$tar"
