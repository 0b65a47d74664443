"Weights on the simplex: distribution, evenness, reproducibility, refusals"
import math
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.simplex import (break_stick, compositions, concentration, iid_nodes, lattice_size, log_gamma_quantile,
                                simplex_figure, simplex_nodes, sobol_points)

def seeded(seed): return torch.Generator().manual_seed(seed)
alphas = st.one_of(st.floats(.02, 30), st.just(1.))

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.sampled_from(['sobol', 'iid']), alphas, st.integers(0, 2**40), st.sampled_from([torch.float32, torch.float64]))
def test_rows_lie_on_the_simplex(k, d, method, alpha, seed, dtype):
    nodes_KD = simplex_nodes(k, d, method=method, alpha=alpha, generator=seeded(seed), dtype=dtype)
    assert nodes_KD.shape == (k, d) and nodes_KD.dtype == dtype and (nodes_KD >= 0).all()
    assert (nodes_KD.sum(-1) - 1).abs().max() < 1e-5

@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(1, 5))
def test_lattice_is_every_composition_once(n, d):
    def slow(n, d): return [(n,)] if d == 1 else [(i, *rest) for i in range(n+1) for rest in slow(n-i, d-1)]
    assert sorted(map(tuple, compositions(n, d).tolist())) == sorted(slow(n, d))
    if d == 1: return
    nodes_KD = simplex_nodes(lattice_size(n, d), d, method='lattice', dtype=torch.float64)
    steps = (nodes_KD - 1/d)*math.sqrt(n*(n+d)) + n/d
    assert sorted(map(tuple, steps.round().tolist())) == sorted(slow(n, d)) and (steps - steps.round()).abs().max() < 1e-9

@pytest.mark.parametrize('n, d', [(1, 2), (7, 2), (1, 3), (4, 3), (3, 5), (0, 4)])
def test_lattice_has_the_moments_of_the_uniform_distribution(n, d):
    nodes_KD = simplex_nodes(lattice_size(n, d), d, method='lattice', dtype=torch.float64)
    assert nodes_KD.min() > 0 and (nodes_KD.mean(0) - 1/d).abs().max() < 1e-12
    if n: assert (nodes_KD.T @ nodes_KD/len(nodes_KD) - (1 + torch.eye(d, dtype=torch.float64))/(d*(d+1))).abs().max() < 1e-12

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_break_stick_inverts_the_conditional_distributions(d, seed):
    u_KC = torch.rand(7, d, generator=seeded(seed), dtype=torch.float64)
    for u, w in zip(u_KC.tolist(), break_stick(u_KC).tolist()):
        left = 1.
        for i in range(d):                                            # P(share > t) = (1-t)^(D-1-i) for what is left
            assert math.isclose((1 - w[i]/left)**(d-i), u[i], abs_tol=1e-9)
            left -= w[i]
        assert math.isclose(w[-1], left, abs_tol=1e-12)

def test_quantile_agrees_with_scipy():
    special = pytest.importorskip('scipy.special')
    u = torch.tensor([1e-9, 1e-4, .03, .5, .9, .9999, 1-2**-31], dtype=torch.float64)
    for alpha in (.05, .3, 1., 2.5, 17., 400.):
        ours = log_gamma_quantile(u, torch.tensor(alpha, dtype=torch.float64)).exp()
        theirs = torch.from_numpy(special.gammaincinv(alpha, u.numpy()))
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-280), alpha

def test_quantile_stays_in_range_for_tiny_alpha():
    t = log_gamma_quantile(torch.tensor([1e-3, .5], dtype=torch.float64), torch.tensor(1e-3, dtype=torch.float64))
    assert t.isfinite().all() and math.isclose(t[1], math.log(.5)/1e-3 + math.lgamma(1.001)/1e-3, rel_tol=1e-9)
    nodes_KD = simplex_nodes(64, 3, alpha=1e-3)
    assert nodes_KD.isfinite().all() and (nodes_KD.max(-1).values > .99).double().mean() > .9

@pytest.mark.parametrize('method', ['sobol', 'iid'])
@pytest.mark.parametrize('alpha', [.2, 1., 4., (.5, 1., 3., 2.)])
def test_marginals_are_beta(method, alpha):
    stats = pytest.importorskip('scipy.stats')
    alpha_D = concentration(alpha, 4)
    nodes_KD = simplex_nodes(4096, 4, method=method, alpha=alpha, generator=seeded(5), dtype=torch.float64)
    bound = {'sobol': .012, 'iid': .025}[method]                     # 1.63/sqrt(4096) is the 1 % point of Kolmogorov's statistic
    for d in range(4):
        assert stats.kstest(nodes_KD[:, d].numpy(), stats.beta(alpha_D[d], alpha_D.sum()-alpha_D[d]).cdf).statistic < bound

