"Stein variational gradient descent: formula against fast form, blackjax on the same particles, known targets, refusals"
import math, os
from functools import partial
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.stein import (CONVENTIONS, Force, _neighbours, banana_log_density, force_figure, gaussian_log_density, imq_kernel, median_bandwidth, mixture_log_density,
                              particle_figure, rbf_kernel, score_of, squared_distances, stein_force, svgd, svgd_iter, svgd_path)

KERNELS = {rbf_kernel:lambda d, h: torch.exp(-d/h), imq_kernel:lambda d, h: (1 + d/h)**-.5}
kernels = pytest.mark.parametrize('kernel', KERNELS, ids=lambda k: k.__name__)
def seeded(seed): return torch.Generator().manual_seed(seed)
def normal(*shape, seed=0, dtype=torch.float64): return torch.randn(*shape, generator=seeded(seed), dtype=dtype)

def slow_force(kernel, x_ND, score_ND, h):
    "The two sums of the equation, pair by pair, the kernel's gradient by automatic differentiation"
    n, driving, repulsive = len(x_ND), torch.zeros_like(x_ND), torch.zeros_like(x_ND)
    for i in range(n):
        for j in range(n):
            xj = x_ND[j].clone().requires_grad_()
            k = KERNELS[kernel]((xj - x_ND[i]).square().sum(), h)
            driving[i] += k.detach()*score_ND[j]/n; repulsive[i] += torch.autograd.grad(k, xj)[0]/n
    return driving, repulsive

shapes = st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 5))

# ---- formula and fast form

@kernels
@settings(max_examples=25, deadline=None)
@given(shapes, st.floats(.05, 20), st.sampled_from([.1, 1., 30.]), st.integers(0, 10**6))
def test_force_is_the_formula(kernel, shape, h, scale, seed):
    L, N, D = shape
    x_LND, score_LND = scale*normal(L, N, D, seed=seed), normal(L, N, D, seed=seed+1)
    h_L = h*scale**2*torch.arange(1., L+1, dtype=torch.float64)
    force = stein_force(x_LND, score_LND, kernel, h_L)
    for l in range(L):
        for fast, slow in zip(force, slow_force(kernel, x_LND[l], score_LND[l], h_L[l])): torch.testing.assert_close(fast[l], slow, rtol=1e-7, atol=1e-9)

@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 4), st.sampled_from(list(CONVENTIONS)), st.integers(0, 10**6), st.booleans())
def test_median_rule_is_the_formula(n, d, convention, seed, ties):
    x_ND = normal(n, d, seed=seed)
    if ties: x_ND = (2*x_ND).round()
    pairs = torch.pdist(x_ND)
    m2 = pairs.quantile(.5).square() if pairs.quantile(.5) > 1e-9 else pairs.square().mean()
    want = m2*{'log':1/math.log(n), 'log1p':1/math.log(n+1), 'square':1, 'length':2}[convention] if m2 > 0 else torch.tensor(1., dtype=torch.float64)
    torch.testing.assert_close(median_bandwidth(x_ND, convention), want, rtol=1e-9, atol=1e-12)

@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 29), st.integers(0, 10**6))
def test_places_are_found_with_and_without_numpy(L, P, at, seed):
    flat, at = normal(L, P, seed=seed).round(decimals=1), min(at, P-1); ordered = flat.sort(-1).values
    for partition in (True, False):
        for got, place in zip(_neighbours(flat, at, partition), (at, min(at+1, P-1))): assert torch.equal(got, ordered[:,place])

@kernels
def test_default_bandwidth_is_the_median_rule_of_each_set(kernel):
    x_LND = normal(2, 3, 6, 4)*torch.tensor([1., 20., .1], dtype=torch.float64)[:,None,None]
    for a, b in zip(stein_force(x_LND, -x_LND, kernel), stein_force(x_LND, -x_LND, kernel, median_bandwidth(x_LND))): torch.testing.assert_close(a, b)
    assert median_bandwidth(x_LND).shape == (2, 3)
    for l in range(2):
        for m in range(3):
            for a, b in zip(stein_force(x_LND, -x_LND, kernel), stein_force(x_LND[l,m], -x_LND[l,m], kernel)): torch.testing.assert_close(a[l,m], b)

