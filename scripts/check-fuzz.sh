#!/usr/bin/env bash
# Runs each fuzz target briefly, from its corpus: enough to see that it still
# builds, and that nothing near the corpus crashes.
#
#   scripts/check-fuzz.sh [SECONDS]      seconds for each target (default 20)
#
# Needs a nightly toolchain (for the sanitizer); installs cargo-fuzz into cargo's
# home when it is not there. Exit status: 0 fine, 3 skipped because there is no
# nightly toolchain, else a target crashed or did not build.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-20}

if ! cargo +nightly --version >/dev/null 2>&1; then
    printf '\n!!! No nightly Rust toolchain here: the fuzz targets were NOT run.\n'
    printf '!!! rustup toolchain install nightly --profile minimal\n\n'
    exit 3
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    printf 'fuzz: installing cargo-fuzz (once)\n'
    cargo install --quiet --locked --debug cargo-fuzz
fi

mapfile -t targets < <(cargo +nightly fuzz list)
[ ${#targets[@]} -gt 0 ] || { printf 'fuzz: there is no target in fuzz/\n'; exit 1; }

# Prints libFuzzer's closing line only, and everything when something was found.
run_target() {
    local target=$1 log=$2.log
    shift
    if ! cargo +nightly fuzz run "$target" "$@" -- -max_total_time="$seconds" \
        -rss_limit_mb=2048 -timeout=10 >"$log" 2>&1; then
        tail -n 100 "$log"
        printf 'fuzz: %s FAILED; the input is in fuzz/artifacts/%s\n' "$target" "$target"
        return 1
    fi
    grep '^Done' "$log"
}

# Found inputs go to a folder of their own, so that a run leaves the tree clean.
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
printf 'fuzz: building %d targets\n' ${#targets[@]}
cargo +nightly fuzz build
for target in "${targets[@]}"; do
    printf 'fuzz: %s for %s s\n' "$target" "$seconds"
    mkdir -p "$found/$target"
    seeds=()
    [ -d "fuzz/corpus/$target" ] && seeds=("fuzz/corpus/$target")
    [ -d "fuzz/seeds/$target" ] && seeds+=("fuzz/seeds/$target")
    run_target "$target" "$found/$target" "${seeds[@]}"
done
printf 'fuzz: %d targets, no crash\n' ${#targets[@]}
