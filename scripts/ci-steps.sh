#!/usr/bin/env bash
# Runs the checks and suites of this repository, one step after the other.
#
#   scripts/ci-steps.sh test       all of them: what CI runs
#   scripts/ci-steps.sh check      the fast ones, for every day
#   scripts/ci-steps.sh NAME...    these steps only
#   scripts/ci-steps.sh list       the steps of `test`
#
# Each step says what it does and how long it took. The first that fails ends the
# run; the summary at the end says what passed, failed, was skipped or not reached,
# and its last line counts tests and steps: "N passed, N failed, N skipped".
#
# A step is skipped when it exits with status 3: something that it needs cannot be
# had on this machine. A test that lacks a server or tool prints "SKIPPED: what and
# why" past the test runner's capture; it then counts as skipped, not as passed, and
# the summary repeats the line, and what the step that failed says of it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

target=${CARGO_TARGET_DIR:-target}
logs=$target/steps
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# The suites run cargo's release build; what is shipped is the same, profile-guided.
export MILLRACE_BIN=${MILLRACE_BIN:-$(mkdir -p "$target" && cd "$target" && pwd)/release/millrace}

# --- The steps ------------------------------------------------------------------
# A step is a row here and a function run_NAME: name, limit in seconds, what it is.

steps_check=(
    "format|120|the code is formatted as rustfmt formats it"
    "clippy|1200|clippy finds nothing, in any target"
    "purity|300|the pure crates do no I/O, read no clock and know no runtime"
    "unit|1800|unit tests, properties and documentation examples"
)
steps_before=(
    "deps|900|real servers and clients to test with"
)
steps_after=(
    "deny|900|licences, bans, sources and advisories of the dependencies"
    "build|1200|the release binary"
    "tests|1200|the suites are built"
    "instructions|600|no inner part takes over 5 % more instructions than is written down"
    "readme|60|the documents' configurations are valid and their links lead somewhere"
    "demo|180|the demo: a cluster, Millrace and a checked workload"
    "demo-failover|180|the demo of a failover: the primary is killed under the workload"
)
steps_last=(
    "clients|700|applications in several languages, through Millrace"
    "foreign|900|test suites that others wrote for drivers, directly and through Millrace"
    "fuzz|1000|every fuzz target, briefly"
)

# Without MySQL (status 3) MariaDB is still there to test on; the tests that need
# MySQL then say so one by one.
run_deps() {
    scripts/install-deps.sh test || [ $? -eq 3 ]
    tests/clients/install.sh || printf 'clients that could not be installed will be skipped\n'
}

run_format() { cargo fmt --all --check; }
run_clippy() {
    cargo clippy --workspace --all-targets --locked -- -D warnings
    # The fuzz targets are a workspace of their own; that they still build is known here, not
    # only at the end of the run.
    CARGO_TARGET_DIR=fuzz/target/check cargo clippy --manifest-path fuzz/Cargo.toml --locked \
        --bins -- -D warnings
}
run_purity() { scripts/check-purity.sh; }
run_unit() { cargo test --workspace --exclude millrace-tests --locked; }
run_deny() { scripts/check-deny.sh; }
run_build() { cargo build --release --locked; }
run_tests() { cargo test --package millrace-tests --locked --no-run; }
run_instructions() { scripts/check-instructions.sh; }
run_demo() { "$(dirname "$MILLRACE_BIN")/millrace-lab" demo --for 15 --json; }
run_demo-failover() { "$(dirname "$MILLRACE_BIN")/millrace-lab" demo --failover --json; }
run_readme() { scripts/check-readme.sh; }
run_clients() { tests/clients/run.sh; }
run_foreign() { tests/foreign/run.sh --selection; }
run_fuzz() { scripts/check-fuzz.sh 20; }

# Every file and folder in tests/tests is a suite on real servers and a step of its own, so
# none can be forgotten. `suites alone`, `suites together`: those of that kind.
suites() {
    local file name kind
    for file in tests/tests/*.rs tests/tests/*/main.rs; do
        [ -e "$file" ] || continue
        name=${file%/main.rs}
        name=${name##*/}
        name=${name%.rs}
        kind=together
        ! runs_alone "suite-$name" || kind=alone
        [ "$kind" = "$1" ] || continue
        printf 'suite-%s|1800|%s\n' "$name" \
            "$(awk '/^\/\/! / { print substr($0, 5); exit }' "$file")"
    done
}

# Suites mostly wait for servers, so that several run side by side, but for those that keep the
# cores busy or look at times.
runs_alone() {
    case $1 in
        suite-differential | suite-torture | suite-serving | suite-watched | suite-needless) return 0 ;;
        suite-*) return 1 ;;
        *) return 0 ;;
    esac
}
lanes=${MILLRACE_TEST_LANES:-2}

