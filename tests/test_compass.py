"The KL compass: every value and gradient against loops and finite differences, samples against enumeration, clamp, weights, mask, errors"
import math
from itertools import product
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.compass import *

quick = settings(max_examples=40, deadline=None)
names = pytest.mark.parametrize("name", list(TERMS))

@st.composite
def policies(draw, count=2, scale=2.):
    "Logits of several policies over V entries"
    V = draw(st.integers(2, 7)); gen = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return [scale*torch.randn(V, dtype=torch.float64, generator=gen) for _ in range(count)]

# ---- loops, with nothing of the module in them

def probs(z): m = max(z); e = [math.exp(x-m) for x in z]; return [x/sum(e) for x in e]
def kl(p, q): return sum(a*math.log(a/b) for a,b in zip(p, q))

WORTH = {"k1/p":lambda p, q: kl(p, q), "k2/p":lambda p, q: sum(a*math.log(a/b)**2/2 for a,b in zip(p, q)), "k3/p":lambda p, q: kl(p, q),
         "neg/q":lambda p, q: kl(q, p), "neg_k3/q":lambda p, q: kl(q, p), "k2/q":lambda p, q: sum(b*math.log(a/b)**2/2 for a,b in zip(p, q)),
         "full_pq/all":lambda p, q: kl(p, q), "full_qp/all":lambda p, q: kl(q, p), "log_q/p":lambda p, q: sum(a*math.log(b) for a,b in zip(p, q))}

def nudged(f, z, q, i, h=1e-5):
    "Central difference in one logit"
    up, down = list(z), list(z); up[i] += h; down[i] -= h
    return (f(probs(up), q)-f(probs(down), q))/(2*h)

def slow_gradient(name, z, q):
    "Finite differences of what the row says, written out by hand for every row"
    def forward(i): return nudged(kl, z, q, i)
    def backward(i): return nudged(lambda p, q: kl(q, p), z, q, i)
    def half(i): return nudged(WORTH["k2/p"], z, q, i)
    by = {"k1/p/loss/none":lambda i: 0., "k1/p/reward/p||q":forward, "k1/p/ratio/p||q":forward, "k2/p/loss/p||q":forward, "k2/p/reward/other":lambda i: half(i)-forward(i),
          "k2/p/ratio/other":half, "k3/p/loss/q||p":backward, "k3/p/reward/other":lambda i: forward(i)-backward(i), "k3/p/ratio/p||q":forward,
          "neg/q/loss/q||p":backward, "neg_k3/q/loss/q||p":backward, "k2/q/loss/other":lambda i: nudged(WORTH["k2/q"], z, q, i),
          "full_pq/all/loss/p||q":forward, "full_qp/all/loss/q||p":backward, "log_q/p/reward/other":lambda i: nudged(WORTH["log_q/p"], z, q, i)}
    return [by[name](i) for i in range(len(z))]

@names
@settings(max_examples=12, deadline=None)
@given(policies())
def test_value_and_gradient(name, z):
    p, q = (probs(x.tolist()) for x in z); m = exact_value_and_gradient(name, *z)
    assert m.value.item() == pytest.approx(WORTH["/".join(name.split("/")[:2])](p, q), rel=1e-9, abs=1e-12)
    assert m.gradient_V.tolist() == pytest.approx(slow_gradient(name, z[0].tolist(), q), rel=1e-5, abs=1e-7)
    value, gradient_V = claimed_value_and_gradient(name, *z)
    assert torch.allclose(m.value, value) and torch.allclose(m.gradient_V, gradient_V, atol=1e-10)

@quick
@given(policies())
def test_known_gradients(z):
    p, q = (x.softmax(-1) for x in z); d = p.log()-q.log()
    def g(name): return exact_value_and_gradient(name, *z).gradient_V
    assert torch.allclose(g("full_qp/all/loss/q||p"), p-q) and torch.allclose(g("full_pq/all/loss/p||q"), p*(d-p@d))
    assert g("k1/p/loss/none").abs().max() < 1e-12
    for k in ("k1", "k2", "k3"):
        a, b, both = (next(g(n) for n in TERMS if n.startswith(f"{k}/p/{w}/")) for w in ("loss", "reward", "ratio"))
        assert torch.allclose(a+b, both)

