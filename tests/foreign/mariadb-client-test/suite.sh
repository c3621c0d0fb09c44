# MariaDB's test of its C client and of the protocol, of Debian's package mariadb-test. It is
# unpacked into the cache and not installed: of the package no script runs.
pass_limit_seconds=300
# It was written for servers without strict mode.
globals="SET GLOBAL sql_mode=''"

# More than a second each on a machine with nothing else to do, one of them 23.
slow='test_change_user test_bug21206 test_bug5194 test_create_drop'

fetch() {
    command -v apt-get >/dev/null || { say 'no apt-get'; return 1; }
    mkdir -p "$suite_cache/deb" || return 1
    (cd "$suite_cache/deb" && rm -f ./*.deb && apt-get -q -o APT::Sandbox::User="$(id -un)" download mariadb-test) || return 1
    rm -rf "$suite_cache/root"
    dpkg-deb -x "$suite_cache"/deb/*.deb "$suite_cache/root" || return 1
    rm -rf "$suite_cache/deb"
    program --help >/dev/null
}

program() { "$suite_cache/root/usr/bin/mariadb-client-test" --no-defaults "$@"; }

# A test that fails ends the program: the ones after it run in another. Between programs the
# database stays, because some tests use what others made.
run_tests() {
    local names=() name at=0 log=$work/one vardir=$work/var last begun left end=$((SECONDS + pass_limit_seconds))
    mkdir -p "$vardir"
    while read -r name; do
        [ "$selection" = all ] || [[ " $slow " != *" $name "* ]] || continue
        names+=("$name")
    done < <(program --show-tests | sed '1,2d; /^$/d')
    while left=$((end - SECONDS)) && [ $at -lt ${#names[@]} ] && [ $left -gt 0 ]; do
        [ $left -lt 120 ] || left=120
        MYSQL_TMP_DIR=$vardir timeout --kill-after=5 $left "$suite_cache/root/usr/bin/mariadb-client-test" --no-defaults \
            --testcase --silent --do-not-drop-database --host=127.0.0.1 --port="$port" --user="$user" --password="$password" \
            --vardir="$vardir" "${names[@]:at}" >"$log" 2>&1 </dev/null
        last=$?
        cat "$log"
        mapfile -t begun < <(sed -n 's/^[0-9]* of ([0-9/]*): \([^ ]*\) *$/\1/p' "$log")
        if [ $last = 0 ]; then
            printf 'OUTCOME passed %s\n' "${begun[@]}"
            return
        fi
        [ ${#begun[@]} -gt 0 ] || begun=("${names[at]}")
        [ ${#begun[@]} = 1 ] || printf 'OUTCOME passed %s\n' "${begun[@]:0:${#begun[@]}-1}"
        printf 'OUTCOME failed %s\n' "${begun[-1]}"
        # Some of them do not say that they begin.
        while [ $at -lt ${#names[@]} ] && [ "${names[at]}" != "${begun[-1]}" ]; do at=$((at + 1)); done
        at=$((at + 1))
    done
}

outcomes() { sed -n 's/^OUTCOME //p'; }
