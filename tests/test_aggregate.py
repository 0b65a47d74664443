"Aggregation: hands counted one by one against formulas, orders against shares, known limits, refusals"
import itertools, math
from collections import Counter
from fractions import Fraction
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.aggregate import *
from diverse_rl.aggregate import _majority
from diverse_rl.metrics import best_at_k, pass_at_k

few = settings(max_examples=50, deadline=None)
pool = st.lists(st.integers(-1, 3), min_size=1, max_size=8)              # classes: -1 silent, 0 right
weight = st.sampled_from([0., .1, .2, .3, .5, 1., 2.])

def hands(n, k): return itertools.combinations(range(n), k)

def credit(classes, weights, hand, right=0):
    "1/t when the right class is among the t winners of a hand; fractions, no rounding"
    total = Counter()
    for i in hand:
        if classes[i] >= 0: total[classes[i]] += Fraction(str(weights[i]))
    best = [c for c, v in total.items() if v == max(total.values()) and v > 0]
    return Fraction(right in best, max(len(best), 1))

def slow(classes, weights, k, right=0):
    x = [credit(classes, weights, h, right) for h in hands(len(classes), k)]
    return float(sum(x)/len(x))

# ---- classes and one vote

@few
@given(st.lists(st.sampled_from(['1/2', '0.5', '2', '4/8', None]), max_size=9))
def test_classes_follow_same(answers):
    same = lambda a, b: Fraction(a) == Fraction(b)
    c = answer_classes(answers, same)
    assert c.shape == (len(answers),) and c.dtype == np.int64
    for i, j in itertools.product(range(len(answers)), repeat=2):
        a, b = answers[i], answers[j]
        if a is None: assert c[i] == -1
        elif b is not None: assert (c[i] == c[j]) == same(a, b)
    assert [x for x in dict.fromkeys(c.tolist()) if x >= 0] == list(range(max([*c, -1])+1))      # numbered as they appear

def test_same_is_asked_once_per_new_answer():
    asked = []
    answer_classes(['a', 'a', 'b', 'a', 'b'], lambda a, b: asked.append((a, b)) or False)
    assert asked == [('a', 'b')]

@few
@given(st.data())
def test_a_vote_is_the_largest_total(data):
    answers = data.draw(st.lists(st.sampled_from(['r', 'w', 'x', None]), min_size=1, max_size=8)); n = len(answers)
    w = data.draw(st.lists(weight, min_size=n, max_size=n))
    total = {}
    for a, x in zip(answers, w):
        if a is not None: total[a] = total.get(a, 0) + Fraction(str(x))
    v = vote(answers, w)
    if not total or max(total.values()) == 0: assert v == (None, 0., 0); return
    top = [a for a in total if total[a] == max(total.values())]                                # dicts keep the order of appearance
    assert v.answer == top[0] and v.tied == len(top) and math.isclose(v.share, total[top[0]]/sum(Fraction(str(x)) for x in w))

@few
@given(st.lists(st.integers(-1, 2), min_size=1, max_size=6))
def test_first_seen_over_all_orders_is_the_shared_tie(classes):
    answers = [None if c < 0 else c for c in classes]
    orders = list(itertools.permutations(answers))
    assert math.isclose(sum(vote(o).answer == 0 for o in orders)/len(orders), majority_at_k(classes, len(classes)).value[0], abs_tol=1e-12)

@pytest.mark.parametrize('w,words', [([1, -1], 'cannot be negative'), ([1], 'one weight per answer'), ([1, math.nan], 'NaN')])
def test_vote_refuses(w, words):
    with pytest.raises(ValueError, match=words): vote(['a', 'b'], w)

def test_nobody_votes(): assert vote([]) == vote([None, None]) == vote(['a'], [0.]) == (None, 0., 0)

# ---- curves over hands

@few
@given(pool, st.integers(0, 3))
def test_counting_hands_is_walking_through_them(classes, right):
    n = len(classes)
    got = majority_at_k(classes, right=right)
    assert got.value.shape == got.error.shape == (n,) and not got.error.any()
    assert np.allclose(got.value, [slow(classes, [1]*n, k, right) for k in range(1, n+1)], atol=1e-13)

