"Exploration against a snapshot: the term against enumeration, the snapshot, and the trainer around them"
from pathlib import Path
import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
pytest.importorskip('trl')
from diverse_rl.exploration import ExplorationConfig, Snapshot, exploration_term, full_exploration_term, load_snapshot, novelty_advantage, novelty_reward, save_snapshot
from diverse_rl.reward import SetReward
from toy import two_processes
from test_trainer import B, G, M, TEXTS, DiverseGRPOConfig, DiverseGRPOTrainer, GRPOConfig, GRPOTrainer, forced, iter_step, parts, run, scorer

def policies(v, seed, n=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, v, generator=g, dtype=torch.float64).requires_grad_(), torch.randn(n, v, generator=g, dtype=torch.float64).log_softmax(-1)

# ---- the term

@given(st.integers(2, 7), st.integers(0, 10**6))
def test_term_against_enumeration(v, seed):
    logits,prev = policies(v, seed)
    slope = lambda x: torch.autograd.grad(x, logits)[0]
    logp = logits.log_softmax(-1); kl = (prev.exp()*(prev-logp)).sum(-1); want = slope(kl.sum())
    logp = logits.log_softmax(-1); own = logp.detach().exp()
    e = exploration_term(logp, prev, clamp=100.)
    assert torch.allclose((own*e.kl_NT).sum(-1), kl.detach()) and torch.allclose((own*e.term_NT.detach()).sum(-1), (own*(logp.detach()-prev)).sum(-1))
    assert torch.allclose(slope((own*e.term_NT).sum()), want) and (e.kl_NT>=-1e-12).all() and not e.kl_NT.requires_grad
    f = full_exploration_term(logits.log_softmax(-1), prev, clamp=100.)
    assert torch.allclose(f.term_NT.detach(), kl.detach()) and torch.allclose(slope(f.term_NT.sum()), want)

@given(st.integers(2, 7), st.integers(0, 10**6))
def test_weights_correct_for_another_sampler(v, seed):
    logits,prev = policies(v, seed); behaviour = policies(v, seed+1)[1]
    slope = lambda x: torch.autograd.grad(x, logits)[0]
    logp = logits.log_softmax(-1); want = slope((prev.exp()*(prev-logp)).sum())
    def got(weighted):
        logp = logits.log_softmax(-1); w = (logp-behaviour).exp() if weighted else None
        return slope((behaviour.exp()*exploration_term(logp, prev, clamp=100., ratio_NT=w).term_NT).sum())
    assert torch.allclose(got(True), want) and not torch.allclose(got(False), want)

def test_clamp_bounds_value_and_gradient():
    x = torch.tensor([-30.,0.,-2.], requires_grad=True); prev = torch.tensor([-1.,-30.,-1.])
    e = exploration_term(x, prev, clamp=3.)
    assert torch.autograd.grad(e.term_NT.sum(), x)[0][:2].tolist()==[0.,0.] and e.clamped_NT.tolist()==[True,True,False] and e.term_NT.abs().max()<torch.tensor(3.).exp()

def test_terms_survive_half_precision_and_forbidden_tokens():
    logp = torch.tensor([[0.,-torch.inf,-1.]]).log_softmax(-1); prev = torch.zeros(1,3).log_softmax(-1)
    assert torch.isfinite(full_exploration_term(logp, prev, clamp=5.).term_NT).all()
    assert exploration_term(torch.tensor([-1.]).bfloat16(), torch.tensor([-1.5]).bfloat16()).term_NT.dtype==torch.float32

def test_novelty_of_an_empty_completion_is_nothing():
    lp,mask = torch.tensor([[-1.,-2.,-50.],[-1.,-1.,-1.]]),torch.tensor([[1,1,1],[0,0,0]])
    assert novelty_reward(lp, mask, clamp=4.).tolist()==pytest.approx([7/3,0.]) and novelty_reward(lp, mask, level='sequence', clamp=4.).tolist()==[7.,0.]
    with pytest.raises(ValueError, match="level: got 'word'"): novelty_reward(lp, mask, level='word')

# ---- the snapshot

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3,5), torch.nn.Tanh(), torch.nn.Linear(5,2))

