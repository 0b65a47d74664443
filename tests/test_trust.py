"Budgets: no step of any size leaves the angle, no update leaves the drift, and prompts come in order however long rollouts are held"
import json, math
from pathlib import Path
from dataclasses import dataclass
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.experts import find_moe_layers, tiny_moe
from diverse_rl.trust import (AnchorBudget, Drift, TrustConfig, anchor_callback, behaviour_drift, drift_of, drift_sums, exact_principal, krylov_principal, load_anchor, principal,
                              prototype_angle, pull_back, pull_back_experts, save_anchor, sync_reason)
from toy import two_processes

def svd_angle(a, b):
    "The angle in double precision, by full decompositions: nothing shared with the code under test"
    p,q = (torch.linalg.svd(x.double(), full_matrices=False).U[...,0] for x in (a, b))
    c = (p*q).sum(-1, keepdim=True)
    return torch.atan2((p-c*q).norm(dim=-1), c[...,0].abs())
def gen(seed): return torch.Generator().manual_seed(seed)

# ---- the angle and the prototype

@given(st.integers(2, 6), st.floats(0, math.pi/2), st.booleans())
def test_angle_has_no_sign_and_keeps_small_numbers(h, a, flip):
    p,q = torch.zeros(2, h, dtype=torch.float64); p[0] = 1; q[0],q[1] = math.cos(a),math.sin(a)
    assert prototype_angle(p, -q if flip else q).item()==pytest.approx(a, rel=1e-9, abs=1e-150)

@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1e-20, 1., 1e15]))
def test_exact_prototype_is_the_svd_and_its_bound_holds(seed, e, h, f, scale):
    w = scale*torch.randn(e, h, f, generator=gen(seed)); m = exact_principal(w)
    u,s,_ = torch.linalg.svd(w.double(), full_matrices=False)
    assert (prototype_angle(m.p_EH, u[...,0])<=m.error_E+1e-9).all() and torch.allclose(m.p_EH.norm(dim=-1), torch.ones(e, dtype=torch.float64))

@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([(70,90),(90,70),(130,66)]), st.floats(.1, .999), st.sampled_from([4,16]))
def test_krylov_bound_holds(seed, shape, second, steps):
    g = gen(seed); H,F = shape; n = min(H,F); q = lambda n,m: torch.linalg.qr(torch.randn(2, n, m, generator=g)).Q
    w = q(H,n)*torch.cat([torch.ones(1), second*torch.rand(n-1, generator=g)])@q(F,n).mT
    start = torch.randn(2, H, generator=g)*(seed%2)
    m = krylov_principal(w, start, steps); assert (prototype_angle(m.p_EH, exact_principal(w).p_EH)<=m.error_E).all()
    full = principal(w, 1e-3, start.double()); assert (full.error_E<=1e-3).all() and (prototype_angle(full.p_EH, exact_principal(w).p_EH)<=full.error_E).all()

@pytest.mark.parametrize('height', [.5, 1.05, 1.5, 30.])
def test_an_overtaking_direction_is_noticed_from_the_old_prototype(height):
    g = gen(0); q = torch.linalg.qr(torch.randn(200, 2, generator=g)).Q; r = torch.linalg.qr(torch.randn(150, 2, generator=g)).Q
    base = torch.randn(200, 150, generator=g); base = base-q@(q.T@base); base = .02*(base-base@r@r.T)
    old,new = 1.*q[:,:1]@r[:,:1].T+base,height*q[:,1:]@r[:,1:].T
    m = principal((old+new)[None], 1e-3, start_EH=exact_principal(old[None]).p_EH)
    assert svd_angle((old+new)[None], old[None])>1.5 if height>1 else svd_angle((old+new)[None], old[None])<.1
    assert prototype_angle(m.p_EH, torch.linalg.svd((old+new).double()).U[:,0])<1e-3

