"Group advantages: the formula written as loops against the fast version, exact enumeration for the gradient, errors"
from itertools import combinations, product
from math import comb
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.advantages import *
from diverse_rl.advantages import binomial_ratio, check_group
from diverse_rl.simplex import simplex_nodes

quick = settings(max_examples=40, deadline=None)
levels = st.sampled_from([0., 0., .1, .25, .5, .5, 1., 3.]) | st.floats(0, 2, width=32)

@st.composite
def groups(draw, least=1, most=7):
    "(B,G) rewards with ties and zeros, B != G"
    G = draw(st.integers(least, most)); B = draw(st.integers(1, 4).filter(lambda b: b != G))
    return torch.tensor(draw(st.lists(st.lists(levels, min_size=G, max_size=G), min_size=B, max_size=B)), dtype=torch.float64)

@st.composite
def vectors(draw, many):
    "(B,G,M,D) rewards, a mask, w* and two kinds of drawn weights; the axes have different sizes"
    B, G, M, D = draw(st.permutations([2, 3, 4, 5]))
    if not many: M = 1
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    r = torch.rand(B, G, M, D, dtype=torch.float64, generator=gen).mul(4).round().div(4)
    mask = torch.rand(B, G, M, generator=gen) < .7
    w = torch.rand(D, dtype=torch.float64, generator=gen) + .1
    return r, mask, w/w.sum(), simplex_nodes(6, D, dtype=torch.float64), simplex_nodes(B, D, dtype=torch.float64)[:,None]

# ---- slow versions: one loop per sum sign
def slow_z(r): s = np.std(r); return [0. if s < 1e-6 else (x-np.mean(r))/(s+1e-6) for x in r]
def slow_center(r): return [x-sum(r)/len(r) for x in r]
def slow_rloo(r): return [x-sum(r[j] for j in range(len(r)) if j != i)/(len(r)-1) for i,x in enumerate(r)]
def slow_mean_norm(r): m = sum(r)/len(r); return [0. if m == 0 else x/m-1 for x in r]
def slow_share(r, k): return [sum(max(r[j] for j in S) for S in combinations(range(len(r)), k) if i in S)/comb(len(r), k) for i in range(len(r))]
def slow_pinned(r, k):
    "The formula of the methods page, ranks from 1"
    n, order = len(r), sorted(range(len(r)), key=lambda i: r[i]); out = [0.]*n
    def C(a, b): return comb(a, b) if a >= 0 and b >= 0 else 0
    for i in range(1, n+1):
        out[order[i-1]] = (C(i-1, k-1)*r[order[i-1]] + sum(C(j-2, k-2)*r[order[j-1]] for j in range(i+1, n+1)))/comb(n, k)
    return out
def slow_pkpo(r, k):
    n = len(r)
    return [s - k/n*np.mean([max(r[j] for j in S) for S in combinations([j for j in range(n) if j != i], k)]) for i,s in enumerate(slow_share(r, k))]
def slow_sloo(r, k):
    n = len(r)
    return [sum(max(r[j] for j in S) - max(r[j] for j in S if j != i) for S in combinations(range(n), k) if i in S)/comb(n, k) for i in range(n)]

def same(fast_BG, slow, r_BG, *a, tol=1e-9): assert np.allclose(fast_BG.numpy(), [slow(row.tolist(), *a) for row in r_BG], atol=tol, rtol=tol)

@quick
@given(groups(least=2))
def test_transforms_without_k(r):
    for fast,slow in ((z_norm, slow_z), (center, slow_center), (rloo, slow_rloo), (mean_norm, slow_mean_norm)): same(fast(r), slow, r, tol=1e-7)

@quick
@given(groups(), st.data())
def test_max_share_is_the_mean_over_subsets_and_the_pinned_formula(r, data):
    k = data.draw(st.integers(1, r.shape[1]))
    same(max_share(r, k), slow_share, r, k); same(max_share(r, k), slow_pinned, r, k)

@quick
@given(groups(least=2), st.data())
def test_pkpo_and_sloo(r, data):
    G = r.shape[1]
    k = data.draw(st.integers(1, G-1)); same(pkpo(r, k), slow_pkpo, r, k)
    k = data.draw(st.integers(2, G)); same(sloo_minus_one(r, k), slow_sloo, r, k)

