#!/bin/bash
# Runs the client suites, each plain and over TLS, a few at a time, and prints a table. Every run
# makes and drops a database of its own, so they do not disturb each other.
#
#   run.sh [OPTION…] [CLIENT…]
#
# Without an address it brings up a private cluster of each family (a primary and two replicas, one
# of them a second behind) with Millrace in front, runs everything through it and removes it again.
# With one, it runs against what answers there.
#
#   --family mysql|mariadb default: both; needed with an address
#   --direct               to the private cluster's primary, without Millrace: shows that a failure
#                          is not the suite's own
#   --host HOST            default 127.0.0.1
#   --port PORT
#   --socket PATH          over a Unix socket (clients that cannot are counted as skipped)
#   --user NAME            default app; an account that may create databases and users
#                          its password comes from MILLRACE_TEST_PASSWORD
#   --mode plain|tls|both  default both
#   --jobs N               suites at once, default 3
#   --logs DIR             default: a new folder, removed again when all went well
#   --require-all          a client that could not be installed is a failure
#
# Millrace is taken from MILLRACE_BIN, else from this repository's target folder; the sandbox from
# MILLRACE_LAB_BIN, else from beside it, else from the target folder.
# Exit status: 0 if every suite that ran passed, 1 if one failed, 2 for bad usage, 3 if none ran.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${MILLRACE_CACHE:-$HOME/.cache/millrace}/clients
all=(java python-mysqlclient python-pymysql cli-mysql cli-mariadb rust go node python-django python-sqlalchemy)
seconds_max=${MILLRACE_TEST_SUITE_SECONDS:-480}
host=127.0.0.1 port= user=${MILLRACE_TEST_USER:-app} socket= family= mode=both jobs=3 logs= require_all= direct=
clients=()

usage() { sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --host|--port|--user|--socket|--family|--mode|--jobs|--logs)
            [ $# -ge 2 ] || usage
            printf -v "${1#--}" '%s' "$2"
            shift ;;
        --require-all) require_all=1 ;;
        --direct) direct=1 ;;
        -*) usage ;;
        *) clients+=("$1") ;;
    esac
    shift
done
[[ -z $family || $family == mysql || $family == mariadb ]] || usage
case $mode in plain) modes=(plain) ;; tls) modes=(tls) ;; both) modes=(plain tls) ;; *) usage ;; esac
[ ${#clients[@]} -gt 0 ] || clients=("${all[@]}")
for c in "${clients[@]}"; do [ -x "$here/$c/run" ] || { echo "no client '$c'; known: ${all[*]}" >&2; exit 2; }; done

"$here/install.sh" "${clients[@]}"

if [ -z "$port$socket" ]; then
    . "$here/cluster.sh"
    through_clusters
    exit
fi
[ -n "$family" ] || usage

keep_logs=$logs
logs=${logs:-$(mktemp -d "${TMPDIR:-/tmp}/millrace-clients.XXXXXX")}
mkdir -p "$logs" || exit 2

# one CLIENT MODE: runs a suite and leaves its outcome in the logs folder
one() {
    local client=$1 mode=$2 log=$logs/$1.$2 begun=$SECONDS status
    if [ ! -e "$root/$client/.ready" ]; then
        echo "SKIPPED not installed" >"$log.outcome"
        return
    fi
    if [ -n "$socket" ] && [[ $client == java ]]; then
        echo "SKIPPED no Unix sockets" >"$log.outcome"
        return
    fi
    MILLRACE_TEST_HOST=$host MILLRACE_TEST_PORT=${port:-3306} MILLRACE_TEST_SOCKET=$socket MILLRACE_TEST_USER=$user \
        MILLRACE_TEST_PASSWORD=${MILLRACE_TEST_PASSWORD:-} MILLRACE_TEST_FAMILY=$family \
        MILLRACE_TEST_TLS=$([ "$mode" = tls ] && echo 1 || echo 0) \
        MILLRACE_TEST_DB="mc_$(tr -d - <<<"$client")_${mode}_$$" \
        timeout --kill-after=5 "$seconds_max" "$here/$client/run" >"$log.log" 2>&1 </dev/null
    status=$?
    if [ $status = 0 ]; then
        echo "passed $((SECONDS - begun)) $(tail -n 1 "$log.log")" >"$log.outcome"
    elif [ $status = 124 ] || [ $status = 137 ]; then
        echo "FAILED $((SECONDS - begun)) stopped after $seconds_max s; last: $(tail -n 1 "$log.log" | cut -c1-120)" >"$log.outcome"
    else
        echo "FAILED $((SECONDS - begun)) $(tail -n 1 "$log.log" | cut -c1-120)" >"$log.outcome"
    fi
}

begun=$SECONDS
for client in "${clients[@]}"; do
    for m in "${modes[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        one "$client" "$m" &
    done
done
wait

failed=0 skipped=0
printf '%-20s %-6s %-8s %5s  %s\n' client mode result s groups
for client in "${clients[@]}"; do
    for m in "${modes[@]}"; do
        read -r outcome took groups <"$logs/$client.$m.outcome" || outcome=FAILED
        case $outcome in
            SKIPPED) skipped=$((skipped + 1)); groups="$took $groups"; took=- ;;
            FAILED) failed=$((failed + 1)) ;;
        esac
        printf '%-20s %-6s %-8s %5s  %s\n' "$client" "$m" "$outcome" "$took" "$groups"
    done
done
grep -H '^FAIL' "$logs"/*.log 2>/dev/null | sed "s|^$logs/||; s|\.log:|: |"
# What a suite itself left out is said aloud too.
grep -h '^skip' "$logs"/*.log 2>/dev/null | sort | uniq -c | sed 's/^ */skipped groups: /'
[ $skipped = 0 ] || echo "WARNING: $skipped suites did not run at all (see SKIPPED above)"
total=$((${#clients[@]} * ${#modes[@]}))
printf '%s: %d passed, %d failed, %d skipped in %d s' "$family" $((total - failed - skipped)) $failed $skipped $((SECONDS - begun))
if [ $failed = 0 ] && [ -z "$keep_logs" ]; then rm -rf "$logs"; printf '\n'; else printf '; logs in %s\n' "$logs"; fi
[ $skipped -lt $total ] || exit 3
[ $failed = 0 ] && { [ -z "$require_all" ] || [ $skipped = 0 ]; }