@pytest.mark.parametrize('offload', [False,True])
def test_snapshot_swaps_refreshes_and_is_saved(tmp_path, offload):
    m,x = net(),torch.randn(4,3); s = Snapshot(m, offload); first = m(x)
    with torch.no_grad():
        for p in m.parameters(): p.mul_(1.5)
    second = m(x)
    with s.swapped(): assert torch.equal(m(x), first)
    assert torch.equal(m(x), second)
    save_snapshot(s, tmp_path); s.refresh()
    with s.swapped(): assert torch.equal(m(x), second)
    load_snapshot(s, tmp_path)
    with s.swapped(): assert torch.equal(m(x), first)
    assert [p.name for p in tmp_path.iterdir()]==['snapshot.safetensors']

def test_snapshot_of_what_is_trained_only():
    m = net(); m[0].requires_grad_(False)
    s = Snapshot(m); assert set(s.tensors)=={'2.weight','2.bias'} and s.nbytes==4*(10+2)
    with pytest.raises(ValueError, match='no trainable parameter'): Snapshot(net().requires_grad_(False))
    with s.swapped(), pytest.raises(RuntimeError, match='already'):
        with s.swapped(): pass

def test_snapshot_of_another_model_is_refused(tmp_path):
    save_snapshot(Snapshot(net()), tmp_path)
    with pytest.raises(ValueError, match='another model'): load_snapshot(Snapshot(torch.nn.Linear(2,2)), tmp_path)
    with pytest.raises(FileNotFoundError, match='start anew'): load_snapshot(Snapshot(net()), tmp_path/'none')
    (tmp_path/'none').mkdir(); save_snapshot(Snapshot(net()), tmp_path/'none', write=False); assert not list((tmp_path/'none').iterdir())

# ---- the trainer

ON = dict(exploration_coef=.5, snapshot_every=2)
paid = lambda: SetReward(scorer, 1, tag=None, d=2, k=16)

@pytest.mark.parametrize('bad,word', [(dict(exploration='repell'),'repell'), (dict(exploration_coef=-1.),'exploration_coef=-1'), (dict(exploration_coef=float('nan')),'exploration_coef=nan'), (dict(exploration_estimator='k1'),'k1'),
    (dict(exploration_clamp=0.),'exploration_clamp'), (dict(exploration_decay=0.),'exploration_decay'), (dict(snapshot_every=-2),'snapshot_every'), (dict(exploration_level='word'),'word'),
    (dict(exploration_scale='sum'),'sum'), (dict(exploration_least_std=0.),'exploration_least_std=0'),
    (dict(exploration='novelty', exploration_scale='group', exploration_coef=.1, credit='leave_one_out'),'leave_one_out'), (dict(exploration='novelty', exploration_scale='group', exploration_coef=.1, advantage='gdpo'),'gdpo')])
def test_bad_switches_are_named(tmp_path, bad, word):
    with pytest.raises(ValueError, match=word): DiverseGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **bad)

def test_off_is_stock_and_holds_no_snapshot(tmp_path):
    a,_ = run(parts(tmp_path/'a', GRPOTrainer, GRPOConfig, steps=5, reward=paid())); t = parts(tmp_path/'b', steps=5, reward=paid(), exploration='repel', snapshot_every=1)
    b,_ = run(t)
    assert all(torch.equal(a[k], b[k]) for k in a) and t.snapshot is None
    c,_ = run(parts(tmp_path/'c', steps=5, reward=paid(), **ON)); assert any(not torch.equal(a[k], c[k]) for k in a)

def pushed(t, by=.3):
    "Move the policy away from its snapshot, as training would"
    t.refresh_snapshot(); g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in t.model.parameters(): p.add_(by*torch.randn(p.shape, generator=g)*p.std())
    return t

