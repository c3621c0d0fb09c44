# Brings up a private cluster of each family with Millrace in front, and runs run.sh through it.
# Sourced by run.sh; owns the processes and the folder that it makes, and removes both at the end.

# The account of the suites: everything but the right to write to a read-only server, so that a
# write sent to a replica is seen.
SUITE_USER=suite
SUITE_PASSWORD='suite pass'

cluster_dir= proxy_pid=

# find_lab MILLRACE: the program that has the sandbox; beside Millrace, if nobody names it
find_lab() {
    local repository candidate target
    repository=$(cd "$here/../.." && pwd)
    target=${CARGO_TARGET_DIR:-$repository/target}
    for candidate in "${MILLRACE_LAB_BIN:-}" "$(dirname "$1")/millrace-lab" "$target"/{release,debug}/millrace-lab; do
        [ -n "$candidate" ] && [ -x "$candidate" ] && { printf '%s\n' "$candidate"; return 0; }
    done
    echo 'no millrace-lab to start servers with: build it (cargo build -p millrace-lab), or set MILLRACE_LAB_BIN' >&2
    return 1
}

find_millrace() {
    local repository candidate
    repository=$(cd "$here/../.." && pwd)
    for candidate in "${MILLRACE_BIN:-}" "${CARGO_TARGET_DIR:-$repository/target}"/{release,debug}/millrace; do
        [ -n "$candidate" ] && [ -x "$candidate" ] && { printf '%s\n' "$candidate"; return 0; }
    done
    echo 'no millrace to run: build it, or set MILLRACE_BIN' >&2
    return 1
}

take_down() {
    if [ -n "$proxy_pid" ]; then
        kill "$proxy_pid" 2>/dev/null
        # It drains; nobody is left to wait for.
        for _ in $(seq 50); do kill -0 "$proxy_pid" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$proxy_pid" 2>/dev/null
        wait "$proxy_pid" 2>/dev/null
        proxy_pid=
    fi
    [ -z "$cluster_dir" ] || "$lab" sandbox down --dir "$cluster_dir/cluster" >/dev/null 2>&1
    [ -z "$cluster_dir" ] || rm -rf "$cluster_dir"
    cluster_dir=
}

# as_admin SQL: on the cluster's primary
as_admin() { MYSQL_PWD=admin-secret mariadb --no-defaults --host=127.0.0.1 --port="${ports[0]}" --user=admin -e "$1"; }

# cluster_up FAMILY: sets `ports` of the three servers
cluster_up() {
    local described
    cluster_dir=$(mktemp -d "${TMPDIR:-/tmp}/millrace-clients-cluster.XXXXXX") || return 1
    described=$("$lab" sandbox up --family "$1" --replicas 2 --dir "$cluster_dir/cluster" --base-port 0 --tls \
        --max-connections 500 --detach --json) || return 1
    mapfile -t ports < <(grep -o '"port":[0-9]*' <<<"$described" | cut -d: -f2)
    [ ${#ports[@]} = 3 ] || { echo "the sandbox described no three servers: $described" >&2; return 1; }
    as_admin "CREATE USER $SUITE_USER IDENTIFIED BY '$SUITE_PASSWORD'; GRANT ALL ON *.* TO $SUITE_USER WITH GRANT OPTION" || return 1
    [ "$1" = mysql ] || as_admin "REVOKE READ_ONLY ADMIN, SUPER ON *.* FROM $SUITE_USER" || return 1
    "$lab" sandbox delay-applier s3 1 --dir "$cluster_dir/cluster" >/dev/null
}

# A port that nobody answers on; where one is taken all the same, Millrace says so and the run fails.
free_port() {
    local p
    for _ in $(seq 50); do
        p=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { printf '%s\n' "$p"; return 0; }
    done
    return 1
}

# proxy_up FAMILY: sets `proxy_port`; few server connections, so that clients share them
proxy_up() {
    proxy_port=$(free_port) || return 1
    {
        printf '[[listen]]\naddress = "127.0.0.1:%s"\n' "$proxy_port"
        printf '[pool]\nmax_connections = 40\nwait_timeout = "30s"\n'
        # Forty TLS logins at once take their time on a machine that does other things too.
        printf '[limits]\nlogin_timeout = "60s"\n'
        printf '[monitor]\nuser = "millrace_monitor"\npassword_env = "MILLRACE_MONITOR_PASSWORD"\n'
        printf '[[server]]\naddress = "127.0.0.1:%s"\n' "${ports[@]}"
    } >"$cluster_dir/millrace.toml"
    MILLRACE_MONITOR_PASSWORD=monitor-secret "$millrace" serve --config "$cluster_dir/millrace.toml" >"$logs/millrace-$1.log" 2>&1 &
    proxy_pid=$!
    for _ in $(seq 100); do
        MYSQL_PWD=$SUITE_PASSWORD mariadb --no-defaults --host=127.0.0.1 --port="$proxy_port" --user=$SUITE_USER \
            -e 'DO 1' 2>/dev/null && return 0
        kill -0 "$proxy_pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 5 "$logs/millrace-$1.log" >&2
    return 1
}

through_clusters() {
    local f status passed=0 failed=0 skipped=0 p x s options=() kept=$logs
    millrace=$(find_millrace) || exit 2
    lab=$(find_lab "$millrace") || exit 2
    trap take_down EXIT
    trap 'exit 130' INT TERM
    logs=${logs:-$(mktemp -d "${TMPDIR:-/tmp}/millrace-clients.XXXXXX")}
    mkdir -p "$logs"
    [ -z "$require_all" ] || options+=(--require-all)
    for f in ${family:-mariadb mysql}; do
        if [ "$f" = mysql ] && [ ! -x "${MILLRACE_CACHE:-$HOME/.cache/millrace}/mysql/bin/mysqld" ]; then
            echo "SKIPPED: clients on MySQL: no unpacked MySQL in the cache" >&2
            continue
        fi
        if ! cluster_up "$f" || { [ -z "$direct" ] && ! proxy_up "$f"; }; then
            echo "FAIL cannot bring up the cluster of $f"
            failed=$((failed + 1))
            take_down
            continue
        fi
        echo "== $f, $([ -n "$direct" ] && echo "straight to the primary" || echo "through Millrace")"
        MILLRACE_TEST_PASSWORD=$SUITE_PASSWORD "$here/run.sh" --family "$f" --port "$([ -n "$direct" ] && echo "${ports[0]}" || echo "$proxy_port")" \
            --user $SUITE_USER --mode "$mode" --jobs "$jobs" --logs "$logs/$f" "${options[@]}" "${clients[@]}" | tee "$logs/$f.txt"
        status=${PIPESTATUS[0]}
        read -r p x s < <(sed -n 's/^[a-z]*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped in.*/\1 \2 \3/p' "$logs/$f.txt")
        passed=$((passed + ${p:-0})) failed=$((failed + ${x:-1})) skipped=$((skipped + ${s:-0}))
        [ "$status" = 0 ] || [ "${x:-1}" != 0 ] || failed=$((failed + 1))
        take_down
    done
    [ $failed != 0 ] || [ -n "$kept" ] || rm -rf "$logs"
    echo "test result: $([ $failed = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed; $skipped ignored"
    [ $((passed + failed)) -gt 0 ] || exit 3
    [ $failed = 0 ] || exit 1
    exit 0
}