def test_what_has_no_prototype_says_so():
    tie = torch.stack([torch.zeros(3, 4), torch.eye(3, 4), torch.full((3, 4), math.nan)])
    assert (exact_principal(tie).error_E==math.pi/2).all() and torch.isfinite(exact_principal(tie).p_EH).all()
    with pytest.raises(ValueError, match=r"w_EHF: got shape \(3, 4\)"): principal(torch.zeros(3, 4))
    assert principal(torch.zeros(0, 80, 70)).p_EH.shape==(0, 80) and principal(torch.zeros(2, 80, 70)).error_E.tolist()==[math.pi/2]*2

# ---- pulling back

@settings(max_examples=70)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 9), st.integers(2, 9), st.floats(-6, 8), st.floats(1e-4, 1.5), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.floats(-6, 6))
def test_no_step_of_any_size_leaves_the_budget(seed, e, h, f, size, delta, dtype, scale):
    g = gen(seed); a = (10**scale*torch.randn(e, h, f, generator=g)).to(dtype); w = (a.double()+10**(scale+size)*torch.randn(e, h, f, generator=g)).to(dtype)
    out = pull_back_experts(w, a, delta); true = svd_angle(out.w_EHF, a)
    assert (true<=delta+1e-9).all() and out.w_EHF.dtype==dtype
    assert torch.equal(out.w_EHF[~out.pulled_E], w[~out.pulled_E]) and torch.allclose(out.angle_E, true, atol=1e-7)
    inside = svd_angle(w, a)<=.97*delta; assert not (out.pulled_E & inside).any()          # what is clearly inside is left alone

@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0., 1e-12, 1e-7, 1e-3]), st.sampled_from([0., 1e-9, 1e-4, .3, 10.]), st.floats(.01, 1.), st.sampled_from(['anchor','step','both']))
def test_ties_hold_or_go_home(seed, gap, size, delta, where):
    g = gen(seed); q = lambda n: torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    tied = (q(5)*torch.tensor([1+gap,1.,.4,.3,.1], dtype=torch.float64))@q(7)[:5]; other = torch.randn(5, 7, generator=g, dtype=torch.float64)
    a,w = dict(anchor=(tied,tied+size*other), step=(other,tied), both=(tied,(1+size)*tied.roll(1, 0)))[where]
    out = pull_back_experts(w[None], a[None], delta).w_EHF[0]
    assert torch.equal(out, a) or svd_angle(out, a)<=delta+1e-9

@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(-2, 2), st.floats(.02, 1.2))
def test_batched_agrees_with_the_reference(seed, size, delta):
    "Both end inside; where the reference moved, the batched one uses as much of the budget, on the same segment"
    g = gen(seed); a = torch.randn(5, 8, generator=g, dtype=torch.float64); w = a+10**size*torch.randn(5, 8, generator=g, dtype=torch.float64)
    slow,fast = pull_back(w, a, delta, 40),pull_back_experts(w[None], a[None], delta, halvings=40).w_EHF[0]
    assert svd_angle(slow, a)<=delta+1e-12
    s = lambda x: (((x-a)*(w-a)).sum()/((w-a)**2).sum()).item()
    assert torch.allclose(fast, a+s(fast)*(w-a), atol=1e-9)
    if svd_angle(w, a)>delta and svd_angle(slow, a)>.99*delta and svd_angle(fast, a)>0: assert s(fast)<=s(slow)+1e-6 or svd_angle(fast, a)<=delta

@settings(max_examples=8)
@given(st.integers(0, 10**6), st.floats(-4, 4))
def test_large_matrices_take_the_other_path_and_hold_too(seed, size):
    g = gen(seed); a = torch.randn(3, 90, 70, generator=g); w = a+10**size*torch.randn(3, 90, 70, generator=g)
    out = pull_back_experts(w, a, .15); assert (svd_angle(out.w_EHF, a)<=.15+1e-9).all()

def test_the_two_ends_and_what_is_not_finite():
    a,w = torch.randn(4, 3, 5, generator=gen(0)),torch.randn(4, 3, 5, generator=gen(1))
    assert torch.equal(pull_back_experts(w, a, 0.).w_EHF, a) and pull_back_experts(w, a, math.pi/2).w_EHF is w and pull_back_experts(w, a, 9.).w_EHF is w
    w[2,0,0] = math.nan; w[3,1,1] = math.inf
    out = pull_back_experts(w, a, .1); assert torch.equal(out.w_EHF[2:], a[2:]) and torch.isfinite(out.w_EHF).all()

