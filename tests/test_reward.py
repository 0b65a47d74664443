"The reward function: against the formula, split groups, odd scores, hostile text, and the ways it is called"
import math
from types import SimpleNamespace
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.advantages import ADVANTAGES, scalar_reward
from diverse_rl.reward import SetReward, completion_text, pool_stats, score_answers, seeded, whole_answer
from diverse_rl.simplex import simplex_nodes

def at(step): return SimpleNamespace(global_step=step)
def block(i, text, end=True): return f'<answer_{i}> {text} ' + (f'</answer_{i}>' if end else '')
def numbers(text, **_):
    "A scorer that reads the vector from the answer itself; zeros for what is not numbers"
    try: return [float(o) for o in text.split()]
    except ValueError: return [0., 0.]

@st.composite
def rollouts(draw):
    "M, and rollouts with the vectors that count: each block is good, a repetition, not a number, or (the last one) cut off; D differs between rollouts"
    m,out = draw(st.integers(1, 4)),[]
    for _ in range(draw(st.integers(1, 5))):
        d = draw(st.integers(1, 4)); vec = st.lists(st.integers(0, 8).map(lambda i: i/8), min_size=d, max_size=d)
        texts,valid = [],[]
        for i in range(draw(st.integers(0, m))):
            kind = draw(st.sampled_from(['good']*3+['again','nan','inf','cut'])); v = draw(vec); t = ' '.join(map(str, v))
            if kind=='again' and texts: t = texts[-1]
            if kind in ('nan','inf'): t = ' '.join([kind, *map(str, v[1:])])
            if kind not in ('nan','inf','cut') and t not in texts: valid.append((i, v))
            texts.append(t)
            if kind=='cut': texts[-1] = None; cut = t; break
        out.append((' '.join(block(i, cut if t is None else t, t is not None) for i,t in enumerate(texts, 1)), valid))
    return m,out

def by_formula(valid, weights_KD):
    "Mean over weights of the best valid answer, in plain Python; 0 without any"
    return math.fsum(max((math.fsum(a*b for a,b in zip(w, v)) for _,v in valid), default=0.) for w in weights_KD.tolist())/len(weights_KD)

@settings(max_examples=150)
@given(rollouts(), st.integers(0, 10**6), st.integers(0, 5))
def test_reward_is_the_formula(case, step, seed):
    m,rs = case
    f = SetReward(numbers, m, k=9, seed=seed, nodes='iid')
    got = f(['p']*len(rs), [t for t,_ in rs], trainer_state=at(step))
    for g,(_,valid),mask,vec in zip(got, rs, f.last.mask_NM, f.last.vectors_NMD):
        want = by_formula(valid, f.weights(len(valid[0][1]), step)) if valid else 0.
        assert type(g) is float and abs(g-want)<1e-6
        assert [j for j,o in enumerate(mask.tolist()) if o]==[j for j,_ in valid]
        for j,v in valid: assert vec[j].tolist()==v+[0.]*(vec.shape[1]-len(v))
    assert f.last_step==step and f.last.vectors_NMD.isfinite().all()

@settings(max_examples=60)
@given(rollouts(), st.integers(0, 99), st.integers(0, 5))
def test_a_split_group_is_paid_as_a_whole_one(case, step, cut):
    m,rs = case; texts = [t for t,_ in rs]
    call = lambda x: SetReward(numbers, m, k=5, seed=3)(['p']*len(x), x, trainer_state=at(step)) if x else []
    parts,whole = call(texts[:cut])+call(texts[cut:]),call(texts)
    assert all(abs(x-y)<1e-6 for x,y in zip(parts, whole, strict=True))      # a sum over weights may round differently

@settings(max_examples=60)
@given(rollouts())
def test_every_slot_is_counted_once(case):
    m,rs = case
    s = pool_stats(score_answers([t for t,_ in rs], m, numbers, {}))
    assert abs(sum(s[f'answers/{k}'] for k in ('pool_size','duplicate','cut','missing','unscorable'))-m)<1e-9
    assert abs(s['answers/pool_size']-sum(len(v) for _,v in rs)/len(rs))<1e-9

