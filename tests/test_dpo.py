"Pairs, the exploration term, the trainer and the rounds of iterative DPO"
import json, math, os, shutil, signal, subprocess, sys, textwrap
from itertools import product
from pathlib import Path
import pytest, torch
pytest.importorskip('trl')
from datasets import Dataset, load_from_disk
from hypothesis import given, settings, strategies as st
from trl import DPOConfig, DPOTrainer
from diverse_rl.dpo import (EDDPOConfig, EDDPOTrainer, RoundConfig, candidates, deal_samples, exploration_term, iterative_dpo, make_pairs, pad_rows, pair_round,
    policy_path, sample_completions, sample_stats, scatter_logps)
from diverse_rl.policy import PolicyConfig, make_policy, make_tokenizer
from toy import two_processes

gen = lambda seed=0: torch.Generator().manual_seed(seed)

# ---- pairs
samples = st.lists(st.lists(st.tuples(st.sampled_from([0., .4, 1., 2., math.nan, None]), st.sampled_from('abcdefgh')), max_size=9), max_size=7)

def slow_sides(row):
    "By the words of the definition: the first scored sample of every text"
    first = {}
    for j,(s,k) in enumerate(row):
        if s is not None and not math.isnan(s) and k not in first: first[k] = j
    return {j for j in first.values() if row[j][0]>=1}, {j for j in first.values() if row[j][0]<1}