run_suite() {
    local threads=1
    # They mostly wait: two families or topologies at once.
    case $1 in differential | discovery | failover | no_primary | vanishing) threads=2 ;; esac
    cargo test --package millrace-tests --test "$1" --locked -- \
        --test-threads "${MILLRACE_TEST_THREADS:-$threads}"
}

# After so many seconds fuzzing is left out, so that the run ends in time.
late=3600

# --- Running them ---------------------------------------------------------------

plan_of() {
    case $1 in
        check) printf '%s\n' "${steps_check[@]}" ;;
        test)
            printf '%s\n' "${steps_before[@]}" "${steps_check[@]}" "${steps_after[@]}"
            suites together
            suites alone
            printf '%s\n' "${steps_last[@]}"
            ;;
    esac
}

run_step() {
    case $1 in
        suite-*) run_suite "${1#suite-}" ;;
        *) "run_$1" ;;
    esac
}

rows_named() {
    local name row
    for name in "$@"; do
        row=$(plan_of test | awk -F'|' -v name="$name" '$1 == name')
        [ -n "$row" ] || {
            printf "no step '%s'; there are: %s\n" "$name" \
                "$(plan_of test | cut -d'|' -f1 | tr '\n' ' ')" >&2
            return 2
        }
        printf '%s\n' "$row"
    done
}

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# The step runs in a process group of its own (timeout makes one), so that what a
# hanging or failing suite leaves running is seen, and ended.
with_limit() {
    local limit=$1 child status
    shift
    timeout --kill-after=30 "$limit" bash "$0" --step "$@" </dev/null &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null; interrupted=yes' INT TERM
    wait "$child"
    status=$?
    if [ "$interrupted" = yes ]; then wait "$child"; status=130; fi
    trap - INT TERM
    end_leftovers "$child"
    return "$status"
}

end_leftovers() {
    local group=$1
    kill -0 -- "-$group" 2>/dev/null || return 0
    printf '!!! processes were left running, and are ended now:\n'
    pgrep -a -g "$group" | cut -c 1-120
    kill -TERM -- "-$group" 2>/dev/null
    sleep 2
    kill -KILL -- "-$group" 2>/dev/null
    return 0
}

# Adds up the lines that cargo test closes each binary with. A test that had to skip
# looks passed to cargo; it is moved over.
count_tests() {
    awk '/^test result: / {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) p += $i
                if ($(i + 1) ~ /^failed/) f += $i
                if ($(i + 1) ~ /^ignored/) s += $i
            }
        }
        /SKIPPED: / { moved++ }
        END {
            p = p > moved ? p - moved : 0
            printf "%d %d %d\n", p, f, s + moved
        }' "$1"
}

passed=0 failed=0 skipped=0 interrupted=no
summary=() skips='' failures=''

# The lines that say what failed: of the client suites, of cargo's tests and compiler, of the
# scripts; and how the step ended. Often a run's end is all that anybody gets to see of it.
failures_in() {
    grep -E -A 2 '^[^ ]+: FAIL|^FAIL|FAILED|panicked at|^error|^Error' "$1" | grep -v -e '^--$' |
        cut -c 1-240 | head -n 16
    printf '%s\n' '  ... and at its end:'
    tail -n 8 "$1" | cut -c 1-240
}

finish_step() {
    local name=$1 status=$2 seconds=$3 log=$4 p f s word
    read -r p f s < <(count_tests "$log")
    case $status in
        0) word=passed; [ $((p + s)) -gt 0 ] || p=1 ;;
        3) word=SKIPPED; s=$((s + 1)) ;;
        124 | 137) word='FAILED (out of time)'; f=$((f + 1)) ;;
        130) word=interrupted; f=$((f + 1)) ;;
        *) word=FAILED; [ "$f" -gt 0 ] || f=1 ;;
    esac
    case $status in 0 | 3) ;; *) failures+="$name:"$'\n'"$(failures_in "$log")"$'\n' ;; esac
    skips+=$(sed -n "s/.*SKIPPED: /$name: /p" "$log")
    [ -z "$skips" ] || skips=${skips%$'\n'}$'\n'
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-24s %-20s %7s   %d passed, %d failed, %d skipped' \
        "$name" "$word" "$(clock "$seconds")" "$p" "$f" "$s")")
    printf -- '--- %s: %s after %s\n' "$name" "$word" "$(clock "$seconds")"
}