@names
@settings(max_examples=8, deadline=None)
@given(policies(count=1))
def test_nothing_pulls_at_the_snapshot(name, z):
    g = exact_value_and_gradient(name, z[0], z[0].clone()).gradient_V
    if name != "log_q/p/reward/other": assert g.abs().max() < 1e-12
    else: assert (g.abs().max() > 1e-9) == bool(z[0].std() > 1e-6)

@names
@settings(max_examples=8, deadline=None)
@given(policies(count=3, scale=1.))
def test_weights_of_a_third_policy(name, z):
    own, other = exact_value_and_gradient(name, *z[:2]), exact_value_and_gradient(name, *z[:2], logits_b=z[2])
    assert torch.allclose(own.value, other.value) and torch.allclose(own.gradient_V, other.gradient_V, atol=1e-10)

@names
def test_the_variance_is_that_of_a_sample(name):
    z = [torch.tensor(x).double().log() for x in ([.5, .3, .15, .05], [.1, .2, .3, .4], [.3, .3, .2, .2])]; n = 20_000
    for b in (None, z[2]):
        exact = exact_value_and_gradient(name, *z[:2], logits_b=b)
        got = sampled_value_and_gradient(name, *z[:2], n, torch.Generator().manual_seed(3), logits_b=b)
        assert torch.allclose(got.gradient_var_V, exact.gradient_var_V, rtol=.2, atol=1e-9) and torch.allclose(got.value_var, exact.value_var, rtol=.2, atol=1e-9)
        assert ((got.gradient_V-exact.gradient_V).abs() <= 4.5*(exact.gradient_var_V/n).sqrt()+1e-12).all()
        assert (got.value-exact.value).abs() <= 4.5*(exact.value_var/n).sqrt()+1e-12

def test_sampling_repeats_with_its_generator():
    z = torch.tensor([0., 1., 2.]), torch.tensor([1., 0., 0.])
    a, b, c = (sampled_value_and_gradient("k3/p/loss/q||p", *z, 5, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(a.gradient_V, b.gradient_V) and not torch.equal(a.gradient_V, c.gradient_V)

# ---- numbers per token

def rows(shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=gen).log_softmax(-1).to(dtype) for _ in range(2)]

@pytest.mark.parametrize("direction", DIRECTIONS)
@quick
@given(st.permutations([2, 3, 5]), st.integers(0, 1000), st.sampled_from([None, .7]))
def test_full_kl_is_the_loop(direction, shape, seed, clamp):
    logp, logq = rows(tuple(shape), seed); B, T, V = shape
    got = full_kl(logp, logq, direction, clamp); c = clamp or math.inf
    assert got.shape == (B, T)
    for b,t in product(range(B), range(T)):
        x, y = (logp[b,t], logq[b,t]) if direction == "p||q" else (logq[b,t], logp[b,t])
        d = [max(-c, min(c, u-v)) for u,v in zip(x.tolist(), y.tolist())]
        want = sum(math.exp(u)*(math.exp(-e)-1+e if clamp else e) for u,e in zip(x.tolist(), d))
        assert got[b,t].item() == pytest.approx(want, abs=1e-12)

def test_full_kl_of_entries_that_never_come():
    logp = torch.tensor([[.5, .5, 0.]]).log(); logq = torch.tensor([[.25, .5, .25]]).log().requires_grad_()
    x = full_kl(logp, logq); x.sum().backward()
    assert x.item() == pytest.approx(.5*math.log(2)) and logq.grad.isfinite().all()
    assert full_kl(logp, logq, "q||p").item() == math.inf                    # q goes where p never does
    assert full_kl(logp, logq, "q||p", clamp=2.).isfinite().all()

@pytest.mark.parametrize("f,formula", [(kl_k1, lambda d: d), (kl_k2, lambda d: d*d/2), (kl_k3, lambda d: math.exp(-d)-1+d), (kl_neg, lambda d: -d), (kl_neg_k3, lambda d: math.exp(d)-1-d)])
@quick
@given(st.floats(-6, 6), st.floats(-6, 6), st.sampled_from([None, 1.5]))
def test_numbers_per_token(f, formula, a, b, clamp):
    d = a-b if clamp is None else max(-clamp, min(clamp, a-b))
    got = f(torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64), clamp)
    assert got.shape == (1, 1) and got.item() == pytest.approx(formula(d), rel=1e-9, abs=1e-9)

