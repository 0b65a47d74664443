#!/usr/bin/env bash
# tools/browser.sh: what the tests of the site need besides Python: a Chromium, fonts, and npm (for KaTeX).
# Installs Debian's packages where that is possible; says what is missing where it is not.
set -uo pipefail
has() { command -v "$1" >/dev/null; }
browser() { [ -n "${CHROMIUM:-}" ] || has chromium || has chromium-browser || has google-chrome || has google-chrome-stable; }

need=()
browser || need+=(chromium fonts-dejavu-core)
has npm || need+=(npm)
[ ${#need[@]} = 0 ] && { echo "== Browser and npm are here"; exit 0; }
if has apt-get && [ "$(id -u)" = 0 ]; then
    echo "== Installing ${need[*]} with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null; apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
browser || echo "== No Chromium: the tests of the site in a browser will be skipped. Install one, or name one: make test CHROMIUM=/path/to/chrome"
has npm || echo "== No npm: the site takes KaTeX from the web, so the tests of the site will be skipped. Install Node.js to run them"
exit 0
