#!/usr/bin/env bash
# Installs what the sandbox, the tests and the benches need on a Debian machine.
#
#   scripts/install-deps.sh [servers|test|faults|bench]...      (default: servers)
#
#   servers  MariaDB from the machine's own Debian suite, with Galera (needs root or
#            sudo; its service is kept from starting), and MySQL unpacked from Debian
#            sid into a private folder (needs no root and touches none of the host's
#            packages)
#   test     servers, what the tests use beside them, and MariaDB 11.8 unpacked from
#            Debian trixie as MySQL is
#   faults   test, and pt-kill
#   bench    servers, the load generator and proxies that we measure against, and the
#            toolchain's llvm-tools (by rustup) for the profile-guided build
#
# Runs again in no time when everything is there. Exit status:
#   0 all there   1 something failed   2 wrong usage
#   3 everything is there but a server that is unpacked (MySQL, MariaDB 11.8): whoever
#     needs it must skip, loudly
#
# Environment:
#   MILLRACE_CACHE      the cache folder (default ~/.cache/millrace)
#   MILLRACE_MYSQL_DIR  the folder of the unpacked MySQL (default $MILLRACE_CACHE/mysql)
#   MILLRACE_MARIADB_11_8_DIR  that of MariaDB 11.8 (default $MILLRACE_CACHE/mariadb-11.8)
set -euo pipefail

cache=${MILLRACE_CACHE:-${HOME:?HOME is not set: set MILLRACE_CACHE}/.cache/millrace}
mysql_dir=${MILLRACE_MYSQL_DIR:-$cache/mysql}
mariadb_11_8_dir=${MILLRACE_MARIADB_11_8_DIR:-$cache/mariadb-11.8}

apt_servers=(mariadb-server mariadb-client openssl)
# Without these no Galera cluster can be started; all else goes on.
apt_servers_optional=(galera-4 rsync)
apt_test=(ca-certificates python3)
# Without these a check is skipped, and no suite is.
apt_test_optional=(valgrind iproute2 nftables dnsmasq-base)
# For logins by Kerberos (GSSAPI). Apart, so that those above come where these cannot.
apt_test_kerberos=(mariadb-plugin-gssapi-server mariadb-plugin-gssapi-client
    krb5-kdc krb5-admin-server krb5-user)
apt_faults_optional=(percona-toolkit)
apt_bench=(sysbench haproxy)
sid_servers=(mysql-server-core mysql-client-core)
sid_bench=(mysql-router haproxy)
trixie_servers=(mariadb-server-core mariadb-client-core)
# Only their files: what they depend on is for a service.
trixie_alone=(mariadb-server)

say() { printf 'install-deps: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

shout() {
    printf '\n' >&2
    printf '!!! %s\n' "$@" >&2
    printf '\n' >&2
}

policy=/usr/sbin/policy-rc.d
policy_is_ours=no
unpacking=

# Also after Ctrl-C: the policy would keep every later package's service down.
clean_up() {
    if [ "$policy_is_ours" = yes ]; then as_root rm -f "$policy"; fi
    if [ -n "$unpacking" ]; then rm -rf "$unpacking"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "need root or sudo to run: $*"
    fi
}

# --- Packages of the machine's own suite -------------------------------------

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing_of() {
    local package
    for package in "$@"; do
        is_installed "$package" || printf '%s\n' "$package"
    done
}

# Packaged services stay off: a server of the package's own would take the
# standard port, and the sandbox starts its servers itself. An existing
# policy-rc.d is the administrator's and is left alone.
install_without_services() {
    local status=0
    if [ ! -e "$policy" ]; then
        policy_is_ours=yes
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >&2 || status=$?
    if [ "$policy_is_ours" = yes ]; then as_root rm -f "$policy"; fi
    policy_is_ours=no
    return "$status"
}

keep_from_starting_at_boot() {
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable --quiet "$1" 2>/dev/null || true
    fi
}

apt_install() {
    local missing service
    mapfile -t missing < <(missing_of "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        say "already installed: $*"
        return
    fi
    say "installing with apt: ${missing[*]}"
    as_root apt-get update -q >&2 || say "apt-get update failed; trying with the lists at hand"
    install_without_services "${missing[@]}" || return 1
    for service in "${missing[@]}"; do
        case $service in
            mariadb-server) keep_from_starting_at_boot mariadb ;;
            haproxy | krb5-kdc | krb5-admin-server) keep_from_starting_at_boot "$service" ;;
        esac
    done
}

# --- Servers unpacked from other suites of Debian -----------------------------

# The address of the Debian mirror that this machine uses, as apt itself reads
# its sources (one-line and deb822 alike): the first that carries the main
# component of the suite that is installed.
debian_mirror() {
    local suite
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-sid}")
    apt-get indextargets --no-release-info \
        --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$suite" '$3 == "main" && ($2 == suite || $2 == "sid" || $2 == "unstable" \
            || $2 == "stable" || $2 == "testing") && $1 !~ /security/ { print $1; exit }'
}