@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    logp, logq = rows((2, 3, 5), dtype=dtype)
    for f in (kl_k1, kl_k2, kl_k3, kl_neg, kl_neg_k3):
        assert f(logp, logq).dtype == torch.float32 and torch.equal(f(logp, logq), f(logp.float(), logq.float()))
    assert full_kl(logp, logq).dtype == torch.float32

def test_small_steps_survive_float32():
    d = torch.tensor(1e-3, requires_grad=True); x = kl_k3(d, torch.tensor(0.)); x.backward()
    assert x.item() == pytest.approx(5e-7, rel=2e-3) and d.grad.item() == pytest.approx(1e-3, rel=2e-3)

@quick
@given(policies(), st.floats(.2, 2.))
def test_clamp(z, c):
    "The closed form of the clamped k3 gradient, its bound, and no gradient outside"
    p, q = (x.softmax(-1) for x in z); inside = (p.log()-q.log()).abs() <= c; kept = (p-q)*inside
    a = arms("k3/p/loss/q||p", *z, clamp=c); m = exact_value_and_gradient("k3/p/loss/q||p", *z, clamp=c)
    assert torch.allclose(m.gradient_V, kept-p*kept.sum(), atol=1e-10)
    assert (a.gradient_VV[~inside] == 0).all() and a.gradient_VV.norm(dim=1).max() <= (math.exp(c)-1)*2**.5+1e-9
    assert a.value_V.max() <= math.expm1(c)-c+1e-9
    for same in ("neg_k3/q/loss/q||p", "full_qp/all/loss/q||p"): assert torch.allclose(exact_value_and_gradient(same, *z, clamp=c).gradient_V, m.gradient_V, atol=1e-10)
    neg = exact_value_and_gradient("neg/q/loss/q||p", *z, clamp=c).gradient_V                # no p in its tokens
    assert torch.allclose(neg, -(q*inside)+p*(q*inside).sum(), atol=1e-10)
    assert all(full_kl(p.log(), q.log(), way, clamp=c) >= 0 for way in DIRECTIONS)

def test_the_bonus_magnifies_movement():
    old = torch.tensor([.9, .1]).double().log()
    def bonus(to): return full_kl(torch.tensor(to).double().log(), old, "q||p").item()
    assert bonus([.99, .01]) == pytest.approx(.1445, abs=1e-4) and bonus([.81, .19]) == pytest.approx(.0306, abs=1e-4)
    far = [bonus([1-10.**-i, 10.**-i]) for i in (2, 20, 100)]
    assert far[2] > 10 and far[0] < far[1] < far[2]                          # no bound

def test_variance_near_the_snapshot():
    q = torch.tensor([.2, .3, .5]).double().log(); away = torch.tensor([1., -.5, .3]).double()
    def var(name, t): return exact_value_and_gradient(name, q+t*away, q).gradient_var_V.sum().item()
    assert var("neg/q/loss/q||p", 1e-1)/var("neg/q/loss/q||p", 1e-3) == pytest.approx(1, abs=.2)
    assert var("neg_k3/q/loss/q||p", 1e-2)/var("neg_k3/q/loss/q||p", 1e-3) == pytest.approx(100, rel=.1)
    assert var("neg_k3/q/loss/q||p", 1e-2) < var("neg/q/loss/q||p", 1e-2)/1000

