#!/usr/bin/env bash
# Runs the unit tests of the pure crates on 64-bit ARM, under emulation.
#
#   scripts/check-arm64.sh
#
# The program as a whole is not built here yet: what differs between machines is in these crates (byte
# order, alignment, character signs), and the rest takes long to compile.
#
# Adds the target with rustup. Needs from Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and
# qemu-user-static. Exit status: 0 all passed, 3 skipped because one of these cannot be had, else
# something did not build or pass.
set -euo pipefail
cd "$(dirname "$0")/.."

triple=aarch64-unknown-linux-gnu

skip() {
    printf '\n!!! %s: 64-bit ARM was NOT checked.\n\n' "$1"
    exit 3
}
command -v aarch64-linux-gnu-gcc >/dev/null ||
    skip 'no aarch64-linux-gnu-gcc (apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)'
command -v qemu-aarch64-static >/dev/null || skip 'no qemu-aarch64-static (apt-get install qemu-user-static)'
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] ||
    timeout 300 rustup target add "$triple" || skip "no Rust library for $triple"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
exec cargo test --locked --target "$triple" --lib \
    -p millrace-protocol -p millrace-sql -p millrace-topology
