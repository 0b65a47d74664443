"Set rewards: the fast pass against the formula, closed forms against quadrature and nodes, refusals"
import itertools, math
from fractions import Fraction
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.sets import (SetValues, checked, envelope_area, envelope_figure, envelope_xy, exact_set_reward, front_rows,
                             polygon_area, positive_part_mean, set_reward, set_values, tile_shape, tiles)
from diverse_rl.simplex import simplex_nodes

def seeded(seed): return torch.Generator().manual_seed(seed)

# The formulas, in plain Python
def utility(w, r, name):
    if name == 'linear': return math.fsum(a*b for a, b in zip(w, r))
    return max(w) - max(a*(1-b) for a, b in zip(w, r))
def slow_value(answers, weights, name, empty):
    return math.fsum(max([utility(w, r, name) for r in answers], default=utility(w, empty, name)) for w in weights)/len(weights)
def slow_values(rewards_BGMD, weights_KD, mask_BGM, name='linear', empty=None):
    "Reward, prefix values and leave-one-out contributions of every rollout, straight from the definitions"
    b, g, m, d = rewards_BGMD.shape
    reward, prefix, loo, empty = torch.zeros(b, g), torch.zeros(b, g, m), torch.zeros(b, g, m), empty or [0]*d
    for i, j in itertools.product(range(b), range(g)):
        weights = (weights_KD[i] if weights_KD.ndim == 3 else weights_KD).tolist()
        def value(idx): return slow_value([rewards_BGMD[i, j, a].tolist() for a in idx if mask_BGM[i, j, a]], weights, name, empty)
        reward[i, j] = value(range(m))
        for a in range(m):
            prefix[i, j, a] = value(range(a+1))
            loo[i, j, a] = reward[i, j] - value([c for c in range(m) if c != a])
    return SetValues(reward, prefix, loo)
def all_valid(rewards_BGMD): return torch.ones(rewards_BGMD.shape[:3], dtype=torch.bool)

@st.composite
def problems(draw):
    "Random non-square shapes; values random, tied on a coarse grid, equal in all answers, or all zero; weights shared or per prompt; maybe a mask"
    b, g, m, d, k = (draw(st.integers(lo, hi)) for lo, hi in ((1, 3), (1, 4), (1, 5), (1, 6), (1, 7)))
    gen = seeded(draw(st.integers(0, 2**32)))
    r = torch.rand(b, g, m, d, generator=gen)
    kind = draw(st.sampled_from(['random', 'ties', 'equal answers', 'zeros']))
    if kind == 'ties': r = (r*3).floor()/2
    if kind == 'equal answers': r = r[:, :, :1].expand(-1, -1, m, -1)
    if kind == 'zeros': r = torch.zeros_like(r)
    if draw(st.booleans()): w = simplex_nodes(k, d, method='iid', generator=gen)
    else: w = torch.stack([simplex_nodes(k, d, method='iid', alpha=.5, generator=gen) for _ in range(b)])
    mask = torch.rand(b, g, m, generator=gen) < .6 if draw(st.booleans()) else None
    return r, w, mask

@settings(max_examples=90, deadline=None)
@given(problems(), st.sampled_from(['linear', 'chebyshev']))
def test_one_pass_equals_the_formula(problem, name):
    r, w, mask = problem
    r = r.clamp(max=1)
    want = slow_values(r, w, all_valid(r) if mask is None else mask, name)
    got = set_values(r, w, mask_BGM=mask, utility=name)
    for a, b in zip(got, want): assert torch.allclose(a, b, atol=2e-6)
    assert torch.allclose(set_reward(r, w, mask_BGM=mask, utility=name), want.reward_BG, atol=2e-6)

@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(['linear', 'chebyshev']))
def test_negative_rewards_with_the_minimum_for_empty_rollouts(problem, name):
    r, w, mask = problem
    r = (r - .6).clamp(max=1)
    mask = all_valid(r) if mask is None else mask
    empty = r[mask].amin(0).clamp(max=0).tolist() if mask.any() else None
    want = slow_values(r, w, mask, name, empty)
    got = set_values(r.where(mask[..., None], torch.nan), w, mask_BGM=mask, utility=name, negative='minimum')
    for a, b in zip(got, want): assert torch.allclose(a, b, atol=2e-6)
    assert (got.loo_BGM[~mask] == 0).all()
    wrote = mask.any(-1)
    if w.ndim == 2 and wrote.any() and not wrote.all(): assert got.reward_BG[~wrote].max() <= got.reward_BG[wrote].min() + 1e-6