@pytest.mark.parametrize('estimator', ['k3','full'])
@pytest.mark.parametrize('exploration,sign', [('repel',-1),('cover',1)])
def test_the_term_in_the_loss_is_its_formula(tmp_path, exploration, sign, estimator):
    t = pushed(forced(parts(tmp_path, exploration=exploration, exploration_estimator=estimator, exploration_coef=.5, snapshot_every=0), TEXTS))
    t.current_gradient_accumulation_steps = 1
    inputs = iter_step(t)
    ids,at = torch.cat([inputs['prompt_ids'],inputs['completion_ids']],1),torch.cat([inputs['prompt_mask'],inputs['completion_mask']],1); T = inputs['completion_ids'].shape[1]
    lp = lambda: t.model(input_ids=ids, attention_mask=at).logits[:,-T-1:-1].log_softmax(-1)
    with torch.no_grad(), t.snapshot.swapped(): prev = lp()
    now,loss = lp(),t._compute_loss(t.model, inputs)
    pick = lambda x: x.gather(-1, inputs['completion_ids'][...,None])[...,0]
    d = (pick(now)-pick(prev)).clamp(-5,5) if estimator=='k3' else None
    term = (-d).exp()-1+d if estimator=='k3' else (prev.exp()*(prev-now).clamp(-5,5)).sum(-1)
    plain = GRPOTrainer._compute_loss(t, t.model, {k:v for k,v in inputs.items() if not k.startswith('prev_')})
    mask = inputs['completion_mask']; want = sign*.5*(term*mask).sum()/mask.sum()
    assert torch.allclose(loss-plain, want, atol=1e-5) and want.abs()>1e-3
    weights = list(t.model.parameters())
    a,b = torch.autograd.grad(loss-plain, weights, retain_graph=True),torch.autograd.grad(want, weights)
    assert all(torch.allclose(x, y, atol=1e-5) for x,y in zip(a, b))

def test_novelty_is_added_before_the_group_advantage(tmp_path):
    reward = SetReward(scorer, M, d=2, k=16)
    t = pushed(forced(parts(tmp_path, exploration='novelty', exploration_scale='group', exploration_coef=.5, advantage='vpo', reward=reward, snapshot_every=0), TEXTS))
    out = iter_step(t); bonus = t.novelty.view(B, G)
    base = reward.rewards(reward.last, reward.last_prompts, reward.last_step, reward.last_goal).view(B, G)+bonus
    want = (base-base.mean(1, keepdim=True))/(base.std(1, keepdim=True, correction=0)+1e-6)
    assert torch.allclose(out['advantages'].view(B,G), want.float(), atol=1e-4) and bonus.std(1).min()>1e-3 and 'prev_logps' not in out
    with torch.no_grad(), t.snapshot.swapped():
        ids,at = torch.cat([out['prompt_ids'],out['completion_ids']],1),torch.cat([out['prompt_mask'],out['completion_mask']],1); T = out['completion_ids'].shape[1]
        lp = t.model(input_ids=ids, attention_mask=at).logits[:,-T-1:-1].log_softmax(-1).gather(-1, out['completion_ids'][...,None])[...,0]
    assert torch.allclose(bonus.flatten(), .5*novelty_reward(lp, out['completion_mask']), atol=1e-5)

@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 6), st.sampled_from(['group','batch','none']), st.floats(.01, 1.))
def test_novelty_advantage_is_its_formula(seed, b, g, divide, least):
    rng = np.random.default_rng(seed); bonus,r = rng.random((b, g)),rng.random((b, g)); r[rng.random((b, g))<.3] = np.nan
    got = novelty_advantage(torch.tensor(bonus), torch.tensor(r), divide=divide, least_std=least).numpy()
    std = lambda x: np.std(x, ddof=1) if len(x)>1 else 0.
    has = ~np.isnan(r)
    for i in range(b):
        by = dict(group=max(std(r[i][has[i]]), least), batch=max(std(r[has]), least), none=1.)[divide]
        for j in range(g): assert got[i,j]==pytest.approx((bonus[i,j]-bonus[i][has[i]].mean())/by if has[i,j] else 0., abs=1e-9)

