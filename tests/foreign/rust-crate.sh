# What the suites of Rust crates share: the crate's sources from cargo's own copy, built with the
# versions of its own Cargo.lock, and its tests told apart.
pass_limit_seconds=240 left_out=()

fetch() {
    command -v cargo >/dev/null || { say 'no cargo on PATH'; return 1; }
    local manifest=$suite_cache/fetch from
    mkdir -p "$manifest/src" || return 1
    : >"$manifest/src/lib.rs"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n%s = "=%s"\n' \
        "$crate" "$version" >"$manifest/Cargo.toml"
    # Metadata names where cargo keeps the sources; with the features asked for, little is fetched.
    from=$(cd "$manifest" && cargo metadata --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
        grep -o "\"manifest_path\":\"[^\"]*/$crate-$version/Cargo.toml\"" | cut -d'"' -f4) || return 1
    [ -f "$from" ] || return 1
    rm -rf "$suite_cache/source"
    cp -r "${from%/Cargo.toml}" "$suite_cache/source" && chmod -R u+w "$suite_cache/source" || return 1
    # Debug information is most of the link time, and nobody steps through these.
    (cd "$suite_cache/source" && CARGO_TARGET_DIR=$cache/rust-target CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0 \
        RUSTFLAGS=-Awarnings nice cargo test --locked --no-default-features --features "$features" --no-run \
        "${targets[@]}" --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >"$suite_cache/tests")
    [ -s "$suite_cache/tests" ]
}

# Left to themselves, these clients ask a server for its Unix socket and go on over that, past
# Millrace.
run_tests() {
    local program
    while read -r program; do
        (cd "$suite_cache/source" && DATABASE_URL="mysql://$user:$password@127.0.0.1:$port/$database?prefer_socket=false" RUST_BACKTRACE=0 \
            timeout --kill-after=5 "$pass_limit_seconds" "$program" --test-threads 4 "${left_out[@]}")
    done <"$suite_cache/tests"
}

outcomes() {
    sed -n 's/^test \(.*\) \.\.\. ok$/passed \1/p; s/^test \(.*\) \.\.\. FAILED$/failed \1/p; s/^test \(.*\) \.\.\. ignored.*/skipped \1/p' |
        sed 's/ - should panic$//'
}