@quick
@given(groups(least=2), st.randoms(use_true_random=False))
def test_permutation_moves_advantages_along(r, rnd):
    p = list(range(r.shape[1])); rnd.shuffle(p)
    for f in (z_norm, center, rloo, mean_norm, lambda x: max_share(x, 2), lambda x: pkpo(x, 1), lambda x: sloo_minus_one(x, 2)):
        assert torch.allclose(f(r)[:,p], f(r[:,p]), atol=1e-9)

@pytest.mark.parametrize("n,k", [(64, 4), (300, 150), (1000, 500), (1000, 1), (1000, 999)])
def test_large_groups_stay_finite_and_sum_to_k_times_the_mean_best(n, k):
    r = torch.rand(2, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n+k))
    logs = [torch.lgamma(torch.tensor(i+1., dtype=torch.float64)) for i in range(n+1)]
    weight = torch.stack([(logs[i] - logs[k-1] - logs[i-k+1] - (logs[n] - logs[k] - logs[n-k])).exp() if i >= k-1 else torch.tensor(0., dtype=torch.float64) for i in range(n)])
    best = (r.sort(1).values*weight).sum(1)
    assert torch.allclose(max_share(r, k).sum(1), k*best, rtol=1e-8)
    assert torch.isfinite(pkpo(r, k)).all()
    assert torch.allclose(binomial_ratio(torch.tensor([n]), k, n, k), torch.ones(1, dtype=torch.float64))

# ---- the gradient, by counting every group
def exact_mean(f, logits, values, n):
    p = logits.softmax(0); y = torch.tensor(list(product(range(len(p)), repeat=n)))
    score = torch.eye(len(p), dtype=torch.float64)[y] - p
    return (p[y].prod(1)[:,None]*(f(values[y])[...,None]*score).sum(1)).sum(0)

@pytest.mark.parametrize("n,k", [(4, 2), (4, 3), (5, 2)])
def test_gradient_of_best_of_k_is_unbiased(n, k):
    logits = torch.tensor([.3, -.4, .9], dtype=torch.float64); values = torch.tensor([.1, 1., .4], dtype=torch.float64)
    sets = torch.tensor(list(product(range(3), repeat=k)))
    exact = torch.func.grad(lambda t: (t.softmax(0)[sets].prod(1)*values[sets].amax(1)).sum())(logits)
    for f in (max_share, pkpo, sloo_minus_one): assert torch.allclose(exact_mean(lambda r: f(r, k), logits, values, n), exact, atol=1e-12), f
    one = torch.func.grad(lambda t: (t.softmax(0)*values).sum())(logits)
    assert torch.allclose(exact_mean(rloo, logits, values, n), n*one, atol=1e-12)
    assert torch.allclose(exact_mean(center, logits, values, n), (n-1)*one, atol=1e-12)
    assert not torch.allclose(exact_mean(z_norm, logits, values, n), n*one, atol=1e-2)

# ---- the registry
def slow_reward(name, S, mask, w, nodes, own): # one rollout: S (M,D)
    rows = [y if m else y*0 for y,m in zip(S, mask)]
    if name == "multi_rlvr": return sum(float(w@y) for y in rows)
    if name == "set_max": return max(float(w@y) for y in rows)
    if name == "vpo": return float(np.mean([max(float(v@y) for y in rows) for v in nodes]))
    return float((own if "random" in name or "goal" in name else w)@rows[0])

def slow_gdpo(r_BGD, w):
    z = np.array([[slow_z(list(group[:,d])) for d in range(len(w))] for group in r_BGD])           # B,D,G
    s = np.einsum("bdg,d->bg", z, w)
    return (s-s.mean())/(s.std()+1e-6) if s.std() >= 1e-6 else s*0

def slow_advantage(row, r, mask, w, nodes, own, k):
    r_BG = [[slow_reward(row.name, S, m, w, nodes, own[b,0]) for S,m in zip(group, mask[b])] for b,group in enumerate(r)]
    f = dict(z_norm=slow_z, center=slow_center, rloo=slow_rloo, mean_norm=slow_mean_norm, max_at_k=lambda x: slow_z(slow_share(x, k)),
             pkpo=lambda x: slow_pkpo(x, k), sloo_minus_one=lambda x: slow_sloo(x, k))
    if row.transform == "gdpo": return slow_gdpo((r*mask[...,None])[:,:,0].numpy(), w.numpy())
    return [f[row.transform](x) for x in r_BG]