@few
@given(st.data())
def test_weighted_hands(data):
    classes = data.draw(pool); n = len(classes)
    w = data.draw(st.lists(weight, min_size=n, max_size=n)); k = data.draw(st.integers(1, n))
    got = weighted_vote_at_k(classes, w, k)
    assert got.error.tolist() == [0.] and math.isclose(got.value[0], slow(classes, w, k), abs_tol=1e-12)

@few
@given(pool)
def test_equal_weights_are_a_majority_and_true_weights_are_pass_at_k(classes):
    n, right = len(classes), np.array(classes) == 0
    assert np.allclose(weighted_vote_at_k(classes, [.3]*n).value, majority_at_k(classes).value)
    assert np.allclose(weighted_vote_at_k(classes, right).value, pass_at_k(n, int(right.sum()), np.arange(1, n+1)))

@few
@given(st.integers(1, 40), st.data())
def test_large_pools_against_fractions(right, data):
    wrong = tuple(sorted(data.draw(st.lists(st.integers(1, 30), max_size=5)))); silent = data.draw(st.integers(0, 20))
    n = right + sum(wrong) + silent; k = data.draw(st.integers(1, n))
    def poly_times(p, q, top): return [sum(p[i]*q[z-i] for i in range(z+1) if i < len(p) and z-i < len(q)) for z in range(min(len(p)+len(q)-1, top+1))]
    total = Fraction(0)                                                  # by number of ties, all in whole numbers
    for x in range(1, min(right, k)+1):
        by_ties = {0: [math.comb(right, x)]}
        for c in wrong:
            low = [math.comb(c, j) for j in range(min(x, c+1))]; new = {}
            for t, p in by_ties.items():
                new[t] = [a+b for a, b in itertools.zip_longest(new.get(t, []), poly_times(p, low, k-x), fillvalue=0)]
                if c >= x: new[t+1] = [a+b for a, b in itertools.zip_longest(new.get(t+1, []), ([0]*x + [math.comb(c, x)*v for v in p])[:k-x+1], fillvalue=0)]
            by_ties = new
        for t, p in by_ties.items(): total += Fraction(sum(v*math.comb(silent, k-x-z) for z, v in enumerate(p) if z <= k-x), t+1)
    assert math.isclose(_majority(right, wrong, n)[k-1], float(total/math.comb(n, k)), rel_tol=1e-10, abs_tol=1e-14)

def test_counts_stay_exact_at_the_largest_pool():
    v = _majority(200, (150, 150, 12), 512)
    assert np.isfinite(v).all() and math.isclose(v[0], 200/512, rel_tol=1e-12) and math.isclose(v[1], 200/512, rel_tol=1e-10) and v[-1] == 1 and v.max() <= 1

def test_drawn_hands_agree_with_the_count_and_with_their_error():
    classes = np.random.default_rng(0).choice([0, 1, 2, -1], 60, p=[.4, .3, .2, .1]); ks = [3, 10, 31]
    exact = majority_at_k(classes, ks).value
    z = [(e := weighted_vote_at_k(classes, None, ks, hands=400, generator=s)).value - exact for s in range(80)]
    assert np.abs(np.mean(z, 0)).max() < 4*.5/math.sqrt(400*80)          # unbiased
    assert np.allclose(np.std(z, 0), e.error, rtol=.35)                  # the error it states is the error it has
    drawn = majority_at_k(classes, ks, exact=10, generator=3)
    assert (drawn.error > 0).all() and (np.abs(drawn.value - exact) < 5*drawn.error).all()
    again = majority_at_k(classes, ks, exact=10, generator=3)
    assert (drawn.value == again.value).all()

def test_unbiased_for_fresh_answers():
    p = np.array([.35, .3, .25, .1]); kinds = [0, 1, 2, -1]; k, n = 3, 5
    def mean(size, f): return sum(math.prod(p[list(x)])*f([kinds[i] for i in x]) for x in itertools.product(range(4), repeat=size))
    fresh = mean(k, lambda c: slow(c, [1]*k, k))
    assert math.isclose(mean(n, lambda c: majority_at_k(c, k).value[0]), fresh, rel_tol=1e-10)