@given(samples, st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_pairs(rows, cap, seed):
    scores,keys = [[s for s,_ in r] for r in rows],[[k for _,k in r] for r in rows]
    p = make_pairs(scores, keys, per_prompt=cap, generator=gen(seed)); n = p.counts
    got = p.index_R3.tolist()
    assert len({tuple(x) for x in got})==len(got)==n['pairs'] and p.index_R3.shape[1]==3
    for i,r in enumerate(rows):
        good,bad = slow_sides(r); mine = [(a,b) for j,a,b in got if j==i]
        assert len(mine)==min(cap, len(good)*len(bad)) and {a for a,_ in mine}<=good and {b for _,b in mine}<=bad
        for side,at in ((good,0), (bad,1)):
            if mine: use = [sum(m[at]==j for m in mine) for j in side]; assert max(use)-min(use)<=1
    sides = [slow_sides(r) for r in rows]
    assert n['prompts']==len(rows)==n['paired']+n['all_correct']+n['all_wrong']+n['unscored']
    assert n['all_correct']==sum(bool(g) and not b for g,b in sides) and n['all_wrong']==sum(bool(b) and not g for g,b in sides) and n['unscored']==sum(not g and not b for g,b in sides)
    lost = sum(s is None or math.isnan(s) for r in rows for s,_ in r)
    assert n['samples']==sum(map(len, rows)) and n['samples_unscored']==lost and n['samples_duplicate']==n['samples']-lost-sum(len(g)+len(b) for g,b in sides)
    assert n['pairs']+n['pairs_left_out']==sum(len(g)*len(b) for g,b in sides)
    again = make_pairs(scores, keys, per_prompt=cap, generator=gen(seed))
    assert torch.equal(again.index_R3, p.index_R3) and again.counts==n

def test_a_generator_decides_which_pairs_stay():
    s,k = [[1.]*6+[0.]*7],[list('abcdefghijklm')]
    draws = {str(make_pairs(s, k, per_prompt=3, generator=gen(i)).index_R3.tolist()) for i in range(8)}
    assert len(draws)>4

@pytest.mark.parametrize('kw,word', [(dict(keys=[['a']]), 'keys'), (dict(keys=[['a','b'],['c']]), 'keys'), (dict(per_prompt=0), 'per_prompt'), (dict(correct_at=math.nan), 'correct_at')])
def test_bad_pairs_are_named(kw, word):
    with pytest.raises(ValueError, match=word): make_pairs(**dict(dict(scores=[[1.,0.]], keys=[['a','b']], generator=gen()), **kw))

@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_dealing_is_even(count, rows, each):
    d = deal_samples(count, rows, each, gen())
    use = torch.bincount(d.flatten(), minlength=count)
    assert d.shape==(rows, each) and use.max()-use.min()<=1

def test_dealing_refuses_nothing():
    with pytest.raises(ValueError, match='count=0'): deal_samples(0, 3, 2, gen())

# ---- the term, against all sequences of a small policy
V,T = 3,2
SEQS = list(product(range(V), repeat=T))
def tables(seed):
    "Two policies over V tokens, T steps: logits of the first token, and of the second after each first"
    g = gen(seed); return [torch.randn(1+V, V, generator=g, dtype=torch.float64) for _ in range(2)]
def token_logps(logits):
    lp = logits.log_softmax(-1)
    return torch.stack([torch.stack([lp[0,a], lp[1+a,b]]) for a,b in SEQS])

@pytest.mark.parametrize('estimator', ['d','k3'])
@pytest.mark.parametrize('level', ['sequence','token'])
def test_term_is_minus_kl_exactly(estimator, level):
    theta,prev = tables(1); theta.requires_grad_()
    q = token_logps(prev); prob = q.sum(1).exp()
    t = exploration_term(token_logps(theta), q, torch.ones(len(SEQS), T), weights_N=prob, level=level, estimator=estimator, clip=math.inf)
    kl = (prob*(q.sum(1)-token_logps(theta).sum(1))).sum()/(1 if level=='sequence' else T)
    assert torch.allclose(t.value, -kl) and t.clipped==0 and torch.allclose(t.kl, kl)
    got,want = torch.autograd.grad(t.value, theta)[0],torch.autograd.grad(-kl, theta)[0]
    assert torch.allclose(got, want) and want.abs().max()>.01

def test_k3_has_no_gradient_at_the_start_and_d_has_noise():
    theta = tables(2)[0].requires_grad_(); lp = token_logps(theta)
    few = lambda e: torch.autograd.grad(exploration_term(lp[:4], lp[:4].detach(), torch.ones(4, T), estimator=e).value, theta, retain_graph=True)[0]
    assert few('k3').abs().max()<1e-12 and few('d').abs().max()>.05

@given(st.integers(1, 6), st.integers(1, 7), st.sampled_from(['sequence','token']), st.sampled_from(['d','k3']), st.floats(.1, 3), st.booleans(), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_term_slow_equals_fast(n, length, level, estimator, clip, weighted, seed):
    g = gen(seed); r = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)
    a,b,m = r(n,length),r(n,length),torch.rand(n, length, generator=g)<.7
    m[0,0] = True; w = torch.rand(n, generator=g, dtype=torch.float64)+.1 if weighted else torch.ones(n)
    cut = lambda x: max(-clip, min(clip, x))
    est = lambda x: cut(x) if estimator=='d' else cut(x)-math.expm1(cut(x))
    d = [[(a-b)[i,t].item() for t in range(length) if m[i,t]] for i in range(n)]
    units = [(w[i].item(), sum(d[i])) for i in range(n)] if level=='sequence' else [(w[i].item(), x) for i in range(n) for x in d[i]]
    total = sum(v for v,_ in units)
    t = exploration_term(a, b, m.long(), weights_N=w if weighted else None, level=level, estimator=estimator, clip=clip)
    assert t.value.item()==pytest.approx(sum(v*est(x) for v,x in units)/total, abs=1e-9)
    assert t.clipped.item()==pytest.approx(sum(v*(abs(x)>=clip) for v,x in units)/total)

def test_clip_stops_the_gradient():
    a = torch.tensor([[-9.,-9.],[.1,0.]], requires_grad=True)
    t = exploration_term(a, torch.zeros(2, 2), torch.ones(2, 2), clip=10.); t.value.backward()
    assert a.grad[0].eq(0).all() and a.grad[1].ne(0).all() and t.clipped==.5

@pytest.mark.parametrize('kw,word', [(dict(previous_NT=torch.zeros(2,4)), 'previous_NT'), (dict(mask_NT=torch.ones(3,3)), 'mask_NT'), (dict(weights_N=torch.ones(3)), 'weights_N'),
                                     (dict(level='word'), 'word'), (dict(estimator='k1'), 'k1'), (dict(clip=0.), 'clip')])
def test_bad_terms_are_named(kw, word):
    with pytest.raises(ValueError, match=word): exploration_term(**dict(dict(logps_NT=torch.zeros(2,3), previous_NT=torch.zeros(2,3), mask_NT=torch.ones(2,3)), **kw))

@given(st.lists(st.tuples(st.integers(1,4), st.integers(1,5)), min_size=1, max_size=5), st.one_of(st.none(), st.integers(3, 8)))
@settings(max_examples=50, deadline=None)
def test_stored_numbers_return_to_their_tokens(sizes, longest):
    p,c = [[7]*a for a,_ in sizes],[list(range(10, 10+b)) for _,b in sizes]
    rows = pad_rows(p, c, 0, longest)
    back = scatter_logps([[float(t) for t in x] for x in c], rows['completion_mask'])
    assert torch.equal(back, torch.where(rows['completion_mask']==1, rows['input_ids'], 0)[:,1:].float()) and rows['input_ids'].shape[1]<=(longest or 99)

# ---- the trainer
TOK = make_tokenizer(['make',*map(str, range(11))])
ROWS = [dict(prompt=f'make {s}', target=s) for s in range(3, 8)]
def right(text, target):
    w = text.split()
    return float(len(w)==2 and all(x.isdigit() for x in w) and sum(map(int, w))==target)

@pytest.fixture(scope='module')
def policy(tmp_path_factory):
    "A random policy that knows its digits: more weight on them than on the rest"
    m = make_policy(PolicyConfig(hidden=16, layers=1, heads=2, kv_heads=1, mlp=16, seed=3), TOK)
    f = tmp_path_factory.mktemp('policy'); m.save_pretrained(f); TOK.save_pretrained(f)
    return f
def load(path):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(path)

ANSWERS = ['1 2','2 3','4','0 0 1','5 2','3 3','1','4 4 4','2 2','0 3']
def pairs_text(): return Dataset.from_dict(dict(prompt=[f'make {3+i%5} ' for i in range(10)], chosen=ANSWERS, rejected=ANSWERS[3:]+ANSWERS[:3]))
def explored(d):
    "The same pairs with token ids and two samples each"
    enc = lambda xs: [TOK(x).input_ids+[TOK.eos_token_id] for x in xs]
    d = d.add_column('prompt_ids', [TOK(x).input_ids for x in d['prompt']]).add_column('chosen_ids', enc(d['chosen'])).add_column('rejected_ids', enc(d['rejected']))
    ids = d['chosen_ids']
    return d.add_column('explore_ids', [[ids[i], ids[(i+4)%10]] for i in range(10)]).add_column('explore_prompt_ids', [[d['prompt_ids'][i], d['prompt_ids'][(i+4)%10]] for i in range(10)]).add_column('correct_share', [.25]*10)

def trainer(policy, out, cls=EDDPOTrainer, cfg=EDDPOConfig, data=None, steps=5, **kw):
    args = cfg(**dict(dict(output_dir=str(out), per_device_train_batch_size=2, max_steps=steps, learning_rate=1e-2, report_to='none', logging_steps=1, save_strategy='no', use_cpu=True, bf16=False,
               disable_tqdm=True, gradient_checkpointing=False, dataloader_pin_memory=False), **kw))
    return cls(model=load(policy), ref_model=load(policy), args=args, train_dataset=data if data is not None else pairs_text(), processing_class=TOK)
def run(t):
    t.train()
    drop = ('runtime','per_second','total_flos')
    return {k:v.clone() for k,v in t.model.state_dict().items()},[{k:v for k,v in h.items() if not any(d in k for d in drop)} for h in t.state.log_history]
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

@pytest.mark.parametrize('kw', [dict(), dict(loss_type=['sigmoid','sft'], loss_weights=[1.,.3], gradient_accumulation_steps=2)])
def test_off_is_stock_bit_for_bit(policy, tmp_path, kw):
    a,ha = run(trainer(policy, tmp_path/'a', DPOTrainer, DPOConfig, **kw))
    b,hb = run(trainer(policy, tmp_path/'b', **kw))
    c,hc = run(trainer(policy, tmp_path/'c', data=explored(pairs_text()), **kw))
    assert same(a, b) and ha==hb and same(a, c) and ha==hc
    assert not same(a, load(policy).state_dict()), 'nothing was trained: the comparison would hold for any trainer'

def logps_of(model, p, c):
    "By the definition, one sequence at a time"
    ids = torch.tensor([p+c]); lp = model(ids).logits[0].log_softmax(-1)
    return torch.stack([lp[len(p)+i-1,t] for i,t in enumerate(c)])

@pytest.mark.parametrize('kind', ['all','pair'])
@pytest.mark.parametrize('exploration,level,estimator', [('repel','sequence','d'), ('cover','token','k3')])
def test_loss_is_stock_plus_the_term(policy, tmp_path, kind, exploration, level, estimator):
    data = explored(pairs_text()); a,beta = .7,.4
    kw = dict(exploration_coef=a, exploration=exploration, exploration_level=level, exploration_estimator=estimator, exploration_samples=kind, beta=beta)
    t = trainer(policy, tmp_path, data=data, **kw); t.model.train()
    with torch.no_grad():
        for i,p in enumerate(t.model.parameters()): p.add_(torch.randn(p.shape, generator=gen(i)), alpha=.05)   # θ has left π_{t-1}
    part = [t.train_dataset[i] for i in (0,3,4)]; keep = t._signature_columns
    t._set_signature_columns_if_needed()
    batch = t.data_collator([{k:v for k,v in r.items() if k in t._signature_columns} for r in part])
    got = t._compute_loss(t.model, batch)
    stock = t._compute_loss(t.model, {k:v for k,v in batch.items() if k!='explore'})
    prev = load(policy)
    if kind=='all': seqs = [(p,c,1.) for r in part for p,c in zip(r['explore_prompt_ids'], r['explore_ids'])]
    else: seqs = [(r['prompt_ids'],r[k],w) for k,w in (('chosen_ids',.25), ('rejected_ids',.75)) for r in part]
    d = [(logps_of(t.model, p, c)-logps_of(prev, p, c).detach(), w) for p,c,w in seqs]
    est = (lambda x: x) if estimator=='d' else (lambda x: x-torch.expm1(x))
    units = [(est(x.sum()), w) for x,w in d] if level=='sequence' else [(est(y), w) for x,w in d for y in x]
    want = (1 if exploration=='repel' else -1)*a*beta*sum(w*x for x,w in units)/sum(w for _,w in units)
    assert (got-stock).item()==pytest.approx(want.item(), abs=1e-5) and abs(want.item())>1e-3
    mine = torch.autograd.grad(got-stock, t.model.get_input_embeddings().weight)[0]
    ours = torch.autograd.grad(want, t.model.get_input_embeddings().weight)[0]
    assert torch.allclose(mine, ours, atol=1e-5) and ours.abs().max()>1e-3
    t.model.eval(); assert torch.equal(t._compute_loss(t.model, batch), t._compute_loss(t.model, {k:v for k,v in batch.items() if k!='explore'}))

def test_term_trains_and_logs(policy, tmp_path):
    data = explored(pairs_text())
    repel,h = run(trainer(policy, tmp_path/'a', data=data, exploration_coef=3., steps=3))
    off,_ = run(trainer(policy, tmp_path/'b', data=data, steps=3))
    assert not same(repel, off)
    assert h[0]['exploration/kl_previous']==pytest.approx(0, abs=1e-6) and h[2]['exploration/kl_previous']>1e-4 and {'exploration/loss','exploration/clip_rate'}<=set(h[0])

def test_missing_columns_are_named(policy, tmp_path):
    with pytest.raises(ValueError, match='explore_prompt_ids.*deal_samples'): trainer(policy, tmp_path, exploration_coef=.1)
    t = trainer(policy, tmp_path, exploration_coef=.1, exploration_samples='pair')        # text columns are enough for the pair's two
    assert len(t.train_dataset[0]['pair_logps'])==2 and max(map(max, t.train_dataset[0]['pair_logps']))<0

@pytest.mark.parametrize('kw,word', [(dict(exploration='replel'),'replel'), (dict(exploration_samples='some'),'some'), (dict(exploration_level='word'),'word'), (dict(exploration_estimator='k1'),'k1'),
                                     (dict(exploration_coef=-1.),'exploration_coef'), (dict(exploration_coef=math.nan),'exploration_coef'), (dict(exploration_clip=0.),'exploration_clip')])
def test_bad_settings_are_named(tmp_path, kw, word):
    with pytest.raises(ValueError, match=word): EDDPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **kw)