@settings(max_examples=25, deadline=None)
@given(shapes, st.floats(-1e4, 1e4), st.floats(.1, 10), st.integers(0, 10**6))
def test_force_moves_turns_and_scales_with_the_particles(shape, shift, scale, seed):
    x, score = normal(*shape, seed=seed), normal(*shape, seed=seed+1)
    turn = torch.linalg.qr(normal(shape[-1], shape[-1], seed=seed+2))[0]; order = torch.randperm(shape[1], generator=seeded(seed))
    a, b = stein_force(x, score), stein_force((scale*x @ turn + shift)[:,order], (score @ turn/scale)[:,order])
    torch.testing.assert_close(b.driving_LND, (a.driving_LND @ turn/scale)[:,order], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(b.repulsive_LND, (a.repulsive_LND @ turn/scale)[:,order], rtol=1e-5, atol=1e-7)

def test_pushes_cancel():
    for kernel in KERNELS: assert stein_force(normal(3, 8, 2), normal(3, 8, 2), kernel).repulsive_LND.sum(-2).abs().max() < 1e-14

def test_distances_far_from_the_origin_keep_their_digits():
    x = normal(9, 5, dtype=torch.float32) + 3e4; exact = torch.cdist(x.double(), x.double()).square()
    assert (squared_distances(x) - exact).abs().max() < 1e-4

def test_no_tensor_of_all_pairs_and_dimensions():
    x = normal(300, 200, dtype=torch.float32)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as p: stein_force(x, -x)
    assert 0 < sum(max(e.self_cpu_memory_usage, 0) for e in p.key_averages()) < 300*300*200*4/4      # all that was ever taken, together

def test_far_particles_have_no_subnormal_kernel():
    for dtype in (torch.float32, torch.float64):
        tiny = torch.finfo(dtype).tiny; x = torch.tensor([[0.], [math.sqrt(-math.log(tiny)) + .01], [math.sqrt(-math.log(tiny)) - .01]], dtype=dtype)
        k = rbf_kernel(x, 1.).k_LNN
        assert k[0,1] == 0 and k[0,2] >= tiny

# ---- another implementation

@pytest.fixture(scope='module')
def jax_x64():
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    import jax
    before = jax.config.jax_enable_x64
    jax.config.update('jax_enable_x64', True)
    yield jax
    jax.config.update('jax_enable_x64', before)

def their_imq(x, y, length_scale): return (1 + ((x - y)**2).sum()/length_scale)**-.5

@kernels
def test_blackjax_moves_the_same_particles_to_the_same_places(jax_x64, kernel):
    import blackjax, optax
    jnp = jax_x64.numpy
    means_CD, x_ND = torch.tensor([[-1., 0., .5], [1.5, 1., 0.]], dtype=torch.float64), normal(14, 3)       # 91 pairs: odd
    def logp(x): return jax_x64.nn.logsumexp(-((x - means_CD.numpy())**2).sum(-1)/(2*.7**2))
    theirs = blackjax.svgd(jax_x64.grad(logp), optax.sgd(.2), **(dict(kernel=their_imq) if kernel is imq_kernel else {}))
    state = theirs.init(jnp.asarray(x_ND.numpy()), {'length_scale':jnp.asarray(median_bandwidth(x_ND).numpy())})   # they start with a given one
    step, ours = jax_x64.jit(theirs.step), svgd_iter(partial(mixture_log_density, means_CD=means_CD, std=.7), x_ND, .2, kernel=kernel)
    for _ in range(25):
        state, x = step(state), next(ours)
        torch.testing.assert_close(x, torch.tensor(state.particles.tolist(), dtype=torch.float64), rtol=1e-10, atol=1e-12)
        assert abs(float(state.kernel_parameters['length_scale'])/median_bandwidth(x) - 1) < 1e-10

def test_blackjax_has_the_same_bandwidth_for_even_and_odd_numbers_of_pairs(jax_x64):
    from blackjax.vi.svgd import median_heuristic
    for n in (3, 8):                                                  # 3 and 28 pairs
        x = normal(n, 3, seed=n); h = jax_x64.jit(lambda x: median_heuristic({}, x)['length_scale'])(x.numpy())
        assert abs(float(h)/median_bandwidth(x) - 1) < 1e-12

# ---- scores and targets

def test_score_of_known_densities():
    x = normal(3, 7, 2); cov = torch.tensor([[2., .6], [.6, .5]], dtype=torch.float64); mean = torch.tensor([1., -2.], dtype=torch.float64)
    torch.testing.assert_close(score_of(partial(gaussian_log_density, mean_D=mean, cov_DD=cov), x), -(x - mean) @ cov.inverse())
    means, weights = normal(3, 2, seed=4), torch.tensor([1., 3., .5], dtype=torch.float64)
    whole = weights/weights.sum()*torch.distributions.MultivariateNormal(means, .49*torch.eye(2, dtype=torch.float64)).log_prob(x[...,None,:]).exp()
    want = ((whole/whole.sum(-1, keepdim=True))[...,None]*(means - x[...,None,:])).sum(-2)/.49
    torch.testing.assert_close(score_of(partial(mixture_log_density, means_CD=means, std=.7, weights_C=weights), x), want)
    assert torch.autograd.gradcheck(lambda x: banana_log_density(x, 1.3, .4), x.requires_grad_())
    assert not score_of(banana_log_density, x).requires_grad

def test_banana_has_the_moments_it_says():
    g = torch.linspace(-8, 60, 6000, dtype=torch.float64); first = torch.linspace(-6, 6, 601, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(first, g, indexing='ij'), -1); p = banana_log_density(grid, 1., .5).exp(); p /= p.sum()
    def mean(f): return float((p*f).sum())
    a, b = grid.unbind(-1)
    for got, want in ((mean(a), 0), (mean(b), 0), (mean(a*a), 1), (mean(b*b), 2.25), (mean(a*b), 0), (mean(a*a*b), 2)): assert abs(got - want) < 1e-3

@kernels
def test_gaussian_moments(kernel):
    mean, cov = torch.tensor([1., -1.]), torch.tensor([[2., .6], [.6, .5]])
    x = svgd(partial(gaussian_log_density, mean_D=mean, cov_DD=cov), normal(120, 2, dtype=torch.float32), 500, .5, kernel=kernel)
    assert (x.mean(0) - mean).abs().max() < .02 and ((x.T.cov(correction=0)/cov) - .95).abs().max() < .06

@kernels
def test_two_modes_are_kept_and_one_without_repulsion_is_a_point(kernel):
    target = partial(mixture_log_density, means_CD=torch.tensor([[-1.5, 0.], [1.5, 0.]]), std=.6)
    start = .5*normal(50, 2, dtype=torch.float32) + torch.tensor([0., 1.5])
    x = svgd(target, start, 400, .5, kernel=kernel)
    assert .4 < (x[:,0] < 0).float().mean() < .6 and abs(x[:,1].var(correction=0)/.36 - 1) < .2 and abs(x[:,0].var(correction=0)/(1.5**2 + .36) - 1) < .15
    fallen = svgd(target, start, 400, .5, kernel=kernel, repulsion=0., bandwidth=.3)
    for side in (fallen[fallen[:,0] < 0], fallen[fallen[:,0] >= 0]): assert len(side) > 15 and side.std(0).max() < .05
    assert min(x[x[:,0] < 0].std(0).min(), x[x[:,0] >= 0].std(0).min()) > .5

def test_banana_moments():
    x = svgd(banana_log_density, normal(100, 2, seed=3, dtype=torch.float32), 2000, .3, kernel=imq_kernel)
    got = torch.stack([x[:,0].var(correction=0), x[:,1].var(correction=0), (x[:,0]**2*x[:,1]).mean()])
    assert (got/torch.tensor([1., 2.25, 2.]) - 1).abs().max() < .15 and x.mean(0).abs().max() < .1

def test_total_variance_in_many_dimensions_is_log_n():
    for n, d in ((30, 200), (80, 150)):
        x = svgd(gaussian_log_density, normal(n, d, dtype=torch.float32), 250, 2.)
        assert abs(x.var(0, correction=0).sum()/math.log(n) - 1) < .05

def test_repulsion_is_a_temperature():
    x, s = normal(9, 3), normal(9, 3, seed=1); f = stein_force(x, s)
    torch.testing.assert_close(f.total(3.), 3*stein_force(x, s/3).total())
    assert torch.equal(f.total(0.), f.driving_LND)

# ---- loop

def test_loop_is_the_step_repeated():
    x = start = normal(2, 5, 3); path = [start]
    for _ in range(6): x = x + .2*stein_force(x, -x, imq_kernel).total(.5); path.append(x)
    torch.testing.assert_close(svgd_path(gaussian_log_density, start, 6, .2, kernel=imq_kernel, repulsion=.5), torch.stack(path))
    torch.testing.assert_close(svgd_path(gaussian_log_density, start, 7, .2, every=3, kernel=imq_kernel, repulsion=.5), torch.stack(path[::3]))
    torch.testing.assert_close(svgd(None, start, 6, .2, score=lambda x: -x, kernel=imq_kernel, repulsion=.5), x)
    assert torch.equal(start, normal(2, 5, 3)) and not x.requires_grad

def test_plain_step_is_torch_sgd_and_other_optimisers_work():
    x = normal(6, 2)
    torch.testing.assert_close(svgd(gaussian_log_density, x, 9, .1, optimizer=torch.optim.SGD), svgd(gaussian_log_density, x, 9, .1))
    y = svgd(gaussian_log_density, normal(100, 2), 400, .3, optimizer=torch.optim.Adagrad)
    assert abs(y.var(correction=0) - .92) < .05

def test_fixed_bandwidth_reaches_every_step():
    x = normal(6, 2); seen = []
    def kernel(x, h): seen.append(h); return rbf_kernel(x, h)
    svgd(gaussian_log_density, x, 3, .1, bandwidth=.7, kernel=kernel); assert seen == [.7]*3

# ---- what else can come in

@kernels
def test_one_particle_is_gradient_ascent(kernel):
    x = normal(3, 1, 4); f = stein_force(x, 2*x, kernel)
    assert torch.equal(f.driving_LND, 2*x) and (f.repulsive_LND == 0).all() and (median_bandwidth(x) == 1).all()

@kernels
@pytest.mark.parametrize('offset', [0., .1, 1e3, 1e6])
def test_identical_particles_are_never_pushed(kernel, offset):
    x = (normal(1, 3, dtype=torch.float32) + offset).expand(7, 3); f = stein_force(x, -x, kernel)
    assert (f.repulsive_LND == 0).all() and torch.allclose(f.driving_LND, -x) and median_bandwidth(x) == 1

def test_two_equal_ones_among_others_get_one_force():
    x = normal(6, 3); x[4] = x[1]; f = stein_force(x, -x)
    for part in f: torch.testing.assert_close(part[4], part[1], rtol=1e-12, atol=1e-14)

def test_bandwidth_when_most_pairs_coincide():
    x = torch.zeros(6, 1); x[5] = 2.
    assert abs(median_bandwidth(x) - 5*4/15/math.log(6)) < 1e-6

@kernels
@pytest.mark.parametrize('dtype, out', [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)])
def test_types(kernel, dtype, out):
    x = normal(8, 3).to(dtype); want = stein_force(x.double(), -x.double(), kernel)
    for got, exact in zip(stein_force(x, -x, kernel), want): assert got.dtype == out and torch.allclose(got.double(), exact, atol=1e-5)
    assert stein_force(x, -x.double(), kernel).driving_LND.dtype == out and median_bandwidth(x).dtype == out and svgd(gaussian_log_density, x, 2).dtype == out