def test_it_can_fail():
    a,w = torch.randn(4, 3, 5, generator=gen(0)),torch.randn(4, 3, 5, generator=gen(1))
    assert (svd_angle(w, a)>.1).all(), 'the steps of these tests never leave the budget, so a function that does nothing would pass'

# ---- a model's budget

def shove(model, size, seed):
    g = gen(seed)
    with torch.no_grad():
        for p in model.parameters(): p.add_(size*(p.std()+1e-3)*torch.randn(p.shape, generator=g))

@pytest.mark.parametrize('family', ['qwen3_moe','gpt_oss','mixtral'])
def test_a_model_stays_inside_over_many_steps_and_syncs(family):
    m = tiny_moe(family); layers = find_moe_layers(m); b = AnchorBudget(layers, .12); b.sync()
    for k in range(8):
        if k==4: b.sync()
        if k%4==0: home = [l.down_EHF.detach().clone() for l in layers]; shape = [l.down.stride() for l in layers]
        shove(m, .15, k); n = b.project()
        a = torch.cat([svd_angle(l.down_EHF.detach(), h) for l,h in zip(layers, home)])
        assert a.max()<=.12+1e-9 and n['angle_max']==pytest.approx(a.max().item(), abs=1e-6) and n['angle_mean']==pytest.approx(a.mean().item(), abs=1e-6)
    assert n['pulled']>0 and shape==[l.down.stride() for l in layers] and b.nbytes==sum(l.down.nbytes for l in layers)

def test_measuring_changes_nothing_and_holds_nothing():
    m = tiny_moe(); b = AnchorBudget(find_moe_layers(m), math.pi/2); b.sync(); shove(m, 3., 0)
    was = {k:v.clone() for k,v in m.state_dict().items()}; n = b.project()
    assert all(torch.equal(was[k], v) for k,v in m.state_dict().items()) and n['angle_max']>.5 and n['pulled']==0 and b.nbytes==0 and b.state_dict()=={}

def test_only_output_projections_move_and_moments_stay():
    m = tiny_moe(); layers = find_moe_layers(m); b = AnchorBudget(layers, .01); b.sync(); opt = torch.optim.AdamW(m.parameters(), lr=.05)
    x = torch.tensor([[3,4,5,6]]); m(input_ids=x, labels=x).loss.backward(); opt.step()
    moments = [v.clone() for s in opt.state.values() for v in s.values()]; was = {n:p.detach().clone() for n,p in m.named_parameters()}
    assert b.project()['pulled']>0
    moved = {n for n,p in m.named_parameters() if not torch.equal(was[n], p)}; assert moved=={f'{l.name}.down_proj' for l in layers}
    assert all(torch.equal(a, v) for a,v in zip(moments, [v for s in opt.state.values() for v in s.values()]))

def test_an_expert_without_a_prototype_stays_and_warns():
    m = tiny_moe(); layers = find_moe_layers(m)
    with torch.no_grad(): layers[0].down[2] = 0
    b = AnchorBudget(layers, .3)
    with pytest.warns(UserWarning, match='1 of 6 experts have no prototype'): b.sync()
    shove(m, .05, 0); b.project(); assert (layers[0].down[2]==0).all() and (layers[0].down[1]!=0).any()

def test_anchor_on_disk(tmp_path):
    m = tiny_moe(); b = AnchorBudget(find_moe_layers(m), .2); b.sync(); save_anchor(b, tmp_path); want = b.state_dict(); want = {k:v.clone() for k,v in want.items()}
    shove(m, 1., 0); b.sync(); load_anchor(b, tmp_path)
    assert all(torch.equal(want[k], v) for k,v in b.state_dict().items()) and [p.name for p in tmp_path.iterdir()]==['anchor.safetensors']
    b.project(); assert max(svd_angle(l.down_EHF.detach(), want[l.name]).max() for l in b.layers)<=.2+1e-9
    with pytest.raises(FileNotFoundError, match='start anew'): load_anchor(b, tmp_path/'none')
    with pytest.raises(ValueError, match='another model'): load_anchor(AnchorBudget(find_moe_layers(tiny_moe('mixtral', intermediate_size=12)), .2), tmp_path)
    save_anchor(b, tmp_path/'other', write=False); assert not (tmp_path/'other').exists()

