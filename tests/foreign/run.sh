#!/bin/bash
# Runs test suites that others wrote for drivers, each against a server directly and through
# Millrace, and compares: a test that passes directly must pass through Millrace.
#
#   run.sh [OPTION…] [SUITE…]
#
#   --family mysql|mariadb  default: both
#   --selection             what CI has the time for: each suite on one family, without slow tests
#   --logs DIR              default: a new folder, removed again when all went well
#
# The suites are fetched by name from their registries into ${MILLRACE_CACHE}/foreign; nothing of
# theirs is in this repository. A suite that cannot be had is SKIPPED, never passed. Each run has a
# private cluster of its own (a primary and two replicas, one a second behind), because suites
# change globals. Millrace is taken from MILLRACE_BIN, else from this repository's target folder; the
# sandbox from MILLRACE_LAB_BIN, else from beside it, else from the target folder.
#
# SUITE/differs.txt lists what may differ, a line each: FAMILY TEST # why. FAMILY is mysql, mariadb
# or both. A listed test that passes is told; where the reason begins with "sometimes", it is not.
#
# Exit status: 0 if nothing differed that is not listed, 1 if something did, 2 for bad usage, 3 if
# no suite could run.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${MILLRACE_CACHE:-$HOME/.cache/millrace}/foreign
all=(go-sql-driver mysql_async mysql mariadb-client-test)
families=(mysql mariadb) selection=all logs= suites=()
# What is run in CI, and on which family: all four drivers, both families.
declare -A selected=([go-sql-driver]=mysql [mysql_async]=mysql [mysql]=mariadb [mariadb-client-test]=mariadb)

usage() { sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --family) [[ ${2:-} == mysql || ${2:-} == mariadb ]] || usage; families=("$2"); shift ;;
        --selection) selection=some ;;
        --logs) [ $# -ge 2 ] || usage; logs=$2; shift ;;
        -*) usage ;;
        *) suites+=("$1") ;;
    esac
    shift
