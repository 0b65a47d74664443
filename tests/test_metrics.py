"Metrics: slow formulas against fast ones, brute force over hands, known targets, refusals"
import itertools, math, subprocess, sys, warnings
from fractions import Fraction
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from diverse_rl.metrics import *

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32-1)
grid = st.sampled_from([-1., 0., .25, .5, .5, 1.])                      # few values: ties are common

def rewards(*shape): return hnp.arrays(float, shape, elements=st.one_of(grid, st.floats(-5, 5, width=32)))
def simplex(seed, k, d): return np.random.default_rng(seed).dirichlet(np.ones(d), k)
def hands(n, k): return itertools.combinations(range(n), k)
def crossed(s, p): return tuple(np.indices((s, p)).reshape(2, -1))

# ---- pass@k

@few
@given(st.data())
def test_pass_at_k_is_the_binomial_formula(data):
    n = data.draw(st.integers(1, 400)); c = data.draw(st.integers(0, n)); k = data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n-c, k), math.comb(n, k))
    got = pass_at_k(n, c, k)
    assert isinstance(got, float) and math.isclose(got, float(exact), rel_tol=1e-12, abs_tol=0)

def test_pass_at_k_enumerated():
    right = np.array([1, 0, 0, 1, 0, 0, 0])
    for k in range(1, 8): assert np.isclose(pass_at_k(7, 2, k), np.mean([right[list(h)].any() for h in hands(7, k)]))

@pytest.mark.parametrize('n,c,k', [(10**9, 3, 10**6), (10**12, 10**5, 7), (10**7, 2, 10**7-3), (2**53, 1, 12345)])
def test_pass_at_k_large(n, c, k):
    a, b = min(c, k), max(c, k)
    miss = math.prod((Fraction(n-b-j, n-j) for j in range(min(a, 400))), start=Fraction(1)) if a <= 400 else None
    want = float(1-miss) if miss is not None else -math.expm1(math.fsum(math.log1p(-b/(n-j)) for j in range(a)))
    assert math.isclose(pass_at_k(n, c, k), want, rel_tol=1e-11)

def test_pass_at_k_broadcasts_and_saturates():
    out = pass_at_k(20, np.arange(21)[:, None], np.arange(1, 6))
    assert out.shape == (21, 5) and (np.diff(out, axis=0) >= 0).all() and (np.diff(out, axis=1) >= -1e-15).all()
    assert (out[0] == 0).all() and (out[20] == 1).all() and not np.signbit(out).any()
    assert np.allclose(out[:, 0], np.arange(21)/20)
    assert pass_at_k(10**10, 10**9, 10**9) == 1 and pass_at_k(torch.tensor(5), torch.tensor([0, 5]), 2).tolist() == [0, 1]

@pytest.mark.parametrize('args,words', [((4, 1, 5), 'k=5 is larger than n=4'), ((4, 5, 1), 'c=5 is larger than n=4'), ((4, -1, 1), 'c=-1 is below 0'),
    ((4, 1, 0), 'k=0 is below 1'), ((0, 0, 1), 'n=0 is below 1'), (([5, 4], [1, 1], 5), 'larger than n=4')])
def test_pass_at_k_refuses(args, words):
    with pytest.raises(ValueError, match=words): pass_at_k(*args)

def test_pass_at_k_wants_whole_numbers():
    with pytest.raises(TypeError, match='whole numbers'): pass_at_k(10, .3, 2)

# ---- best@k

@few
@given(st.integers(1, 9).flatmap(lambda n: rewards(3, n)))
def test_best_at_k_is_the_mean_over_hands(values):
    n, got = values.shape[1], best_at_k(values)
    slow = [[np.mean([v[list(h)].max() for h in hands(n, k)]) for k in range(1, n+1)] for v in values]
    assert got.shape == (3, n) and np.allclose(got, slow, atol=1e-12)
    assert (np.diff(got, axis=1) >= -1e-12).all()
    assert np.allclose(best_at_k(-values[:, ::-1], n), -values.min(1))

