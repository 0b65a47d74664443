"Pieces in a reader's own run: the table's lines, verl's signatures, and verl's own registries where it is installed"
import asyncio, importlib.util, math
from importlib import import_module
from types import SimpleNamespace
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.advantages import TRANSFORMS, group_transform
from diverse_rl.credit import answer_credit
from diverse_rl.plug_in import *
from diverse_rl.plug_in import VERL_TESTED
from diverse_rl.reward import SetReward

HAS_VERL = importlib.util.find_spec('verl') is not None
verl = pytest.mark.skipif(not HAS_VERL, reason=f'verl is not installed: pip install verl=={VERL_TESTED[0]} in an environment of its own')
gen = lambda seed: torch.Generator().manual_seed(seed)
def length(text, **row): return [min(1., len(text.split())/4), float(row['ground_truth'] in text.split()), .5]
def block(*answers): return ' '.join(f'<answer_{i}> {a} </answer_{i}>' for i,a in enumerate(answers, 1))
TEXTS = [block('7 7 7', '1', 'a b c d'), block('7', '7'), 'nothing', block('1 2') + ' <answer_2> cut']

# ---- the table

def test_every_line_of_the_table_compiles_and_can_be_switched_off():
    for p in PIECES.values():
        compile(p.code, 'piece', 'exec'); compile(p.code.replace(p.on, p.off) if p.on else p.code, 'piece', 'exec')
        assert p.on in p.code and (p.code.count(p.on)==1 or not p.on)
    html = pieces_table().html
    assert html.count('<tr>')==len(PIECES)+1 and all(f'{p.page}.ipynb' in html for p in PIECES.values()) and "'telescoped'" not in html.replace('&#x27;', '’')

# ---- the score

@pytest.mark.parametrize('method', ['vpo','set_max','multi_rlvr'])
def test_score_is_the_set_reward(method):
    got = [verl_score('s', t, '7', dict(index=i), scorer=length, m=3, d=3, method=method, seed=4) for i,t in enumerate(TEXTS)]
    r = SetReward(length, 3, method=method, d=3, seed=4); want = r(['p']*4, TEXTS, ground_truth=['7']*4)
    assert [g['score'] for g in got]==pytest.approx(want) and len({tuple(g) for g in got})==1 and got[2]['score']==0 and max(want)>0
    assert [g['answers'] for g in got]==[3, 1, 0, 1] and got[0]['component_2']==pytest.approx(1/3)
    if method=='vpo':
        for g,p in zip(got, r.values(r.last, 0).prefix_BGM[:,0].tolist()): assert [g[f'prefix_{j}'] for j in (1,2,3)]==pytest.approx(p)
        assert got[0]['prefix_3']==pytest.approx(got[0]['score']) and all(a<=b+1e-6 for a,b in ((g['prefix_1'],g['prefix_2']) for g in got))

def test_scorer_by_name_and_columns():
    seen = []
    def scorer(text, ground_truth, data_source, extra): seen.append((text, ground_truth, data_source, extra)); return [1.]
    verl_score(data_source='d', solution_str='whole', ground_truth=['g'], extra_info=dict(extra=[1,2]), scorer=scorer, m=1, d=1, tag=None, method='grpo', reward_router_address='x', reward_model_tokenizer=None)
    assert seen==[('whole',['g'],'d',[1,2])]
    assert named('diverse_rl.plug_in:verl_score') is verl_score

@pytest.mark.parametrize('kw,word', [(dict(d=2),'d=2.*set d to that'), (dict(d=4),'d=4.*set d to that'), (dict(method='gdpo', m=1),'whole group'), (dict(method='goal_grpo', m=1),'weights per prompt'), (dict(method='nothing'),'choose one of'), (dict(scorer='no.such:f'),'package.module:function'),
                                     (dict(scorer='math'),'package.module:function'), (dict(scorer='math:nope'),'nope')])