@pytest.mark.parametrize('extra', [dict(), dict(advantage='vpo'), dict(advantage='set_max'), dict(credit='telescoped', credit_scale='batch'), dict(credit='leave_one_out'), dict(scale_rewards='batch')])
def test_novelty_adds_its_share_to_any_advantage_and_leaves_the_reward_alone(tmp_path, extra):
    reward = lambda: SetReward(scorer, M, d=2, k=16)
    make = lambda **kw: pushed(forced(parts(tmp_path, reward=reward(), snapshot_every=0, **extra, **kw), TEXTS))
    t,stock = make(exploration='novelty', exploration_coef=.5),make(); out,plain = iter_step(t),iter_step(stock)
    r = torch.tensor(list(t._logs['rewards'].values())[0], dtype=torch.float64).view(B, G)
    assert torch.equal(r, torch.tensor(list(stock._logs['rewards'].values())[0], dtype=torch.float64).view(B, G))
    share = novelty_advantage(t.novelty.double().view(B, G), r, divide=extra.get('scale_rewards', 'group')).flatten()
    got = (out['advantages']-plain['advantages']).double()
    assert torch.allclose(got, share if got.dim()==1 else share[:,None].expand_as(got), atol=1e-4) and share.abs().max()>1e-2
    assert torch.allclose(torch.tensor(list(t._logs['advantages'])[-B*G:]), out['advantages'].view(B*G, -1).mean(1), atol=1e-6)

def test_novelty_reaches_stock_advantages_and_credit_per_answer(tmp_path):
    stock = lambda **kw: iter_step(pushed(forced(parts(tmp_path, reward=paid(), snapshot_every=0, **kw), TEXTS)))['advantages']
    assert not torch.allclose(stock(exploration='novelty', exploration_coef=.5), stock(exploration='cover', exploration_coef=.5))
    told = lambda **kw: iter_step(pushed(forced(parts(tmp_path, credit='telescoped', snapshot_every=0, **kw), TEXTS)))
    a,b = told(exploration='novelty', exploration_coef=.5),told(exploration='cover', exploration_coef=.5)
    assert a['advantages'].shape==b['advantages'].shape and not torch.allclose(a['advantages'], b['advantages'])

@pytest.mark.parametrize('extra', [dict(gradient_checkpointing=True), dict(num_iterations=2), dict(exploration='repel', num_iterations=2, exploration_estimator='full'), dict(snapshot_offload=True), dict(exploration='novelty', exploration_level='sequence')])
def test_it_trains_and_logs_in_every_setting(tmp_path, extra):
    t = parts(tmp_path, steps=4, reward=paid(), **{**ON, **extra})
    _,h = run(t)
    keys = {'exploration/bonus'} if extra.get('exploration')=='novelty' else {'exploration/bonus','exploration/kl_previous','exploration/clamped'}
    assert all(keys<=set(row) for row in h[:4]) and t.snapshot is not None
    if len(keys)>1: assert h[0]['exploration/kl_previous']<1e-6 and h[1]['exploration/kl_previous']>1e-6

def test_gradient_accumulation_changes_nothing(tmp_path):
    weights = lambda pieces: run(parts(tmp_path/str(pieces), steps=3, reward=paid(), exploration_coef=.5, snapshot_every=0, pieces=pieces))[0]
    a,b,c = weights(1),weights(2),run(parts(tmp_path/'off', steps=3, reward=paid()))[0]
    assert all(torch.allclose(a[k], b[k], atol=1e-4) for k in a) and not all(torch.allclose(a[k], c[k], atol=1e-4) for k in a)

@pytest.mark.parametrize('exploration', ['repel','novelty'])
def test_a_resumed_run_goes_on_against_the_same_snapshot(tmp_path, exploration):
    def make(folder, steps):
        t = parts(tmp_path/folder, steps=6, reward=paid(), exploration=exploration, exploration_coef=.5, snapshot_every=4, lr_scheduler_type='constant')
        t.args.save_strategy,t.args.save_steps,t.args.max_steps = 'steps',3,steps
        return t
    whole = make('whole', 6); a,_ = run(whole)
    run(make('cut', 3)); assert (tmp_path/'cut/checkpoint-3/snapshot.safetensors').exists()
    t = make('cut', 6); t.train(resume_from_checkpoint=str(tmp_path/'cut/checkpoint-3'))
    b = t.model.state_dict(); assert all(torch.equal(a[k], b[k]) for k in a)
    (tmp_path/'cut/checkpoint-3/snapshot.safetensors').unlink()
    with pytest.raises(FileNotFoundError, match='start anew'): make('cut', 6).train(resume_from_checkpoint=str(tmp_path/'cut/checkpoint-3'))