@few
@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_best_at_k_of_bits(n, data):
    c = data.draw(st.integers(0, n)); bits = np.random.default_rng(n).permutation([1]*c + [0]*(n-c))
    assert np.allclose(best_at_k(bits), pass_at_k(n, c, np.arange(1, n+1)), atol=1e-13)

@few
@given(st.integers(1, 80), st.data())
def test_coefficients_are_the_binomials(n, data):
    k = data.draw(st.integers(1, n))
    exact = [float(Fraction(math.comb(i-1, k-1), math.comb(n, k))) for i in range(1, n+1)]
    assert np.allclose(best_at_k_coefficients(n, k)[0], exact, rtol=1e-12, atol=0)
    assert np.allclose(best_at_k_coefficients(n, k, tail=(n+1)//2)[0], exact[n-(n+1)//2:], rtol=1e-12, atol=0)

def test_best_at_k_ten_thousand():
    n = 10_000; v = np.random.default_rng(0).normal(size=n); ks = [1, 2, 63, 64, 1000, 9_999, n]
    s = np.sort(v)
    def exact(k):                                                       # independent: log-gamma in the tail, exact enough at n = 10^4
        i = np.arange(k, n+1); lg = np.vectorize(math.lgamma)
        return float(np.exp(lg(i) - math.lgamma(k) - lg(i-k+1) - (math.lgamma(n+1) - math.lgamma(k+1) - math.lgamma(n-k+1))) @ s[k-1:])
    got = best_at_k(v, ks)
    assert np.allclose(got, [exact(k) for k in ks], atol=1e-8) and np.isclose(got[0], v.mean()) and got[-1] == v.max()
    everything = best_at_k(v)
    assert np.allclose(everything[np.array(ks)-1], got, atol=1e-13) and (np.diff(everything) >= -1e-12).all()
    assert np.isclose(best_at_k(np.arange(1, n+1), 100), 100*(n+1)/101)          # the expected maximum of 100 of 1..n

def test_best_at_k_is_unbiased():
    draws = np.random.default_rng(1).random((4000, 6))                           # uniform: E max of k is k/(k+1)
    est = best_at_k(draws, [1, 3, 6]); se = est.std(0)/math.sqrt(len(est))
    assert (np.abs(est.mean(0) - [1/2, 3/4, 6/7]) < 4*se).all()

def test_best_at_k_shapes_types_and_equal_values():
    x = torch.rand(2, 5, 7, dtype=torch.bfloat16, requires_grad=True)
    out = best_at_k(x, [3, 1])
    assert isinstance(out, np.ndarray) and out.shape == (2, 5, 2) and np.allclose(out[..., 1], x.detach().double().mean(-1))
    assert best_at_k(x, 3).shape == (2, 5) and best_at_k(x, torch.tensor([3])).shape == (2, 5, 1) and best_at_k(x, range(1, 4)).shape == (2, 5, 3)
    assert (best_at_k(np.full((3, 1000), .1), [1, 7, 999]) == .1).all() and best_at_k([.3]).tolist() == [.3]
    assert np.allclose(best_at_k([0., 1., 2.], [2, 2]), 5/3)

@pytest.mark.parametrize('values,ks,words', [([1., math.nan], 1, 'NaN'), ([1., -math.inf], 1, 'infinite'), ([1., 2.], 3, r'k=3 but the pool holds n=2'), ([1., 2.], 0, 'k=0'),
    ([], 1, 'empty axis'), ([1., 2.], [[1]], 'flat list'), ([1., 2.], [], 'empty')])
def test_best_at_k_refuses(values, ks, words):
    with pytest.raises(ValueError, match=words): best_at_k(values, ks)

# ---- E_w[best@k], answers and chains

@few
@given(rewards(3, 6, 4), seeds)
def test_expected_best_at_k_slow(vectors_PND, seed):
    w = simplex(seed, 5, 4)
    slow = [[np.mean([(v[list(h)] @ w.T).max(0).mean() for h in hands(6, k)]) for k in (1, 2, 5)] for v in vectors_PND]
    assert np.allclose(expected_best_at_k(vectors_PND, w, [1, 2, 5]), slow, atol=1e-12)
    per = expected_best_at_k(vectors_PND, np.stack([w, w[::-1], w]), [1, 2, 5])
    assert np.allclose(per, slow, atol=1e-12)
    assert np.allclose(expected_best_at_k(vectors_PND[0], w, 2), slow[0][1], atol=1e-12)

def test_expected_best_at_k_own_weights_per_pool():
    g = np.random.default_rng(0); v, w = g.random((2, 7, 3)), g.dirichlet([1]*3, (2, 11))
    assert np.allclose(expected_best_at_k(v, w, [4]), np.stack([expected_best_at_k(a, b, [4]) for a, b in zip(v, w)]))

def test_expected_best_at_k_blocks_of_weights():
    g = np.random.default_rng(0); v, w = g.random((1500, 2)), g.dirichlet([1]*2, 5000)      # more than one block of 2**22 entries
    halves = (expected_best_at_k(v, w[:2000], [1, 9])*2000 + expected_best_at_k(v, w[2000:], [1, 9])*3000)/5000
    assert np.allclose(expected_best_at_k(v, w, [1, 9]), halves, atol=1e-12)

def test_expected_best_at_k_known_values():
    t = (np.arange(4000)+.5)/4000; w = np.stack([t, 1-t], -1)
    assert np.isclose(expected_best_at_k([[1, 0], [0, 1], [.6, .6]], w, 3), .76, atol=1e-6)
    assert np.allclose(expected_best_at_k([[.2], [.6], [.4]], [[1.]], [1, 2, 3]), best_at_k([.2, .6, .4]))
    assert np.allclose(expected_best_at_k(np.tile([.3, .7], (5, 1)), w, None), .5)

@few
@given(rewards(2, 5, 3, 4), hnp.arrays(bool, (2, 5, 3)), seeds)
def test_chains_slow(vectors_PCMD, mask_PCM, seed):
    w = simplex(seed, 6, 4)
    def value(p, c, x):
        got = [float(x @ vectors_PCMD[p, c, m]) for m in range(3) if mask_PCM[p, c, m]]
        return max(got) if got else 0.
    slow = [[np.mean([[max(value(p, c, x) for c in h) for x in w] for h in hands(5, k)]) for k in (1, 3, 5)] for p in range(2)]
    assert np.allclose(best_at_k_chains(vectors_PCMD, mask_PCM, w, [1, 3, 5]), slow, atol=1e-12)
    assert np.allclose(best_at_k_chains(torch.tensor(vectors_PCMD), torch.tensor(mask_PCM), w, 3), np.array(slow)[:, 1], atol=1e-12)

def test_chains_of_one_answer_are_answers():
    g = np.random.default_rng(2); v, w = g.random((3, 7, 1, 4)), simplex(0, 9, 4)
    assert np.allclose(best_at_k_chains(v, None, w), expected_best_at_k(v[:, :, 0], w))
    assert np.allclose(best_at_k_chains(-v, np.zeros((3, 7, 1), bool), w, [2], empty=-.5), -.5)

def test_chains_are_free_of_the_pool_size_and_answers_are_not():
    chain, w = np.eye(2), np.stack([np.linspace(0, 1, 1001), np.linspace(1, 0, 1001)], -1)
    of = lambda c: np.stack([chain]*c)
    assert np.isclose(best_at_k_chains(of(2), None, w, 1), best_at_k_chains(of(9), None, w, 1))
    assert expected_best_at_k(pool_answers(of(2)), w, 2) > expected_best_at_k(pool_answers(of(9)), w, 2) + .02

def test_pool_answers_and_chains_for_answers():
    v = np.arange(24.).reshape(2, 2, 3, 2) + 1; mask = np.ones((2, 2, 3), bool); mask[1, 0, 2] = False
    flat = pool_answers(v, mask)
    assert flat.shape == (2, 6, 2) and (flat[1, 2] == 0).all() and (flat[0] == v[0].reshape(6, 2)).all()
    assert [chains_for_answers(k, 4) for k in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    for bad in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match='k >= 1 and m >= 1'): chains_for_answers(*bad)

@pytest.mark.parametrize('w,words', [([[.5, .6]], 'simplex'), ([[1.5, -.5]], 'simplex'), ([[.2, .3, .5]], 'D=2'), ([.5, .5], r'\(K, D\)'), (np.full((3, 1, 2), .5), 'leading axes')])
def test_weights_are_checked(w, words):
    with pytest.raises(ValueError, match=words): expected_best_at_k(np.ones((4, 5, 2)), w, 1)

def test_mask_shape_is_checked():
    with pytest.raises(ValueError, match=r'mask_CM has shape \(4, 2\); \(4, 3\) is needed'): best_at_k_chains(np.ones((4, 3, 2)), np.ones((4, 2)), [[.5, .5]])
    with pytest.raises(ValueError, match='mask_CM'): pool_answers(np.ones((4, 3, 2)), np.ones((3, 4)))

# ---- diversity, Pareto, hypervolume

@few
@given(st.integers(2, 9).flatmap(lambda n: rewards(2, n, 3)))
def test_diversity_slow(vectors_PND):
    slow = [np.mean([np.abs(a-b).sum() for a, b in itertools.combinations(v, 2)]) for v in vectors_PND]
    assert np.allclose(diversity_l1(vectors_PND), slow, atol=1e-12)

def test_diversity_edges():
    assert diversity_l1(np.full((6, 3), .1)) == 0 and isinstance(diversity_l1([[0.], [3.]]), float) and diversity_l1([[0.], [3.]]) == 3
    far = np.random.default_rng(0).integers(0, 8, (50, 2)).astype(float)
    assert diversity_l1(far + 2.**50) == diversity_l1(far)                       # no cancellation
    with pytest.raises(ValueError, match='N=1'): diversity_l1([[1., 2.]])
    with pytest.raises(ValueError, match='NaN'): diversity_l1([[1., math.nan], [1, 2]])

@few
@given(st.tuples(st.integers(1, 25), st.integers(1, 4)).flatmap(lambda s: rewards(*s)), st.data())
def test_pareto_slow(v, data):
    signs = np.array(data.draw(st.lists(st.booleans(), min_size=v.shape[1], max_size=v.shape[1])))
    s = np.where(signs, v, -v)
    slow = np.array([not any((b >= a).all() and (b > a).any() for b in s) for a in s])
    assert (pareto_mask(v, maximise=signs.tolist()) == slow).all() and slow.any()
    assert pareto_count(v, maximise=signs.tolist()) == len({tuple(r + 0.) for r in v[slow]})
    moocore = pytest.importorskip('moocore')
    if v.shape[1] > 1: assert (moocore.is_nondominated(v, maximise=signs.tolist(), keep_weakly=True) == slow).all()

def test_pareto_signed_zero_and_errors():
    assert pareto_mask([[0., 1.], [-0., 1.]]).all() and pareto_count([[0., 1.], [-0., 1.]]) == 1
    with pytest.raises(ValueError, match='one pool at a time'): pareto_mask(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="maximise must be"): pareto_mask(np.ones((3, 4)), maximise=[True, False])

def volume(v, ref):
    "Hypervolume (maximise) by inclusion and exclusion of boxes"
    box = lambda rows: np.prod(np.maximum(np.min(rows, axis=0) - ref, 0))
    return sum((-1)**(k+1)*sum(box(v[list(h)]) for h in hands(len(v), k)) for k in range(1, len(v)+1))

@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(lambda s: rewards(*s)), st.integers(-2, 1))
def test_hypervolume_slow(v, low):
    pytest.importorskip('moocore')
    ref = np.full(v.shape[1], low/2)
    assert np.isclose(hypervolume(v, reference=ref), volume(v, ref), atol=1e-9)
    assert np.isclose(hypervolume(-v, reference=-ref, maximise=False), volume(v, ref), atol=1e-9)

@settings(max_examples=30, deadline=None)
@given(rewards(5, 3), rewards(4, 3))
def test_igd_plus_slow(v, front):
    pytest.importorskip('moocore')
    slow = np.mean([min(math.sqrt((np.maximum(z-a, 0)**2).sum()) for a in v) for z in front])
    assert np.isclose(igd_plus(v, front), slow, atol=1e-12) and np.isclose(igd_plus(-v, -front, maximise=False), slow, atol=1e-12)
    assert np.isclose(igd_plus(np.concatenate([v, front]), front), 0)

def test_front_measures():
    pytest.importorskip('moocore')
    front = np.array([[1., 0, 1], [0, 1, 1], [.5, .5, 1]])
    assert front_coverage(front[[1, 0, 1]], front) == 2/3 and front_coverage(front+1e-9, front) == 1 and front_coverage(front*0, front) == 0
    assert hypervolume([[.5, .25, 1]], reference=[0, 0, 0]) == .125
    mixed = hypervolume([[.5, .25]], reference=[0, 1], maximise=[True, False])
    assert np.isclose(mixed, .5*.75)
    with pytest.raises(ValueError, match='same D'): igd_plus(front, front[:, :2])
    with pytest.raises(ValueError, match='same D'): hypervolume(front, reference=[0, 0])
    with pytest.raises(TypeError): hypervolume(front, [0, 0, 0])                # direction and reference by keyword only
    with pytest.raises(TypeError): igd_plus(front, front, True)

def test_moocore_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, 'moocore', None)
    with pytest.raises(ImportError, match='pip install moocore'): hypervolume([[.5, .5]], reference=[0, 0])

