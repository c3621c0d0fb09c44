#!/usr/bin/env bash
# Runs the checks and suites of this repository, several side by side.
#
#   scripts/ci-steps.sh test       all of them: what CI runs
#   scripts/ci-steps.sh check      the fast ones, for every day
#   scripts/ci-steps.sh NAME...    these steps only
#   scripts/ci-steps.sh list       the steps of `test`
#
# Each step says what it does, how long it took and how much CPU. When one fails, those that run
# are awaited and no further one begins; the summary at the end says what passed, failed, was
# skipped or not reached, and its last line counts tests and steps: "N passed, N failed, N skipped".
#
# MILLRACE_TEST_LANES says how many steps run side by side (default 3; 1: one after the other).
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
root=$(mkdir -p "$target" && cd "$target" && pwd)
export MILLRACE_BIN=${MILLRACE_BIN:-$root/release/millrace}
export MILLRACE_LAB_BIN=${MILLRACE_LAB_BIN:-$root/debug/millrace-lab}

# --- The steps ------------------------------------------------------------------
# A step is a row here and a function run_NAME: name, limit in seconds, how it runs, the steps
# that it needs, what it is. How: `beside` others; `alone`, because it looks at times or keeps the
# cores busy; `spare`, beside others and with what CPU they leave.

format="format|120|beside||the code is formatted as rustfmt formats it"
clippy="clippy|1200|beside||clippy finds nothing, in any target"
purity="purity|300|beside||the pure crates do no I/O, read no clock and know no runtime; files, types and sentences keep to their limits"
unit="unit|1800|beside|tests|unit tests, properties and documentation examples"
steps_check=("$format" "$clippy" "$purity" "$unit")
# Two builds in one folder would wait for each other, so that the second needs the first.
steps_build=(
    "$format"
    "build|1500|beside||the release binary, and what counts its instructions"
    "$clippy"
    "deps|1500|beside||real servers and clients to test with"
    "tests|1500|beside|clippy|unit tests, suites and the lab are built"
    "$purity"
    "$unit"
)
steps_beside=(
    "clients|1800|beside|deps build tests|applications in several languages, through Millrace"
    "follower|900|beside|deps tests|the follower of the binary log, on real servers: what it tells the cache of each kind of change"
    "readme|60|beside|build|the documents' configurations are valid and their links lead somewhere"
    "deny|900|beside||licences, bans, sources and advisories of the dependencies"
    "fuzz|2400|spare|tests build|every fuzz target, briefly"
)
steps_alone=(
    "instructions|600|alone|deps build|no inner part takes over 5 % more instructions than is written down"
    "foreign|900|alone|deps build tests|test suites that others wrote for drivers, directly and through Millrace"
    "demo|180|alone|deps build tests|the demo: a cluster, Millrace and a checked workload"
    "demo-failover|180|alone|deps build tests|the demo of a failover: the primary is killed under the workload"
    "demo-cache|180|alone|deps build tests|the demo of the cache: one load with it off and on, checked"
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
    # No target of `--all-targets`: it has a step of its own.
    cargo clippy --package millrace-backend --test follower --locked -- -D warnings
    # The fuzz targets are a workspace of their own; that they still build is known here, not
    # only at the end of the run.
    CARGO_TARGET_DIR=fuzz/target/check cargo clippy --manifest-path fuzz/Cargo.toml --locked \
        --bins -- -D warnings
}
run_purity() { scripts/check-purity.sh && scripts/measure-code.py --check; }
# With the features that the whole workspace has, as everything of the dev profile here: else the
# dependencies are built once more.
run_unit() { cargo test --workspace --exclude millrace-tests --locked; }
run_deny() { scripts/check-deny.sh; }
# In one go, so that the two are linked side by side, and with the features that
# check-instructions.sh and `make build` ask for: else each would build all of it again.
run_build() { cargo build --release --locked --bin millrace --bin millrace-instructions; }
run_tests() {
    cargo test --workspace --locked --no-run
    cargo build --locked --bin millrace-lab
}
run_instructions() { scripts/check-instructions.sh; }
run_demo() { "$MILLRACE_LAB_BIN" demo --for 15 --json; }
run_demo-failover() { "$MILLRACE_LAB_BIN" demo --failover --json; }
run_demo-cache() { "$MILLRACE_LAB_BIN" demo --cached --json; }
run_follower() {
    cargo test --workspace --locked --test follower -- --test-threads "${MILLRACE_TEST_THREADS:-2}"
}
run_readme() { scripts/check-readme.sh; }
# Two at once: other suites wait beside them, and must not wait for the CPU.
run_clients() { tests/clients/run.sh --jobs 2; }
run_foreign() { tests/foreign/run.sh --selection; }
run_fuzz() { scripts/check-fuzz.sh 20; }