def test_refusals_of_a_budget():
    layers = find_moe_layers(tiny_moe())
    with pytest.raises(ValueError, match='layers: got none'): AnchorBudget([], .1)
    with pytest.raises(ValueError, match='delta_max=nan'): AnchorBudget(layers, math.nan)
    with pytest.raises(RuntimeError, match='call sync'): AnchorBudget(layers, .1).project()
    layers[1].down.requires_grad_(False)
    with pytest.raises(ValueError, match='layers.1.* are not trained'): AnchorBudget(layers, .1)

# ---- drift

@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_drift_is_its_formula_and_adds_up(seed, n, t, far):
    g = gen(seed); new,old = -torch.rand(n, t, generator=g)*far*3-.1,-torch.rand(n, t, generator=g)*3; mask = (torch.rand(n, t, generator=g)<.7).long()
    got = behaviour_drift(new, old, mask)
    kl,rhos = [],[]
    for i in range(n):
        d = [(new[i,j]-old[i,j]).item() for j in range(t) if mask[i,j]]
        kl += [math.exp(x)-1-x for x in d]; rhos += [math.exp(sum(d)/len(d))] if d else []
    want = (sum(kl)/len(kl), sum(rhos)**2/(len(rhos)*sum(r*r for r in rhos))) if kl else (0., 1.)
    assert got==pytest.approx(want, rel=1e-4, abs=1e-6) and got.kl>=0 and 0<got.ess<=1+1e-9
    k = n//2; assert torch.allclose(drift_sums(new, old, mask), drift_sums(new[:k], old[:k], mask[:k])+drift_sums(new[k:], old[k:], mask[k:]), rtol=1e-5)

def test_drift_at_the_edges():
    far = behaviour_drift(torch.tensor([[0.,-500.]]), torch.tensor([[-500.,0.]]), torch.ones(1, 2)); assert math.isfinite(far.kl) and far.kl>1e6
    padded = behaviour_drift(torch.tensor([[-1.,-torch.inf]]), torch.tensor([[-1.,math.nan]]), torch.tensor([[1,0]])); assert padded==(0., 1.)
    half = behaviour_drift(torch.tensor([[-1.,-2.]]).bfloat16(), torch.tensor([[-1.5,-2.]]).bfloat16(), torch.ones(1, 2)); assert half.kl==pytest.approx((math.exp(.5)-1.5)/2, rel=1e-3)
    lost = behaviour_drift(torch.full((2, 3), math.nan), torch.zeros(2, 3), torch.ones(2, 3)); assert math.isnan(lost.kl) and math.isnan(lost.ess)
    assert sync_reason(lost, .5, behaviour_kl=None, behaviour_ess=.5, max_reuse=9)=='ess' and sync_reason(lost, .5, behaviour_kl=.5, behaviour_ess=None, max_reuse=9)=='kl'
    assert not sync_reason(drift_of(drift_sums(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2))), .5, behaviour_kl=1e-9, behaviour_ess=1., max_reuse=2)
    with pytest.raises(ValueError, match=r'mask_NT: got shapes'): behaviour_drift(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2))

@pytest.mark.parametrize('drift,passes,want', [(None,None,'start'), (Drift(9., 0.),None,'start'), (None,.5,None), (Drift(.01,.95),1.,None), (Drift(.2,.95),.5,'kl'), (Drift(.01,.5),2.,'ess'), (Drift(.2,.5),3.,'cap'), (None,3.,'cap'), (Drift(math.nan,.9),1.,'kl'), (Drift(.01,math.nan),1.,'ess')])
def test_sync_reason(drift, passes, want):
    assert sync_reason(drift, passes, behaviour_kl=.1, behaviour_ess=.8, max_reuse=3)==want
    assert sync_reason(drift, passes, behaviour_kl=None, behaviour_ess=None, max_reuse=3)==(want if want in ('start','cap') else None)