# ---- weights and mask

def slow_weights(d, mask, level, clamp):
    out = []
    for row, keep in zip(d.tolist(), mask.tolist()):
        logs = [x if k else 0. for x,k in zip(row, keep)]
        logs = {"token":logs, "prefix":[sum(logs[:t+1]) for t in range(len(logs))], "sequence":[sum(logs)]*len(logs)}[level]
        out.append([math.exp(max(-(clamp or math.inf), min(clamp or math.inf, x)))*k for x,k in zip(logs, keep)])
    return torch.tensor(out, dtype=torch.float64)

@quick
@given(st.sampled_from(LEVELS), st.sampled_from([None, .5]), st.integers(1, 4), st.integers(5, 8), st.integers(0, 1000))
def test_weights_are_the_loop(level, clamp, B, T, seed):
    gen = torch.Generator().manual_seed(seed); lq, lb = (-torch.rand(B, T, dtype=torch.float64, generator=gen) for _ in range(2)); mask = torch.rand(B, T, generator=gen) < .7
    assert torch.allclose(importance_weights(lq, lb, level, clamp, mask), slow_weights(lq-lb, mask, level, clamp))
    full = torch.ones_like(mask)
    assert torch.allclose(importance_weights(lq, lb, level, clamp), slow_weights(lq-lb, full, level, clamp))

def test_the_padding_is_never_read():
    lq = torch.tensor([[-1., torch.nan, -2.]]); lb = torch.tensor([[-1.5, -torch.inf, -1.]]); mask = torch.tensor([[1, 0, 1]])
    assert torch.allclose(importance_weights(lq, lb, "prefix", mask_T=mask), torch.tensor([[.5, -torch.inf, -.5]]).exp())

@quick
@given(st.integers(0, 1000), st.integers(2, 4))
def test_sequences_by_enumeration(seed, V):
    "Two tokens with a second distribution after each first: product weights give the KL of the sequence, value and gradient"
    gen = torch.Generator().manual_seed(seed); z = [torch.randn(V+1, V, dtype=torch.float64, generator=gen) for _ in range(3)]; z[0].requires_grad_()
    y = torch.cartesian_prod(torch.arange(V), torch.arange(V))
    def logps(x): x = x.log_softmax(-1); return torch.stack([x[0,y[:,0]], x[1+y[:,0],y[:,1]]], -1)
    lp, lq, lb = map(logps, z); law = lb.sum(-1).exp()
    whole = (lq.sum(-1).exp()*(lq-lp).sum(-1)).sum(); want, = torch.autograd.grad(whole, z[0], retain_graph=True)
    for level in ("prefix", "sequence"):
        for f in (kl_neg, kl_neg_k3):
            x = (law[:,None]*importance_weights(lq, lb, level)*f(lp, lq)).sum(); g, = torch.autograd.grad(x, z[0], retain_graph=True)
            assert torch.isclose(x, whole) and torch.allclose(g, want, atol=1e-9)
    p, q, b = (x.log_softmax(-1) for x in z); state = torch.cat([torch.ones(1).double(), b[0].exp()])
    token = (law[:,None]*importance_weights(lq, lb)*kl_neg_k3(lp, lq)).sum()
    assert torch.isclose(token, state@full_kl(p, q, "q||p"))

def test_a_differentiated_weight_is_the_ratio_placement():
    p, q = (torch.tensor(x).double() for x in ([.1, .4, -.3, 0.], [1., 0., .2, -.5])); p.requires_grad_()
    lp, lq = p.log_softmax(-1), q.log_softmax(-1); x = kl_k3(lp, lq)
    g, = torch.autograd.grad((lp.detach().exp()*importance_weights(lp, lp.detach())*x).sum(), p)
    assert torch.allclose(g, exact_value_and_gradient("k3/p/ratio/p||q", p.detach(), q).gradient_V)

