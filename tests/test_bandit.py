"The bandit: loops and autograd against the fast gradients, exact identities, thresholds, errors"
import math, numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.bandit import *

quick = settings(max_examples=25, deadline=None)
f64 = torch.float64

@st.composite
def problems(draw):
    "Bandit with A arms (one at least) and N rows of logits and snapshots, N != A; rewards with ties"
    A, N, seed = draw(st.integers(2, 9)), draw(st.integers(1, 5)), draw(st.integers(0, 2**31))
    if N == A: N += 1
    gen = torch.Generator().manual_seed(seed)
    def rand(*shape): return 2*torch.randn(*shape, dtype=f64, generator=gen)
    bandit = Bandit(torch.rand(A, dtype=f64, generator=gen).mul(3).round().div(3), rand(A).log_softmax(-1))
    return bandit, rand(N, A), rand(N, A).log_softmax(-1), gen

def slow_objective(z, prev, bandit, bonus, alpha, beta, clamp):
    "One row, arm by arm"
    top = max(z); Z = sum(math.exp(a-top) for a in z); logp = [a-top-math.log(Z) for a in z]; total = 0.
    for lp, q, r, ref in zip(logp, prev, bandit.rewards_A.tolist(), bandit.ref_A.tolist()):
        p = math.exp(lp); total += p*(r-beta*(lp-ref)); d = min(max(q-lp, -clamp), clamp)
        if bonus == "repel": total += alpha*beta*math.exp(q)*d
        if bonus == "cover": total -= alpha*beta*math.exp(q)*d
        if bonus == "novelty": total += p*alpha*min(-q, clamp)
        if bonus == "entropy": total -= p*alpha*lp
    return total

@quick
@given(problems(), st.sampled_from(BONUSES), st.floats(0, 3), st.floats(.01, 2), st.sampled_from([math.inf, .5, 2.]))
def test_objective_is_the_loop_and_gradient_its_derivative(problem, bonus, alpha, beta, clamp):
    bandit, z, prev, _ = problem; w = bonus_weights(bonus, alpha, beta)
    got = bandit_objective(z, prev, bandit, weights=w, beta=beta, clamp=clamp)
    want = [slow_objective(a, b, bandit, bonus, alpha, beta, clamp) for a,b in zip(z.tolist(), prev.tolist())]
    assert np.allclose(got, want, atol=1e-9)
    auto = torch.func.grad(lambda x: bandit_objective(x, prev, bandit, weights=w, beta=beta, clamp=clamp).sum())(z)
    fast = bandit_gradient(z, prev, bandit, weights=w, beta=beta, clamp=clamp)
    assert torch.allclose(auto, fast, atol=1e-10) and fast.sum(-1).abs().max() < 1e-10

@quick
@given(problems(), st.floats(0, 3), st.sampled_from(["k3", "d"]), st.sampled_from([math.inf, 1.]))
def test_sampled_gradient_is_unbiased(problem, alpha, estimator, clamp):
    "Every arm once, weighted by its probability under the policy that draws it"
    bandit, z, prev, gen = problem; N, A = z.shape; old = torch.randn(N, A, dtype=f64, generator=gen).log_softmax(-1)
    w, zero = bonus_weights("repel", alpha, 1.), torch.zeros(N, 1, dtype=f64); total = torch.zeros(N, A, dtype=f64)
    source, idle = (old, Bandit(0*bandit.rewards_A, bandit.ref_A)) if estimator == "k3" else (prev, Bandit(0*bandit.rewards_A, bandit.ref_A))
    for y in range(A):
        arm = torch.full((N, 1), y)
        total += source[:,[y]].exp()*sampled_gradient(z, old, prev, idle, arm, zero, weights=w, clamp=clamp, drawn_NG=arm if estimator == "d" else None)
    p, q = z.softmax(-1), prev.exp(); inside = ((z.log_softmax(-1)-prev).abs() <= clamp).to(f64)
    if estimator == "d": want = alpha*(p*(q*inside).sum(-1, keepdim=True) - q*inside)
    else: c = (p-q)*inside; want = alpha*(c - p*c.sum(-1, keepdim=True))
    assert torch.allclose(total, want, atol=1e-9)
    if clamp == math.inf: assert torch.allclose(total, bandit_gradient(z, prev, idle, weights=w), atol=1e-9)

@quick
@given(problems(), st.floats(.05, 3))
def test_sampled_policy_gradient_and_anchor(problem, beta):
    "Anchor: the gradient of -beta KL(ref||p); reward: pull(p, r) when nothing is clipped"
    bandit, z, prev, _ = problem; N, A = z.shape; old = z.log_softmax(-1); w = bonus_weights("none", 0., beta); total = torch.zeros(N, A, dtype=f64)
    for y in range(A):
        arm = torch.full((N, 1), y)
        total += old[:,[y]].exp()*sampled_gradient(z, old, prev, bandit, arm, bandit.rewards_A[arm], weights=w, beta=beta)
    assert torch.allclose(total, pull(old.exp(), bandit.rewards_A) - beta*(old.exp() - bandit.ref_A.exp()), atol=1e-9)