# Every file and folder in tests/tests is a suite on real servers and a step of its own, so
# none can be forgotten. `suites alone`, `suites beside`: those of that kind.
suites() {
    local file name
    for file in tests/tests/*.rs tests/tests/*/main.rs; do
        [ -e "$file" ] || continue
        name=${file%/main.rs}
        name=${name##*/}
        name=${name%.rs}
        [ "$(how_runs "$name")" = "$1" ] || continue
        printf '%s|suite-%s|2700|%s|deps build tests|%s\n' "$(length_of "$name")" "$name" "$1" \
            "$(awk '/^\/\/! / { print substr($0, 5); exit }' "$file")"
    done | sort -t '|' -k 1,1nr | cut -d '|' -f 2-
}

# Suites mostly wait for servers, but for those that look at times or keep the cores busy.
how_runs() {
    case $1 in
        torture | serving | watched | needless | names) echo alone ;;
        *) echo beside ;;
    esac
}

# Seconds, roughly: the longest begin first, so that none is left over at the end.
length_of() {
    case $1 in
        differential) echo 600 ;;
        failover | names) echo 250 ;;
        bad_input | discovery | auth | vanishing | routing) echo 200 ;;
        cache | consistency | fresh_logins | faults | identity | liveness | admin) echo 150 ;;
        *) echo 60 ;;
    esac
}

run_suite() {
    local threads=1
    # Its sessions panic where a statement asks for it, which what ships cannot be told.
    if [ "$1" = defects ]; then
        MILLRACE_BROKEN_BIN=$(scripts/broken-rules.sh --build)
        export MILLRACE_BROKEN_BIN
    fi
    # They mostly wait: several families or topologies at once.
    case $1 in
        differential) threads=3 ;;
        discovery | failover | names | no_primary | vanishing) threads=2 ;;
    esac
    cargo test --workspace --test "$1" --locked -- \
        --test-threads "${MILLRACE_TEST_THREADS:-$threads}"
}

# --- Running them ---------------------------------------------------------------

lanes=${MILLRACE_TEST_LANES:-3}
declare -A planned=() name_of=() began_of=() how_of=()
# Whether a step runs that must be alone, and one that takes what the others leave: 0 or 1.
queue=() broken=no alone=0 spare=0

plan_of() {
    case $1 in
        check) printf '%s\n' "${steps_check[@]}" ;;
        test)
            printf '%s\n' "${steps_build[@]}"
            suites beside | head -n 2
            printf '%s\n' "${steps_beside[@]}"
            suites beside | tail -n +3
            printf '%s\n' "${steps_alone[@]}"
            suites alone
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
# hanging or failing suite leaves running is seen, and ended. Runs in a subshell, whose
# children's CPU time is the step's.
with_limit() {
    local name=$1 limit=$2 priority=$3 child status interrupted=no
    nice -n "$priority" timeout --kill-after=30 "$limit" bash "$0" --step "$name" </dev/null &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null; interrupted=yes' INT TERM
    wait "$child"
    status=$?
    if [ "$interrupted" = yes ]; then wait "$child"; status=130; fi
    trap - INT TERM
    end_leftovers "$child"
    times >"$logs/$name.times"
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

passed=0 failed=0 skipped=0
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
    local name=$1 status=$2 seconds=$3 log=$logs/$1.log p f s word cpu
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
    cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } } END { printf "%d", s }' \
        "$logs/$name.times")
    summary+=("$(printf '%-24s %-20s %7s  CPU %6s   %d passed, %d failed, %d skipped' \
        "$name" "$word" "$(clock "$seconds")" "$(clock "$cpu")" "$p" "$f" "$s")")
    printf -- '--- %s: %s after %s, CPU %s\n' "$name" "$word" "$(clock "$seconds")" "$(clock "$cpu")"
}