# ---- sampling and rounds
def test_samples_are_what_was_sampled(policy):
    m = load(policy); state = torch.random.get_rng_state()
    a = sample_completions(m, TOK, ['make 3','make make 4 5'], 6, max_new_tokens=5, seed=4, batch=5)
    assert torch.equal(state, torch.random.get_rng_state()) and [len(x) for x in a]==[6, 6]
    assert a==sample_completions(m, TOK, ['make 3','make make 4 5'], 6, max_new_tokens=5, seed=4, batch=5)!=sample_completions(m, TOK, ['make 3','make make 4 5'], 6, max_new_tokens=5, seed=5, batch=5)
    for c in (c for x in a for c in x):
        assert c.finished==(c.ids[-1]==TOK.eos_token_id) and (c.finished or len(c.ids)==5) and TOK.eos_token_id not in c.ids[:-1] and c.text==TOK.decode(c.ids, skip_special_tokens=True)

def scored(text, target):
    "Right when the first word is a number as even or odd as the target; some texts cannot be told. A random policy gets some"
    w = text.split()
    return math.nan if w and w[-1]=='make' else None if '10' in w else float(bool(w) and w[0].isdigit() and int(w[0])%2==target%2)
BASE = dict(n=6, per_prompt=3, max_new_tokens=4, learning_rate=3e-3, per_device_train_batch_size=2, seed=1)
def go(policy, out, score=scored, rows=ROWS, method='idpo', reference='previous', rounds=2, **kw): return iterative_dpo(load(policy), TOK, rows, score, rounds=rounds, out=out, method=method, reference=reference, **{**BASE, **kw})
def weights(path): return load(path).state_dict()