def test_clipping_stops_only_the_outward_push():
    bandit = Bandit(torch.tensor([1., 0, 0]), torch.zeros(3).log_softmax(-1)); w = bonus_weights("none", 0., 0.)
    z = torch.tensor([[2., 0, 0]]); old = torch.zeros(1, 3).log_softmax(-1); arm = torch.zeros(1, 1, dtype=torch.long)
    def g(adv): return sampled_gradient(z, old, old, bandit, arm, torch.tensor([[adv]]), weights=w)
    assert g(1.).abs().max() == 0 and g(-1.).abs().max() > .1                # already 20 % likelier: not further up, but back down

@quick
@given(problems(), st.floats(.05, 3))
def test_value_identity(problem, beta):
    bandit, z, prev, _ = problem; cal = prev[0]
    shifted = Bandit(bandit.rewards_A - (cal.exp()*bandit.rewards_A).sum(), bandit.ref_A); star = best_policy(shifted, beta)
    best = beta*(shifted.ref_A + shifted.rewards_A/beta).logsumexp(-1)                                       # beta log Z
    assert torch.allclose(anchored_value(star, shifted, beta), best, atol=1e-9)
    assert torch.allclose(ed_value(star, shifted.ref_A, beta=beta, cal_A=cal), best, atol=1e-9)
    assert (anchored_value(z.log_softmax(-1), shifted, beta) <= best + 1e-9).all()
    assert torch.allclose(ed_value(star, bandit.ref_A, beta=beta), beta*kl(bandit.ref_A, star), atol=1e-9)

@quick
@given(problems(), st.floats(.05, 2), st.floats(0, 2))
def test_resting_points(problem, beta, alpha):
    bandit = problem[0]
    for b in BONUSES:
        rest = best_policy(bandit, beta, extra=alpha if b in ("novelty", "entropy") else 0.)[None]
        assert bandit_gradient(rest, rest, bandit, weights=bonus_weights(b, alpha, beta), beta=beta).abs().max() < 1e-9

@pytest.mark.parametrize("bonus,a", [("repel", .7), ("repel", 1.), ("repel", 1.001), ("repel", 4.), ("novelty", 1.5), ("novelty", 6.)])
def test_critical_lag_is_where_the_multiplier_is_minus_one(bonus, a):
    x = critical_lag(bonus, a)
    assert period_multiplier(bonus, a, .9*x) > -1 > period_multiplier(bonus, a, 1.1*x) and abs(period_multiplier(bonus, a, x)+1) < 1e-9

@pytest.mark.parametrize("bonus", BONUSES)
@pytest.mark.parametrize("a", [.3, 1., 2.5])
def test_multiplier_against_the_differential_equation(bonus, a):
    "delta' = -delta + pushes, in time x, by small steps"
    d, h, n = 1., 1e-4, 15000
    push = dict(none=lambda d: 0, repel=lambda d: a*(d-1), cover=lambda d: -a*(d-1), novelty=lambda d: -a, entropy=lambda d: -a*d)[bonus]
    for _ in range(n): d += h*(-d + push(d))
    assert math.isclose(d, period_multiplier(bonus, a, h*n), abs_tol=2e-3)

def test_infinite_critical_lags():
    assert all(math.isinf(critical_lag(*x)) for x in (("none", 3), ("cover", 9.), ("entropy", 9.), ("repel", .5), ("novelty", 1.)))

@quick
@given(st.integers(1, 5), st.integers(2, 7), st.integers(0, 2**31))
def test_group_scores(N, G, seed):
    gen = torch.Generator().manual_seed(seed); r, n = torch.rand(N, G, dtype=f64, generator=gen).round(), torch.rand(N, G, dtype=f64, generator=gen)
    for g in range(N):
        x = (r+n)[g].numpy(); c = x-x.mean()
        assert np.allclose(group_scores(r, n, "group")[g], c/(x.std()+1e-6), atol=1e-9)
        assert np.allclose(group_scores(r, n, "reward")[g], c/max(r[g].numpy().std(), .25))
        assert np.allclose(group_scores(r, n, "none")[g], c)
    assert (group_scores(torch.ones(N, G), torch.zeros(N, G), "group") == 0).all()

def test_rows_are_independent_and_reproducible():
    bandit = make_bandit(9, 2, .3, dtype=f64); names, alpha, lag, _ = bandit_rows(["repel", "cover"], [.5, 2.], [1, 4, 7])
    run = run_bandit(bandit, bonus=names, alpha=alpha, lag=lag, beta=.3, steps=20)
    for i in (0, 5, 11):
        one = run_bandit(bandit, bonus=names[i], alpha=alpha[i], lag=int(lag[i]), beta=.3, steps=20)
        assert torch.allclose(one.logits_NA[0], run.logits_NA[i]) and torch.allclose(one.entropy_SN[:,0], run.entropy_SN[:,i])
    def drawn(seed): return run_bandit(bandit, bonus=["cover", "novelty"], alpha=.5, samples=4, inner=2, steps=12, generator=torch.Generator().manual_seed(seed)).logits_NA
    assert torch.equal(drawn(0), drawn(0)) and not torch.equal(drawn(0), drawn(1))