@pytest.mark.parametrize('bad', [dict(anchor_budget=-1.), dict(anchor_budget=math.inf), dict(behaviour_kl=-.1), dict(behaviour_kl=math.nan), dict(behaviour_ess=0.), dict(behaviour_ess=1.1), dict(max_reuse=0), dict(behaviour_check='late')])
def test_bad_switches_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))): TrustConfig(**bad)

# ---- the trainer

pytest.importorskip('trl')
from datasets import Dataset
from transformers import Trainer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer
from diverse_rl.policy import make_tokenizer
from diverse_rl.trainer import DiverseGRPOConfig, DiverseGRPOTrainer
from diverse_rl.trust import BehaviourMixin

@dataclass
class Config(TrustConfig, GRPOConfig): pass
class Budgets(BehaviourMixin, GRPOTrainer): pass
PROMPTS = [f'go {a} {b}' for a in 'abcd' for b in 'abcdefgh']
HELD = dict(behaviour_kl=.02, behaviour_ess=.9, max_reuse=4, behaviour_check='exact')

def vowels(completions, **_): return [sum(w in 'ae' for w in c.split())/4 for c in completions]
def parts(tmp, cls=Budgets, cfg=Config, steps=5, pieces=1, batch=16, lr=4e-3, n=32, family='qwen3_moe', **kw):
    "A tiny trainer that notes which prompts it samples from, in `asked`"
    tok = make_tokenizer(['go',*'abcdefgh']); asked = []
    def reward(prompts, completions, **_): asked.append(list(dict.fromkeys(prompts))); return vowels(completions)
    args = cfg(output_dir=str(tmp), per_device_train_batch_size=batch//pieces, gradient_accumulation_steps=pieces, num_generations=4, max_completion_length=4, max_steps=steps, learning_rate=lr, logging_steps=1,
               report_to='none', use_cpu=True, bf16=False, disable_tqdm=True, **dict(save_strategy='no', gradient_checkpointing=False, epsilon=1e6, shuffle_dataset=False)|kw)
    t = cls(model=tiny_moe(family, vocab_size=len(tok), num_hidden_layers=1), processing_class=tok, reward_funcs=reward, args=args, train_dataset=Dataset.from_dict(dict(prompt=PROMPTS[:n])), eval_dataset=Dataset.from_dict(dict(prompt=PROMPTS[:2])))
    t.asked = asked
    return t
def run(t, **kw): t.train(**kw); return {k:v.clone() for k,v in t.model.state_dict().items()}
def made(*args, **kw): t = parts(*args, **kw); return t,run(t)
def same(a, b): return all(torch.equal(a[k], b[k]) for k in a)
def logged(t, key): return [h[key] for h in t.state.log_history if key in h][:t.state.global_step]

@pytest.mark.parametrize('extra', [dict(), dict(pieces=2, num_iterations=2, shuffle_dataset=True)])
def test_off_is_stock_bit_for_bit(tmp_path, extra):
    stock,a = made(tmp_path/'a', GRPOTrainer, GRPOConfig, **extra); off,b = made(tmp_path/'b', **extra); _,c = made(tmp_path/'c', **{**extra,'num_iterations':1}, **HELD)
    assert same(a, b) and stock.asked==off.asked and not same(a, c) and off.anchors is None
    drop = ('runtime','per_second','step_time','flos')
    tidy = lambda t: [{k:v for k,v in h.items() if not any(d in k for d in drop)} for h in t.state.log_history]; assert tidy(stock)==tidy(off)
    seen,d = made(tmp_path/'d', anchor_budget=math.pi/2, **extra); assert same(a, d) and max(logged(seen, 'trust/angle_max'))>.02      # measuring is stock too