# ---- collinearity

@few
@given(st.integers(0, 10**6))
def test_collinearity_slow(seed):
    v = np.random.default_rng(seed).normal(size=(5, 7, 3))
    flat = np.concatenate([p - p.mean(0) for p in v])
    for got, want in ((collinearity(v), np.corrcoef(flat.T)), (collinearity(v, within=False), np.corrcoef(v.reshape(-1, 3).T)), (collinearity(v[0]), np.corrcoef(v[0].T))):
        assert np.allclose(got.correlations_DD, want) and np.isclose(got.rho, (want.sum()-3)/6) and got.constant == ()

def test_collinearity_constant_components():
    v = np.random.default_rng(0).random((4, 9, 4)); v[..., 2] = np.arange(4)[:, None]*.1       # constant inside each prompt
    inside, across = collinearity(v), collinearity(v, within=False)
    assert inside.constant == (2,) and across.constant == () and np.isnan(inside.correlations_DD[2]).all()
    assert np.isclose(inside.rho, collinearity(v[..., [0, 1, 3]]).rho)
    assert math.isnan(collinearity(np.ones((5, 3))).rho) and collinearity(np.ones((5, 3))).constant == (0, 1, 2)
    assert collinearity(np.full((7, 2), .1)).constant == (0, 1)                                 # .1 has no exact mean
    assert math.isnan(collinearity([[1.], [2.]]).rho) and math.isnan(collinearity([[1., 2.]]).rho)