@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_row_is_its_formula(name):
    row = ADVANTAGES[name]
    @settings(max_examples=15, deadline=None)
    @given(vectors(row.answers == "many"))
    def check(case):
        r, mask, w, nodes, own = case
        k = max(2, min(3, r.shape[1]-1))
        if row.transform == "pkpo": k = r.shape[1]-1
        got = group_advantage(name, r, weights_KD=nodes if name == "vpo" else own, target_D=w, mask_BGM=mask, k=k)
        assert got.shape == r.shape[:2]
        assert np.allclose(got, slow_advantage(row, r, mask, w, nodes, own, k), atol=1e-6)
    check()

def test_registry_has_every_name_and_rows_cannot_be_changed():
    assert set(ADVANTAGES) == set("grpo multi_rlvr random_weight_grpo goal_grpo max_at_k maxrl gdpo pkpo sloo_minus_one set_max vpo rloo dr_grpo".split())
    assert all(k == row.name and row.source in ("[paper]", "[ours]") and row.doc for k,row in ADVANTAGES.items())
    with pytest.raises(AttributeError): ADVANTAGES["grpo"].transform = "rloo"

def test_vpo_takes_weights_per_prompt():
    r = torch.rand(3, 4, 2, 5, generator=torch.Generator().manual_seed(0)); w = simplex_nodes(18, 5).view(3, 6, 5)
    apart = torch.cat([group_advantage("vpo", r[b:b+1], weights_KD=w[b]) for b in range(3)])
    assert torch.allclose(group_advantage("vpo", r, weights_KD=w), apart, atol=1e-6)

def test_scalar_reward_of_gdpo_keeps_components_apart():
    r = torch.rand(2, 3, 1, 4); assert torch.equal(scalar_reward("gdpo", r), r[:,:,0])

def test_transform_can_be_replaced():
    r = torch.rand(2, 5, 3, 4, generator=torch.Generator().manual_seed(1)); w = simplex_nodes(8, 4)
    assert torch.allclose(group_advantage("vpo", r, weights_KD=w, transform="center"), center(scalar_reward("vpo", r, weights_KD=w)))

def test_trl_numbers():
    r = torch.rand(3, 6, 1, 2, generator=torch.Generator().manual_seed(2)); s = r.mean(-1)[...,0]
    expected = (s-s.mean(1, keepdim=True))/(s.std(1, keepdim=True)+1e-4)
    assert torch.allclose(group_advantage("grpo", r, std="unbiased", eps=1e-4), expected, atol=1e-5)

# ---- edges
def test_equal_rewards_give_exact_zeros_at_any_size():
    for v in (0., .1, 1000.1, 1e6): assert (z_norm(torch.full((2, 7), v)) == 0).all()

def test_spread_below_the_floor_is_nothing():
    r = torch.tensor([[.5, .5+1e-7, .5]], dtype=torch.float64)
    assert (z_norm(r) == 0).all() and (z_norm(r, floor=0.) != 0).any()

def test_one_rollout():
    one = torch.rand(2, 1, 1, 3)
    for name in ("grpo", "dr_grpo", "maxrl", "gdpo"):
        a = group_advantage(name, one); assert a.shape == (2, 1) and torch.isfinite(a).all() and (name == "gdpo" or (a == 0).all())
    assert (group_advantage("grpo", one, std="unbiased") == 0).all()
    with pytest.raises(ValueError, match="rloo: got G=1.*num_generations"): group_advantage("rloo", one)

def test_group_without_a_single_answer_teaches_nothing():
    r = torch.full((2, 3, 4, 5), float("nan")); r[1] = torch.rand(3, 4, 5)
    mask = torch.zeros(2, 3, 4, dtype=torch.bool); mask[1] = True
    for name in ("vpo", "set_max", "multi_rlvr"):
        a = group_advantage(name, r, weights_KD=simplex_nodes(8, 5), mask_BGM=mask); assert (a[0] == 0).all() and a[1].abs().sum() > 0
    assert group_advantage("grpo", torch.zeros(0, 3, 1, 2)).shape == (0, 3)