@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([torch.float16, torch.bfloat16]), st.booleans())
def test_half_precision_is_computed_in_float32(problem, dtype, weights_too):
    r, w, mask = problem
    half_r, half_w = r.to(dtype), w.to(dtype) if weights_too else w
    got = set_reward(half_r, half_w, mask_BGM=mask)
    assert got.dtype == torch.float32
    assert torch.allclose(got, set_reward(half_r.float(), half_w.float() if not weights_too else half_w, mask_BGM=mask), atol=1e-6)
    assert (got - set_reward(r, w, mask_BGM=mask)).abs().max() < 3*torch.finfo(dtype).eps*r.shape[-1]

def test_other_dtypes():
    r = torch.rand(2, 3, 4, 5, generator=seeded(0), dtype=torch.float64); w = simplex_nodes(6, 5)
    assert set_reward(r, w).dtype == torch.float64
    bits = r > .5
    assert torch.equal(set_reward(bits, w), set_reward(bits.float(), w)) and set_reward(bits.long(), w).dtype == torch.float32

def test_what_is_under_the_mask_is_never_read():
    r, w = torch.rand(2, 3, 4, 5, generator=seeded(1)), simplex_nodes(9, 5)
    mask = torch.rand(2, 3, 4, generator=seeded(2)) < .5
    clean = set_values(r, w, mask_BGM=mask)
    for poison in (torch.nan, torch.inf, -7., 1e30):
        for a, b in zip(set_values(r.where(mask[..., None], poison), w, mask_BGM=mask), clean): assert torch.equal(a, b)
    assert not mask.all() and (clean.loo_BGM[~mask] == 0).all() and (clean.loo_BGM[mask] > 0).any()

def test_empty_rollouts_score_zero():
    r, w = torch.full((2, 3, 4, 5), torch.nan), simplex_nodes(9, 5)
    for name in ('linear', 'chebyshev'):
        for part in set_values(r, w, mask_BGM=torch.zeros(2, 3, 4, dtype=torch.bool), utility=name): assert (part == 0).all()

@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(['linear', 'chebyshev']))
def test_credit_identities(problem, name):
    r, w, mask = problem
    r = r.clamp(max=1)
    v = set_values(r, w, mask_BGM=mask, utility=name)
    steps = v.prefix_BGM.diff(dim=-1, prepend=torch.zeros_like(v.prefix_BGM[..., :1]))
    assert (steps >= 0).all() and torch.allclose(steps.sum(-1), v.reward_BG, atol=1e-6)
    assert (v.loo_BGM >= 0).all() and (v.loo_BGM.sum(-1) <= v.reward_BG + 1e-5).all()
    order = torch.randperm(r.shape[2], generator=seeded(0))
    again = set_values(r[:, :, order], w, mask_BGM=None if mask is None else mask[:, :, order], utility=name)
    assert torch.allclose(again.loo_BGM, v.loo_BGM[:, :, order], atol=1e-6) and torch.allclose(again.reward_BG, v.reward_BG)

def test_padded_components_change_nothing():
    r, w = torch.rand(1, 3, 4, 2, generator=seeded(3)), simplex_nodes(16, 2)
    wide_r, wide_w = torch.zeros(1, 3, 4, 5), torch.zeros(1, 16, 5)
    wide_r[..., :2], wide_w[..., :2] = r, w
    for name in ('linear', 'chebyshev'): assert torch.allclose(set_reward(wide_r, wide_w, utility=name), set_reward(r, w, utility=name))

@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(1, 400), st.integers(2, 8), st.booleans())
def test_tiles_cover_every_rollout_and_weight_once(b, g, m, k, count, own):
    w = simplex_nodes(k, 2)
    problem = checked(torch.rand(b, g, m, 2), w.expand(b, -1, -1) if own else w, None, 'linear', 'refuse')
    seen = torch.zeros(b*g, k)
    for t in tiles(problem, count):
        hit = (t.weights_DK[0] == w[:, :1]).any(1)               # nodes differ, so the first component tells them apart
        seen[t.rows] += hit
        assert len(t.answers) == m and all(x.shape == (t.rows.stop-t.rows.start, int(hit.sum())) and x.is_contiguous() for x in t.blocks)
    assert (seen == 1).all()