# A private apt: own lists, cache and sources, and no package installed, so that
# every dependency down to libc comes along. The machine's apt configuration
# (proxies and the like) stays in force.
private_apt() {
    local root=$1
    shift
    apt-get -q \
        -o Dir::State="$root/state" \
        -o Dir::State::lists="$root/lists" \
        -o Dir::State::status="$root/status" \
        -o Dir::Cache="$root/cache" \
        -o Dir::Etc::sourcelist="$root/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences="$root/preferences" \
        -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::Log="$root/log" \
        -o APT::Install-Recommends=false \
        -o APT::Sandbox::User="$(id -un)" \
        -o APT::Get::List-Cleanup=false \
        -o Acquire::Check-Valid-Until=false \
        -o Acquire::Languages=none \
        -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Debug::NoLocking=true \
        "$@" >&2
}

make_private_apt() {
    local root=$1 mirror=$2 suite=$3 keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r "$keyring" ] || { say "no $keyring (package debian-archive-keyring)"; return 1; }
    mkdir -p "$root"/{state,lists/partial,cache/archives/partial,log}
    : >"$root/status"
    : >"$root/preferences"
    printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite" >"$root/sources.list"
}

# Files only: no maintainer script runs, so nothing is configured or started.
unpack_debs() {
    local into=$1 deb dir
    shift
    for dir in bin sbin lib lib64; do
        mkdir -p "$into/usr/$dir"
        [ -e "$into/$dir" ] || ln -s "usr/$dir" "$into/$dir"
    done
    for deb in "$@"; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$into" --keep-directory-symlink --no-same-owner \
            --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
            --exclude='./usr/share/locale/*' --exclude='./etc/*' --exclude='./var/*'
    done
}