@quick
@given(st.integers(1, 3), st.integers(4, 6), st.integers(0, 1000), st.sampled_from([0., .5, 1.]))
def test_masked_mean_is_the_loop(B, T, seed, share):
    gen = torch.Generator().manual_seed(seed); x = torch.randn(B, T, dtype=torch.float64, generator=gen); mask = torch.rand(B, T, generator=gen) < share
    kept = [v for row,keep in zip(x.tolist(), mask.tolist()) for v,k in zip(row, keep) if k]
    assert masked_mean(x, mask).item() == pytest.approx(sum(kept)/max(len(kept), 1))
    by_row = [sum(v for v,k in zip(row, keep) if k)/max(sum(keep), 1) for row,keep in zip(x.tolist(), mask.tolist())]
    assert masked_mean(x, mask.long(), dim=-1).tolist() == pytest.approx(by_row)
    poisoned = x.masked_fill(~mask, torch.nan).requires_grad_(); masked_mean(poisoned, mask).backward()
    assert torch.allclose(poisoned.grad, mask.double()/mask.sum().clamp(min=1))

# ---- registry, figures, errors

def test_names_say_four_things():
    for name,t in TERMS.items():
        assert name == t.name == f"{t.estimator}/{t.sampler}/{t.placement}/{t.direction}" and find_term(name) is t is find_term(t)
        assert t.value in QUANTITIES and all(k in QUANTITIES for _,k in t.gradient)
        assert (t.direction == "none") == (t.gradient == ()) and (t.direction in DIRECTIONS) == (t.gradient in (((1, "KL(p||q)"),), ((1, "KL(q||p)"),)))
    assert TERMS["k3/p/reward/other"].gradient_text == "∇KL(p||q) − ∇KL(q||p)" and TERMS["k1/p/loss/none"].gradient_text == "0"

def test_table():
    html = terms_table(list(TERMS.values())[:3], dict(value=[1., 2., 3.]))._repr_html_()
    assert html.count("<tr>") == 4 and html.count("<td") == 24 and "#2e86ab" in html

def test_overview_has_every_term():
    pytest.importorskip("plotly")
    z = torch.tensor([.55, .3, .15]).double().log(); fig = overview_figure(z, z.flip(0), generator=torch.Generator().manual_seed(0))
    assert len(fig.layout.annotations) == len(TERMS) and len(fig.to_json()) < 150_000

two, three = torch.zeros(2), torch.zeros(3)
@pytest.mark.parametrize("call,says", [
    (lambda: log_ratio(two, three), r"logq: got shape \(3,\); want \(2,\)"), (lambda: kl_k3(two, two, clamp=-1), r"clamp: got -1; want nats above 0"),
    (lambda: full_kl(two, two, "forward"), r"direction: got 'forward'; choose one of p\|\|q, q\|\|p"), (lambda: find_term("k3"), r"term: got 'k3'; choose one of k1/p/loss/none"),
    (lambda: importance_weights(two, two, "word"), r"level: got 'word'; choose one of token, prefix, sequence"), (lambda: importance_weights(two, two, clamp=0.), r"clamp: got 0.0"),
    (lambda: masked_mean(two, three), r"mask: got shape \(3,\); want \(2,\)"), (lambda: importance_weights(two, two, mask_T=three), r"mask: got shape"),
    (lambda: exact_value_and_gradient("k1/p/loss/none", two, three), r"logits_q: got shape \(3,\); want \(V,\)"),
    (lambda: exact_value_and_gradient("k1/p/loss/none", two, two, logits_b=three), r"logits_b: got shape"), (lambda: arms("k1/p/loss/none", two[:1], two[:1]), r"V of at least 2"),
    (lambda: arms("k1/p/loss/none", two.log(), two), r"logits_p: got \[-inf, -inf\]; enumeration wants finite"),
    (lambda: sampled_value_and_gradient("k1/p/loss/none", two, two, 1), r"n: got 1; a variance wants")])
def test_errors(call, says):
    with pytest.raises(ValueError, match=says): call()