def test_where_votes_lead():
    big = lambda *counts: _majority(counts[0], tuple(sorted(counts[1:])), sum(counts))
    assert big(200, 150, 150)[299] > .99 and big(150, 200, 150)[299] < .01          # plurality, not majority, decides
    assert np.allclose(big(100, 100), .5) and np.allclose(big(50, 50, 50), 1/3)     # a tie stays a tie
    assert (big(40) == 1).all() and (_majority(0, (40,), 40) == 0).all()            # collapsed: nothing to gain
    assert (_majority(0, (), 5) == 0).all()                                         # all silent

@few
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12))
def test_one_and_two_votes_are_the_mean(classes):
    assert np.allclose(majority_at_k(classes, [1, 2]).value, np.mean(np.array(classes) == 0))

# ---- the pick

@few
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.sampled_from([0., .1, .5, .9]), min_size=n, max_size=n), st.lists(st.booleans(), min_size=n, max_size=n))))
def test_scored_best_is_the_mean_over_hands(case):
    s, right = case; n = len(s)
    def earns(h):
        top = [i for i in h if s[i] == max(s[j] for j in h)]
        return np.mean([right[i] for i in top])
    assert np.allclose(scored_best_at_k(s, right), [np.mean([earns(h) for h in hands(n, k)]) for k in range(1, n+1)], atol=1e-12)

def test_scored_best_refuses():
    with pytest.raises(ValueError, match='both must be'): scored_best_at_k([1., 2.], [1])
    with pytest.raises(ValueError, match='NaN'): scored_best_at_k([1., math.nan], [1, 0])

# ---- an evaluation

def evaluation(P=7, N=5, seed=0, **kw):
    rng = np.random.default_rng(seed); answers = [[None if x == 3 else 'rwx'[x] for x in rng.integers(0, 4, N)] for _ in range(P)]
    return answers, accuracy_curves(answers, ['r']*P, greedy=['r', None, 'w', 'r', 'r', 'x', 'r'][:P], scores=rng.normal(size=(P, N)), weights=rng.uniform(size=(P, N)), **kw)

def test_curves_hold_one_row_per_prompt():
    answers, e = evaluation(ks=[1, 2, 5]); right = np.array([[a == 'r' for a in x] for x in answers], float)
    assert set(e.curves) == set(e.errors) == {'mean', 'self_consistency', 'best_of_n', 'greedy', 'scored_best_of_n', 'weighted_vote'}
    assert all(v.shape == (7, 3) and (v >= 0).all() and (v <= 1+1e-12).all() for v in e.curves.values())
    assert np.allclose(e.curves['best_of_n'], best_at_k(right, [1, 2, 5])) and e.curves['greedy'][:, 0].tolist() == [1, 0, 0, 1, 1, 0, 1]
    for name, v in e.curves.items():
        if name != 'greedy': assert np.allclose(v[:, 0], right.mean(1))             # n = 1 is the mean accuracy
    for i, a in enumerate(answers): assert np.isclose(e.curves['self_consistency'][i, 1], slow([-1 if x is None else 'rwx'.index(x) for x in a], [1]*5, 2))

def test_the_gold_answer_is_compared_through_same():
    e = accuracy_curves([['0.5', '1/2', '3']], ['2/4'], ks=[1, 3], same=lambda a, b: Fraction(a) == Fraction(b))
    assert np.allclose(e.curves['self_consistency'], [[2/3, 1]])

def test_intervals_and_gain_are_paired():
    _, e = evaluation(ks=[1, 3])
    i, g = curve_intervals(e, n_boot=300), aggregation_gain(e, n_boot=300)
    assert np.allclose(g.estimate, i['self_consistency'].estimate - i['mean'].estimate) and np.allclose([g.low[0], g.high[0]], 0)
    assert np.allclose(aggregation_gain(e, name='best_of_n', over='greedy').estimate, (e.curves['best_of_n'] - e.curves['greedy']).mean(0))
    seeds, prompts = np.indices((2, 7)).reshape(2, -1); double = AccuracyCurves(e.ks, {k: np.concatenate([v, v]) for k, v in e.curves.items()}, e.errors)
    assert aggregation_gain(double, (seeds, prompts), n_boot=200).clusters == (2, 7)
    with pytest.raises(KeyError, match='no curve'): aggregation_gain(AccuracyCurves(e.ks, {'mean': e.curves['mean']}, {}), name='greedy')