@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 5000), st.integers(1, 8))
def test_blocks_stay_below_one_full_block_and_the_cache(groups, size, k, count):
    rows, columns = tile_shape(groups*size, size, k, count, 2**18)
    assert 1 <= rows <= size and 1 <= columns <= k and rows*columns*count <= max(count, min(2**18, groups*size*k))

def test_many_answers_and_tiles_give_the_one_line_value():
    r, w = torch.rand(3, 50, 40, 6, generator=seeded(4)), simplex_nodes(3000, 6)
    assert torch.allclose(set_reward(r, w), (r @ w.T).amax(-2).mean(-1), atol=1e-6)

def test_more_than_256_answers():
    r, w = torch.rand(2, 3, 300, 4, generator=seeded(5)), simplex_nodes(40, 4)
    v, u_BGKM = set_values(r, w), (r @ w.T).mT
    top = u_BGKM.topk(2)
    assert torch.allclose(v.prefix_BGM, u_BGKM.cummax(-1).values.mean(-2), atol=1e-6)
    assert torch.allclose(v.loo_BGM, torch.zeros(2, 3, 300).scatter_add(-1, top.indices[..., 0], top.values[..., 0]-top.values[..., 1])/40, atol=1e-6)

def test_no_gradient_and_inputs_untouched():
    r, w = torch.rand(2, 3, 4, 5, requires_grad=True), simplex_nodes(6, 5)
    before = r.detach().clone(), w.clone()
    assert not set_reward(r, w).requires_grad and not set_values(r, w).loo_BGM.requires_grad
    assert torch.equal(r, before[0]) and torch.equal(w, before[1])
    strided = torch.rand(4, 2, 5, 3).permute(1, 3, 0, 2)
    assert torch.equal(set_reward(strided, w), set_reward(strided.contiguous(), w))

def test_no_prompts():
    assert set_reward(torch.zeros(0, 3, 4, 5), simplex_nodes(6, 5)).shape == (0, 3)
    assert set_values(torch.zeros(0, 3, 4, 5), torch.zeros(0, 6, 5)).loo_BGM.shape == (0, 3, 4)

# Closed forms
rationals = st.integers(0, 12).map(lambda i: Fraction(i, 12))        # coarse, so that ties and crossings are frequent
def rows(m, d): return st.lists(st.tuples(*[rationals]*d), min_size=m, max_size=m)

def test_known_values():
    assert exact_set_reward([[1, 0], [0, 1]]) == .75 and exact_set_reward([[.6, .6]]) == .6
    assert exact_set_reward([[1, 0], [0, 1], [.6, .6]]) == .76 == exact_set_reward(torch.tensor([[1, 0], [0, 1], [.6, .6]], dtype=torch.float64))
    for d in (2, 3): assert exact_set_reward(torch.eye(d)) == pytest.approx(sum(1/i for i in range(1, d+1))/d)
    assert exact_set_reward([[3], [5], [4]]) == 5 and exact_set_reward([[.25, .5, .75, 1.]]) == .625

@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6).flatmap(lambda m: rows(m, 2)))
def test_two_rewards_against_quadrature(answers):
    w = (torch.arange(40_000, dtype=torch.float64) + .5)/40_000
    slow = torch.stack([float(a)*w + float(b)*(1-w) for a, b in answers]).amax(0).mean()
    assert exact_set_reward(answers) == pytest.approx(slow.item(), abs=1e-7)

@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5).flatmap(lambda m: rows(m, 2)).map(lambda r: list(dict.fromkeys(r))), st.integers(1, 6).flatmap(lambda m: rows(m, 3)).map(lambda r: list(dict.fromkeys(r))))
def test_dominated_and_parallel_rows_may_stay(two, three):
    assert envelope_area(two) == envelope_area(front_rows(two)) and polygon_area(three) == polygon_area(front_rows(three))
    assert envelope_area([(Fraction(1), Fraction(1)), (Fraction(1, 2), Fraction(1, 2))]) == 1

