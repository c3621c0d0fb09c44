#!/usr/bin/env bash
# Builds what it needs and measures; see bench/README.md. Options go to figures.py.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v sysbench >/dev/null || { echo "no sysbench: run scripts/install-deps.sh bench" >&2; exit 1; }
cargo build --release --locked -p millrace -p millrace-bench
exec python3 bench/figures.py "$@"
