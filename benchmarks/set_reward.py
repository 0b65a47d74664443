"""Set reward: time and memory against the one-line expression and a loop: `python benchmarks/set_reward.py [--threads N]`

B=64, G=16, M=8, D=8, K=1024, float32. Contenders take turns, medians are compared, every ratio comes from one process.
Peak memory is what the operating system saw: growth of the resident set of a fresh process during one call."""
import argparse, math, os, resource, statistics, subprocess, sys, time
from pathlib import Path
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
import torch
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diverse_rl.sets import set_reward, set_values
from diverse_rl.simplex import simplex_nodes

SHAPE = dict(B=64, G=16, M=8, D=8, K=1024)

def inputs(B, G, M, D, K): return torch.rand(B, G, M, D, generator=torch.Generator().manual_seed(0)), simplex_nodes(K, D)
def one_line(rewards, weights): return (rewards @ weights.T).amax(-2).mean(-1)
def loop(rewards, weights):
    out = torch.empty(rewards.shape[:2])
    for b in range(len(rewards)):
        for g in range(rewards.shape[1]): out[b,g] = (rewards[b,g] @ weights.T).amax(-2).mean(-1)
    return out
def loo_loop(rewards, weights):
    "Leave-one-out contributions from the definition: the one-line expression once for each answer left out"
    m = rewards.shape[2]; whole = one_line(rewards, weights)
    return torch.stack([whole-one_line(rewards[:,:,[i for i in range(m) if i!=j]], weights) for j in range(m)], -1)
CONTENDERS = dict(set_reward=set_reward, one_line=one_line, loop=loop)

def reused():
    "The one-line expression with its large blocks allocated once"
    out = {}
    def f(rewards, weights):
        b,g,m,_ = rewards.shape; k = len(weights)
        if not out: out.update(all=torch.empty(b,g,m,k), best=torch.empty(b,g,k))
        torch.matmul(rewards, weights.T, out=out['all'])
        return torch.amax(out['all'], -2, out=out['best']).mean(-1)
    return f

def medians(jobs, repeats, turn=.03):
    "Median seconds of a call of each job; jobs take turns, and each turn repeats the call for about `turn` seconds, so that a busy machine disturbs all alike"
    def once(f, n):
        t = time.perf_counter()
        for _ in range(n): f()
        return (time.perf_counter()-t)/n
    for f in jobs.values(): f()
    calls = {k:max(1, round(turn/min(once(f, 1) for _ in range(3)))) for k,f in jobs.items()}
    times = {k:[] for k in jobs}
    for _ in range(repeats):
        for k,f in jobs.items(): times[k].append(once(f, calls[k]))
    return {k:statistics.median(v) for k,v in times.items()}

def square(n=1024):
    "A square matrix product, allocation left out, and its floating-point operations"
    a,b,c = torch.rand(n,n), torch.rand(n,n), torch.empty(n,n)
    return (lambda: torch.mm(a, b, out=c)), 2*n**3

def status(key): return next(int(l.split()[1])*1024 for l in Path('/proc/self/status').read_text().splitlines() if l.startswith(key))
def grown(f):
    "Bytes by which the resident set of this process grows at most during `f()`"
    try:
        Path('/proc/self/clear_refs').write_text('5'); before = status('VmRSS'); f()
        return status('VmHWM')-before
    except OSError:                                   # no Linux: the peak so far must do
        unit = 1 if sys.platform=='darwin' else 1024; before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; f()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss-before)*unit

def peak_here(name):
    "Peak of one contender in this process, after a tiny call that loads its code"
    CONTENDERS[name](*inputs(2, 2, 2, SHAPE['D'], 8)); args = inputs(**SHAPE)
    return grown(lambda: CONTENDERS[name](*args))

def peak_bytes(name):
    "Peak of one contender in a fresh process"
    r = subprocess.run([sys.executable, __file__, '--peak', name, '--threads', str(torch.get_num_threads())], capture_output=True, text=True, check=True)
    return int(r.stdout)