PIECES = ['<answer_1>','</answer_1>','<answer_2>','</answer_2>','<answer_3>','<answer_','>','</think>','<think>',' .5 .25 ',' nan ',' 1e999 ',' .5 ','\x00','🪙','\n']
hostile = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=14).map(''.join))
def plain(text, **_): return [min(1., text.count('5')/3), min(1., text.count('2'))]

@settings(max_examples=200)
@given(st.lists(hostile, min_size=1, max_size=6), st.sampled_from(['vpo','set_max','multi_rlvr']))
def test_hostile_text_never_raises_and_is_never_none(texts, method):
    got = SetReward(plain, 2, method=method, k=4)(['']*len(texts), texts)
    assert len(got)==len(texts) and all(type(o) is float and 0<=o<=2 for o in got)
    assert SetReward(plain, 2, method=method, k=4)(['']*len(texts), texts)==got

@settings(max_examples=100)
@given(st.lists(hostile, min_size=1, max_size=6))
def test_hostile_text_as_a_whole_answer(texts):
    got = SetReward(plain, 1, tag=None, k=4)(['']*len(texts), texts)
    for g,t in zip(got, texts): assert (g==0)==(not t.strip() or plain(t)==[0,0])

def test_no_answer_is_zero_and_not_none():
    f = SetReward(numbers, 3)
    assert f(['p']*3, ['','words','<answer_1> .5'])==[0.,0.,0.] and f.last.vectors_NMD.shape==(3,3,1)
    assert SetReward(numbers, 3, d=4)(['p'], [''])==[0.]

def test_scores_that_are_no_numbers_drop_that_answer_only():
    f = SetReward(numbers, 2, k=64)
    both,one = f(['p']*2, [block(1, 'nan 1')+block(2, '.5 .5'), block(1, '.5 .5')])
    assert both==one and abs(one-.5)<1e-6 and pool_stats(f.last)['answers/unscorable']==.5
    assert f(['p'], [block(1, 'inf 0')+block(2, '0 -inf')])==[0.]

def test_d_of_the_rollouts_may_differ():
    f = SetReward(numbers, 1, k=256)
    got = f(['p']*3, [block(1, '1'), block(1, '1 0'), block(1, '1 0 0 0')])
    assert f.last.dims_N.tolist()==[1,2,4] and f.last.vectors_NMD.shape==(3,1,4)
    assert all(abs(g-w)<5e-3 for g,w in zip(got, (1,1/2,1/4)))
    assert score_answers(['',block(1, '1 0')], 1, numbers, {}, d=3).dims_N.tolist()==[3,2]

def test_columns_reach_the_scorer_row_by_row():
    seen = []
    def scorer(text, goal_text, n, **rest): seen.append((text, goal_text, n, rest)); return [float(text==goal_text)]
    got = SetReward(scorer, 1)(['p','q'], [block(1, 'a'), block(1, 'b')], goal_text=['a','a'], n=[1,2], extra=[None,'x'])
    assert got==[1.,0.] and seen==[('a','a',1,dict(extra=None)), ('b','a',2,dict(extra='x'))]

@pytest.mark.parametrize('bad', [lambda text, **_: 1/0, lambda text, **_: ['x'], lambda text, **_: None, lambda text: [1.]])
def test_a_failing_scorer_is_named(bad):
    with pytest.raises(RuntimeError, match=r"answer 2 of rollout 1, 'b b'.*zeros for nonsense"):
        SetReward(lambda text, **kw: bad(text, **kw) if text=='b b' else [1.], 2)(['p']*2, [block(1, 'a'), block(1, 'a')+block(2, 'b b')], row=[0,1])

def test_negative_components_are_refused():
    with pytest.raises(ValueError, match='negative'): SetReward(numbers, 1)(['p'], [block(1, '1 -.5')])

@pytest.mark.parametrize('kw,word', [(dict(method='vop'),'vop.*choose one of'), (dict(m=0),'m=0'), (dict(m=2, method='grpo'),'m=2.*pass m=1'), (dict(m=2, tag=None),'tag=None')])
def test_impossible_settings_are_refused(kw, word):
    with pytest.raises(ValueError, match=word): SetReward(numbers, **kw)