def test_the_next_outer_iteration_begins_from_the_policy_as_it_is(tmp_path):
    def make(steps):
        t = parts(tmp_path, steps=6, reward=paid(), exploration_coef=.5, exploration_decay=.5, snapshot_every=0, lr_scheduler_type='constant')
        t.args.save_strategy,t.args.save_steps,t.args.max_steps = 'steps',3,steps
        return t
    make(3).train(); t = make(6); t.train(resume_from_checkpoint=str(tmp_path/'checkpoint-3')); assert t.exploration_weight==.5
    now = {n:p.detach().clone() for n,p in t.model.named_parameters()}
    t.args.max_steps,t.args.save_strategy = 1,'no'; t.train()
    assert all(torch.equal(now[n], x) for n,x in t.snapshot.tensors.items()) and t.state.log_history[0]['exploration/kl_previous']<1e-6
    assert t.exploration_weight==.25 and t.refreshes==1                       # one refresh, by the second train()

def test_refreshes_count_after_a_resumed_run_too(tmp_path):
    def make(steps):
        t = parts(tmp_path, steps=6, reward=paid(), exploration_coef=.5, exploration_decay=.5, snapshot_every=2, lr_scheduler_type='constant')
        t.args.save_strategy,t.args.save_steps,t.args.max_steps = 'steps',3,steps
        return t
    make(3).train(); t = make(6); t.train(resume_from_checkpoint=str(tmp_path/'checkpoint-3'))
    assert t.refreshes==3 and t.exploration_weight==.5**4

def test_a_snapshot_is_on_disk_before_the_state_that_says_complete(tmp_path, monkeypatch):
    t = parts(tmp_path, steps=2, reward=paid(), **ON); t.args.save_strategy,t.args.save_steps = 'steps',1
    def stop(self, *a, **k): raise KeyboardInterrupt
    monkeypatch.setattr(GRPOTrainer, '_save_checkpoint', stop)         # the parent's, which writes the trainer's state last
    with pytest.raises(KeyboardInterrupt): t.train()
    assert [p.name for p in (tmp_path/'checkpoint-1').iterdir()]==['snapshot.safetensors']

def test_novelty_with_functions_that_answer_for_some_rows_only(tmp_path):
    a = lambda prompts, **_: [None if p.endswith('a') else 1. for p in prompts]
    b = lambda prompts, **_: [1. if p.endswith('a') else None for p in prompts]
    a.__name__,b.__name__ = 'a','b'
    make = lambda **kw: parts(tmp_path, reward=[a,b], exploration='novelty', exploration_scale='group', exploration_coef=.5, snapshot_every=0, **kw)
    t = pushed(forced(make(), TEXTS)); out = iter_step(t); bonus = t.novelty.view(B,G)
    want = (bonus-bonus.mean(1, keepdim=True))/(bonus.std(1, keepdim=True)+1e-4)
    assert torch.allclose(out['advantages'].view(B,G), want, atol=1e-3)
    with pytest.raises(ValueError, match='reward_weights'): make(reward_weights=[0.,0.])

def test_novelty_counts_the_policys_own_tokens(tmp_path):
    t = pushed(parts(tmp_path, reward=lambda prompts, **_: [0.]*len(prompts), exploration='novelty', exploration_coef=1., snapshot_every=0)); tok = t.processing_class
    written = [w for w in ('d','go','stop','b')*9][:B*G]                     # the fourth token is the environment's
    def roll(prompts, trainer):
        ids = [[*tok('a b c').input_ids, tok(w).input_ids[0], tok.eos_token_id] for w in written]
        return dict(prompt_ids=[list(tok(p).input_ids) for p in prompts], completion_ids=ids, logprobs=None, env_mask=[[1,1,1,0,1] for _ in ids])
    t.rollout_func = roll; out = iter_step(t)
    ids,at = torch.cat([out['prompt_ids'],out['completion_ids']],1),torch.cat([out['prompt_mask'],out['completion_mask']],1)
    lp = t._previous(ids, at, 5)[0]
    assert torch.allclose(t.novelty, novelty_reward(lp, out['tool_mask']), atol=1e-5) and not torch.allclose(t.novelty, novelty_reward(lp, out['completion_mask']), atol=1e-2)

