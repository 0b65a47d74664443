"""Error of group advantages from K weight vectors, scrambled Sobol against independent draws: `python benchmarks/simplex.py`

G=8, M=3, D=4, scores uniform on [0,1]. Root mean square over groups, rollouts and redraws of the difference between the
z-scored set reward under K nodes and under 2^15 nodes (whose own error is reported)."""
import os, sys, time
from pathlib import Path
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
import torch
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diverse_rl.sets import set_reward
from diverse_rl.simplex import simplex_nodes

def seeded(seed): return torch.Generator().manual_seed(seed)
def advantage(rewards_BGMD, weights_KD):
    "Set reward, centred and divided by the population standard deviation of its group"
    r_BG = set_reward(rewards_BGMD, weights_KD)
    return (r_BG-r_BG.mean(-1, keepdim=True))/(r_BG.std(-1, keepdim=True, correction=0)+1e-6)
def nodes(k, d, method, seed, alpha=1.): return simplex_nodes(k, d, method=method, alpha=alpha, generator=seeded(seed), dtype=torch.float64)

def errors(k, d=4, *, alpha=1., groups=64, redraws=32, exact_k=2**15, methods=('iid','sobol')):
    "Rms advantage error of each method at `k` nodes, and of the reference against another of its size"
    rewards_BGMD = torch.rand(groups, 8, 3, d, generator=seeded(1), dtype=torch.float64)
    exact, again = (advantage(rewards_BGMD, nodes(exact_k, d, 'sobol', s, alpha)) for s in (10**6,10**6+1))
    rms = lambda x: x.square().mean().sqrt().item()
    out = {m:rms(torch.stack([advantage(rewards_BGMD, nodes(k, d, m, s, alpha))-exact for s in range(redraws)])) for m in methods}
    return out | dict(reference=rms(again-exact))

def seconds(method, k=128, d=4, alpha=1., repeats=20):
    "Median seconds of one draw"
    ts = []
    for s in range(repeats):
        t = time.perf_counter(); nodes(k, d, method, s, alpha); ts.append(time.perf_counter()-t)
    return sorted(ts)[repeats//2]

def rows():
    e = errors(128); out = [dict(name='advantage_error_sobol', value=e['sobol']/e['iid'], unit='ratio', against='iid at K=128, G=8 M=3 D=4, target <= 0.333'),
        dict(name='advantage_error_sobol_128', value=e['sobol'], unit='rms', against='exact advantage'), dict(name='advantage_error_iid_128', value=e['iid'], unit='rms', against='exact advantage'),
        dict(name='advantage_error_lattice_120', value=errors(120, redraws=1, methods=('lattice',))['lattice'], unit='rms', against='exact advantage'),
        dict(name='advantage_error_reference', value=e['reference'], unit='rms', against='two references of 2^15 nodes')]
    for k,d,alpha in ((100,4,1.),(32,4,1.),(1024,4,1.),(128,2,1.),(128,8,1.),(128,16,1.),(128,4,.5),(128,4,3.)):
        e = errors(k, d, alpha=alpha, groups=32, redraws=16, exact_k=2**14)
        out.append(dict(name=f'advantage_error_sobol_K{k}_D{d}_alpha{alpha:g}', value=e['sobol']/e['iid'], unit='ratio', against=f'iid at K={k}, D={d}, alpha={alpha:g}'))
    return out+[dict(name=f'simplex_ms_{m}_alpha{a:g}', value=1e3*seconds(m, alpha=a), unit='ms', against='one draw of K=128, D=4') for m,a in (('iid',1.),('sobol',1.),('sobol',.5))]

if __name__=='__main__':
    from run import table
    torch.set_num_threads(1); print(table(rows()))
