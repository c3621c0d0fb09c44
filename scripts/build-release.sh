#!/usr/bin/env bash
# Builds Millrace as it is released: compiled for what it does under a training load
# (profile-guided optimisation). Leaves target/dist/millrace, and beside it BUILD, which
# says how it was built.
#
#   scripts/build-release.sh            some fifteen minutes on two cores
#   scripts/build-release.sh --plain    cargo's release build, without a profile
#
# It builds a program that counts how often each of its parts runs, puts a load on that
# before private servers (scripts/train.py, under two minutes), and builds again with what
# was counted. A step whose inputs are as they were is not done again.
#
# That takes sysbench, python3, a MySQL or MariaDB server (scripts/install-deps.sh bench
# installs them) and the toolchain's llvm-profdata (rustup component llvm-tools, which this
# script adds itself). Where one of them is missing, or the training fails, it says so
# loudly and leaves the plain build.
#
# Exit status: 0 there is a program, of either kind; else there is none, or an older one.
#
# Environment:
#   CARGO, CARGO_TARGET_DIR                as ever
#   RUSTFLAGS                              stays in force; flags in cargo's configuration
#                                          files hold for the plain build only
#   MILLRACE_CACHE, MILLRACE_MYSQL_DIR,
#   MILLRACE_MARIADBD                      where servers are, as for the sandbox
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
export CARGO_TARGET_DIR=$target
dist=$target/dist
pgo=$target/pgo
profile=$pgo/millrace.profdata

# `make bench SECONDS=5` leaves one in the environment.
SECONDS=0

host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata

say() { printf 'build-release: %s   [%s so far]\n' "$*" "$(clock)" >&2; }
clock() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

shout() {
    printf '\n' >&2
    printf '!!! %s\n' "$@" >&2
    printf '\n' >&2
}

# What takes long runs in a process group of its own, so that the whole of it can be ended:
# cargo's compilers too. train.py stops what it started before it ends.
child=
run() {
    local status=0
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    wait "$child" || status=$?
    child=
    return "$status"
}

stop() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM -- "-$child" 2>/dev/null || true
        wait "$child" || true
    fi
    say 'interrupted'
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM HUP

guided=no

# --- What training takes ----------------------------------------------------------

families=()
find_families() {
    local mysqld=${MILLRACE_MYSQL_DIR:-${MILLRACE_CACHE:-${HOME:-}/.cache/millrace}/mysql}/bin/mysqld
    # MariaDB's packages install a mysqld too, as a link.
    [ -x "$mysqld" ] || mysqld=$(readlink -f "$(command -v mysqld)" 2>/dev/null || true)
    case $mysqld in '' | */mariadbd) ;; *) families+=(mysql) ;; esac
    ! command -v "${MILLRACE_MARIADBD:-mariadbd}" >/dev/null || families+=(mariadb)
}

add_llvm_tools() {
    [ ! -x "$profdata" ] || return 0
    command -v rustup >/dev/null || return 0
    say 'adding llvm-tools to the toolchain'
    run timeout 300 rustup component add llvm-tools >&2 || true
}