@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_nonfinite_scores(value):
    x, score = normal(5, 3), normal(5, 3, seed=1); score[2,1] = value
    with pytest.raises(ValueError, match="score_LND: 1 of 5 particles .*nonfinite='drop'"): stein_force(x, score)
    left_out = score.clone(); left_out[2] = 0
    for a, b in zip(stein_force(x, score, nonfinite='drop'), stein_force(x, left_out)): assert torch.equal(a, b)

def test_dropped_particle_is_carried_by_the_others():
    def logp(x): return 2*x[...,0].sqrt().log() - x[...,0]                                              # a gamma density; NaN outside its support, x > 0
    start = torch.cat([torch.linspace(.2, 3, 19), torch.tensor([-.3])])[:,None]
    with pytest.raises(ValueError, match='1 of 20'): svgd(logp, start, 1)
    score = score_of(logp, start); f = stein_force(start, score, bandwidth=1., nonfinite='drop')
    assert score[19].isnan() and f.driving_LND[19] > 0 > f.repulsive_LND[19]                             # pulled in, pushed out
    assert (svgd(logp, start, 100, .05, nonfinite='drop', bandwidth=1., repulsion=0.) > 0).all()

@pytest.mark.parametrize('call, says', [
    (lambda x: stein_force(x[0], x[0]), r'x_LND: got shape \(3,\); want \(...,N,D\)'),
    (lambda x: stein_force(x[:0], x[:0]), 'at least one particle'),
    (lambda x: squared_distances(torch.ones(3, 2).long()), 'x_LND: got torch.int64; want a floating type'),
    (lambda x: median_bandwidth(x.index_fill(0, torch.tensor([1]), math.nan)), 'x_LND: 3 of 12 coordinates .*smaller step'),
    (lambda x: stein_force(x, x[:,:2]), r'score_LND: got shape \(4, 2\); want that of the particles, \(4, 3\)'),
    (lambda x: stein_force(x, x, nonfinite='skip'), "nonfinite: got 'skip'; choose 'raise' or 'drop'"),
    (lambda x: median_bandwidth(x, 'mean'), "convention: got 'mean'; choose one of log, log1p"),
    (lambda x: rbf_kernel(x, 0.), 'bandwidth: got 0.0; want positive finite'),
    (lambda x: imq_kernel(x, math.nan), 'bandwidth: got nan; want positive finite'),
    (lambda x: rbf_kernel(x, torch.ones(2)), r'bandwidth: got shape \(2,\); want one number or \(\)'),
    (lambda x: score_of(lambda x: x.sum(), x), r'log_density: returned shape \(\) for particles \(4, 3\); want \(4,\)'),
    (lambda x: score_of(lambda x: torch.zeros(len(x)), x), 'log_density: its value has no gradient'),
    (lambda x: svgd(None, x), 'log_density: got None and no score'),
    (lambda x: svgd(gaussian_log_density, x, 0), 'steps: got 0; want at least 1'),
    (lambda x: svgd_path(gaussian_log_density, x, 5, every=0), 'every: got 0; want at least 1'),
    (lambda x: svgd(banana_log_density, x[:,:2], 100, 50.), 'smaller step')])
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says): call(normal(4, 3))