@few
@given(rewards(2, 5, 3), seeds)
def test_gate_gain_slow(v, seed):
    w = simplex(seed, 7, 3); gate = collinearity_gate(v, w, [1, 2, 4])
    def gain(p, k):
        return np.mean([(p[list(h)] @ w.T).max(0).mean() - (p[list(h)] @ w.mean(0)).max() for h in hands(5, k)])
    slow = np.array([[gain(p, k) for k in (1, 2, 4)] for p in v])
    assert np.allclose(gate.gain_Pk, slow, atol=1e-12) and np.allclose(gate.gain, slow.mean(0), atol=1e-12)
    assert (slow > -1e-12).all() and np.allclose(slow[:, 0], 0, atol=1e-12)
    assert gate.open == bool(gate.gain[-1] > max(.01*abs(gate.scalar[-1]), 1e-12) and not math.isnan(gate.rho))

def trade_with_failures(g):
    kind = g.integers(0, 2, (200, 12))
    return (.8 + .2*np.stack([kind, 1-kind], -1))*(g.random((200, 12, 1)) > .7)

def test_gate_verdicts():
    w = simplex(0, 200, 2); g = np.random.default_rng(0); x = g.random((50, 8, 1))
    same = collinearity_gate(np.concatenate([x, x], -1), w)
    assert not same.open and 'collinear' in same.reason and np.isclose(same.rho, 1) and np.allclose(same.gain, 0, atol=1e-12) and len(same.ks) == 8
    trade = collinearity_gate(np.concatenate([x, 1-x], -1), w, [8])
    assert trade.open and trade.reason.startswith('open') and np.isclose(trade.rho, -1) and trade.gain[0] > .15
    flat = collinearity_gate(np.concatenate([x, x*0+.5], -1), w)
    assert not flat.open and flat.constant == (1,) and 'fewer than two' in flat.reason
    king = np.concatenate([x*.1, (1-x)*.1], -1); king[:, 0] = 1
    one = collinearity_gate(king, w, [8], max_rho=1)                            # one answer beats all others everywhere
    assert not one.open and 'one answer wins' in one.reason and np.isclose(one.vector[0], 1)
    assert 'although correlation' in collinearity_gate(trade_with_failures(g), w, [8]).reason

