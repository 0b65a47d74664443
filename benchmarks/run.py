"""Every benchmark, one table: `python benchmarks/run.py [NAME ...]`

A benchmark is a file in this folder with `rows()`, which returns dictionaries `name`, `value`, `unit`, `against`.
Each file runs in a fresh process with the same number of threads; ratios are taken within one such process."""
import argparse, importlib.util, json, os, platform, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEYS = ('name','value','unit','against')
THREADS = ('OMP_NUM_THREADS','MKL_NUM_THREADS','OPENBLAS_NUM_THREADS')

def benchmarks(folder=HERE):
    "Files of `folder` that define `rows`"
    return [p for p in sorted(folder.glob('*.py')) if p.name!='run.py' and '\ndef rows(' in '\n'+p.read_text()]

def check(rows, where):
    "Rows with the right keys, or an error that says what is wrong"
    for r in rows:
        gone = [k for k in KEYS if k not in r]
        if gone: raise ValueError(f'{where}: row {r} lacks {", ".join(gone)}; a row has {", ".join(KEYS)}')
    return [{**r, 'value':float(r['value'])} for r in rows]

def one(path):
    "Rows of one benchmark, in this process"
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path); m = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = m; spec.loader.exec_module(m)
    return check(list(m.rows()), path.name)

def fresh(path, threads):
    "Rows of one benchmark, in a new process"
    env = {**os.environ, **dict.fromkeys(THREADS, str(threads)), 'OMP_WAIT_POLICY':'PASSIVE', 'HF_HUB_OFFLINE':'1'}
    r = subprocess.run([sys.executable, __file__, '--one', str(path)], env=env, stdout=subprocess.PIPE, text=True)
    if r.returncode: raise SystemExit(f'{path.name} failed with exit status {r.returncode}')
    return json.loads(r.stdout.rsplit('\n@rows ', 1)[1])

def commit():
    "The commit of the checkout, with `+` if it has changes; `unknown` outside git"
    git = lambda *a: subprocess.run(['git',*a], cwd=HERE, capture_output=True, text=True)
    h = git('rev-parse','--short=12','HEAD')
    if h.returncode: return 'unknown'
    return h.stdout.strip() + ('+' if git('status','--porcelain','--untracked-files=no').stdout.strip() else '')

def hardware(threads):
    "Processor, cores, threads used, accelerator, torch"
    import torch
    info = Path('/proc/cpuinfo'); model = platform.processor() or platform.machine()
    if info.exists(): model = next((l.split(':',1)[1].strip() for l in info.read_text().splitlines() if l.startswith('model name')), model)
    gpu = f', {torch.cuda.get_device_name()}' if torch.cuda.is_available() else ''
    return f'{model}, {os.cpu_count()} cores, {threads} thread{"s" if threads>1 else ""}{gpu}, torch {torch.__version__.split("+")[0]}'

def table(rows):
    "Rows as aligned text"
    cells = [KEYS, *([r['name'], f"{r['value']:.4g}", r['unit'], r['against']] for r in rows)]
    width = [max(len(str(c[i])) for c in cells) for i in range(len(KEYS))]
    lines = ['  '.join(str(c[i]).rjust(w) if i==1 else str(c[i]).ljust(w) for i,w in enumerate(width)).rstrip() for c in cells]
    return '\n'.join([lines[0], '-'*(sum(width)+2*len(width)-2), *lines[1:]])

def main():
    p = argparse.ArgumentParser(description='Run the benchmarks and write results.json')
    p.add_argument('names', nargs='*', help='which benchmarks (file names without .py); all of them if none is named')
    p.add_argument('--threads', type=int, default=int(os.getenv('OMP_NUM_THREADS') or 1), help='threads of each benchmark')
    p.add_argument('--out', type=Path, default=HERE/'results.json', help='where the rows go')
    p.add_argument('--one', type=Path, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.one: return print('\n@rows '+json.dumps(one(a.one)))
    have = {b.stem:b for b in benchmarks()}; wrong = [n for n in a.names if n not in have]
    if wrong: p.error(f'no benchmark {", ".join(wrong)}; there are: {", ".join(have) or "none"}')
    if not have: sys.exit('no benchmark in this folder defines rows()')
    run(a, [have[n] for n in a.names or have])

def run(a, files):
    "Run `files` one after the other, print the table, write the rows"
    both = dict(hardware=hardware(a.threads), commit=commit()); rows = []
    for i,f in enumerate(files):
        t = time.time(); print(f'[{i+1}/{len(files)}] {f.stem} ...', end=' ', flush=True, file=sys.stderr)
        rows += [{**r, **both} for r in fresh(f, a.threads)]
        print(f'{time.time()-t:.1f} s', file=sys.stderr)
    if a.names and a.out.exists():                   # some were run: the others keep their rows
        new = {r['name'] for r in rows}; rows = [r for r in json.loads(a.out.read_text()) if r['name'] not in new]+rows
    a.out.write_text(json.dumps(rows, indent=1)+'\n')
    print(table(rows)+f"\n\n{both['hardware']}, commit {both['commit']}\nwritten: {a.out}")

if __name__=='__main__': main()
