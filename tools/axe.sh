#!/usr/bin/env bash
# tools/axe.sh: fetch axe-core, which looks for what keeps people from using a page, into node_modules/axe-core once. Prints the script; nothing without npm.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.11.1; dir=node_modules/axe-core
if ! grep -qs "\"version\": \"$version\"" $dir/package.json; then
    command -v npm >/dev/null || { echo 'no npm: the accessibility check will be left out' >&2; exit 0; }
    tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
    echo "== Fetching axe-core@$version" >&2
    npm pack --silent --pack-destination "$tmp" axe-core@$version >/dev/null
    rm -rf $dir; mkdir -p $dir; tar -xzf "$tmp/axe-core-$version.tgz" -C $dir --strip-components=1
fi
echo $dir/axe.min.js