def test_second_moments_of_the_uniform_simplex():
    nodes_KD = simplex_nodes(2**13, 5, dtype=torch.float64)
    want = (1 + torch.eye(5, dtype=torch.float64))/30                # E w_i w_j = (1 + [i=j]) / (D (D+1))
    assert (nodes_KD.T @ nodes_KD/len(nodes_KD) - want).abs().max() < 1e-4

def test_every_interval_holds_one_sobol_point():
    for column in (sobol_points(64, 5, seeded(3))*64).long().T: assert sorted(column.tolist()) == list(range(64))
    assert (sobol_points(2**12, 3, seeded(3)) > 0).all() and (sobol_points(2**12, 3, seeded(3)) < 1).all()

def test_scrambling_is_unbiased():
    means = torch.stack([simplex_nodes(2, 3, generator=seeded(s), dtype=torch.float64).square().mean(0) for s in range(800)])
    assert (means.mean(0) - 1/6).abs().max() < 5*means.std()/800**.5    # E w² = 2/(D(D+1)) = 1/6

def test_generator_is_the_only_source_of_chance():
    torch.manual_seed(1); before = torch.get_rng_state()
    first = {m: simplex_nodes(10, 3, method=m) for m in ('sobol', 'iid', 'lattice')}
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    for m, nodes_KD in first.items(): assert torch.equal(nodes_KD, simplex_nodes(10, 3, method=m))
    for m in ('sobol', 'iid'):
        g = seeded(0)
        a, b = simplex_nodes(10, 3, method=m, generator=g), simplex_nodes(10, 3, method=m, generator=g)
        assert not torch.equal(a, b) and torch.equal(a, simplex_nodes(10, 3, method=m, generator=seeded(0)))

def test_sobol_beats_iid_threefold_at_equal_k():
    rewards_BGMD = torch.rand(40, 8, 3, 4, generator=seeded(11), dtype=torch.float64)
    def advantage(w_KD):
        r_BG = (rewards_BGMD @ w_KD.T).amax(-2).mean(-1)
        return (r_BG - r_BG.mean(-1, keepdim=True))/r_BG.std(-1, keepdim=True, correction=0)
    def nodes(k, method, s): return simplex_nodes(k, 4, method=method, generator=seeded(s), dtype=torch.float64)
    exact = advantage(nodes(2**14, 'sobol', 99))
    def rms(k, m, redraws=12): return torch.stack([(advantage(nodes(k, m, s))-exact).square().mean() for s in range(redraws)]).mean().sqrt()
    assert rms(128, 'sobol') <= rms(128, 'iid')/3 and rms(120, 'lattice', 1) <= rms(128, 'iid')/3

def test_one_component_is_one():
    for m in ('sobol', 'iid', 'lattice'): assert torch.equal(simplex_nodes(5, 1, method=m, alpha=2.), torch.ones(5, 1))

def test_half_precision_rows_still_sum_to_one():
    assert (simplex_nodes(50, 4, dtype=torch.float16).double().sum(-1) - 1).abs().max() < 2e-3

@pytest.mark.parametrize('kw, words', [
    (dict(k=0, d=3), ['k: got 0', 'at least 1']), (dict(k=2.5, d=3), ['k: got 2.5']), (dict(k=4, d=0), ['d: got 0']),
    (dict(k=4, d=3, alpha=0), ['alpha: got 0', 'positive']), (dict(k=4, d=3, alpha=float('nan')), ['alpha', 'nan']), (dict(k=4, d=3, alpha=(1, -2, 1)), ['alpha', '-2']),
    (dict(k=4, d=3, alpha=(1, 2)), ['alpha: got 2 values', '3 of them']), (dict(k=4, d=3, method='grid'), ["method: got 'grid'", 'sobol', 'iid', 'lattice']),
    (dict(k=40, d=4, method='lattice'), ['40', '35 and 56', 'sobol']), (dict(k=10, d=3, method='lattice', alpha=2.), ['alpha', 'sobol']),
    (dict(k=4, d=3, dtype=torch.int64), ['dtype: got torch.int64', 'floating'])])
def test_refusals_name_argument_value_and_remedy(kw, words):
    with pytest.raises(ValueError) as e: simplex_nodes(**kw)
    for word in words: assert word in str(e.value)

def test_iid_follows_its_formula():
    alpha_D = concentration((.5, 2., 1.), 3)
    g = seeded(4); gamma = torch._standard_gamma(alpha_D.expand(6, 3)+1, generator=g)
    u = (-torch.empty(6, 3, dtype=torch.float64).exponential_(generator=g)).exp()
    x = gamma*u**(1/alpha_D)
    assert torch.allclose(iid_nodes(6, alpha_D, seeded(4)), x/x.sum(-1, keepdim=True))

def test_figure_holds_every_node():
    pytest.importorskip('plotly')
    nodes = {m: simplex_nodes(15, 3, method=m) for m in ('iid', 'sobol', 'lattice')}
    fig = simplex_figure(nodes, {'iid': {8: .1, 16: .05}})
    assert [len(t.x) for t in fig.data if t.mode == 'markers'] == [15, 15, 15] and fig.data[-1].y == (.1, .05)
