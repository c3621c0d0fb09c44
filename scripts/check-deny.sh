#!/usr/bin/env bash
# Licences, bans, sources and advisories of every dependency, with cargo-deny.
#
# Installs cargo-deny into cargo's home when it is not there (some minutes, once).
# The advisories are a git repository: where it cannot be reached, that part is
# skipped, loudly. Exit status: 0 all held, 1 something did not, 3 the advisories
# could not be looked at and the rest held.
set -euo pipefail
cd "$(dirname "$0")/.."

# The build that cargo-deny's own lock file describes, without optimisation: it
# runs for a second and compiles in half the time.
install_deny() {
    printf 'deny: installing cargo-deny (once; some minutes)\n'
    cargo install --quiet --locked --debug cargo-deny
}

cargo deny --version >/dev/null 2>&1 || install_deny
cargo deny --version

cargo deny --log-level warn check --hide-inclusion-graph licenses bans sources

log=$(mktemp)
trap 'rm -f "$log"' EXIT
fetched=yes
timeout 120 cargo deny --log-level warn fetch db >"$log" 2>&1 || fetched=no
if [ "$fetched" = no ]; then
    printf '\n!!! The advisory database cannot be fetched here: advisories were NOT checked.\n'
    printf '!!! Run scripts/check-deny.sh where the network is open.\n\n'
    exit 3
fi
cargo deny --log-level warn check --hide-inclusion-graph advisories
