# go-sql-driver/mysql's own tests, from its Go module.
module=github.com/go-sql-driver/mysql version=v1.9.3
pass_limit_seconds=240

# It dials an address on the internet and needs no server of ours.
left_out='TestConnectorReturnsTimeout'

fetch() {
    command -v go >/dev/null || { say 'no go on PATH'; return 1; }
    local from
    mkdir -p "$suite_cache"
    from=$(cd "$suite_cache" && go mod download -json "$module@$version" |
        sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p') && [ -d "$from" ] || return 1
    rm -rf "$suite_cache/source"
    cp -r "$from" "$suite_cache/source" && chmod -R u+w "$suite_cache/source" || return 1
    (cd "$suite_cache/source" && GOTOOLCHAIN=local nice go test -c -o "$suite_cache/tests" .)
}

run_tests() {
    (cd "$suite_cache/source" && MYSQL_TEST_USER=$user MYSQL_TEST_PASS=$password MYSQL_TEST_ADDR=127.0.0.1:$port \
        MYSQL_TEST_DBNAME=$database MYSQL_TEST_CONCURRENT=1 \
        timeout --kill-after=5 "$pass_limit_seconds" "$suite_cache/tests" -test.v -test.skip "$left_out")
}

# Subtests are tests of their own; what began and never ended has failed.
outcomes() {
    sed -n 's/^ *--- \(PASS\|FAIL\|SKIP\): \([^ ]*\) (.*/\1 \2/p; s/^=== RUN  *\([^ ]*\)$/RUN \1/p' |
        awk '$1 == "RUN" { if (!($2 in seen)) seen[$2] = "failed"; next }
            { seen[$2] = $1 == "PASS" ? "passed" : $1 == "FAIL" ? "failed" : "skipped" }
            END { for (name in seen) print seen[name], name }'
}