@pytest.mark.parametrize('kw,cycle', [(dict(snapshot_every=1),2), (dict(snapshot_every=2, num_iterations=4),4), (dict(snapshot_every=2, behaviour_kl=.1, max_reuse=3),3)])
def test_a_snapshot_that_never_lags_is_refused(tmp_path, kw, cycle):
    with pytest.raises(ValueError, match=f'at least {cycle}'): parts(tmp_path, exploration_coef=.5, **kw)
    parts(tmp_path, exploration_coef=.5, exploration='novelty', **kw)         # in the reward it need not lag

def test_the_snapshot_is_read_without_dropout(tmp_path):
    peft = pytest.importorskip('peft')
    t = parts(tmp_path, reward=paid(), exploration_coef=.5, snapshot_every=0, peft_config=peft.LoraConfig(r=4, lora_alpha=64, lora_dropout=.3, target_modules='all-linear', task_type='CAUSAL_LM'))
    with torch.no_grad():
        for n,p in t.model.named_parameters():
            if 'lora_B' in n: p.normal_(std=.3, generator=torch.Generator().manual_seed(1))
    t.refresh_snapshot(); out = iter_step(t); assert t.model.training
    ids,at = torch.cat([out['prompt_ids'],out['completion_ids']],1),torch.cat([out['prompt_mask'],out['completion_mask']],1)
    assert torch.equal(*(t._previous(ids, at, out['completion_ids'].shape[1])[0] for _ in range(2)))

def test_an_adapter_is_its_own_snapshot(tmp_path):
    peft = pytest.importorskip('peft')
    t = parts(tmp_path, steps=3, reward=paid(), **ON, peft_config=peft.LoraConfig(r=2, target_modules=['q_proj','v_proj'], task_type='CAUSAL_LM'))
    _,h = run(t)
    assert set(t.snapshot.tensors)=={n for n,p in t.model.named_parameters() if p.requires_grad} and all('lora' in n for n in t.snapshot.tensors)
    assert t.snapshot.nbytes<.2*sum(p.nbytes for p in t.model.parameters()) and h[1]['exploration/kl_previous']>0

SPLIT = '''
import sys; sys.path.insert(0, {tests!r})
import torch; torch.set_num_threads(1)
import test_exploration as te, test_trainer as tt
from pathlib import Path
t = tt.parts(Path({out!r})/sys.argv[1], **te.SPLIT_ON); rank = t.accelerator.process_index; n = tt.B*tt.G//2
t = te.pushed(tt.forced(t, tt.TEXTS, rank*n)); t.current_gradient_accumulation_steps = 1
out = tt.iter_step(t, rank*n, n)
torch.save((out['prev_logps'], t._compute_loss(t.model, out).item()), Path({out!r})/f'two_{{rank}}.pt')
'''
SPLIT_ON = dict(exploration='cover', exploration_coef=.5, snapshot_every=0, advantage='vpo')
@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
@pytest.mark.timeout(600)
def test_two_processes_give_the_loss_of_one(tmp_path):
    two_processes(SPLIT.format(tests=str(Path(__file__).parent), out=str(tmp_path)), tmp_path)
    t = pushed(forced(parts(tmp_path, **SPLIT_ON), TEXTS)); t.current_gradient_accumulation_steps = 1
    out = iter_step(t); one = t._compute_loss(t.model, out).item(); two = [torch.load(tmp_path/f'two_{r}.pt') for r in (0,1)]
    assert abs(sum(l for _,l in two)/2-one)<1e-5 and abs(one)>1e-3
    for r,(lp,_) in enumerate(two): assert torch.allclose(lp, out['prev_logps'][r*B*G//2:(r+1)*B*G//2,:lp.shape[1]], atol=1e-5)