def time_rows(repeats):
    args = inputs(**SHAPE); again = reused(); mm, mm_flops = square()
    jobs = {k:(lambda f=f: f(*args)) for k,f in CONTENDERS.items()} | dict(reused=lambda: again(*args))
    expect = one_line(*args)
    for k,f in jobs.items(): torch.testing.assert_close(f(), expect, msg=f'{k} gives other values')
    t = medians(jobs | dict(mm=mm), repeats); mine = t['set_reward']
    flops, peak = 2*math.prod(SHAPE.values()), mm_flops/t['mm']
    return [dict(name='set_reward_ms', value=1e3*mine, unit='ms', against='itself: B=64 G=16 M=8 D=8 K=1024 float32'),
        dict(name='set_reward_time', value=mine/t['one_line'], unit='ratio', against='one-line expression, target <= 0.35'),
        dict(name='set_reward_speedup_over_loop', value=t['loop']/mine, unit='ratio', against='loop over rollouts, target >= 8'),
        dict(name='set_reward_time_vs_reused_blocks', value=mine/t['reused'], unit='ratio', against='one-line expression that never allocates'),
        dict(name='set_reward_matmul_fraction', value=flops/mine/peak, unit='fraction', against='matrix-product peak of this machine (1024 x 1024)')]

def value_rows(repeats):
    args = inputs(16, *list(SHAPE.values())[1:])
    torch.testing.assert_close(set_values(*args).loo_BGM, loo_loop(*args), atol=1e-5, rtol=1e-4)
    t = medians(dict(values=lambda: set_values(*args), reward=lambda: set_reward(*args), loop=lambda: loo_loop(*args)), repeats)
    return [dict(name='set_values_time', value=t['values']/t['loop'], unit='ratio', against='leave-one-out by M one-line expressions'),
        dict(name='set_values_over_set_reward', value=t['values']/t['reward'], unit='ratio', against='set_reward alone')]

def memory_rows():
    mine, theirs = peak_bytes('set_reward'), peak_bytes('one_line')
    return [dict(name='set_reward_peak_mib', value=mine/2**20, unit='MiB', against='itself: growth of the resident set'),
        dict(name='set_reward_peak_memory', value=mine/theirs, unit='ratio', against='one-line expression, target <= 0.25')]

def linear_rows(repeats):
    base = {**SHAPE, 'B':32}
    args = {'':inputs(**base)} | {a:inputs(**{**base, a:2*base[a]}) for a in base}
    t = medians({a:(lambda x=x: set_reward(*x)) for a,x in args.items()}, repeats)
    rows = [dict(name=f'set_reward_doubling_{a}', value=t[a]/t[''], unit='ratio', against=f'{a}={base[a]}; 2 is linear, less is better') for a in base]
    sizes = [inputs(**{**SHAPE, 'B':b}) for b in (8,16,32,64,128,256)]
    times = list(medians({len(x[0]):(lambda x=x: set_reward(*x)) for x in sizes}, repeats).values())
    xs, ys = [math.log(len(x[0])) for x in sizes], [math.log(y) for y in times]; mx, my = sum(xs)/len(xs), sum(ys)/len(ys)
    slope = sum((x-mx)*(y-my) for x,y in zip(xs,ys))/sum((x-mx)**2 for x in xs)
    return rows+[dict(name='set_reward_exponent', value=slope, unit='exponent', against='time ~ size^exponent, 1/8 to 4 times the size; 1 is linear')]

def rows(repeats=21): return time_rows(repeats)+memory_rows()+linear_rows(repeats)+value_rows(max(3, repeats//3))

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('--threads', type=int, default=1, help='threads for every contender')
    p.add_argument('--peak', choices=list(CONTENDERS), help=argparse.SUPPRESS)
    a = p.parse_args(); torch.set_num_threads(a.threads)
    if a.peak: print(peak_here(a.peak))
    else:
        from run import table
        print(table(rows()))
