#!/usr/bin/env bash
# Holds the pure crates pure: no I/O, no clock, no random source, no runtime, no
# knowledge of the crates that use them.
#
#   scripts/check-purity.sh            the check, then proof that it can fail
#   scripts/check-purity.sh --no-proof the check alone
#
# What it looks at:
#   1. the normal dependencies of each pure crate, down to the last (cargo tree)
#   2. that each has the same clippy.toml, which bans clock, sockets, threads and
#      files (`cargo clippy -- -D warnings` then holds the source to it)
#   3. that no source line of theirs lifts those bans outside tests
# And that the program that ships links nothing of millrace-lab's.
set -euo pipefail
cd "$(dirname "$0")/.."

pure=(base protocol sql topology routing engine cache)

# Runtimes and I/O, random sources, clocks and time zones, and our own upper crates.
banned='tokio|tokio-.*|mio|socket2|async-std|async-io|smol|polling|io-uring|rustix|nix|hyper|axum|rustls|rustls-.*'
banned+='|rand|rand_chacha|getrandom|fastrand|oorandom'
banned+='|chrono|time|jiff|quanta|coarsetime|tracing|log|once_cell|lazy_static'
banned+='|millrace|millrace-(backend|worker|session|config|admin|sandbox|lab|tests|bench)'

say() { printf 'purity: %s\n' "$*"; }

# Prints each banned crate that package $1 depends on. Status 1 when there is one,
# 2 when cargo could not tell.
banned_dependencies() {
    local tree found
    tree=$(cargo tree --quiet -p "$1" -e normal,no-proc-macro --target all \
        --prefix none --format '{p}') || return 2
    found=$(awk -v self="$1" '$1 != self { print $1 }' <<<"$tree" | sort -u |
        grep -xE "$banned") || return 0
    printf '%s\n' "$found"
    return 1
}

# Prints the source lines under folder $1 that lift a ban. Tests may (`mod tests`
# sits at the end of a file, `tests/` and `benches/` beside src are not product).
lifted_bans() {
    local file
    while IFS= read -r file; do
        awk -v file="$file" '
            /^[[:space:]]*#\[cfg\(test\)\]/ { exit }
            /clippy::disallowed_(methods|types|macros)/ { print file ":" FNR ": " $0; bad = 1 }
            END { exit bad }' "$file" || true
    done < <(find "$1" -name '*.rs' | sort)
}

check_crate() {
    local crate=$1 out status=0
    out=$(banned_dependencies "millrace-$crate") || status=$?
    case $status in
        1) say "millrace-$crate must not depend on: ${out//$'\n'/ }" ;;
        2) say "cargo tree failed for millrace-$crate" ;;
    esac
    if ! cmp -s "crates/${pure[0]}/clippy.toml" "crates/$crate/clippy.toml"; then
        say "crates/$crate/clippy.toml differs from crates/${pure[0]}/clippy.toml"
        status=1
    fi
    out=$(lifted_bans "crates/$crate/src")
    if [ -n "$out" ]; then
        say "a ban is lifted:"$'\n'"$out"
        status=1
    fi
    return "$status"
}

# --- Proof that each part can fail ---------------------------------------------

prove_dependencies() {
    local out
    out=$(banned_dependencies millrace-backend) || true
    if ! grep -qx tokio <<<"$out"; then
        say "proof failed: millrace-backend uses tokio and was not caught"
        return 1
    fi
}

prove_lifted() {
    mkdir "$1/lifted"
    printf '#[allow(clippy::disallowed_methods)]\nfn f() {}\n' >"$1/lifted/a.rs"
    if [ -z "$(lifted_bans "$1/lifted")" ]; then
        say "proof failed: a lifted ban was not caught"
        return 1
    fi
}

# A crate with the bans and with a sin of each kind: clippy must name every one.
prove_clippy() {
    local at=$1/impure sin out status=0
    mkdir -p "$at/src"
    cp "crates/${pure[0]}/clippy.toml" "$at/"
    cat >"$at/Cargo.toml" <<'TOML'
[package]
name = "impure"
version = "0.0.0"
edition = "2024"
[workspace]
TOML
    cat >"$at/src/lib.rs" <<'RUST'
//! Everything a pure crate must not do.
pub fn sins() {
    let _ = std::time::Instant::now();
    let _ = std::time::SystemTime::now();
    let _ = std::hash::RandomState::new();
    let _ = std::env::var("HOME");
    let _ = std::fs::read("x");
    let _ = std::thread::spawn(|| ());
    let _ = std::net::TcpStream::connect("127.0.0.1:1");
    println!();
}
RUST
    out=$(cd "$at" && cargo clippy --offline --quiet --target-dir "$1/target" -- -D warnings 2>&1) && {
        say "proof failed: clippy passed a crate full of sins"
        return 1
    }
    for sin in Instant::now SystemTime::now RandomState::new env::var fs::read thread::spawn \
        net::TcpStream std::println; do
        grep -qE "disallowed (method|type|macro).*$sin" <<<"$out" || {
            say "proof failed: clippy did not catch $sin"
            status=1
        }
    done
    if grep -q 'does not refer to' <<<"$out"; then
        say "clippy.toml names something that does not exist:"
        grep 'does not refer to' <<<"$out"
        status=1
    fi
    return "$status"
}

prove() {
    local work status=0
    work=$(mktemp -d)
    prove_dependencies || status=1
    prove_lifted "$work" || status=1
    prove_clippy "$work" || status=1
    rm -rf "$work"
    return "$status"
}

# What ships starts and kills no servers, and has no client of theirs.
check_program() {
    local out
    out=$(cargo tree --quiet -p millrace -e normal --target all --prefix none --format '{p}') || return 1
    out=$(awk '{ print $1 }' <<<"$out" | sort -u | grep -xE 'millrace-(sandbox|lab)|mysql_async') || return 0
    say "millrace must not depend on: ${out//$'\n'/ }"
    return 1
}

status=0
check_program || status=1
for crate in "${pure[@]}"; do
    if check_crate "$crate"; then say "$crate is pure"; else status=1; fi
done
if [ "${1:-}" != --no-proof ]; then
    if prove; then say "and the check can fail: dependencies, lifted bans and clippy's bans proved"; else status=1; fi
fi
exit "$status"
