#!/usr/bin/env bash
# Holds Cargo.toml's rust-version true: the programs build with that compiler.
#
#   scripts/check-msrv.sh
#
# Adds the toolchain with rustup where it is not there. Exit status: 0 it builds, 3 skipped because
# that toolchain cannot be had, else it does not build.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! cargo "+$version" --version >/dev/null 2>&1; then
    printf 'msrv: adding Rust %s\n' "$version"
    timeout 300 rustup toolchain install "$version" --profile minimal || {
        printf '\n!!! Rust %s cannot be had here: rust-version was NOT checked.\n\n' "$version"
        exit 3
    }
fi
cargo "+$version" check --locked --target-dir "${CARGO_TARGET_DIR:-target}/msrv" -p millrace -p millrace-lab
printf 'msrv: millrace and millrace-lab build with Rust %s\n' "$version"
