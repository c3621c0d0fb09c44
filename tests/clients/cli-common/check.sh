# The frame of the command line suites: groups of checks, their report and their exit status.
# Sourced; it knows no client. A group is a function run in a subshell of its own.

passed=0 failed=0 skipped=0
SKIP_STATUS=77
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# group NAME FUNCTION
group() {
    local begun=$EPOCHREALTIME status
    [[ -z ${MILLRACE_TEST_ONLY:-} || $1 == *"$MILLRACE_TEST_ONLY"* ]] || return 0
    # Not under `if`: that would switch errexit off inside.
    set +e
    (set -eu; "$2") >"$work/said" 2>&1
    status=$?
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        printf 'ok   %s (%s s)\n' "$1" "$(elapsed "$begun")"
    elif [ $status = $SKIP_STATUS ]; then
        skipped=$((skipped + 1))
        printf 'skip %s: %s\n' "$1" "$(tail -n 1 "$work/said")"
    else
        failed=$((failed + 1))
        printf 'FAIL %s: %s\n' "$1" "$(tail -n 4 "$work/said" | tr '\n' ' ' | cut -c1-600)"
    fi
}
elapsed() { local us=$(((${EPOCHREALTIME/./} - ${1/./}) / 10000)); printf '%d.%02d' $((us / 100)) $((us % 100)); }

skip() { echo "$*"; exit $SKIP_STATUS; }
die() { echo "line ${BASH_LINENO[1]}: $*"; exit 1; }

# equal GOT WANTED [WHAT]
equal() { [ "$1" = "$2" ] || die "${3:-}: got «${1:0:250}», wanted «${2:0:250}»"; }
# matches TEXT PATTERN [WHAT]: a regular expression somewhere in the text
matches() { [[ $1 =~ $2 ]] || die "${3:-}: «${1:0:300}» does not match «$2»"; }

summary() {
    printf '%d passed, %d failed' $passed $failed
    [ $skipped = 0 ] || printf ', %d skipped' $skipped
    printf '\n'
    [ $failed = 0 ] && [ $passed -gt 0 ]
}
