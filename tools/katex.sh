#!/usr/bin/env bash
# tools/katex.sh: fetch KaTeX, which sets the site's maths, into node_modules/katex once. Prints its dist folder; nothing without npm.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.16.47; dir=node_modules/katex
if ! grep -qs "\"version\": \"$version\"" $dir/package.json; then
    command -v npm >/dev/null || { echo 'no npm: the pages will take KaTeX from the web' >&2; exit 0; }
    tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
    echo "== Fetching katex@$version" >&2
    npm pack --silent --pack-destination "$tmp" katex@$version >/dev/null
    rm -rf $dir; mkdir -p $dir; tar -xzf "$tmp/katex-$version.tgz" -C $dir --strip-components=1
fi
echo $dir/dist
