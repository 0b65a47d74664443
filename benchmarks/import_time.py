"""What `import diverse_rl` adds to `import torch`: `python benchmarks/import_time.py`

Each import runs in a fresh process, by turns; medians. A process times `import torch` first and then `import diverse_rl`, so that the
difference is not lost in the seconds that torch takes. Processor time, as in step_time.py, and the wall clock's beside it."""
import os, statistics, subprocess, sys
from pathlib import Path
ROOT = Path(__file__).resolve().parents[1]
CODE = '''
import time
def now(): return time.process_time(), time.perf_counter()
a = now(); import torch; b = now(); import diverse_rl; c = now()
import sys; extra = [m for m in ('trl','transformers','plotly','datasets','scipy','pandas') if m in sys.modules]
assert not extra, f'import diverse_rl loads {extra}'
print(*[y-x for p,q in ((a,b),(b,c)) for x,y in zip(p,q)])
'''

def once():
    "Processor and wall seconds of `import torch`, then those that `import diverse_rl` adds"
    env = {**os.environ, 'OMP_NUM_THREADS':'1', 'OMP_WAIT_POLICY':'PASSIVE', 'PYTHONPATH':str(ROOT)}
    r = subprocess.run([sys.executable, '-c', CODE], capture_output=True, text=True, env=env, cwd='/')
    if r.returncode: raise RuntimeError(f'the import failed:\n{r.stderr[-2000:]}')
    return [float(o) for o in r.stdout.split()]

def rows(repeats=9):
    once()                                                    # fills the file cache
    torch_cpu,torch_wall,ours_cpu,ours_wall = (statistics.median(c) for c in zip(*[once() for _ in range(repeats)]))
    return [dict(name='import_seconds', value=ours_cpu, unit='s', against='import torch alone, processor time, target <= 0.3'),
        dict(name='import_seconds_wall', value=ours_wall, unit='s', against='import torch alone, by the wall clock of a machine that may be busy'),
        dict(name='import_time', value=(torch_cpu+ours_cpu)/torch_cpu, unit='ratio', against='import torch alone, processor time')]

if __name__=='__main__':
    from run import table
    print(table(rows(int(sys.argv[1]) if len(sys.argv)>1 else 9)))
