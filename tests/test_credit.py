"Per-answer credit: loops against the fast version, exact expectation of the gradient by counting, errors"
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.advantages import group_advantage
from diverse_rl.credit import *
from diverse_rl.sets import set_values
from diverse_rl.simplex import simplex_nodes

quick = settings(max_examples=40, deadline=None)

@st.composite
def sets(draw, least_g=1):
    "Prefix and leave-one-out values (B,G,M) of random sets with ties, zeros and masked answers; the axes have different sizes"
    B, M, D = draw(st.permutations([2, 3, 4])); G = draw(st.integers(least_g, 7).filter(lambda g: g not in (B, M)))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    r = torch.rand(B, G, M, D, dtype=torch.float64, generator=gen).mul(3).round().div(3)
    return set_values(r, simplex_nodes(9, D, dtype=torch.float64), mask_BGM=torch.rand(B, G, M, generator=gen) < .8)

def slow_slope(total, start):
    t, s = np.array(total)-np.mean(total), np.array(start)-np.mean(start)
    return float((t*s).sum()/(s*s).sum()) if (s*s).sum() > 1e-12 else 0.

def slow_credit(prefix, loo, credit, scale, least_std=0., offset=0.):
    "Group by group, rollout by rollout, position by position"
    B, G, M = prefix.shape; out = np.zeros((B, G, M+1))
    R = prefix[:,:,-1]
    pooled = np.sqrt(np.mean([(R[b,g]-R[b].mean())**2 for b in range(B) for g in range(G)]))
    for b in range(B):
        for j in range(M+1):
            before = [0. if j == 0 or j == M else prefix[b,g,j-1] for g in range(G)]
            if credit == "shared": x = list(R[b])
            elif j == M: x = [0.]*G
            elif credit == "telescoped": x = [R[b,g]-before[g] for g in range(G)]
            elif credit == "leave_one_out": x = [loo[b,g,j] for g in range(G)]
            else: c = slow_slope(R[b], before); x = [R[b,g]-c*before[g] for g in range(G)]
            x = np.array(x)-np.mean(x)
            s = dict(group=np.std(R[b]), position=np.std(x), batch=pooled, none=1.)[scale]
            x = x-offset*np.std(before)
            if scale != "none": x = x/(max(s, least_std)+1e-6) if s >= 1e-6 else x*0
            out[b,:,j] = x
    return out

@quick
@given(sets(), st.sampled_from(CREDITS), st.sampled_from(SCALES), st.sampled_from([0., .02, .3]), st.sampled_from([0., 1., -.5]))
def test_fast_is_the_loop(v, credit, scale, least, offset):
    got = answer_credit(v.prefix_BGM, v.loo_BGM, credit=credit, scale=scale, least_std=least, offset=offset)
    assert got.shape == (*v.prefix_BGM.shape[:2], v.prefix_BGM.shape[2]+1) and got.isfinite().all()
    assert np.allclose(got, slow_credit(v.prefix_BGM.numpy(), v.loo_BGM.numpy(), credit, scale, least, offset), rtol=1e-6, atol=1e-6)

@quick
@given(sets())
def test_rewards_to_go_telescope(v):
    x = credit_return(v.prefix_BGM, credit="telescoped")[...,:-1]
    gains = torch.diff(v.prefix_BGM, dim=-1, prepend=torch.zeros_like(v.prefix_BGM[...,:1]))
    assert torch.allclose(x, gains.flip(-1).cumsum(-1).flip(-1))
    assert torch.allclose(x[...,-1], v.loo_BGM[...,-1])

def test_shared_is_the_vpo_advantage_on_every_slot():
    r = torch.rand(3, 5, 2, 4, generator=torch.Generator().manual_seed(0)); w = simplex_nodes(16, 4); v = set_values(r, w)
    a = group_advantage("vpo", r, weights_KD=w)
    assert torch.allclose(answer_credit(v.prefix_BGM, credit="shared"), a[...,None].expand(3, 5, 3), atol=1e-5)