@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6).flatmap(lambda d: st.lists(rationals, min_size=d, max_size=d)), st.integers(0, 4))
def test_divided_difference_against_its_limit(knots, shift):
    "Equal knots are the limit of knots pulled apart, where the Lagrange form Σ t₊^D / Π (t−s) holds"
    knots = [t - Fraction(shift, 4) for t in knots]
    d = len(knots)
    apart = [t + Fraction(i, 10**9) for i, t in enumerate(knots)]
    slow = sum(max(t, Fraction(0))**d/math.prod([t-s for s in apart if s != t], start=Fraction(1)) for t in apart)/d
    assert abs(positive_part_mean(knots) - slow) < Fraction(1, 10**8)

@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3]).flatmap(lambda d: rows(2, d)))
def test_closed_forms_agree_where_two_apply(pair):
    left = front_rows(pair)
    if len(left) < 2: return
    a, b = left
    assert (envelope_area if len(a) == 2 else polygon_area)(left) == sum(b)/len(b) + positive_part_mean([x-y for x, y in zip(a, b)])

@settings(max_examples=40, deadline=None)
@given(st.one_of(st.integers(1, 6).flatmap(lambda m: rows(m, 3)), st.integers(1, 6).flatmap(lambda d: rows(2, d)), st.integers(1, 6).flatmap(lambda m: rows(m, 2))))
def test_nodes_approach_the_closed_form(answers):
    r = torch.tensor([[float(x) for x in row] for row in answers], dtype=torch.float64)
    assert abs(set_reward(r[None, None], simplex_nodes(4096, r.shape[1], dtype=torch.float64)).item() - exact_set_reward(r)) < 2e-3

@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3]).flatmap(lambda d: rows(5, d)))
def test_monotone_submodular_and_blind_to_duplicates(answers):
    f = exact_set_reward
    small, large, new = answers[:2], answers[:4], answers[4]
    assert f(small) <= f(large) <= f(answers)
    assert f(small + [new]) - f(small) >= f(large + [new]) - f(large) - 1e-12
    assert f(answers + answers[::-1]) == f(answers)

def test_near_ties_are_exact():
    eps = 2.**-50
    assert exact_set_reward([[.5, .5, .5, .5], [.5+eps, .5-eps, .5, .5]]) == pytest.approx(.5, abs=1e-15)
    assert exact_set_reward([[.5+eps, .5], [.5, .5+eps], [.5, .5]]) == float((Fraction(1, 2) + Fraction(eps)*Fraction(3, 4)))
    for spread in (1e-3, 1e-9, 1e-13):                   # E (wᵀδ)₊ scales with δ, however close the knots lie
        base = positive_part_mean([Fraction(1), Fraction(-1), Fraction(2), Fraction(-3)])
        assert positive_part_mean([Fraction(spread)*x for x in (1, -1, 2, -3)]) == Fraction(spread)*base

def test_negative_values_have_closed_forms_too():
    for d in (2, 3, 5):
        r = torch.randn(2, d, generator=seeded(d), dtype=torch.float64)
        assert exact_set_reward(r) == pytest.approx(exact_set_reward(r + 3) - 3, abs=1e-12)

@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6).flatmap(lambda m: rows(m, 3)))
def test_front_rows_keep_the_front(answers):
    got = front_rows(answers)
    assert len(set(got)) == len(got) and set(got) <= set(answers)
    for a in answers: assert any(all(x >= y for x, y in zip(b, a)) for b in got)
    for a, b in itertools.permutations(got, 2): assert not all(x >= y for x, y in zip(b, a))

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6).flatmap(lambda m: rows(m, 2)))
def test_chebyshev_is_the_r2_indicator(answers):
    moocore = pytest.importorskip('moocore')
    r = torch.tensor([[float(x) for x in row] for row in answers], dtype=torch.float64)
    r2 = moocore.r2_exact(r.numpy(), ref=[1, 1], maximise=True)
    assert set_reward(r[None, None], simplex_nodes(2**14, 2, dtype=torch.float64), utility='chebyshev').item() == pytest.approx(.75 - r2, abs=2e-4)

def test_chebyshev_sees_the_dent_that_linear_does_not():
    r, w = torch.tensor([[[[1., 0], [0, 1], [.4, .4]]]]), simplex_nodes(512, 2)
    assert set_values(r, w).loo_BGM[0, 0, 2] < 1e-6 and set_values(r, w, utility='chebyshev').loo_BGM[0, 0, 2] > .02

