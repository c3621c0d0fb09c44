#!/usr/bin/env bash
# Proves that the suites can fail: each rule that freshness and the cache rest on is broken on purpose, in a build that
# is not shipped, and a suite must notice.
#
#   scripts/broken-rules.sh --build        builds that program, and prints its path
#   scripts/broken-rules.sh [FAMILY]       breaks one rule after the other; FAMILY: mysql (default) or mariadb
#   RULES='keep hit' scripts/broken-rules.sh
#
# Status 1: a rule was broken and nothing failed, or the suites fail with no rule broken.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
program=$target/broken-rules/millrace

build() {
    # With the features that the suites' build has, so that the dependencies are not built once more.
    cargo build --workspace --locked --bin millrace --features millrace/broken-rules >&2
    mkdir -p "$target/broken-rules"
    cp "$target/debug/millrace" "$program"
    realpath "$program"
}

if [ "${1-}" = --build ]; then
    build
    exit
fi

family=${1:-mysql}
logs=$target/broken-rules/logs
mkdir -p "$logs"
MILLRACE_BIN=$(build)
export MILLRACE_BIN

# suite, name of its test, checks by words of their names
suite() {
    MILLRACE_TESTS_ONLY=$3 timeout 600 cargo test --workspace --locked --test "$1" -- --nocapture --test-threads 1 --exact "$2"
}

# The suites that must notice a rule: one of them is enough.
noticed() {
    case $1 in
        fill) suite cache "$family" 'never' ;;
        serve | seen) suite cache "$family" 'order' ;;
        keep | remove | hit | announced) suite cache "$family" 'registers' ;;
        triggers | cascades) suite consistency "by_table_$family" '' ;;
        *) printf 'no rule is called %s\n' "$1" >&2; exit 2 ;;
    esac
}

export MILLRACE_CACHE_SECONDS=${MILLRACE_CACHE_SECONDS:-30}
missed=0
for rule in ${RULES:-fill keep serve remove hit announced seen triggers cascades}; do
    log=$logs/$family-$rule.log
    if MILLRACE_BREAKS=$rule noticed "$rule" >"$log" 2>&1; then
        printf '%-10s NOT noticed; see %s\n' "$rule" "$log"
        missed=1
    else
        printf '%-10s noticed: %s\n' "$rule" "$(grep -m1 -E 'FAILED' "$log" | cut -c1-150)"
    fi
done
exit "$missed"