def test_gaussian_gain_is_reached():
    g = np.random.default_rng(0); w = simplex(1, 400, 3)
    for rho in (0., .6):
        x = math.sqrt(rho)*g.normal(size=(1500, 5, 1)) + math.sqrt(1-rho)*g.normal(size=(1500, 5, 3)); x -= x.mean((0, 1))
        gate = collinearity_gate(x, w, [3, 5])
        assert np.allclose(gate.gain/gate.scalar, gaussian_gain(rho, w), rtol=.12)
    assert gaussian_gain(1., w) == 0 and gaussian_gain([0., .95], w).shape == (2,) and gaussian_gain(.95, w) < .01

# ---- distinct-n

@few
@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 3))
def test_distinct_slow(prompts, n):
    grams = [[tuple(a[i:i+n]) for a in p for i in range(len(a)-n+1)] for p in prompts]
    share = lambda g: len(set(g))/len(g) if g else math.nan
    got = distinct_n(prompts, n)
    assert np.allclose(got.per_prompt, [share(g) for g in grams], equal_nan=True) and np.allclose(got.pooled, share(sum(grams, [])), equal_nan=True)
    for g, x in zip(grams, distinct_n(prompts, n, size=3).per_prompt):
        want = np.mean([len(set(h)) for h in itertools.combinations(g, 3)])/3 if len(g) >= 3 else math.nan
        assert np.isclose(x, want, equal_nan=True)