def test_envelope_corners_carry_the_area():
    for m in (1, 2, 5):
        r = torch.rand(m, 2, generator=seeded(m), dtype=torch.float64)
        xs, ys = envelope_xy(r.tolist())
        assert xs[0] == 0 and xs[-1] == 1 and sum((b-a)*(c+d)/2 for a, b, c, d in zip(xs, xs[1:], ys, ys[1:])) == pytest.approx(exact_set_reward(r))

def test_figure_stops_carry_their_values():
    pytest.importorskip('plotly')
    fig = envelope_figure({'low': [[1, 0], [0, 1], [.4, .4]], 'high': [[1, 0], [0, 1], [.6, .6]]}, start=1)
    assert [s.args[1]['title.text'][-6:] for s in fig.layout.sliders[0].steps] == ['0.7500', '0.7600'] and fig.layout.title.text.endswith('0.7600')

# Refusals
R, W = torch.rand(2, 3, 4, 5, generator=seeded(0)), simplex_nodes(6, 5)
def put(value, where=(1, 2, 3, 4)):
    r = R.clone(); r[where] = value
    return r

@pytest.mark.parametrize('args, kw, words', [
    ((R[0], W), {}, ['rewards_BGMD: got shape (3, 4, 5)', '(B,G,M,D)']), ((R[:, :, :0], W), {}, ['rewards_BGMD', '(2, 3, 0, 5)']),
    ((R, W.T), {}, ['weights_KD: got shape (5, 6)', '(K,5)', '(2,K,5)']), ((R, W[:0]), {}, ['weights_KD', 'K at least 1']), ((R, W.expand(3, -1, -1)), {}, ['weights_KD: got shape (3, 6, 5)', '(2,K,5)']),
    ((R, W[0]), {}, ['weights_KD: got shape (5,)']), ((R, W*2), {}, ['weights_KD: 6 of 6', 'sum', 'divide']), ((R, W-1), {}, ['weights_KD', 'negative', 'simplex_nodes']),
    ((R, W*torch.nan), {}, ['weights_KD', 'NaN']), ((R, torch.eye(5).long()), {}, ['weights_KD', 'torch.int64', 'floating']),
    ((R, W), dict(mask_BGM=torch.ones(2, 3, dtype=torch.bool)), ['mask_BGM: got shape (2, 3)', '(2, 3, 4)']), ((R, W), dict(mask_BGM=torch.ones(2, 3, 4)), ['mask_BGM: got dtype torch.float32', 'bool']),
    ((put(torch.nan), W), {}, ['rewards_BGMD: 1 of 120', 'NaN', 'mask_BGM']), ((put(-torch.inf, (0,)), W), dict(negative='minimum'), ['rewards_BGMD: 60 of 120', 'infinite']),
    ((put(-.25), W), {}, ['rewards_BGMD: 1 of 120', 'lowest -0.25', "negative='minimum'"]), ((R, W), dict(negative='zero'), ["negative: got 'zero'", 'refuse', 'minimum']),
    ((put(1.5), W), dict(utility='chebyshev'), ['rewards_BGMD: 1 of 120', 'highest 1.5', 'divide']), ((R, W), dict(utility='min'), ["utility: got 'min'", 'linear', 'chebyshev'])])
def test_refusals_name_argument_value_and_remedy(args, kw, words):
    for f in (set_reward, set_values):
        with pytest.raises(ValueError) as e: f(*args, **kw)
        for word in words: assert word in str(e.value)

@pytest.mark.parametrize('rewards, words', [
    (torch.eye(4)[:3], ['D=4 with M=3', 'set_reward', 'simplex_nodes']), ([], ['rewards_MD: got []']), ([[]], ['rewards_MD']), ([[1, 2], [3]], ['rewards_MD', 'M rows of D']),
    ([[float('nan'), 1]], ['rewards_MD', 'nan', 'finite']), ([1, 2], ['rewards_MD', 'M rows']), ([['a']], ['rewards_MD'])])
def test_exact_refusals(rewards, words):
    with pytest.raises(ValueError) as e: exact_set_reward(rewards)
    for word in words: assert word in str(e.value)

def test_exact_drops_what_does_not_matter_before_it_refuses():
    r = torch.tensor([[.1, .5, .2, .9], [.8, .4, .3, .2], [.1, .4, .1, .2], [.8, .4, .3, .2]])
    assert exact_set_reward(r) == exact_set_reward(r[:2])