# ---- figures

def test_figures_are_small_and_have_their_frames():
    path = normal(31, 50, 2, dtype=torch.float32); fig = particle_figure({'a':path, 'b':2*path}, banana_log_density, ((-3, 3), (-3, 3)), every=4)
    assert [f.name for f in fig.frames] == [str(4*s) for s in range(31)] and len(fig.to_json()) < 150_000
    steps = fig.layout.sliders[0].steps
    assert [s.args[0][0] for s in steps] == [f.name for f in fig.frames]
    for s in (0, 30):
        shown = [fig.frames[s].data[i] for i in (0, 1)]
        assert list(fig.frames[s].traces) == [2, 3] and torch.equal(torch.tensor(shown[1].x), 2*path[s,:,0]) and torch.equal(torch.tensor(shown[0].y), path[s,:,1])
    assert fig.data[0].type == fig.data[1].type == 'contour' and fig.data[2].type == 'scatter'

def test_arrows_start_at_the_particles():
    x = normal(4, 2, dtype=torch.float32); f = Force(normal(4, 2, seed=1, dtype=torch.float32), normal(4, 2, seed=2, dtype=torch.float32))
    fig = force_figure(x, f, banana_log_density, ((-3, 3), (-3, 3)), scale=2.)
    arrows = {t.name:torch.tensor(t.x).view(4, 3) for t in fig.data if t.type == 'scatter' and t.mode == 'lines'}
    for name, v in (('driving', f.driving_LND), ('repulsive', f.repulsive_LND)):
        assert torch.equal(arrows[name][:,0], x[:,0]) and torch.allclose(arrows[name][:,1], x[:,0] + 2*v[:,0]) and arrows[name][:,2].isnan().all()
