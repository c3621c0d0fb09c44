#!/bin/bash
# Installs what the client suites need on a Debian 12 machine: runtimes by apt where they are
# missing, then each client's libraries into the cache. Owns ${MILLRACE_CACHE}/clients and nothing
# else. Runs again in a second when nothing changed. A client that cannot be installed is named on
# stderr and left without its `ready` stamp, so that run.sh counts it as skipped, never as passed.
#
#   install.sh [CLIENT…]        default: all clients
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${MILLRACE_CACHE:-$HOME/.cache/millrace}
root=$cache/clients
all=(cli-mariadb cli-mysql go python-pymysql python-mysqlclient python-sqlalchemy python-django node java rust)
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")
mkdir -p "$root"

# One installer at a time: several test runs may start together.
exec 9>"$root/.lock"
flock 9

say() { printf 'clients: %s\n' "$*"; }
complain() { printf 'clients: CANNOT INSTALL %s: %s\n' "$1" "$2" >&2; failed+=("$1"); }
failed=()

# The stamp of a client is the checksum of the files that decide what is installed, with the
# versions of the tools that built it.
stamp_of() { (cd "$here" && find "$@" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; cat "$here/install.sh") | sha256sum | cut -d' ' -f1; }
is_ready() { [ "$(cat "$root/$1/.ready" 2>/dev/null)" = "$2" ]; }
set_ready() { mkdir -p "$root/$1" && printf '%s\n' "$2" >"$root/$1/.ready"; }
forget() { rm -f "$root/$1/.ready"; }

apt_fresh=
# apt_install PACKAGE…: needs root, or sudo without a password.
apt_install() {
    local missing=() sudo=()
    for p in "$@"; do
        dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || { say "not root and no sudo: please install ${missing[*]}"; return 1; }
        sudo=(sudo -n)
    fi
    say "apt-get install ${missing[*]}"
    if [ -z "$apt_fresh" ]; then
        "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update >"$root/apt.log" 2>&1 || true
        apt_fresh=1
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends "${missing[@]}" >>"$root/apt.log" 2>&1 \
        || { tail -n 5 "$root/apt.log" >&2; return 1; }
}
have() { command -v "$1" >/dev/null 2>&1; }

# logged NAME COMMAND…: output into a log that is shown only on failure.
logged() {
    local log=$root/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -n 15 "$log" >&2; return 1; }
}

install_cli_mariadb() { have mariadb || apt_install mariadb-client; }

# Oracle's client comes with the unpacked MySQL that the sandbox keeps in the cache.
mysql_cli() {
    local c
    for c in "${MILLRACE_MYSQL_CLI:-}" "$cache/mysql/bin/mysql"; do
        [ -n "$c" ] && [ -x "$c" ] && "$c" --no-defaults --version >/dev/null 2>&1 && { printf '%s\n' "$c"; return 0; }
    done
    return 1
}
install_cli_mysql() {
    mysql_cli >/dev/null || { say "no MySQL command line in $cache/mysql (the sandbox puts it there)"; return 1; }
}

install_go() {
    # go-sql-driver 1.8 is the newest line that Debian 12's Go 1.19 can build.
    have go || apt_install golang-go ca-certificates || return 1
    mkdir -p "$root/go"
    (cd "$here/go" && logged go env GOTOOLCHAIN=local GOFLAGS=-mod=readonly nice go build -o "$root/go/client" .)
}

python_venv() {
    [ -x "$root/venv/bin/pip" ] && "$root/venv/bin/python" -c 'import sys' 2>/dev/null && return 0
    have python3 || apt_install python3 || return 1
    rm -rf "$root/venv"
    python3 -m venv "$root/venv" >"$root/venv.log" 2>&1 && return 0
    apt_install python3-venv || return 1
    rm -rf "$root/venv"
    logged venv python3 -m venv "$root/venv"
}
pip_install() {
    python_venv || return 1
    logged "pip-$1" nice "$root/venv/bin/pip" install -q --disable-pip-version-check -r "$here/$1/requirements.txt"
}
install_python_pymysql() { pip_install python-pymysql; }
install_python_mysqlclient() {
    have gcc || apt_install gcc || return 1
    have pkg-config || apt_install pkg-config || return 1
    pkg-config --exists libmariadb || apt_install libmariadb-dev || return 1
    have python3 || apt_install python3 || return 1
    python3 -c 'import sysconfig,os,sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
        || apt_install python3-dev || return 1
    pip_install python-mysqlclient
}
install_python_sqlalchemy() { pip_install python-sqlalchemy; }
install_python_django() { install_python_mysqlclient && pip_install python-django; }

install_node() {
    have node || apt_install nodejs || return 1
    have npm || apt_install npm || return 1
    mkdir -p "$root/node"
    cp "$here/node/package.json" "$here/node/package-lock.json" "$root/node/" || return 1
    (cd "$root/node" && logged node nice npm ci --no-audit --no-fund --ignore-scripts)
}

install_java() {
    have javac || apt_install default-jdk-headless || return 1
    have mvn || apt_install maven || return 1
    rm -rf "$root/java"
    mkdir -p "$root/java/lib" "$root/java/classes" || return 1
    logged java nice mvn -q -B -f "$here/java/pom.xml" dependency:copy-dependencies \
        "-DoutputDirectory=$root/java/lib" -DincludeScope=runtime || return 1
    logged javac nice javac -Xlint -proc:none -d "$root/java/classes" -cp "$root/java/lib/*" "$here"/java/src/*.java
}

install_rust() {
    have cargo || { say "no cargo on PATH"; return 1; }
    # Debug information is most of the link time here and nobody steps through these.
    (cd "$here/rust" && logged rust env CARGO_TARGET_DIR="$root/rust-target" nice cargo build --locked -q) || return 1
    mkdir -p "$root/rust" && cp "$root/rust-target/debug/millrace-test-clients" "$root/rust/client"
}

for client in "${wanted[@]}"; do
    case $client in
        cli-mariadb|cli-mysql) stamp= ;;
        python-*) stamp=$(stamp_of "$client/requirements.txt") ;;
        go|node|java|rust) stamp=$(stamp_of "$client") ;;
        *) complain "$client" "no such client; known: ${all[*]}"; continue ;;
    esac
    [ -n "$stamp" ] && is_ready "$client" "$stamp" && continue
    forget "$client"
    [ -z "$stamp" ] || say "installing $client"
    if "install_${client//-/_}"; then set_ready "$client" "$stamp"; else complain "$client" "see $root/*.log"; fi
done

[ ${#failed[@]} -eq 0 ] || { printf 'clients: will be skipped: %s\n' "${failed[*]}" >&2; exit 1; }