def test_distinct_edges():
    assert distinct_n([[torch.tensor([1, 2, 1, 2]), np.array([1, 2])]], 2).per_prompt.tolist() == [2/4]
    with pytest.raises(TypeError, match='letters'): distinct_n([['U R D']], 2)
    with pytest.raises(ValueError, match='n=0'): distinct_n([[[1]]], 0)

# ---- intervals

def test_t_quantile_table():
    table = {(.975, 1): 12.7062047, (.975, 2): 4.3026527, (.95, 3): 2.3533634, (.995, 10): 3.1692727, (.975, 120): 1.9799304, (.9, 7): 1.4149239}
    for (p, dof), want in table.items(): assert np.isclose(t_quantile(p, dof), want, rtol=1e-5) and np.isclose(t_quantile(1-p, dof), -want, rtol=1e-5)
    assert np.isclose(t_quantile(.975, np.inf), 1.959964, rtol=1e-5) and t_quantile(.5, 3) == 0

def test_one_way_t_is_the_textbook_interval():
    g = np.random.default_rng(0); means = g.normal(size=12)                     # equal clusters: the t interval of the cluster means
    i = cluster_bootstrap(np.repeat(means, 5), np.repeat(np.arange(12), 5), n_boot=20_000, level=.9)
    half = t_quantile(.95, 11)*means.std(ddof=1)/math.sqrt(12)
    assert np.isclose(i.estimate, means.mean()) and np.allclose([i.low, i.high], [means.mean()-half, means.mean()+half], rtol=.03)