# The programs want their own suite's libc: each starts through the folder's own loader.
# A wrapper finds the folder from its own place, so the folder can be moved. What stands
# behind the folder and the program's name is added to the program's arguments.
write_wrapper() {
    local folder=$1 program=$2 loader libc added
    shift 2
    added=$(printf ' "%s"' "$@")
    [ $# -gt 0 ] || added=
    local wrapper=$folder/bin/${program##*/}
    loader=$(cd "$folder" && find root/usr/lib* -name 'ld-linux*.so.*' | sort | head -n 1)
    libc=$(cd "$folder" && find root/usr/lib -name libc.so.6 | sort | head -n 1)
    [ -n "$loader" ] && [ -n "$libc" ] || { say "no loader or libc in what was unpacked"; return 1; }
    mkdir -p "$folder/bin"
    cat >"$wrapper" <<WRAPPER
#!/bin/sh
d=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
exec "\$d/$loader" --library-path "\$d/${libc%/*}:\$d/root/usr/lib/mysql-router:\$d/root/usr/lib" "\$d/$program" "\$@"$added
WRAPPER
    chmod 755 "$wrapper"
}

write_wrappers() {
    local folder=$1 program
    for program in usr/sbin/mysqld usr/bin/mysql usr/bin/mysqladmin usr/bin/mysqldump \
        usr/bin/mysqlbinlog usr/bin/mysqlrouter usr/sbin/haproxy; do
        if [ -x "$folder/root/$program" ]; then
            write_wrapper "$folder" "root/$program" || return 1
        fi
    done
    if [ -x "$folder/root/usr/sbin/mariadbd" ]; then write_mariadb_wrappers "$folder"; fi
}

# MariaDB does not find its own files from where it is: without being told it would take
# those of the machine's MariaDB. mariadb-install-db starts the programs below its base folder.
write_mariadb_wrappers() {
    local folder=$1 program
    write_wrapper "$folder" root/usr/sbin/mariadbd --basedir='$d/root/usr' \
        --lc-messages-dir='$d/root/usr/share/mariadb' \
        --character-sets-dir='$d/root/usr/share/mariadb/charsets' \
        --plugin-dir='$d/root/usr/lib/mysql/plugin' || return 1
    write_wrapper "$folder" root/usr/bin/mariadb \
        --plugin-dir='$d/root/usr/lib/x86_64-linux-gnu/libmariadb3/plugin' || return 1
    for program in my_print_defaults resolveip; do
        write_wrapper "$folder" "root/usr/bin/$program" || return 1
    done
    mkdir -p "$folder/share" "$folder/lib"
    ln -s bin "$folder/sbin"
    ln -s ../root/usr/share/mariadb "$folder/share/mariadb"
    ln -s ../root/usr/lib/mysql "$folder/lib/mysql"
    cat >"$folder/bin/mariadb-install-db" <<'WRAPPER'
#!/bin/sh
d=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$d/root/usr/bin/mariadb-install-db" "$@" --basedir="$d"
WRAPPER
    chmod 755 "$folder/bin/mariadb-install-db"
}

# True when every named package is in the folder and the server runs.
has_unpacked() {
    local folder=$1 server=$2 package
    shift 2
    [ -x "$folder/bin/$server" ] || return 1
    for package in "$@"; do
        grep -qsx "$package" "$folder/packages" || return 1
    done
    "$folder/bin/$server" --no-defaults --version >/dev/null 2>&1
}

# All packages are unpacked together, into a folder that takes the old one's
# place when it is whole: sid moves, and files of two days need not fit.
unpack() {
    local folder=$1 server=$2 suite=$3 mirror packages
    shift 3
    mapfile -t packages < <(
        { printf '%s\n' "$@"; cat "$folder/packages" 2>/dev/null || true; } | sort -u
    )
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || { say "no Debian mirror among this machine's apt sources"; return 1; }
    unpacking=$folder.new
    rm -rf "$unpacking"
    mkdir -p "$unpacking" || return 1
    say "unpacking from Debian $suite into $folder: ${packages[*]}"
    unpack_into "$unpacking" "$server" "$suite" "$mirror" "${packages[@]}" || return 1
    rm -rf "$folder.old"
    if [ -e "$folder" ]; then mv "$folder" "$folder.old"; fi
    mv "$unpacking" "$folder"
    unpacking=
    rm -rf "$folder.old"
}

unpack_into() {
    local work=$1 server=$2 suite=$3 mirror=$4
    shift 4
    make_private_apt "$work/apt" "$mirror" "$suite" || return 1
    private_apt "$work/apt" update || return 1
    private_apt "$work/apt" install -y --download-only "$@" || return 1
    if [ "$suite" = trixie ]; then
        (cd "$work/apt/cache/archives" && private_apt "$work/apt" download "${trixie_alone[@]}") || return 1
    fi
    unpack_debs "$work/root" "$work"/apt/cache/archives/*.deb || return 1
    rm -rf "$work/apt"
    printf '%s\n' "$@" >"$work/packages"
    write_wrappers "$work" || return 1
    "$work/bin/$server" --no-defaults --version >&2 || { say "the unpacked $server does not run"; return 1; }
}

install_unpacked() {
    local name=$1 folder=$2 server=$3 suite=$4
    shift 4
    if has_unpacked "$folder" "$server" "$@"; then
        say "already unpacked in $folder: $*"
        return
    fi
    if ! unpack "$folder" "$server" "$suite" "$@"; then
        rm -rf "$unpacking"
        unpacking=
        shout "$name could not be had from Debian $suite on this machine." \
            "Everything that needs it is skipped; the other servers are not concerned."
        server_missing=yes
    fi
}

# --- llvm-tools, for scripts/build-release.sh ---------------------------------

# That says it itself, and builds without a profile, where they are not to be had.
add_llvm_tools() {
    local host
    command -v rustup >/dev/null && command -v rustc >/dev/null || return 0
    host=$(rustc -vV | sed -n 's/^host: //p')
    [ ! -x "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" ] || return 0
    say "adding llvm-tools to the Rust toolchain"
    timeout 300 rustup component add llvm-tools >&2 ||
        shout "rustup could not add llvm-tools: the release build will have no profile."
}

# --- What was asked for -------------------------------------------------------

apt_packages=("${apt_servers[@]}")
apt_optional=("${apt_servers_optional[@]}")
apt_kerberos=()
sid_packages=("${sid_servers[@]}")
llvm_tools=no
trixie_packages=()
server_missing=no

[ $# -gt 0 ] || set -- servers
for group in "$@"; do
    case $group in
        servers) ;;
        test | faults)
            apt_packages+=("${apt_test[@]}") apt_optional+=("${apt_test_optional[@]}")
            apt_kerberos=("${apt_test_kerberos[@]}") trixie_packages=("${trixie_servers[@]}")
            [ "$group" = test ] || apt_optional+=("${apt_faults_optional[@]}")
            ;;
        bench) apt_packages+=("${apt_bench[@]}") sid_packages+=("${sid_bench[@]}") llvm_tools=yes ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) say "unknown group '$group': servers, test, faults or bench"; exit 2 ;;
    esac
done

if ! command -v apt-get >/dev/null; then
    fail "this script knows Debian and its relatives only; install MariaDB yourself and set MILLRACE_MARIADBD"
fi

# One installation at a time: two would unpack over each other.
mkdir -p "$cache"
exec 9>"$cache/install.lock"
flock 9

apt_install "${apt_packages[@]}" || fail "apt could not install: ${apt_packages[*]}"
if [ ${#apt_optional[@]} -gt 0 ] && ! apt_install "${apt_optional[@]}"; then
    shout "apt could not install: ${apt_optional[*]}. What needs it is skipped."
fi
if [ ${#apt_kerberos[@]} -gt 0 ] && ! apt_install "${apt_kerberos[@]}"; then
    shout "apt could not install: ${apt_kerberos[*]}. What needs it is skipped."
fi
install_unpacked MySQL "$mysql_dir" mysqld sid "${sid_packages[@]}"
if [ ${#trixie_packages[@]} -gt 0 ]; then
    install_unpacked 'MariaDB 11.8' "$mariadb_11_8_dir" mariadbd trixie "${trixie_packages[@]}"
fi
if [ "$llvm_tools" = yes ]; then add_llvm_tools; fi

if [ "$server_missing" = yes ]; then exit 3; fi
say "all there"