done
[ ${#suites[@]} -gt 0 ] || suites=("${all[@]}")
for suite in "${suites[@]}"; do
    [ -f "$here/$suite/suite.sh" ] || { echo "no suite '$suite'; there are: ${all[*]}" >&2; exit 2; }
done

say() { printf 'foreign: %s\n' "$*"; }
skipped_loudly() { printf 'SKIPPED: %s\n' "$*" >&2; skipped=$((skipped + 1)); }

. "$here/../clients/cluster.sh"
SUITE_PASSWORD=suite-pass # part of URLs
keep_logs=$logs
logs=${logs:-$(mktemp -d "${TMPDIR:-/tmp}/millrace-foreign.XXXXXX")}
mkdir -p "$logs" "$cache" || exit 2
millrace=$(find_millrace) || exit 2
lab=$(find_lab "$millrace") || exit 2
trap take_down EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0 ran=0

# Fetches a suite, unless that was done by these very scripts.
ensure_fetched() {
    local suite=$1 stamp suite_cache=$cache/$1
    stamp=$(cat "$here/$suite/suite.sh" "$here/rust-crate.sh" | sha256sum)
    [ "$(cat "$suite_cache/.ready" 2>/dev/null)" != "$stamp" ] || return 0
    say "fetching and building $suite"
    mkdir -p "$suite_cache"
    rm -f "$suite_cache/.ready"
    (. "$here/$suite/suite.sh" && fetch) >"$logs/$suite.fetch" 2>&1 || { tail -n 8 "$logs/$suite.fetch"; return 1; }
    printf '%s\n' "$stamp" >"$suite_cache/.ready"
}

# one_pass SUITE FAMILY direct|through: leaves sorted "TEST OUTCOME" lines beside the log
one_pass() {
    local suite=$1 family=$2 way=$3 suite_cache=$cache/$1 log=$logs/$1.$2.$3 port begun=$SECONDS
    local user=$SUITE_USER password=$SUITE_PASSWORD database=suites work globals=
    cluster_up "$family" || return 1
    work=$cluster_dir/work
    mkdir -p "$work"
    as_admin "GRANT ALL ON *.* TO $SUITE_USER WITH GRANT OPTION; CREATE DATABASE suites" || return 1
    [ "$family" = mysql ] || as_admin "REVOKE READ_ONLY ADMIN ON *.* FROM $SUITE_USER" || return 1
    (. "$here/$suite/suite.sh"; printf '%s' "$globals") >"$work/globals"
    globals=$(cat "$work/globals")
    if [ -n "$globals" ]; then
        for port in "${ports[@]}"; do
            MYSQL_PWD=admin-secret mariadb --no-defaults --host=127.0.0.1 --port="$port" --user=admin -e "$globals" || return 1
        done
    fi
    port=${ports[0]}
    if [ "$way" = through ]; then
        proxy_up "$family" || return 1
        port=$proxy_port
    fi
    (. "$here/$suite/suite.sh"; run_tests) >"$log" 2>&1
    (. "$here/$suite/suite.sh"; outcomes) <"$log" | awk '{ outcome = $1; $1 = ""; print substr($0, 2) "\t" outcome }' |
        LC_ALL=C sort -u >"$log.outcomes"
    cp "$logs/millrace-$family.log" "$log.millrace" 2>/dev/null
    take_down
    say "$suite on $family, $way: $(grep -c 'passed$' "$log.outcomes") passed, $(grep -c 'failed$' "$log.outcomes") failed in $((SECONDS - begun)) s"
}

# What the list says about FAMILY, as "TEST<tab>why".
listed() { sed -n "s/^\(both\|$2\) \(.*[^ ]\) *# *\(.*\)/\2\t\3/p" "$here/$1/differs.txt" 2>/dev/null; }

# Passed directly and not through, listed or not; and listed, but it passed.
compare() {
    awk -F'\t' -v suite="$1" -v family="$2" '
        FILENAME == ARGV[1] { why[$1] = $2; next }
        FILENAME == ARGV[2] { direct[$1] = $2; next }
        { through[$1] = $2 }
        END {
            for (test in direct) {
                if (direct[test] != "passed") continue
                if (through[test] == "passed") {
                    same++
                    if (test in why && why[test] !~ /^sometimes/) printf "%s on %s: %s passes again: take it off the list\n", suite, family, test
                } else if (test in why) {
                    listed++
                } else {
                    wrong++
                    printf "%s on %s: FAIL %s passes directly, and through Millrace it %s\n", suite, family, test, test in through ? through[test] : "did not run"
                }
            }
            printf "COUNT %d %d %d\n", same, listed, wrong
        }' <(listed "$1" "$2") "$logs/$1.$2.direct.outcomes" "$logs/$1.$2.through.outcomes"
}

run_suite() {
    local suite=$1 family=$2 same listed wrong
    if ! one_pass "$suite" "$family" direct || ! one_pass "$suite" "$family" through; then
        take_down
        say "FAIL cannot bring up a cluster of $family"
        failed=$((failed + 1))
        return
    fi
    compare "$suite" "$family" >"$logs/compared"
    grep -v '^COUNT' "$logs/compared"
    read -r _ same listed wrong < <(grep '^COUNT' "$logs/compared")
    # A suite of which nothing passed has not run.
    [ "$same" -gt 0 ] || wrong=$((wrong + 1))
    [ "$wrong" = 0 ] || evidence "$suite" "$family"
    printf '%s on %s: %d the same, %d differ as listed, %d differ\n' "$suite" "$family" "$same" "$listed" "$wrong"
    passed=$((passed + same)) failed=$((failed + wrong)) ran=$((ran + 1))
}

# The last lines of a log are often all that anybody gets to see.
evidence() { grep -n -E -A 3 'panicked at|--- FAIL|check failed' "$logs/$1.$2.through" | cut -c 1-200 | head -n 40; }

for suite in "${suites[@]}"; do
    if ! ensure_fetched "$suite"; then
        skipped_loudly "$suite: it cannot be had here"
        continue
    fi
    for family in "${families[@]}"; do
        [ "$selection" = all ] || [ "${selected[$suite]}" = "$family" ] || continue
        if [ "$family" = mysql ] && [ ! -x "${MILLRACE_CACHE:-$HOME/.cache/millrace}/mysql/bin/mysqld" ]; then
            skipped_loudly "$suite on MySQL: no unpacked MySQL in the cache"
            continue
        fi
        run_suite "$suite" "$family"
    done
done

if [ "$failed" = 0 ] && [ -z "$keep_logs" ]; then rm -rf "$logs"; else say "logs in $logs"; fi
echo "test result: $([ "$failed" = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed; 0 ignored"
[ "$failed" = 0 ] || exit 1
[ "$ran" -gt 0 ] || exit 3
