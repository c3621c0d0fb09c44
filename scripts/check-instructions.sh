#!/usr/bin/env bash
# Counts the instructions of Millrace's inner parts and fails when one takes over 5 % more than
# bench/instructions/counts.toml says; see bench/instructions/README.md.
#
#   scripts/check-instructions.sh                      every part
#   scripts/check-instructions.sh PART...              these parts only
#   scripts/check-instructions.sh --update [PART...]   write what was counted into the file
#
# Exit status: 0 fine, 1 a part grew or the file does not name it, 2 wrong usage, 3 skipped: no
# valgrind, another machine, or a part grew under another compiler than the file was made with.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
esac
if ! command -v valgrind >/dev/null; then
    printf '\n!!! No valgrind here: the instructions were NOT counted.\n'
    printf '!!! scripts/install-deps.sh test installs it.\n\n'
    exit 3
fi
# By the binary's name and not the package's: so the dependencies have the features that they have
# in `make build`, and are not built again.
cargo build --release --locked --bin millrace-instructions
exec python3 bench/instructions/check.py \
    "${CARGO_TARGET_DIR:-target}/release/millrace-instructions" "$@"