run_row() {
    local name limit what began status log
    IFS='|' read -r name limit what <<<"$1"
    log=$logs/$name.log
    if [ $((SECONDS - run_began)) -gt "$late" ]; then
        if [ "$name" = fuzz ]; then
            printf '\n=== %s\nSKIPPED: %s, for lack of time\n' "$name" "$name" | tee "$log"
            finish_step "$name" 3 0 "$log"
            return 0
        fi
    fi
    printf '\n=== %s: %s   [%s so far]\n' "$name" "$what" "$(clock $((SECONDS - run_began)))"
    began=$SECONDS
    with_limit "$limit" "$name" > >(tee "$log") 2>&1
    status=$?
    sleep 0.1 # tee's last lines
    finish_step "$name" "$status" $((SECONDS - began)) "$log"
    [ "$status" -eq 0 ] || [ "$status" -eq 3 ]
}

# Steps side by side, as many as there are lanes. Each one's output comes when it has ended.
run_together() {
    local queue=("$@") row name limit what pid status good=yes
    local -A name_of=() began_of=()
    trap 'good=no; kill -TERM "${!name_of[@]}" 2>/dev/null' INT TERM
    while :; do
        while [ "$good" = yes ] && [ ${#queue[@]} -gt 0 ] && [ ${#name_of[@]} -lt "$lanes" ]; do
            IFS='|' read -r name limit what <<<"${queue[0]}"
            queue=("${queue[@]:1}")
            printf '\n=== %s: %s   [%s so far]\n' "$name" "$what" "$(clock $((SECONDS - run_began)))"
            with_limit "$limit" "$name" >"$logs/$name.log" 2>&1 &
            name_of[$!]=$name began_of[$!]=$SECONDS
        done
        [ ${#name_of[@]} -gt 0 ] || break
        pid=
        wait -n -p pid "${!name_of[@]}"
        status=$?
        [ -n "$pid" ] || continue
        name=${name_of[$pid]}
        printf '\n=== %s said:\n' "$name"
        cat "$logs/$name.log"
        finish_step "$name" "$status" $((SECONDS - began_of[$pid])) "$logs/$name.log"
        unset "name_of[$pid]"
        case $status in 0 | 3) ;; *) good=no ;; esac
    done
    trap - INT TERM
    for row in "${queue[@]}"; do summary+=("$(printf '%-24s not reached' "${row%%|*}")"); done
    [ "$good" = yes ]
}

print_summary() {
    local line
    printf '\n=== Summary   [%s in all]\n' "$(clock $((SECONDS - run_began)))"
    printf '%s\n' "${summary[@]}"
    if [ -n "$skips" ]; then
        printf '\n!!! Tests that could not run here:\n%s' "$skips"
    fi
    if [ -n "$failures" ]; then printf '\n!!! What failed:\n%s\n' "$failures"; fi
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
}

run_all() {
    local row together broken=no
    mkdir -p "$logs"
    run_began=$SECONDS
    while [ $# -gt 0 ]; do
        together=()
        while [ $# -gt 0 ] && [ "$lanes" -gt 1 ] && ! runs_alone "${1%%|*}"; do
            together+=("$1")
            shift
        done
        row=${1:-}
        if [ "$broken" = yes ]; then
            for row in "${together[@]}" ${1:+"$1"}; do
                summary+=("$(printf '%-24s not reached' "${row%%|*}")")
            done
        elif [ ${#together[@]} -gt 0 ] && ! run_together "${together[@]}"; then
            broken=yes
            continue
        elif [ -n "$row" ] && ! run_row "$row"; then
            broken=yes
        fi
        [ $# -eq 0 ] || shift
    done
    print_summary
    [ "$broken" = no ]
}

case ${1:-} in
    '' | -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
    --step) set -e; run_step "$2"; exit ;;
    list) plan_of test | awk -F'|' '{ printf "%-28s %s\n", $1, $3 }'; exit ;;
    test | check) mapfile -t rows < <(plan_of "$1") ;;
    *) rows_text=$(rows_named "$@") || exit; mapfile -t rows <<<"$rows_text" ;;
esac
run_all "${rows[@]}"