# Whether a step may begin: its needs have passed, or are no part of this run; and nothing runs
# beside one that must be alone.
may_begin() {
    local how=$1 needs=$2 need
    for need in $needs; do [ -z "${planned[$need]:-}" ] || return 1; done
    case $how in
        alone) [ ${#name_of[@]} -eq 0 ] ;;
        spare) [ $((spare + alone)) -eq 0 ] ;;
        *) [ ${#name_of[@]} -lt $((lanes + spare)) ] && [ "$alone" -eq 0 ] ;;
    esac
}

begin() {
    local name=$1 limit=$2 how=$3 what=$4
    printf '\n=== %s: %s   [%s so far]\n' "$name" "$what" "$(clock $((SECONDS - run_began)))"
    case $how in
        alone) alone=1; with_limit "$name" "$limit" 0 > >(tee "$logs/$name.log") 2>&1 & ;;
        spare) spare=1; with_limit "$name" "$limit" 10 >"$logs/$name.log" 2>&1 & ;;
        beside) with_limit "$name" "$limit" 0 >"$logs/$name.log" 2>&1 & ;;
    esac
    name_of[$!]=$name began_of[$!]=$SECONDS how_of[$!]=$how
}

# Begins every step that may begin, in their order. One that must be alone waits for all before it.
begin_more() {
    local row name limit how needs what left=()
    for row in "${queue[@]}"; do
        IFS='|' read -r name limit how needs what <<<"$row"
        if { [ "$how" != alone ] || [ ${#left[@]} -eq 0 ]; } && may_begin "$how" "$needs"; then
            begin "$name" "$limit" "$how" "$what"
        else
            left+=("$row")
        fi
    done
    queue=("${left[@]}")
}

# Waits for the next step that ends. The output of one that ran beside others comes then.
end_one() {
    local pid status name
    wait -n -p pid "${!name_of[@]}"
    status=$?
    [ -n "${pid:-}" ] || return 0
    name=${name_of[$pid]}
    case ${how_of[$pid]} in
        alone) alone=0; sleep 0.1 ;; # tee's last lines
        spare) spare=0 ;;
    esac
    if [ "${how_of[$pid]}" != alone ]; then
        printf '\n=== %s said:\n' "$name"
        cat "$logs/$name.log"
    fi
    finish_step "$name" "$status" $((SECONDS - began_of[$pid]))
    unset "name_of[$pid]" "planned[$name]"
    case $status in 0 | 3) ;; *) broken=yes ;; esac
}

print_summary() {
    printf '\n=== Summary   [%s in all]\n' "$(clock $((SECONDS - run_began)))"
    printf '%s\n' "${summary[@]}"
    if [ -n "$skips" ]; then
        printf '\n!!! Tests that could not run here:\n%s' "$skips"
    fi
    if [ -n "$failures" ]; then printf '\n!!! What failed:\n%s\n' "$failures"; fi
    printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
}

run_all() {
    local row
    mkdir -p "$logs"
    run_began=$SECONDS
    queue=("$@")
    for row in "$@"; do planned[${row%%|*}]=yes; done
    trap 'broken=yes; [ ${#name_of[@]} -eq 0 ] || kill -TERM "${!name_of[@]}" 2>/dev/null' INT TERM
    while :; do
        [ "$broken" = yes ] || begin_more
        [ ${#name_of[@]} -gt 0 ] || break
        end_one
    done
    trap - INT TERM
    for row in "${queue[@]}"; do summary+=("$(printf '%-24s not reached' "${row%%|*}")"); done
    print_summary
    [ "$broken" = no ] && [ ${#queue[@]} -eq 0 ]
}

case ${1:-} in
    '' | -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
    --step) set -e; run_step "$2"; exit ;;
    list) plan_of test | awk -F'|' '{ printf "%-24s %-8s %s\n", $1, $3, $5 }'; exit ;;
    test | check) mapfile -t rows < <(plan_of "$1") ;;
    *) rows_text=$(rows_named "$@") || exit; mapfile -t rows <<<"$rows_text" ;;
esac
run_all "${rows[@]}"