@pytest.fixture(scope='module')
def whole(policy, tmp_path_factory):
    "Two rounds of ED-iDPO, never interrupted"
    out = tmp_path_factory.mktemp('whole')
    return go(policy, out, method='ed_idpo', exploration_coef=.5),out

def test_what_is_on_disk(whole, policy):
    res,out = whole
    for t,h in enumerate(res.history, 1):
        f = out/f'round_{t:02d}'; s,p = load_from_disk(str(f/'samples')),load_from_disk(str(f/'pairs'))
        assert json.loads((f/'round.json').read_text())==h and h['round']==t and h['trained'] and h['steps']>1 and h['counts']['pairs']==len(p)>0
        assert len(s)==6*len(ROWS) and s['row']==[i for i in range(len(ROWS)) for _ in range(6)] and s[0]['prompt']=='make 3'
        for r in p:
            own = [x for x in s if x['row']==r['row']]
            assert scored(r['chosen'], ROWS[r['row']]['target'])==1 and scored(r['rejected'], ROWS[r['row']]['target'])==0
            for side in ('chosen','rejected'): assert (r[side],r[f'{side}_ids']) in [(x['completion'],x['completion_ids']) for x in own]
            assert len(r['explore_ids'])==2 and all((a,b) in {(tuple(x['prompt_ids']),tuple(x['completion_ids'])) for x in s} for a,b in zip(map(tuple, r['explore_prompt_ids']), map(tuple, r['explore_ids'])))
            known = [x['score'] for x in own if not math.isnan(x['score'])]
            assert r['correct_share']==pytest.approx(sum(known)/len(known))
        assert h['sampled_accuracy']==sample_stats(s, 1.)['sampled_accuracy'] and 0<h['sampled_accuracy']<1 and 'exploration/kl_previous' in h['train']
    assert res.policy==out/'round_02/model' and not list(out.rglob('*.tmp')) and same(weights(out/'initial'), weights(policy))