def test_both_budgets_hold_with_clipping_off(tmp_path):
    t = parts(tmp_path, steps=16, anchor_budget=.03, **HELD); run(t)
    assert max(logged(t, 'trust/kl'))<=.02 and min(logged(t, 'trust/ess'))>=.9 and max(logged(t, 'trust/angle_max'))<=.03
    assert len(logged(t, 'trust/kl'))==16 and 1<len(t.syncs)<16 and logged(t, 'trust/rollouts')[-1]==16*len(t.syncs)==16*logged(t, 'trust/syncs')[-1] and max(logged(t, 'trust/pulled'))>0
    assert [s.reason for s in t.syncs].count('start')==1 and sum(logged(t, f'trust/sync_{r}')[-1] for r in ('start','cap','kl','ess'))==len(t.syncs)
    loose = parts(tmp_path, steps=16, anchor_budget=math.pi/2, **HELD|dict(behaviour_kl=50., behaviour_ess=1e-6, max_reuse=16)); run(loose)
    assert max(logged(loose, 'trust/kl'))>.02 and max(logged(loose, 'trust/angle_max'))>.03, 'the run stays inside without budgets: the test above would hold for any trainer'

def test_the_largest_angle_of_several_steps_is_no_mean(tmp_path):
    def trained(every): t = parts(tmp_path, steps=6, anchor_budget=math.pi/2, num_iterations=6); t.args.logging_steps = every; run(t); return t
    each,pair = trained(1),trained(3)
    a,b = ([logged(each, f'trust/{k}') for k in ('angle_max','angle_mean')],[logged(pair, f'trust/{k}') for k in ('angle_max','angle_mean')])
    assert b[0]==pytest.approx([max(a[0][:3]), max(a[0][3:])]) and b[1]==pytest.approx([sum(a[1][:3])/3, sum(a[1][3:])/3]) and a[0][0]<a[0][2]

def test_free_is_one_step_late(tmp_path):
    t = parts(tmp_path, steps=16, **HELD|dict(behaviour_check='free')); run(t)
    kl,ess,syncs = logged(t, 'trust/kl'),logged(t, 'trust/ess'),{s.step for s in t.syncs}
    outside = [i for i in range(16) if kl[i]>.02 or ess[i]<.9]
    assert outside and all(i+1 in syncs or i==15 for i in outside) and not any(i-1 in outside and i in outside for i in range(16))

def test_the_cap_and_prompts_in_order(tmp_path):
    stock = parts(tmp_path/'a', GRPOTrainer, GRPOConfig, steps=8, shuffle_dataset=True); run(stock)
    t = parts(tmp_path/'b', steps=8, shuffle_dataset=True, behaviour_kl=1e3, max_reuse=3); run(t)
    assert [(s.step,s.reason,s.updates) for s in t.syncs]==[(0,'start',0),(3,'cap',3),(6,'cap',3)] and t.asked==stock.asked[:3]
    once = parts(tmp_path/'c', steps=8, shuffle_dataset=True, behaviour_kl=1e3, max_reuse=1); run(once); assert once.asked==stock.asked
    tight = parts(tmp_path/'d', steps=8, shuffle_dataset=True, behaviour_kl=1e-12, max_reuse=8, behaviour_check='exact'); run(tight); assert tight.asked==stock.asked
    round_ = parts(tmp_path/'e', steps=5, n=8, behaviour_kl=1e3, max_reuse=1); run(round_); assert [sorted(x) for x in round_.asked]==[PROMPTS[:4],PROMPTS[4:8]]*2+[PROMPTS[:4]]    # a second epoch

@pytest.mark.parametrize('check', ['free','exact'])
def test_gradient_accumulation_and_slices(tmp_path, check):
    (whole,a),(cut,b) = (made(tmp_path/str(p), steps=6, pieces=p, router_aux_loss_coef=0., **HELD|dict(behaviour_check=check)) for p in (1,2))
    assert [(s.step,s.reason) for s in whole.syncs]==[(s.step,s.reason) for s in cut.syncs] and all(torch.allclose(a[k], b[k], atol=1e-4) for k in a)
    t = parts(tmp_path/'s', steps=7, steps_per_generation=2, behaviour_kl=1e3, max_reuse=2, behaviour_check=check); run(t)      # two updates a pass, two passes
    assert [s.step for s in t.syncs]==[0,4] and [len(x) for x in t.asked]==[8,8]
    with pytest.raises(ValueError, match='steps_per_generation=1.*gradient_accumulation_steps=2'): parts(tmp_path, pieces=2, steps_per_generation=1, behaviour_kl=.1)
    with pytest.raises(ValueError, match='set max_reuse=2'): parts(tmp_path, num_iterations=2, behaviour_kl=.1)

