#!/usr/bin/env bash
# Holds the documents true: every TOML block in README.md and docs/, and
# deploy/*.toml, must be a configuration that `millrace check` accepts, and every
# relative link must lead to a file and a heading. Needs the release binary (or MILLRACE_BIN).
set -euo pipefail
cd "$(dirname "$0")/.."

millrace=${MILLRACE_BIN:-${CARGO_TARGET_DIR:-target}/release/millrace}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

scripts/changelog.py --check || status=1

# Where a block takes a password from a variable, there must be one.
export MILLRACE_MONITOR_PASSWORD=none MILLRACE_ADMIN_PASSWORD=none

documents=(README.md ARCHITECTURE.md CONTRIBUTING.md bench/README.md
    bench/instructions/README.md changelog.d/README.md tests/README.md tests/clients/README.md tests/foreign/README.md)
while IFS= read -r document; do documents+=("$document"); done < <(find docs deploy -name '*.md' | sort)

blocks_of() {
    awk -v out="$work/$(tr / _ <<<"$1")" '
        /^```toml/ { inside = 1; n++; next }
        /^```/ { inside = 0 }
        inside { print > (out "." n ".toml") }' "$1"
}

for document in "${documents[@]}"; do
    blocks_of "$document"
done
scripts/check-links.py "${documents[@]}" || status=1

for file in "$work"/*.toml deploy/*.toml; do
    [ -e "$file" ] || continue
    if "$millrace" check "$file"; then
        printf 'readme: %s is valid\n' "${file##*/}"
    else
        printf 'readme: %s is not valid\n' "${file##*/}"
        status=1
    fi
done

# Proof that the above can fail.
printf '[pool]\nmax_conections = 1\n' >"$work/wrong"
if "$millrace" check "$work/wrong" >/dev/null 2>&1; then
    printf 'readme: proof failed: a misspelt key passed\n'
    status=1
fi
printf '# Here\n[there](#nowhere)\n' >"$work/wrong.md"
if scripts/check-links.py "$work/wrong.md" >/dev/null; then
    printf 'readme: proof failed: a link to no heading passed\n'
    status=1
fi
exit "$status"