def test_pooled_slope_is_one_regression_over_all_groups():
    p = torch.rand(4, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(-1)
    c = regression_weights(p, pool=True); assert c.shape == (1, 1, 3) and c[0,0,0] == 0
    t, s = (x-x.mean(1, keepdim=True) for x in (p[...,2], p[...,0]))
    assert np.isclose(c[0,0,1], np.polyfit(s.flatten(), t.flatten(), 1)[0])
    assert regression_weights(p).shape == (4, 1, 3)
    x = credit_return(p, credit="control_variate", pool=True)
    assert torch.allclose(x[...,1], p[...,2]-c[0,0,1]*p[...,0])

def test_control_variate_has_least_variance_in_each_group():
    p = torch.rand(5, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).cumsum(-1)
    var = {c:answer_credit(p, credit=c, scale="none").square().mean(1) for c in ("shared", "telescoped", "control_variate")}
    for c in ("shared", "telescoped"): assert (var["control_variate"][...,:-1] <= var[c][...,:-1]+1e-12).all()

# ---- expectation, by counting all groups of a two-answer policy
A, G = 3, 3
worth = torch.tensor([[0., .5, .7], [.5, .5, .9], [.7, .9, .7]], dtype=torch.float64)
theta = torch.tensor([.2, -.5, .4, 1., 0., -1., .3, .9, -.2, -.7, .1, .6], dtype=torch.float64)
def split(t): return t[:A].softmax(0), t[A:].view(A, A).softmax(1)
def objective(t, w): p, q = split(t); return (p[:,None]*q*w).sum()
exact = torch.func.grad(objective)(theta, worth)
ys = torch.cartesian_prod(*[torch.arange(A*A)]*G); y1, y2 = ys//A, ys%A
prefix = torch.stack([worth[y1,y1], worth[y1,y2]], -1); loo = torch.stack([worth[y1,y2]-worth[y2,y2], worth[y1,y2]-worth[y1,y1]], -1)
def mean_gradient(c):
    p, q = split(theta); eye = torch.eye(A, dtype=torch.float64); chance = (p[y1]*q[y1,y2]).prod(1)
    first = (c[...,0,None]*(eye[y1]-p)).mean(1); second = (c[...,1,None,None]*eye[y1][...,None]*(eye[y2]-q[y1])[...,None,:]).mean(1).flatten(1)
    return (chance[:,None]*torch.cat([first, second], 1)).sum(0)*G/(G-1)

@pytest.mark.parametrize("credit", ["shared", "telescoped"])
@pytest.mark.parametrize("offset", [0., 1.])
def test_unbiased_before_division(credit, offset):
    got = mean_gradient(answer_credit(prefix, credit=credit, scale="none", offset=offset))     # the offset depends on earlier answers only
    assert torch.allclose(got, exact, atol=1e-12)

def test_leave_one_out_climbs_the_marginal_contribution():
    got = mean_gradient(answer_credit(prefix, loo, credit="leave_one_out", scale="none"))
    assert torch.allclose(got[A:], exact[A:], atol=1e-12) and not torch.allclose(got[:A], exact[:A], atol=1e-3)
    assert torch.allclose(got[:A], torch.func.grad(objective)(theta, worth-worth.diagonal()[None])[:A], atol=1e-12)

def test_control_variate_is_exact_for_the_first_answer_and_biased_for_the_second():
    got = mean_gradient(answer_credit(prefix, credit="control_variate", scale="none"))
    assert torch.allclose(got[:A], exact[:A], atol=1e-12) and not torch.allclose(got[A:], exact[A:], atol=1e-3)

def test_division_by_the_group_std_is_not_a_matter_of_scale():
    got = mean_gradient(answer_credit(prefix, credit="telescoped"))
    assert torch.nn.functional.cosine_similarity(got, exact, dim=0) < .99

# ---- edges
def test_equal_sets_get_zeros_and_least_std_bounds_the_amplification():
    p = torch.tensor([[[0., .7], [.7, .7], [.3, .7]]])
    for scale in ("group", "batch"): assert (answer_credit(p, scale=scale) == 0).all()
    assert answer_credit(p, scale="position")[...,1].abs().sum() > 0 and (answer_credit(p, scale="position")[...,0] == 0).all()
    p[0,0,1] += 1e-4
    assert answer_credit(p).abs().max() > 1000 and answer_credit(p, least_std=.02).abs().max() < 40

def test_one_rollout_and_one_answer():
    for c in CREDITS:
        for s in SCALES: assert (answer_credit(torch.rand(2, 1, 3), torch.rand(2, 1, 3), credit=c, scale=s) == 0).all()
    p = torch.rand(2, 4, 1)
    assert torch.equal(answer_credit(p, credit="telescoped")[...,0], answer_credit(p, credit="shared")[...,0])

@pytest.mark.parametrize("dtype,out", [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)])
def test_dtypes(dtype, out):
    p = torch.tensor([[[.25, .5], [.5, .5], [0., .75]]], dtype=dtype)
    for c in CREDITS: assert answer_credit(p, p, credit=c).dtype == out
    assert torch.allclose(answer_credit(p).double(), answer_credit(p.double()), atol=1e-5)

