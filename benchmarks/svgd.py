"""A step of Stein variational gradient descent against blackjax's, jitted: `python benchmarks/svgd.py`

N=1000 particles, dimension 64, float32, standard normal target, score by automatic differentiation on both sides, RBF kernel, and
the median rule at every step, as both libraries do by default. One thread setting for all: the process is pinned to as many cores as
OMP_NUM_THREADS says (1 if unset), which binds torch and XLA alike. Contenders take turns, compilation is not timed, and all of them
must move the particles to the same places. blackjax works pair by pair; so a third contender has our algebra (one Gram matrix),
jitted by XLA: it says how much is the algebra and how much is the library."""
import os, sys
from pathlib import Path
for k,v in dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', JAX_PLATFORMS='cpu').items(): os.environ.setdefault(k, v)
import torch
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
from diverse_rl.stein import gaussian_log_density, median_bandwidth, svgd_iter
from set_reward import medians, square

N,D,LR = 1000,64,.3

def pin(threads):
    "Keep this process on `threads` cores, before XLA starts its own threads"
    torch.set_num_threads(threads)
    if threads==1: os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '')+' --xla_cpu_multi_thread_eigen=false'
    if hasattr(os, 'sched_setaffinity'): os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])

def ours(x, bandwidth=None): return lambda: next(svgd_iter(gaussian_log_density, x, LR, bandwidth=bandwidth))

def theirs(x, update=True):
    "A jitted blackjax step from the particles `x`; without `update` the bandwidth stays"
    import blackjax, jax, numpy, optax
    keep = {} if update else dict(update_kernel_parameters=lambda state: state)
    alg = blackjax.svgd(jax.grad(lambda x: -.5*(x*x).sum()), optax.sgd(LR), **keep)
    state = alg.init(jax.numpy.asarray(x.numpy()), {'length_scale':jax.numpy.asarray(median_bandwidth(x).numpy())})
    step = jax.jit(alg.step)
    return lambda: torch.from_numpy(numpy.array(jax.block_until_ready(step(state)).particles))

def gram(x, bandwidth=None):
    "Our algebra in jax, jitted; the median rule unless a bandwidth is given"
    import jax, numpy as np
    from jax import numpy as jnp
    def step(x):
        y = x-x.mean(0); s = (y*y).sum(-1); d = jnp.maximum(s[:,None]+s-2*y@y.T, 0)
        h = jnp.median(jnp.sqrt(d[jnp.tril_indices(len(x), -1)]))**2/np.log(len(x)) if bandwidth is None else bandwidth
        k = jnp.exp(-d/h)
        return x+LR*(k@jax.vmap(jax.grad(lambda x: -.5*(x*x).sum()))(x)+2/h*(k.sum(-1, keepdims=True)*y-k@y))/len(x)
    step, x = jax.jit(step), jnp.asarray(x.numpy())
    return lambda: torch.from_numpy(np.array(jax.block_until_ready(step(x))))

def rows(repeats=7):
    pin(int(os.environ['OMP_NUM_THREADS'])); mm, mm_flops = square()
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0)); h = median_bandwidth(x)
    jobs = dict(ours=ours(x), blackjax=theirs(x), gram=gram(x), ours_fixed=ours(x, h), blackjax_fixed=theirs(x, False), gram_fixed=gram(x, float(h)))
    for k,f in jobs.items(): torch.testing.assert_close(f(), jobs['ours'](), rtol=1e-4, atol=1e-5, msg=f'{k} moves the particles elsewhere')
    t = medians(jobs | dict(mm=mm), repeats); where = f'N={N} D={D} float32'
    return [dict(name='svgd_step_ms', value=1e3*t['ours'], unit='ms', against=f'itself: {where}'),
        dict(name='svgd_step_time', value=t['ours']/t['blackjax'], unit='ratio', against='blackjax, jitted, target <= 1'),
        dict(name='svgd_step_time_fixed_bandwidth', value=t['ours_fixed']/t['blackjax_fixed'], unit='ratio', against='blackjax, jitted, no median rule on either side'),
        dict(name='svgd_step_time_vs_jitted_gram', value=t['ours']/t['gram'], unit='ratio', against='our algebra in jax, jitted'),
        dict(name='svgd_step_time_vs_jitted_gram_fixed_bandwidth', value=t['ours_fixed']/t['gram_fixed'], unit='ratio', against='our algebra in jax, jitted, no median rule on either side'),
        dict(name='svgd_step_matmul_fraction', value=6*N*N*D/t['ours_fixed']/(mm_flops/t['mm']), unit='fraction', against='matrix-product peak of this machine, no median rule')]

if __name__=='__main__':
    from run import table
    print(table(rows()))