def after_round_1(whole, out):
    "What a call leaves that ended after its first round"
    for name in ('initial','round_01'): shutil.copytree(whole[1]/name, out/name)
    shutil.copy(whole[1]/'settings.json', out)

def test_interrupted_and_resumed_is_bit_for_bit_the_same(whole, policy, tmp_path, monkeypatch):
    "Four interruptions of round 2, one in each stage"
    import diverse_rl.dpo as dpo
    class Cut(Exception): pass
    def cut(*a, **k): raise Cut
    kw = dict(method='ed_idpo', exploration_coef=.5)
    after_round_1(whole, tmp_path)
    for name,there in (('sample_completions',[]), ('make_pairs',['samples']), ('train_round',['pairs','samples']), ('sample_stats',['model','pairs','samples'])):
        with monkeypatch.context() as m:
            m.setattr(dpo, name, cut)
            with pytest.raises(Cut): go(policy, tmp_path, **kw)
        assert sorted(p.name for p in (tmp_path/'round_02').iterdir() if p.suffix!='.tmp')==there
    res = go(policy, tmp_path, **kw)
    assert res.history==whole[0].history and same(weights(res.policy), weights(whole[0].policy))

def test_kill_9_and_resume(whole, policy, tmp_path):
    "The process dies in the middle of training round 2"
    after_round_1(whole, tmp_path)
    code = f'''
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_dpo as t, diverse_rl.dpo as dpo
        train = dpo.EDDPOTrainer.training_step
        def step(self, *a, **k):
            if self.state.global_step==1: os.kill(os.getpid(), signal.SIGKILL)
            return train(self, *a, **k)
        dpo.EDDPOTrainer.training_step = step
        t.go({str(policy)!r}, {str(tmp_path)!r}, method='ed_idpo', exploration_coef=.5)'''
    p = subprocess.run([sys.executable, '-c', textwrap.dedent(code)], env=dict(os.environ, OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE'), capture_output=True, text=True)
    assert p.returncode==-signal.SIGKILL, p.stderr[-2000:]
    assert (tmp_path/'round_02/model.tmp').exists() and not (tmp_path/'round_02/model').exists()
    res = go(policy, tmp_path, method='ed_idpo', exploration_coef=.5)
    assert res.history==whole[0].history and same(weights(res.policy), weights(whole[0].policy)) and not list(tmp_path.rglob('*.tmp'))

def test_reference(policy, tmp_path):
    "Equal in round 1, where both are the start; in round 2 the previous policy starts at Δ=0 and the initial one does not"
    first = {}
    for r in ('initial','previous'):
        res = go(policy, tmp_path/r, reference=r)
        log = [json.loads((tmp_path/r/f'round_{t:02d}/model/log.json').read_text()) for t in (1, 2)]
        first[r] = [l[0]['loss'] for l in log] + [weights(tmp_path/r/'round_01/model'),weights(res.policy)]
    a,b = first['initial'],first['previous']
    assert a[0]==b[0]==pytest.approx(math.log(2), abs=1e-5) and same(a[2], b[2])
    assert b[1]==pytest.approx(math.log(2), abs=1e-5) and abs(a[1]-math.log(2))>1e-3 and not same(a[3], b[3])

def test_alpha_zero_is_idpo(policy, tmp_path):
    a,b = go(policy, tmp_path/'a', rounds=1),go(policy, tmp_path/'b', rounds=1, method='ed_idpo', exploration_coef=0.)
    assert same(weights(a.policy), weights(b.policy)) and a.history==b.history

def test_a_round_without_pairs_trains_nothing_and_says_so(policy, tmp_path):
    with pytest.warns(UserWarning, match='5 all wrong.*nothing was trained'): res = go(policy, tmp_path, score=lambda text, target: 0., method='ed_idpo', exploration_coef=.5)
    assert [h['trained'] for h in res.history]==[False]*2 and res.policy==tmp_path/'initial'==policy_path(tmp_path, 2) and res.history[0]['counts']['all_wrong']==5
    s = [load_from_disk(str(tmp_path/f'round_0{t}/samples'))['completion'] for t in (1, 2)]
    assert s[0]!=s[1], 'the next round must draw again'
    assert len(load_from_disk(str(tmp_path/'round_01/pairs')))==0

def test_eto_pairs():
    "Own failures against the expert; without one against own successes, also those of earlier rounds"
    cfg = RoundConfig(n=2, reference='previous', max_new_tokens=3, method='eto', per_prompt=9)
    enc = lambda t: TOK(t).input_ids+[TOK.eos_token_id]
    data = lambda texts: Dataset.from_list([dict(row=i//2, prompt=ROWS[i//2]['prompt'], prompt_ids=TOK(ROWS[i//2]['prompt']).input_ids, completion=t, completion_ids=enc(t), finished=True, score=right(t, 3+i//2)) for i,t in enumerate(texts)])
    rows = [ROWS[0], dict(ROWS[1], expert='2 2'), ROWS[2]]
    before,now = data(['1 2','2 2', '1 3','4', '5','6']),data(['0 0','9', '4 0','8', '1 1','7'])
    pairs,n = pair_round(now, [before], rows, TOK, cfg, 2)
    got = {(r['row'],r['chosen'],r['rejected']) for r in pairs}
    assert got=={(0,'1 2','0 0'), (0,'1 2','9'), (1,'2 2','8')} and n['all_wrong']==1
    assert next(r for r in pairs if r['row']==1)['chosen_ids']==enc('2 2')
    assert pair_round(now, [], rows, TOK, RoundConfig(n=2, reference='previous', max_new_tokens=3, method='idpo'), 2)[1]['paired']==1

def test_eto_runs_with_experts(policy, tmp_path):
    rows = [dict(r, expert=f'{r["target"]} 0') for r in ROWS]
    res = go(policy, tmp_path, rows=rows, score=lambda text, target: 0., method='eto', rounds=1, sft_coef=.5)
    p = load_from_disk(str(tmp_path/'round_01/pairs'))
    assert res.history[0]['trained'] and set(p['chosen'])=={r['expert'] for r in rows} and not same(weights(res.policy), weights(policy))

@pytest.mark.parametrize('kw,word', [(dict(method='dpo'),'dpo'), (dict(reference='last'),'last'), (dict(rounds=0),'rounds=0'), (dict(n=0),'n=0'), (dict(rows=[]),'prompt'), (dict(method='ed_idpo'),'exploration_coef'),
                                     (dict(exploration_coef=.1),'ed_idpo'), (dict(temperature=0.),'temperature'), (dict(sft_coef=-1.),'sft_coef')])
def test_bad_calls_are_named(policy, tmp_path, kw, word):
    with pytest.raises(ValueError, match=word): go(policy, tmp_path, **kw)
    assert not (tmp_path/'initial').exists()

def test_unknown_settings_and_foreign_folders(policy, tmp_path, whole):
    with pytest.raises(TypeError, match='learning_rat'): go(policy, tmp_path, learning_rat=1.)
    with pytest.raises(ValueError, match='another .*training'): go(policy, whole[1], method='ed_idpo', exploration_coef=.4)
    with pytest.raises(ValueError, match='another config'): go(policy, whole[1], method='ed_idpo', exploration_coef=.5, seed=2)

# ---- two processes
DUO = """
import sys; sys.path[:0] = [{here!r}]
import json, os, pytest, torch, warnings
import test_dpo as T, diverse_rl.dpo as dpo
from pathlib import Path
rank,out = int(sys.argv[1]),Path({out!r})
kw = dict(method='ed_idpo', exploration_coef=.5, ddp_backend='gloo', use_cpu=True, per_device_train_batch_size=1)
drew = []
sample = dpo.sample_completions
dpo.sample_completions = lambda *a, **k: drew.append(1) or sample(*a, **k)

def score(text, target): raise KeyError('no such problem')
with pytest.raises(RuntimeError, match='KeyError.*no such problem') if rank else pytest.raises(KeyError): T.go({policy!r}, out/'bad', score=score, **kw)
assert not list(out.rglob('bad/round_01/samples')) and drew==[1]*(rank==0); drew.clear()

class Cut(Exception): pass
train = dpo.train_round
def cut(*a, **k): raise Cut                                     # both die in the training of the first round
dpo.train_round = cut
with pytest.raises(Cut): T.go({policy!r}, out/'run', rounds=1, **kw)
dpo.train_round = train
one = T.go({policy!r}, out/'run', rounds=1, **kw)               # goes on, with the samples and pairs it had
assert drew==[1]*(rank==0)
res = T.go({policy!r}, out/'run', **kw)
assert drew==[1,1]*(rank==0) and res.history[0]==one.history[0] and res.policy==out/'run/round_02/model' and [h['trained'] for h in res.history]==[True]*2
again = T.go({policy!r}, out/'run', **kw); assert again==res and drew==[1,1]*(rank==0)
if rank: out = out/'elsewhere'; out.mkdir()
with pytest.raises(ValueError, match='not the same folder'): T.go({policy!r}, out/'lonely', **kw)
(Path({out!r})/(str(rank)+'.json')).write_text(json.dumps(res.history))
"""
@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
def test_two_processes_make_the_pairs_and_the_policy_of_one(whole, policy, tmp_path):
    "The first samples, scores, pairs and writes; both train. Also cut and resumed, and when the first one fails"
    two_processes(DUO.format(here=str(Path(__file__).parent), out=str(tmp_path), policy=str(policy)), tmp_path)
    one,run = whole[1],tmp_path/'run'
    history = json.loads((tmp_path/'0.json').read_text()); assert history==json.loads((tmp_path/'1.json').read_text())
    for name in ('samples','pairs'):                              # of the first round, which begins at the same policy
        a,b = load_from_disk(str(one/f'round_01/{name}')),load_from_disk(str(run/f'round_01/{name}'))
        assert a.column_names==b.column_names and all(str(a[c])==str(b[c]) for c in a.column_names)
    n = len(load_from_disk(str(run/'round_01/pairs'))); assert history[0]['steps']==-(-n//2)==whole[0].history[0]['steps']
    a,b,start = weights(one/'round_01/model'),weights(run/'round_01/model'),weights(policy)
    moved = max((a[k]-start[k]).abs().max().item() for k in a)
    assert max((a[k]-b[k]).abs().max().item() for k in a)<.02*moved if n%2==0 else not same(b, start)
    assert not list(tmp_path.rglob('*.tmp')) or list(tmp_path.rglob('*.tmp'))==[tmp_path/'bad/round_01/samples.tmp']

@pytest.mark.parametrize('name', ['FSDP','DEEPSPEED'])
def test_sharded_models_are_refused_before_anything_is_written(policy, tmp_path, monkeypatch, name):
    monkeypatch.setenv(f'ACCELERATE_USE_{name}', 'true')
    with pytest.raises(ValueError, match=f'ACCELERATE_USE_{name}.*plain data parallelism'): go(policy, tmp_path)
    assert not list(tmp_path.iterdir())