def test_chat_messages_and_keys():
    chat = [dict(role='assistant', content=block(1, '.5 .5')), dict(role='assistant', content=block(2, '0.5  0.5'))]
    assert completion_text(chat)==block(1, '.5 .5')+block(2, '0.5  0.5') and completion_text([dict(role='assistant', content=None)])==''
    f = SetReward(numbers, 2, key=lambda t: tuple(numbers(t)))
    assert abs(f(['p'], [chat])[0]-.5)<1e-6 and f.last.answers[0].status==('ok','duplicate')

def test_hooks_of_the_trainer_are_used():
    metrics,extra = {},{}
    SetReward(numbers, 2)(['p']*2, [block(1, '1 0')+block(2, '0 1'), block(1, '1 0')], log_metric=metrics.__setitem__, log_extra=extra.__setitem__, completion_ids=[[1],[2]], environments=None)
    assert metrics['answers/pool_size']==1.5 and abs(metrics['answers/component_0']-2/3)<1e-6 and extra=={'answers':[2,1]}

def test_weights_are_redrawn_every_step_and_the_same_everywhere():
    a,b = SetReward(numbers, 2, seed=7),SetReward(numbers, 2, seed=7)
    state = torch.get_rng_state()
    assert torch.equal(a.weights(3, 4), b.weights(3, 4)) and a.weights(3, 4).shape==(128,3)
    for other in (a.weights(3, 5), SetReward(numbers, 2, seed=8).weights(3, 4)): assert not torch.equal(other, a.weights(3, 4))
    assert torch.equal(state, torch.get_rng_state())            # nothing is drawn from the global generator
    w = a.prompt_weights(['x','y','x'], 3, 1)
    assert w.shape==(3,1,3) and torch.equal(w[0], w[2]) and not torch.equal(w[0], w[1])
    assert torch.equal(w[1], b.prompt_weights(['y'], 3, 1)[0]) and not torch.equal(w[1], b.prompt_weights(['y'], 3, 2)[0])
    assert not torch.equal(torch.rand(3, generator=seeded('a', 1)), torch.rand(3, generator=seeded('a', 2)))

@pytest.mark.parametrize('method', sorted(ADVANTAGES))
def test_each_method_pays_one_float_per_rollout(method):
    m = 1 if ADVANTAGES[method].answers=='one' else 2
    texts = [block(1, '1 0 .5')+block(2, '0 1 0'), block(1, '0 .5 0'), 'nothing']
    f = SetReward(numbers, m, method=method, target=[.5,.25,.25], d=3)
    goal = dict(goal=[[0.,0.,1.]]*3) if method=='goal_grpo' else {}
    got = f(['p']*3, texts, **goal)
    assert all(type(o) is float for o in got) and got[2]==0 and got[0]>got[1]-(method=='goal_grpo' or method=='random_weight_grpo')
    if ADVANTAGES[method].reward in ('target','components'): assert got==[.625,.125,0.]
    if method=='goal_grpo': assert got==[.5,0.,0.]
    if method=='set_max': assert got==[.625,.125,0.]
    if method=='multi_rlvr': assert got==[.875,.125,0.]
    if method=='vpo':
        want = scalar_reward('vpo', f.last.vectors_NMD[:,None], weights_KD=f.weights(3, 0), mask_BGM=f.last.mask_NM[:,None])
        assert torch.allclose(torch.tensor(got), want[:,0], atol=1e-6)

def test_values_add_up():
    f = SetReward(numbers, 3)
    f(['p']*2, [block(1, '1 0')+block(2, '0 1')+block(3, '.6 .6'), block(1, '1')])
    v = f.values(f.last, 0)
    assert torch.allclose(v.prefix_BGM[...,-1], v.reward_BG) and torch.allclose(v.reward_BG[:,0], torch.tensor([.76,1.]), atol=5e-3)
    assert torch.allclose(v.prefix_BGM[0,0], torch.tensor([.5,.75,.76]), atol=5e-3) and v.loo_BGM[1,0].tolist()==[1,0,0]

def test_whole_answer():
    assert whole_answer(' a b').texts==(' a b',) and whole_answer('a').mask==(True,) and whole_answer('\n').status==('missing',)