def test_a_collapsed_policy_gains_nothing():
    e = accuracy_curves([['r']*6, ['w']*6, ['r']*6], ['r']*3)
    g = aggregation_gain(e)
    assert (g.estimate == 0).all() and (g.low == 0).all() and (g.high == 0).all() and np.allclose(curve_intervals(e)['best_of_n'].estimate, 2/3)

def test_summary_is_plain():
    import json
    answers, e = evaluation(ks=[1, 5])
    row = summary_row(e, answers=answers, tokens=[[list('abcabc'), list('abcd')]]*7, n=3, n_boot=200)
    assert json.loads(json.dumps(row)) == row and set(row['self_consistency']) == {'1', '5'} and len(row['agreement']) == 3
    assert {'gain_over_mean', 'gain_over_greedy', 'distinct_3', 'distinct_3_pooled'} <= set(row) and row['distinct_3'][0] > row['distinct_3_pooled']

def test_figure():
    pytest.importorskip('plotly')
    _, e = evaluation(ks=[1, 5])
    f = accuracy_figure(e, title='t', n_boot=100)
    assert {t.name for t in f.data if t.name} == {'mean', 'self consistency', 'best of n', 'greedy', 'scored best of n', 'weighted vote'}

@pytest.mark.parametrize('kw,words', [(dict(answers=[['a'], ['a', 'b']], gold=['a', 'a']), 'same number'), (dict(answers=[[]], gold=['a']), 'same number'),
    (dict(answers=[['a']], gold=['a', 'a']), 'gold has 2 entries for 1'), (dict(answers=[['a']], gold=['a'], greedy=[]), 'greedy has 0'), (dict(answers=[['a']], gold=[None]), 'gold holds None'),
    (dict(answers=[['a']], gold=['a'], scores=[[1., 2.]]), 'scores has shape'), (dict(answers=[['a']], gold=['a'], weights=[[-1.]]), 'cannot be negative'), (dict(answers=[['a']], gold=['a'], ks=[2]), 'k=2')])
def test_curves_refuse(kw, words):
    with pytest.raises(ValueError, match=words): accuracy_curves(**kw)

def test_hand_limits():
    with pytest.raises(ValueError, match='hands=1'): weighted_vote_at_k([0, 1], hands=1)
    with pytest.raises(ValueError, match='overflow'): majority_at_k([0, 1], exact=2000)

# ---- what is left of diversity

@few
@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 7), st.integers(0, 10**6))
def test_entropy_is_the_sum(b, t, v, seed):
    logits = 3*torch.randn(b, t, v, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = logits.softmax(-1)
    assert torch.allclose(token_entropies(logits), -(p*p.log()).sum(-1)) and token_entropies(logits).dtype == torch.float64
    mask = torch.zeros(b, t); mask[0, 0] = 1
    assert torch.isclose(token_entropy(logits, mask), token_entropies(logits)[0, 0]) and torch.isclose(token_entropy(logits), token_entropies(logits).mean())

def test_entropy_of_forbidden_tokens_half_precision_and_gradient():
    x = torch.tensor([[1., 1., -torch.inf]], requires_grad=True)
    h = token_entropy(x); h.backward()
    assert math.isclose(h.item(), math.log(2), rel_tol=1e-6) and x.grad.isfinite().all()
    assert torch.allclose(token_entropies(torch.zeros(2, 5, dtype=torch.float16)), torch.full((2,), math.log(5)))

def test_entropy_refuses():
    with pytest.raises(ValueError, match='NaN'): token_entropies(torch.tensor([[0., math.nan]]))
    with pytest.raises(ValueError, match='every token forbidden'): token_entropies(torch.full((1, 3), -torch.inf))
    with pytest.raises(ValueError, match='mask has shape'): token_entropy(torch.zeros(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match='no token'): token_entropy(torch.zeros(2, 3), torch.zeros(2))

@few
@given(st.lists(st.sampled_from(['a', 'b', None]), min_size=2, max_size=8))
def test_agreement_over_pairs(answers):
    pairs = list(itertools.permutations(answers, 2))
    assert math.isclose(agreement(answers), sum(a == b is not None for a, b in pairs)/len(pairs), abs_tol=1e-12)

def test_agreement_refuses():
    with pytest.raises(ValueError, match='at least two'): agreement(['a'])