def test_evaluation_leaves_the_held_rollouts_alone(tmp_path):
    b = parts(tmp_path, steps=5, anchor_budget=.05, **HELD, eval_strategy='steps', eval_steps=2, per_device_eval_batch_size=4); state = []
    eval_,b.evaluate = b.evaluate,lambda *x,**k: (state.append((b._held.used, len(b.syncs), [p.p_EH.clone() for p in b.anchors.principals])), eval_(*x,**k), state.append((b._held.used, len(b.syncs), [p.p_EH for p in b.anchors.principals])))[1]
    run(b); assert len(state)==6 and all(x[:2]==y[:2] and torch.equal(x[2][0], y[2][0]) for x,y in zip(state[::2], state[1::2])) and any('eval_loss' in h for h in b.state.log_history)

def test_a_resumed_run_samples_at_once_and_goes_on_with_the_next_prompts(tmp_path):
    make = lambda steps: parts(tmp_path, steps=steps, family='gpt_oss', anchor_budget=.05,        # a family whose checkpoints a Trainer reads back whole
         save_strategy='steps', save_steps=4, lr_scheduler_type='constant', **HELD)
    a = make(4); run(a); kept = json.loads((tmp_path/'checkpoint-4/trust.json').read_text())
    assert kept['chunks']==len(a.syncs) and kept['rollouts']==16*len(a.syncs) and not (tmp_path/'checkpoint-4/anchor.safetensors').exists()
    b = make(7); run(b, resume_from_checkpoint=str(tmp_path/'checkpoint-4'))
    assert b.syncs[0][:2]==(4,'start') and a.asked+b.asked==[PROMPTS[i:i+4] for i in range(0, 4*(len(a.asked)+len(b.asked)), 4)]
    assert logged(b, 'trust/syncs')[-1]==len(a.syncs)+len(b.syncs) and max(logged(b, 'trust/kl'))<=.02
    (tmp_path/'checkpoint-4/trust.json').unlink(); c = make(5); run(c, resume_from_checkpoint=str(tmp_path/'checkpoint-4')); assert c.asked[0]==PROMPTS[16:20]      # of a stock run

def test_beside_sets_and_exploration(tmp_path):
    t = parts(tmp_path, DiverseGRPOTrainer, DiverseGRPOConfig, steps=5, anchor_budget=.03, exploration_coef=.1, snapshot_every=4, **HELD); run(t)
    assert max(logged(t, 'trust/kl'))<=.02 and max(logged(t, 'trust/angle_max'))<=.03 and len(logged(t, 'exploration/kl_previous'))==5

SPLIT = """
import sys; sys.path[:0] = [{here!r}]
import torch, test_trust as T
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
rank,out = sys.argv[1],Path({out!r})
t = T.parts(out/rank, steps=5, batch=8, anchor_budget=.03, ddp_backend='gloo', **T.HELD)
w = T.run(t)
assert t.accelerator.num_processes==2 and max(T.logged(t, 'trust/kl'))<=.02 and max(T.logged(t, 'trust/angle_max'))<=.03
torch.save(dict(w=w, syncs=t.syncs, asked=t.asked, kl=T.logged(t, 'trust/kl')), out/(rank+'.pt'))

want = torch.load(out/'want.pt'); m = T.tiny_moe(); g = T.gen(0)            # six experts, three for each process
steps = [.3*(p.std()+1e-3)*torch.randn(p.shape, generator=g) for p in m.parameters()]
mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (2,))
for l in m.model.layers: fully_shard(l, mesh=mesh)
fully_shard(m, mesh=mesh)
b = T.AnchorBudget(T.find_moe_layers(m), .1); b.sync()
with torch.no_grad():
    for p,s in zip(m.parameters(), steps): p.add_(distribute_tensor(s.detach(), p.device_mesh, p.placements))
n = b.project()
for l in b.layers:
    assert isinstance(l.down, DTensor) and l.down.to_local().shape[0]==3
    assert torch.allclose(l.down.full_tensor(), want['w'][l.name], atol=1e-6), l.name
assert all(abs(n[k]-want['n'][k])<1e-6 for k in n) and n['pulled']>0
state = b.state_dict(); assert all(torch.equal(state[k], want['a'][k]) for k in want['a'])
again = T.AnchorBudget(b.layers, .1); again.load_state_dict(state)
assert all(torch.equal(x.to_local(), y.to_local()) for x,y in zip(again.anchors, b.anchors))
torch.distributed.destroy_process_group()
"""