# Prints what is missing and how to have it, one thing a line.
missing_pieces() {
    [ -x "$profdata" ] || printf '%s\n' 'llvm-profdata: rustup component add llvm-tools'
    command -v sysbench >/dev/null || printf '%s\n' 'sysbench: scripts/install-deps.sh bench'
    python3 -c 'import tomllib' 2>/dev/null || printf '%s\n' 'python3, 3.11 or later'
    [ ${#families[@]} -gt 0 ] || printf '%s\n' 'MySQL or MariaDB: scripts/install-deps.sh servers'
}

# --- The steps --------------------------------------------------------------------

# The program alone, so that its crates have no features that only others want.
build() { run "$cargo" build --release --locked -p millrace "$@"; }

# With --target, flags are not for build scripts. Cargo's encoded flags may hold spaces.
build_with() {
    local folder=$1 words flags
    shift
    read -ra words <<<"${RUSTFLAGS-}"
    flags=${CARGO_ENCODED_RUSTFLAGS-$(IFS=$'\x1f'; printf '%s' "${words[*]}")}
    CARGO_ENCODED_RUSTFLAGS=${flags:+$flags$'\x1f'}$(IFS=$'\x1f'; printf '%s' "$*") \
        build --target "$host" --target-dir "$folder"
}

instrumented=$pgo/instrumented/$host/release/millrace
optimised=$pgo/optimised/$host/release/millrace

training_is_due() {
    local input
    [ -e "$profile" ] && [ "$(cat "$pgo/families" 2>/dev/null)" = "${families[*]}" ] || return 0
    for input in "$instrumented" scripts/train.py bench/lua/*.lua; do
        [ ! "$input" -nt "$profile" ] || return 0
    done
    return 1
}

# Where a function's failure is asked for, the shell overlooks failures within it: hence `return`.
# Cargo cannot see that a profile has changed: what was built with the old one goes first.
train() {
    rm -rf "$pgo/raw"
    mkdir -p "$pgo/raw" || return
    run scripts/train.py --millrace "$instrumented" --lab "$target/release/millrace-lab" \
        --client "$target/release/bench-client" --out "$pgo/raw" "${families[@]}" >"$pgo/trained_on.new" || return
    "$profdata" merge -o "$profile.new" "$pgo"/raw/proxy-*.profraw || return
    rm -rf "$pgo/optimised" "$pgo/raw" || return
    mv "$pgo/trained_on.new" "$pgo/trained_on"
    printf '%s\n' "${families[*]}" >"$pgo/families"
    mv "$profile.new" "$profile"
}

# The last one that changed the program: documents may have followed.
commit() {
    local found
    found=$(git log -1 --format=%h -- crates Cargo.toml Cargo.lock 2>/dev/null) || true
    [ -n "$found" ] || { printf 'unknown'; return; }
    [ -z "$(git status --porcelain -- crates Cargo.toml Cargo.lock)" ] || found+=', with changes'
    printf '%s' "$found"
}

# Whoever measures it reads BUILD. What it describes, the digest says.
put() {
    local program=$1 kind=$2 trained_on=$3 digest
    mkdir -p "$dist"
    cp "$program" "$dist/millrace.new"
    digest=$(sha256sum <"$dist/millrace.new")
    cat >"$dist/BUILD.new" <<BUILD
kind = "$kind"
trained_on = "$trained_on"
commit = "$(commit)"
compiler = "$(rustc --version)"
sha256 = "${digest%% *}"
BUILD
    mv "$dist/millrace.new" "$dist/millrace"
    mv "$dist/BUILD.new" "$dist/BUILD"
}

# --- What was asked for -----------------------------------------------------------

case ${1:-} in
    '' | --plain) ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) printf "build-release: unknown option '%s': see --help\n" "$1" >&2; exit 2 ;;
esac

if [ "${1:-}" != --plain ]; then
    find_families
    add_llvm_tools
    mapfile -t missing < <(missing_pieces)
    if [ ${#missing[@]} -gt 0 ]; then
        shout 'No profile can be made here, for want of:' "${missing[@]/#/    }"
    else
        say '1/4: the client of the load, and what starts servers'
        run "$cargo" build --release --locked -p millrace-bench -p millrace-lab
        say '2/4: the program that counts what it runs'
        build_with "$pgo/instrumented" "-Cprofile-generate=$pgo/raw"
        if ! training_is_due; then
            say '3/4: no training, the profile is up to date'
            guided=yes
        elif say "3/4: training on ${families[*]}" && train; then
            guided=yes
        else
            shout 'The training failed: see above.'
        fi
    fi
fi

if [ "$guided" = yes ]; then
    trained_on=$(cat "$pgo/trained_on")
    say "4/4: the program, by what was counted on $trained_on"
    # What the training never reached is put apart from what it did, so that a statement runs over
    # fewer lines of the instruction cache.
    build_with "$pgo/optimised" "-Cprofile-use=$profile" \
        -Cllvm-args=-enable-split-machine-functions -Clink-arg=-Wl,-z,keep-text-section-prefix
    put "$optimised" profile-guided "$trained_on"
    say "done: $dist/millrace is profile-guided"
else
    say 'the plain release build'
    build
    put "$target/release/millrace" plain ''
    shout "$dist/millrace is a PLAIN release build, not profile-guided."
    say 'done'
fi