def test_inputs_are_left_alone():
    p = torch.rand(2, 4, 3); keep = p.clone()
    for c in CREDITS: answer_credit(p, p, credit=c, scale="none", offset=1.)
    assert torch.equal(p, keep)

@quick
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9), st.integers(0, 999))
def test_spread_is_a_lookup(B, G, S, T, seed):
    gen = torch.Generator().manual_seed(seed)
    c, slots = torch.rand(B, G, S, generator=gen), torch.randint(S, (B, G, T), generator=gen)
    got = spread(c, slots); assert got.shape == (B, G, T)
    assert all(got[b,g,t] == c[b,g,slots[b,g,t]] for b in range(B) for g in range(G) for t in range(T))

p0 = torch.rand(2, 4, 3)
@pytest.mark.parametrize("call,message", [
    (lambda: answer_credit(p0, credit="equal"), "credit: got 'equal'; choose one of shared"),
    (lambda: answer_credit(p0, scale="token"), "scale: got 'token'; choose one of group"),
    (lambda: answer_credit(p0[0]), r"prefix_BGM: got shape \(4, 3\); want \(B,G,M\)"),
    (lambda: answer_credit(p0[:,:,:0]), r"prefix_BGM: got shape \(2, 4, 0\)"),
    (lambda: answer_credit(p0, credit="leave_one_out"), r"loo_BGM: got None; credit='leave_one_out' wants \(2, 4, 3\)"),
    (lambda: answer_credit(p0, p0[:,:2], credit="leave_one_out"), r"loo_BGM: got \(2, 2, 3\)"),
    (lambda: answer_credit(p0/0), "prefix_BGM: 24 of 24 values are NaN or infinite; mask"),
    (lambda: answer_credit(p0, p0*torch.nan, credit="leave_one_out"), "loo_BGM: 24 of 24"),
    (lambda: spread(p0, torch.zeros(2, 3, 5, dtype=torch.long)), r"slots_BGT: got shape \(2, 3, 5\); want \(2, 4\)"),
    (lambda: spread(p0, torch.full((2, 4, 5), 3)), "slots_BGT: got slots 3 to 3; want 0 to 2"),
    (lambda: spread(p0, torch.full((2, 4, 5), -1)), "slots_BGT: got slots -1 to -1")])
def test_errors_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=message): call()

def test_table_has_a_block_per_credit():
    html = credit_table(["a", "b"], dict(shared=torch.tensor([[1., 1], [-1, -1]]), telescoped=torch.zeros(2, 2)))._repr_html_()
    assert html.count("<td") == 8 and 'colspan="2"' in html and "+1.00" in html and "-1.00" in html