@pytest.mark.timeout(600)
def test_two_processes_decide_alike_and_share_experts(tmp_path):
    "GRPO on two processes takes one decision; FSDP2 with experts sharded gives the weights of one process"
    m = tiny_moe(); b = AnchorBudget(find_moe_layers(m), .1); b.sync(); shove(m, .3, 0); n = b.project()
    torch.save(dict(w={l.name:l.down.detach() for l in b.layers}, n=n, a=b.state_dict()), tmp_path/'want.pt')
    two_processes(SPLIT.format(here=str(Path(__file__).parent), out=str(tmp_path)), tmp_path)
    x,y = (torch.load(tmp_path/f'{r}.pt', weights_only=False) for r in (0,1))
    assert same(x['w'], y['w']) and x['syncs']==y['syncs'] and 1<len(x['syncs'])<5 and x['kl']==y['kl']
    order = [p for u,v in zip(x['asked'], y['asked']) for p in dict.fromkeys(u+v)]; assert order==PROMPTS[:len(order)] and len(order)==4*len(x['syncs'])

def test_in_an_ordinary_trainer_and_resumed(tmp_path):
    data = [dict(input_ids=torch.tensor([3+i%5,4,5+i%3,6]), labels=torch.tensor([3+i%5,4,5+i%3,6])) for i in range(32)]
    def make(folder, steps, delta=.02, **kw):
        m = tiny_moe('gpt_oss', num_hidden_layers=1); b = AnchorBudget(find_moe_layers(m), delta); c = anchor_callback(b, every=4)
        args = TrainingArguments(str(tmp_path/folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=5e-3, lr_scheduler_type='constant', logging_steps=1, report_to='none', use_cpu=True, bf16=False, disable_tqdm=True, **kw)
        return Trainer(m, args, train_dataset=data, callbacks=[c]),b
    save = dict(save_strategy='steps', save_steps=3)
    t,b = make('whole', 6, **save); a = run(t); assert max(logged(t, 'trust/angle_max'))<=.02 and max(logged(t, 'trust/pulled'))>0
    stock,_ = make('never', 6, math.pi/2, save_strategy='no'); free = run(stock); assert max(logged(stock, 'trust/angle_max'))>.02 and not same(a, free)
    (t2,b2) = make('whole', 6, **save); c = run(t2, resume_from_checkpoint=str(tmp_path/'whole/checkpoint-3')); assert same(a, c)
    (t3,_) = make('pairs', 6, math.pi/2, save_strategy='no'); t3.args.logging_steps = 3; run(t3); few,many = logged(t3, 'trust/angle_max'),logged(stock, 'trust/angle_max')
    assert few==pytest.approx([max(many[:3]), max(many[3:])]) and logged(t3, 'trust/angle_mean')==pytest.approx([sum(x)/3 for x in (logged(stock, 'trust/angle_mean')[:3], logged(stock, 'trust/angle_mean')[3:])])
    (tmp_path/'whole/checkpoint-3/anchor.safetensors').unlink()
    with pytest.raises(FileNotFoundError, match='start anew'): make('whole', 6, **save)[0].train(resume_from_checkpoint=str(tmp_path/'whole/checkpoint-3'))