@pytest.mark.parametrize('method', ['t', 'percentile'])
def test_statistic_function_agrees_with_mean(method):
    g = np.random.default_rng(3); v, ids = g.random((3*5, 2)), crossed(3, 5)
    a = cluster_bootstrap(v, ids, n_boot=200, generator=4, method=method)
    b = cluster_bootstrap(v, ids, n_boot=200, generator=np.random.default_rng(4), method=method, statistic=lambda x: x.mean(0))
    assert all(np.allclose(x, y) for x, y in zip(a[:3], b[:3])) and a.estimate.shape == (2,) and a.clusters == (3, 5) and a.note == ''
    assert (a.low < a.estimate).all() and (a.estimate < a.high).all()

def test_redraw_counts_are_products():
    seen = []
    v, ids = np.arange(6.), crossed(2, 3)
    cluster_bootstrap(v, ids, n_boot=50, method='percentile', statistic=lambda x: seen.append(x) or x.mean())
    for x in seen[1:]:
        counts = np.bincount(x.astype(int), minlength=6).reshape(2, 3)
        assert counts.sum() == 6 and np.linalg.matrix_rank(counts) == 1          # outer product: prompts drawn once for all seeds

def test_rows_are_permutable_and_ids_arbitrary():
    g = np.random.default_rng(5); v, (s, p) = g.random(12), crossed(3, 4); o = g.permutation(12)
    a = cluster_bootstrap(v, (s, p)); b = cluster_bootstrap(v[o], (np.array(['a', 'b', 'c'])[s[o]], torch.tensor(p[o])*10))
    assert np.allclose(a[:3], b[:3])

def test_coverage_one_way_of_bits():
    g = np.random.default_rng(6); trials, p, m = 1000, 40, 8
    rate = g.beta(2, 2, size=(p, trials))
    bits = (g.random((m, p, trials)) < rate).reshape(m*p, trials)
    prompt = np.tile(np.arange(p), m)
    cover = lambda i: np.mean((i.low <= .5) & (.5 <= i.high))
    assert .925 < cover(cluster_bootstrap(bits, prompt, n_boot=600)) < .975
    assert .91 < cover(cluster_bootstrap(bits, prompt, n_boot=600, method='percentile')) < .97
    assert cover(cluster_bootstrap(bits, np.arange(m*p), n_boot=600)) < .85     # rows taken for independent: far too sure

def test_coverage_of_few_seeds():
    g = np.random.default_rng(7); trials = 1000
    x = (.2*g.normal(size=(3, 1, trials)) + .2*g.normal(size=(1, 25, trials)) + .1*g.normal(size=(3, 25, trials))).reshape(-1, trials)
    cover = {m: np.mean((i.low <= 0) & (0 <= i.high)) for m in ('t', 'percentile') for i in [cluster_bootstrap(x, crossed(3, 25), n_boot=500, method=m)]}
    assert cover['t'] > .91 and cover['percentile'] < .87