def test_run_against_a_loop():
    "Snapshot rule and order of recording, one row"
    bandit = make_bandit(5, 2, .3, dtype=f64); z = bandit.ref_A[None]; w = bonus_weights("repel", 2., .4); H, J = [], []
    for s in range(11):
        if s % 3 == 0: prev = z.log_softmax(-1)
        logp = z.log_softmax(-1); H.append(-(logp.exp()*logp).sum().item()); J.append((prev.exp()*(prev-logp)).sum().item())
        z = z + .5*bandit_gradient(z, prev, bandit, weights=w, beta=.4)
    run = run_bandit(bandit, bonus="repel", alpha=2., beta=.4, lag=3, steps=11, lr=.5)
    assert np.allclose(run.entropy_SN[:,0], H) and np.allclose(run.bonus_SN[:,0], J) and torch.allclose(run.logits_NA, z)
    assert [s for s,x in enumerate(J) if abs(x) < 1e-12] == [0, 3, 6, 9]

def test_known_target():
    "Exact training without bonus reaches ref*exp(r/beta); with the entropy bonus the tempered policy"
    bandit = make_bandit(6, 2, .4, spread=.5, dtype=f64)
    run = run_bandit(bandit, bonus=["none", "cover", "entropy", "novelty"], alpha=torch.tensor([0., 1., .5, .5]), beta=.5, lag=2, steps=3000, lr=.5, record=3000)
    for row,extra in zip(run.logits_NA, (0., 0., .5, .5)): assert torch.allclose(row.log_softmax(-1), best_policy(bandit, .5, extra=extra), atol=1e-4)

def test_record():
    r = torch.tensor([1., 1, 0]); logp = torch.tensor([[.3, .1, .6], [.4, .4, .2]]).log(); x = bandit_record(logp, logp, r)
    assert torch.allclose(x[0], torch.tensor([.4, .8])) and x[2].tolist() == [0., 1.] and torch.allclose(x[3], torch.zeros(2))
    assert torch.allclose(x[5], torch.tensor([.25, .5])) and torch.isclose(x[4,1], torch.tensor(2.))

def test_make_bandit():
    b = make_bandit(40, 3, .2, spread=2., seed=5)
    assert b.rewards_A.tolist() == [1.]*3+[0.]*37 and torch.isclose(b.ref_A.exp()[:3].sum(), torch.tensor(.2)) and torch.isclose(b.ref_A.logsumexp(0), torch.zeros(()), atol=1e-5)

def test_wilson():
    p, low, high = wilson(8, 10)
    assert p == .8 and abs(low-.4902) < 1e-3 and abs(high-.9433) < 1e-3       # textbook values
    assert wilson(0, 64)[1] == pytest.approx(0, abs=1e-9) and wilson(64, 64)[2] == pytest.approx(1)

def test_figures_are_small():
    bandit = make_bandit(8, 2, .3); names = ["none", "none", "cover"]
    fig = bandit_figure(run_bandit(bandit, bonus=names, alpha=1., steps=500), names)
    assert len(fig.to_json()) < 60_000 and [t.name for t in fig.data if t.showlegend] == ["none", "cover"]
    phases = phase_runs(bandit, ["repel", "novelty"], [.5, 1., 2.], [1, 4], beta=.3, lr=.3, steps=16)
    assert phases["repel"].entropy_LP.shape == (2, 3) and math.isinf(phases["repel"].critical_P[0]) and math.isfinite(phases["repel"].critical_P[2])
    one = run_bandit(bandit, bonus="repel", alpha=2., beta=.3, lr=.3, lag=4, steps=16)
    assert torch.isclose(phases["repel"].entropy_LP[1,2], one.entropy_SN[-4:,0].mean(), atol=1e-5)
    fig = phase_figure(phases)
    assert [b.label for b in fig.layout.updatemenus[0].buttons] == ["repel", "novelty"] and [t.visible for t in fig.data] == [True]*4+[False]*4

@pytest.mark.parametrize("call,text", [
    (lambda: make_bandit(5, 5, .1), "good: got 5; want a whole number from 1 to arms-1 = 4"),
    (lambda: make_bandit(5, 2, 1.), "accuracy: got 1.0"),
    (lambda: bonus_weights("cove", 1., 1.), "bonus: got 'cove'; choose one of none, repel, cover, novelty, entropy"),
    (lambda: period_multiplier("x", 1., 1.), "bonus: got 'x'"),
    (lambda: group_scores(torch.ones(1, 2), torch.ones(1, 2), "std"), "scale: got 'std'; choose group, reward or none"),
    (lambda: run_bandit(make_bandit(5, 2, .1), lag=0), "lag: got 0; want at least one batch"),
    (lambda: run_bandit(make_bandit(5, 2, .1), estimator="k2"), "estimator: got 'k2'; choose k3 or d"),
    (lambda: best_policy(make_bandit(5, 2, .1), 0.), "beta: got 0.0"),
    (lambda: wilson(3, 2), "hits: got 3 of 2")])
def test_errors(call, text):
    with pytest.raises(ValueError) as e: call()
    assert text in str(e.value)