@pytest.mark.parametrize("dtype,out", [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64), (torch.int64, torch.float32), (torch.bool, torch.float32)])
def test_dtypes(dtype, out):
    r = torch.tensor([[0, 1, 1, 0, 1]]).to(dtype)
    for f in (z_norm, center, rloo, mean_norm, lambda x: pkpo(x, 2)): assert f(r).dtype == out
    assert torch.allclose(z_norm(r).double(), z_norm(r.double()), atol=1e-6)

def test_input_is_left_alone_and_no_gradient_flows():
    r = torch.rand(2, 4, requires_grad=True); keep = r.detach().clone()
    for f in (z_norm, lambda x: max_share(x, 2)): assert not f(r).requires_grad
    assert torch.equal(r.detach(), keep)

r1 = torch.rand(2, 4, 1, 3, generator=torch.Generator().manual_seed(3)); r2 = torch.rand(2, 4, 2, 3, generator=torch.Generator().manual_seed(4))
@pytest.mark.parametrize("call,message", [
    (lambda: group_advantage("grop", r1), "got 'grop'; choose one of grpo"),
    (lambda: group_advantage("grpo", r2), "M=2 answers per rollout, but 'grpo' judges one"),
    (lambda: group_advantage("grpo", r1[0]), r"got shape \(4, 1, 3\); want \(B,G,M,D\)"),
    (lambda: group_advantage("grpo", r1[:,:0]), r"got shape \(2, 0, 1, 3\)"),
    (lambda: group_advantage("grpo", r1, target_D=torch.ones(4)), r"target_D: got shape \(4,\); want \(3,\)"),
    (lambda: group_advantage("vpo", r2), "weights_KD: got None; 'vpo' wants"),
    (lambda: group_advantage("vpo", r2, weights_KD=simplex_nodes(5, 4)), r"weights_KD: got shape \(5, 4\)"),
    (lambda: group_advantage("goal_grpo", r1), r"weights_KD: got None; 'goal_grpo' wants \(2,1,3\)"),
    (lambda: group_advantage("random_weight_grpo", r1, weights_KD=simplex_nodes(2, 3)), r"got \(2, 3\); 'random_weight_grpo' wants \(2,1,3\)"),
    (lambda: group_advantage("vpo", r2, weights_KD=simplex_nodes(5, 3), mask_BGM=torch.ones(2, 4, 3)), r"mask_BGM: got shape \(2, 4, 3\); want \(2, 4, 2\)"),
    (lambda: group_advantage("max_at_k", r1, k=5), "max_at_k: got k=5 with G=4"),
    (lambda: group_advantage("max_at_k", r1, k=0), "it needs 1 <= k <= 4"),
    (lambda: group_advantage("pkpo", r1, k=4), "pkpo: got k=4 with G=4.*1 <= k <= 3"),
    (lambda: group_advantage("sloo_minus_one", r1, k=1), "sloo_minus_one: got k=1.*2 <= k <= 4"),
    (lambda: group_advantage("maxrl", -r1), "maxrl: got a reward of -.*shift"),
    (lambda: group_advantage("set_max", r2, target_D=torch.zeros(3)), "target_D: got a sum of 0"),
    (lambda: group_advantage("gdpo", r1, transform="rloo"), "takes no other transform"),
    (lambda: group_advantage("grpo", r1, transform="median"), "transform: got 'median'; choose one of"),
    (lambda: group_advantage("grpo", r1, std="sample"), "std: got 'sample'; choose"),
    (lambda: group_advantage("grpo", torch.where(r1 > .5, torch.nan, r1)), r"rewards_BGMD: entry \[.*\] is nan; mask"),
    (lambda: z_norm(torch.tensor([[0., torch.inf]])), r"reward_BG: rollout \[0, 1\] scored inf"),
    (lambda: check_group(torch.rand(3)), r"reward_BG: got shape \(3,\); want \(B,G\)"),
    (lambda: gdpo(torch.rand(2, 3, 4), torch.rand(3)), r"want \(B,G,D\) and \(D,\)")])
def test_errors_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=message): call()

def test_table_escapes_no_number():
    html = advantage_table(dict(vpo=torch.tensor([1., -.5])), "xy")._repr_html_()
    assert "+1.00" in html and "-0.50" in html and html.count("<tr>") == 2