def test_paired_difference():
    g = np.random.default_rng(8); base = g.normal(size=(30, 1)); a, b = (base + .1*g.normal(size=(30, 4)) for _ in range(2))
    prompt = np.repeat(np.arange(30), 4)
    gap, arm = paired_bootstrap_difference(a.ravel()+.2, b.ravel(), prompt), cluster_bootstrap(a.ravel(), prompt)
    assert gap.low > 0 and gap.high - gap.low < (arm.high - arm.low)/4
    assert np.allclose(gap[:3], cluster_bootstrap((a+.2-b).ravel(), prompt)[:3])
    med = paired_bootstrap_difference(a.ravel(), a.ravel(), prompt, statistic=np.median, n_boot=50)
    assert med.estimate == med.low == med.high == 0
    swap = paired_bootstrap_difference(b.ravel(), a.ravel()+.2, prompt)
    assert np.allclose([swap.low, swap.high], [-gap.high, -gap.low])
    with pytest.raises(ValueError, match='same rows'): paired_bootstrap_difference(a.ravel(), b.ravel()[:-1], prompt)

def test_one_cluster():
    with pytest.warns(UserWarning, match='one cluster: no interval'): i = cluster_bootstrap([[1., 2.], [3., 4.]], [7, 7])
    assert i.estimate.tolist() == [2, 3] and np.isnan(i.low).all() and np.isnan(i.high).all() and i.note.endswith('no interval')
    with pytest.warns(UserWarning, match='one seed and one prompt: no interval'): cluster_bootstrap([1.], ([0], [0]))
    with pytest.warns(UserWarning, match='one seed: the interval holds for it alone'): i = cluster_bootstrap([1., 2, 4], ([0]*3, [0, 1, 2]))
    assert np.allclose(i[:3], cluster_bootstrap([1., 2, 4], [0, 1, 2])[:3])
    with warnings.catch_warnings():
        warnings.simplefilter('error'); cluster_bootstrap([1., 2, 4], [0, 1, 2])

@pytest.mark.parametrize('kw,error,words', [(dict(clusters=[0, 1]), ValueError, 'one id per row'), (dict(clusters=([0, 0, 1], [0, 1, 2])), ValueError, 'crossed.*3 of 2x3'), (dict(method='bca'), ValueError, "method='bca'"),
    (dict(level=95), ValueError, 'level=95'), (dict(statistic='median'), ValueError, "statistic='median'"), (dict(values=[1, math.nan, 2]), ValueError, 'NaN')])
def test_bootstrap_refuses(kw, error, words):
    args = dict(values=[1., 2., 3.], clusters=[0, 1, 2]) | kw
    with pytest.raises(error, match=words): cluster_bootstrap(args.pop('values'), args.pop('clusters'), **args)

def test_interval_rows_are_json():
    import json
    i = cluster_bootstrap(np.random.default_rng(0).random((5, 3)), np.arange(5))
    rows = json.loads(json.dumps(interval_rows([1, 4, 12], i)))
    assert list(rows) == ['1', '4', '12'] and rows['4'] == [i.estimate[1], i.low[1], i.high[1]]
    with pytest.raises(ValueError): interval_rows([1, 2], i)

def test_curve_figure():
    pytest.importorskip('plotly')
    i = cluster_bootstrap(np.random.default_rng(0).random((5, 3)), np.arange(5))
    fig = curve_figure({'a': i, 'b': i}, [1, 2, 3])
    assert [t.name for t in fig.data] == [None, 'a', None, 'b'] and np.allclose(fig.data[1].y, i.estimate)
    assert np.allclose(fig.data[0].y, np.concatenate([i.high, i.low[::-1]])) and fig.data[1].line.color != fig.data[3].line.color

def test_import_is_light():
    code = "import sys, diverse_rl.metrics; print([m for m in ('plotly', 'moocore', 'trl', 'transformers', 'pandas', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == '[]'
