"""Warm-started power iteration against the full decomposition: `python benchmarks/power_iteration.py [--threads N]`

20 experts, output projections 512 x 1024, float32. The weights make ten optimiser steps in one direction, every entry by a thousandth of the weights'
root mean square a step (Adam's worst case for something that follows: full momentum, no noise to average out), and the prototypes follow with one or two
iterations a step. Error: the largest angle of the 20 to the exact vector (float64) after the tenth step, so lag adds up.
Spectra are trained-like: the shape of the down projections of SmolLM2-135M, where the second singular value over the first is between .55 and .95 in
seven layers looked at, median .65. The target of 1e-3 rad is met at .65 and **missed at .95**, where one or two iterations a step lag behind weights that
move steadily; the rows `power_iteration_error_small_gap` state it, and `power_iteration_steps_small_gap` how many iterations a step would do. Also reported is a random matrix, which has
no gap and so no direction to speak of: there the share of the first singular value says what the direction held is worth.
Time: contenders take turns, medians are compared."""
import argparse, math, os, sys
from pathlib import Path
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import torch
from set_reward import medians
from diverse_rl.experts import power_iteration

E,H,F = 20,512,1024
STEPS,CHANGE,TARGET = 10,1e-3,1e-3

def trained_like(ratio, seed=0, shape=(E,H,F)):
    "Matrices (E,H,F), H at most F, with singular values 1, ratio and a tail like that of trained down projections"
    e,h,f = shape; g = torch.Generator().manual_seed(seed); basis = lambda n: torch.linalg.qr(torch.randn(e, n, h, generator=g)).Q
    s = ratio*(1-.77*torch.linspace(0, 1, h).sqrt()); s[1:] = s[:-1].clone(); s[0] = 1
    return (basis(h)*s) @ basis(f).mT

def exact(w):
    "First left singular vectors (E,H) and values (E,), in float64"
    values,vectors = torch.linalg.eigh(w.double() @ w.double().mT)
    return vectors[...,-1], values[...,-1].sqrt()

def angles(a, b): return 2*torch.asin(((a-b*(a*b).sum(-1, keepdim=True).sign()).norm(dim=-1)/2).clamp(max=1))

def followed(w, seed=1, steps=(1,2)):
    "{iterations a step: (largest angle error [rad], least share of the first singular value)} after ten optimiser steps, from the exact vectors on"
    move = CHANGE*w.square().mean().sqrt()*torch.randn(w.shape, generator=torch.Generator().manual_seed(seed)).sign()
    u = torch.nn.functional.normalize((exact(w)[0].float()[:,None] @ w)[:,0], dim=-1); w = w.clone(); us = dict.fromkeys(steps, u); last = {}
    for _ in range(STEPS):
        w += move
        for n in us: last[n] = power_iteration(w, us[n], n); us[n] = last[n].u_EF
    want,top = exact(w)
    return {n:(float(angles(x.p_EH.double(), want).max()), float((x.sigma_E.double()/top).min())) for n,x in last.items()}

def time_rows(repeats):
    w = trained_like(.65); u = power_iteration(w, steps=20).u_EF
    jobs = dict(one=lambda: power_iteration(w, u, 1), two=lambda: power_iteration(w, u, 2), read=lambda: w.sum(), svd=lambda: torch.linalg.svd(w, full_matrices=False), gram=lambda: torch.linalg.eigh(w @ w.mT))
    torch.testing.assert_close(angles(jobs['svd']().U[...,0], jobs['two']().p_EH), torch.zeros(E), atol=1e-3, rtol=0)
    t = medians(jobs, repeats)
    return [dict(name='power_iteration_ms', value=1e3*t['one'], unit='ms', against=f'itself: one step, {E} experts of {H} x {F}'),
        dict(name='power_iteration_speedup', value=t['svd']/t['one'], unit='ratio', against='torch.linalg.svd, one step; target >= 100'),
        dict(name='power_iteration_speedup_two', value=t['svd']/t['two'], unit='ratio', against='torch.linalg.svd, two steps; target >= 100'),
        dict(name='power_iteration_speedup_over_gram', value=t['gram']/t['one'], unit='ratio', against='torch.linalg.eigh of W W^T, one step'),
        dict(name='power_iteration_reads', value=t['one']/t['read'], unit='ratio', against='summing the weights once; it has to read them twice')]

def error_rows():
    out = []
    for name,w,spectrum in (('',trained_like(.65),'second singular value .65 of the first (median seen); target <= 1e-3 rad'), ('_small_gap',trained_like(.95),'second singular value .95 of the first (worst seen); target <= 1e-3 rad'),
                            ('_no_gap',torch.randn(E, H, F, generator=torch.Generator().manual_seed(0)),'random matrix')):
        for steps,(error,share) in followed(w).items():
            suffix = {1:'', 2:'_two'}[steps]
            out.append(dict(name=f'power_iteration_error{name}{suffix}', value=error, unit='rad', against=f'exact, {steps} step{"s"*(steps>1)} a weight change; {spectrum}{", missed" if "target" in spectrum and error>TARGET else ""}'))
            if name=='_no_gap': out.append(dict(name=f'power_iteration_share{name}{suffix}', value=share, unit='fraction', against=f'first singular value, {steps} step{"s"*(steps>1)} a weight change: what the direction it holds is worth'))
    enough = next((n for n,(error,_) in followed(trained_like(.95), steps=(4,8,16,32)).items() if error<=TARGET), math.inf)
    return out+[dict(name='power_iteration_steps_small_gap', value=enough, unit='steps', against='the target of 1e-3 rad at a second singular value .95 of the first: enough of 4, 8, 16, 32 steps a weight change (1 and 2 miss it)')]

def rows(repeats=3): return time_rows(repeats)+error_rows()

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('--threads', type=int, default=1, help='threads for every contender')
    a = p.parse_args(); torch.set_num_threads(a.threads)
    from run import table
    print(table(rows()))