def test_bad_scores_are_named(kw, word):
    with pytest.raises(ValueError, match=word): verl_score('s', TEXTS[0], '7', None, **{**dict(scorer=length, m=3, d=3), **kw})
def test_unknown_settings_are_not_swallowed():
    with pytest.raises(TypeError, match='scorr'): verl_score('s', TEXTS[0], '7', None, scorer=length, m=3, d=3, scorr=1)

# ---- group transforms

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=5)
@given(sizes, st.sampled_from(sorted(TRANSFORMS)), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_groups_of_any_size_one_by_one(groups, name, k, seed):
    g = gen(seed); n = sum(groups); T = 4
    index = [f'p{i}' for i,s in enumerate(groups) for _ in range(s)]; order = torch.randperm(n, generator=g).tolist(); index = [index[i] for i in order]
    rewards,mask = torch.rand(n, T, generator=g),(torch.rand(n, T, generator=g)<.7).long()
    if name=='sloo_minus_one': k = max(2, k)
    least = dict(rloo=2, max_at_k=k, pkpo=k+1, sloo_minus_one=k).get(name, 1)
    if max(groups)<least:
        with pytest.raises(ValueError, match='raise actor_rollout_ref.rollout.n'): verl_advantage(name, rewards, mask, index, k=k)
        return
    adv,ret = verl_advantage(name, rewards, mask, index, k=k)
    for p in set(index):
        rows = [i for i in range(n) if index[i]==p]
        want = group_transform(name, torch.tensor([[rewards[i].sum() for i in rows]]), k=k)[0] if len(rows)>=least else torch.zeros(len(rows))
        for i,w in zip(rows, want): assert torch.allclose(adv[i], w*mask[i], atol=1e-5)
    assert adv is ret and adv.shape==rewards.shape

def test_no_index_is_named():
    with pytest.raises(ValueError, match='uid'): verl_advantage('z_norm', torch.rand(2, 3), torch.ones(2, 3), None)

# ---- credit on tokens

@given(sizes, st.integers(1, 4), st.sampled_from(['shared','telescoped','control_variate']), st.sampled_from(['group','position','none']), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_credit_of_each_group_alone(groups, m, credit, scale, seed):
    g = gen(seed); n,T = sum(groups),7
    prefix = torch.rand(n, m, generator=g).cummax(1).values; slots = torch.randint(0, m+1, (n, T), generator=g).sort(1).values
    mask = (torch.rand(n, T, generator=g)<.8).long(); index = [i for i,s in enumerate(groups) for _ in range(s)]
    got = verl_credit(prefix, slots, mask, index, credit=credit, scale=scale, least_std=.05)
    at = 0
    for s in groups:
        a = answer_credit(prefix[at:at+s][None], credit=credit, scale=scale, least_std=.05)[0]
        for i in range(s):
            for t in range(T): assert got[at+i,t]==pytest.approx((a[i,slots[at+i,t]]*mask[at+i,t]).item(), abs=1e-6)
        at += s

@pytest.mark.parametrize('kw', [dict(scale='batch'), dict(credit='leave_one_out')])
def test_what_one_group_cannot_have(kw):
    with pytest.raises(ValueError, match='one by one'): verl_credit(torch.rand(2, 2), torch.zeros(2, 3).long(), torch.ones(2, 3), [0, 0], **kw)

def test_missing_prefixes_are_named():
    assert prefixes([dict(prefix_1=.1, prefix_2=.3), dict(prefix_1=0., prefix_2=0.)], 2).tolist()==torch.tensor([[.1,.3],[0,0]]).tolist()
    for bad in ([{}], [None], [dict(prefix_1=1.)]):
        with pytest.raises(ValueError, match='rollout 0 has no prefix_2.*verl_score'): prefixes(bad, 2)
    with pytest.raises(ValueError, match='rollout 1 has a prefix_3.*same m'): prefixes([dict(prefix_1=.1, prefix_2=.3), dict(prefix_1=.1, prefix_2=.3, prefix_3=.4)], 2)

def test_every_rollout_needs_the_name_of_its_prompt():
    for names in ('aaa', 'aaaaa'):
        with pytest.raises(ValueError, match='for 4 rollouts'): verl_advantage('z_norm', torch.rand(4, 2), torch.ones(4, 2), list(names))
        with pytest.raises(ValueError, match='for 4 rollouts'): verl_credit(torch.rand(4, 2), torch.zeros(4, 3).long(), torch.ones(4, 3), list(names))
    assert verl_advantage('z_norm', torch.rand(0, 2), torch.ones(0, 2), [])[0].shape==(0, 2)

@pytest.mark.parametrize('kw', [dict(config=None), dict(config=SimpleNamespace(global_batch_info={}), exploration='novelty')])
def test_the_loss_needs_settings_and_a_direction(kw):
    x = torch.zeros(1, 2); base,mean = (lambda **k: (x.sum(), {})),(lambda **k: k['loss_mat'].mean())
    with pytest.raises(ValueError, match='choose cover or repel'): verl_loss(x, x, x, x+1, base=base, aggregate=mean, coef=.1, **kw)
    assert verl_loss(x, x, x, x+1, base=base, aggregate=mean)[0]==0

# ---- the loss

def test_kl_from_the_sampler_value_and_gradient_exactly():
    "By enumeration: weights q over the tokens of q"
    logits = torch.randn(5, generator=gen(0), dtype=torch.float64, requires_grad=True); q = torch.randn(5, generator=gen(1), dtype=torch.float64).log_softmax(0)
    p = logits.log_softmax(0); got = (q.exp()*sampler_kl(p, q, clamp=50.)).sum(); want = (q.exp()*(q-p)).sum()
    assert got.item()==pytest.approx(want.item()) and torch.allclose(torch.autograd.grad(got, logits, retain_graph=True)[0], torch.autograd.grad(want, logits)[0])
    assert (sampler_kl(p, q)>=0).all() and sampler_kl(q, q).eq(0).all()

# ---- versions

@pytest.mark.parametrize('v', ['0.9.0','0.9.2','0.10.0','1.0.0','0.9.1rc1','0.9.1.dev0'])
def test_untested_versions_are_refused(v):
    with pytest.raises(ImportError, match=rf'verl>={VERL_TESTED[0]},<{VERL_TESTED[1]}.*{v}.*verl_score alone'): check_verl(v)
def test_tested_versions(): assert check_verl('0.9.1')=='0.9.1' and check_verl('0.9.1.post1')

@pytest.mark.skipif(HAS_VERL, reason='verl is installed')
@pytest.mark.parametrize('f', [register_verl_advantages, register_verl_loss, lambda: register_verl_trainer(m=2)])
def test_missing_verl_is_named(f):
    with pytest.raises(ImportError, match='pip install verl==0.9.1'): f()
@pytest.mark.parametrize('kw,word', [(dict(exploration='novelty'),'snapshot'), (dict(coef=-1.),'coef=-1'), (dict(coef=math.nan),'coef=nan')])
def test_bad_losses_are_named(kw, word):
    with pytest.raises(ValueError, match=word): register_verl_loss(**kw)

# ---- verl itself

@verl
def test_estimators_through_verls_own_dispatch():
    "compute_advantage of verl's trainer, with its DataProto; against its own grpo where the two differ in the std only"
    names = register_verl_advantages(k=2); assert names==register_verl_advantages(k=2) and 'diverse_max_at_k' in names
    with pytest.raises(ValueError, match='already registered'): register_verl_advantages(k=3)
    import numpy as np
    ray_trainer,DataProto = import_module('verl.trainer.ppo.ray_trainer'),import_module('verl').DataProto
    g = gen(0); rewards = torch.zeros(6, 5); rewards[:,4] = torch.rand(6, generator=g); mask = torch.ones(6, 5).long(); mask[0,4] = 0
    def adv(name):
        data = DataProto.from_dict(tensors=dict(token_level_rewards=rewards.clone(), response_mask=mask), non_tensors=dict(uid=np.array(list('abaabb'), dtype=object)))
        d = ray_trainer.compute_advantage(data, adv_estimator=name, config=SimpleNamespace())
        return d.batch['advantages']
    ours,theirs = adv('diverse_z_norm'),adv('grpo')
    assert torch.allclose(ours, theirs*math.sqrt(3/2), atol=1e-4) and ours.abs().max()>.5           # unbiased std there, population here
    for n in names: assert torch.allclose(adv(n), verl_advantage(n.removeprefix('diverse_'), rewards, mask, list('abaabb'), k=2)[0])

@verl
@pytest.mark.parametrize('exploration', ['cover','repel'])
def test_loss_through_verls_registry(exploration):
    core = import_module('verl.trainer.ppo.core_algos'); ActorConfig = import_module('verl.workers.config').ActorConfig
    config = ActorConfig(strategy='fsdp', rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    g = gen(1); old = torch.randn(3, 4, generator=g).clamp(max=-.1); new = (old+.1*torch.randn(3, 4, generator=g)).requires_grad_(); mask = torch.tensor([[1,1,1,0]]*3); a = torch.randn(3, 4, generator=g)
    call = lambda name, new=new: core.get_policy_loss_fn(name)(old_log_prob=old, log_prob=new, advantages=a, response_mask=mask, loss_agg_mode='token-mean', config=config, rollout_is_weights=None)
    name = register_verl_loss(exploration=exploration, coef=.3); assert name==f'diverse_{exploration}'==register_verl_loss(exploration=exploration, coef=.3)
    off = register_verl_loss(exploration=exploration, coef=0., prefix='off_')
    base,n0 = call('vanilla'); ours,n1 = call(name); stock,n2 = call(off)
    kl = (sampler_kl(new, old)*mask).sum()/mask.sum(); sign = 1 if exploration=='cover' else -1
    assert torch.equal(base, stock) and n0==n2 and (ours-base).item()==pytest.approx(sign*.3*kl.item(), rel=1e-4) and n1['actor/sampler_kl']==pytest.approx(kl.item(), rel=1e-5)
    assert torch.equal(call(name, old)[0], call('vanilla', old)[0])

@verl
def test_reward_through_verls_own_loader_and_manager():
    "The configuration of the notebook: module path, reward_kwargs, and the naive manager that decodes and calls"
    import numpy as np
    OmegaConf = import_module('omegaconf').OmegaConf; reward = import_module('verl.trainer.ppo.reward'); manager = import_module('verl.experimental.reward_loop.reward_manager.naive').NaiveRewardManager
    DataProto = import_module('verl').DataProto
    from diverse_rl.policy import make_tokenizer
    tok = make_tokenizer(['7','1','a','b','c','d', *(f'<{s}answer_{i}>' for i in (1,2,3) for s in ('','/'))])
    config = OmegaConf.create(dict(reward=dict(custom_reward_function=dict(path='pkg://diverse_rl.plug_in', name='verl_score', reward_kwargs=dict(scorer=f'{__name__}:length', m=3, d=3)))))
    ids = tok(TEXTS[0]).input_ids+[tok.eos_token_id]
    data = DataProto.from_dict(tensors=dict(prompts=torch.zeros(1, 2).long(), responses=torch.tensor([ids]), attention_mask=torch.ones(1, 2+len(ids)).long()),
                               non_tensors=dict(data_source=np.array(['s'], dtype=object), reward_model=np.array([dict(ground_truth='7')], dtype=object), extra_info=np.array([dict(index=0)], dtype=object)))
    async def go(): return await manager(config, tok, reward.get_custom_reward_fn(config)).run_single(data)
    got = asyncio.run(go())
    want = verl_score('s', TEXTS[0], '7', scorer=length, m=3, d=3)
    assert got['reward_score']==want['score']>0 and got['reward_extra_info']==want

@verl
def test_trainer_through_verls_registry(monkeypatch):
    "verl's own _compute_advantage on a queue in memory, then ours"
    import numpy as np
    try: v1 = import_module('verl.trainer.ppo.v1')
    except ImportError as e: pytest.skip(f'verl.trainer.ppo.v1 cannot be imported here: {e}')
    base,tq,TensorDict,OmegaConf = import_module('verl.trainer.ppo.v1.trainer_base'),import_module('transfer_queue'),import_module('tensordict').TensorDict,import_module('omegaconf').OmegaConf
    tu = import_module('verl.utils.tensordict_utils')
    from diverse_rl.policy import make_tokenizer
    tok = make_tokenizer(['7','1','2','a','b','c','d', *(f'<{s}answer_{i}>' for i in (1,2) for s in ('','/'))])
    texts = [block('7 7', 'a b c d'), block('1', '7'), block('7', '7'), block('a b c d', '7')]
    ids = [tok(t).input_ids+[tok.eos_token_id] for t in texts]; extra = [verl_score('s', t, '7', scorer=length, m=2, d=3) for t in texts]
    nested = lambda rows, dtype: torch.nested.as_nested_tensor([torch.as_tensor(r, dtype=dtype) for r in rows], layout=torch.jagged)
    scores = [[0.]*(len(i)-1)+[e['score']] for i,e in zip(ids, extra)]
    fields = tu.get_tensordict(dict(responses=nested(ids, torch.long), response_mask=nested([[1]*len(i) for i in ids], torch.long), rm_scores=nested(scores, torch.float32),
                                    uid=list('ppqq'), extra_fields=[dict(reward_extra_info=e) for e in extra]))
    def get(keys, partition_id, select_fields): return fields.select(*[f for f in select_fields if f in fields.keys()])
    def put(keys, partition_id, fields): stored.update({k:fields[k] for k in fields.keys()}); return tq.KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{}]*len(keys))
    stored = {}
    monkeypatch.setattr(tq, 'kv_batch_get', get); monkeypatch.setattr(tq, 'kv_batch_put', put)
    register_verl_advantages(k=2)
    name = register_verl_trainer(m=2); assert name=='diverse_sync'==register_verl_trainer(m=2)
    with pytest.raises(ValueError, match='already registered'): register_verl_trainer(m=3)
    cls = v1.get_trainer_cls(name); assert issubclass(cls, v1.PPOTrainerSync)
    t = object.__new__(cls); t.tokenizer = tok
    t.config = OmegaConf.create(dict(algorithm=dict(adv_estimator='diverse_z_norm', use_kl_in_reward=False, gamma=1., lam=1.), actor_rollout_ref=dict(rollout=dict(n=2))))
    batch = tq.KVBatchMeta(partition_id='train', keys=['p_0_0','p_1_0','q_0_0','q_1_0'], tags=[{}]*4)
    v1.PPOTrainerSync._compute_advantage(t, batch, {}); shared = [x.clone() for x in stored['advantages'].unbind()]
    t._compute_advantage(batch, {}); ours = list(stored['advantages'].unbind())
    T = max(map(len, ids)); mask = torch.tensor([[1]*len(i)+[0]*(T-len(i)) for i in ids])
    want = verl_credit(prefixes(extra, 2), slots_of(tok, ids, 2, T), mask, list('ppqq'))
    for i in range(4): assert torch.allclose(ours[i], want[i][:len(ids[i])]) and len(set(shared[i].tolist()))==1
    assert any(len(set(o.tolist()))>1 for o in ours) and torch.equal(stored['advantages'].values(), stored['returns'].values())
    batch.keys[1] = 'p_1_1'
    with pytest.raises(ValueError, match='p_1_1 has several outputs'): t._compute_advantage(batch, {})
