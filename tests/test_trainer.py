"The trainer: off is the stock trainer bit for bit, on does what its parts say, groups may be split over processes"
import re
from pathlib import Path
import pytest, torch
pytest.importorskip('trl')
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from diverse_rl.advantages import group_advantage
from diverse_rl.credit import answer_credit
from diverse_rl.policy import PolicyConfig, make_policy, make_tokenizer
from diverse_rl.reward import SetReward, score_answers
from diverse_rl.trainer import DiverseGRPOConfig, DiverseGRPOTrainer, check_trl, draw_advantages
from toy import two_processes

B,G,M,T = 3,4,2,12
WORDS = ['a','b','c','d','go','stop',*(f'<{s}answer_{i}>' for i in (1,2,3) for s in ('','/'))]

def scorer(text, **_):
    "Two components, known for every text"
    w = text.split()
    return [min(1., w.count('a')/2), min(1., w.count('b')/2)]

def parts(tmp, cls=DiverseGRPOTrainer, cfg=DiverseGRPOConfig, steps=2, reward=None, seed=0, group=G, peft_config=None, pieces=1, **kw):
    "A tiny trainer on a policy that often writes tags"
    tok = make_tokenizer(WORDS)
    model = make_policy(PolicyConfig(hidden=16, layers=1, heads=2, kv_heads=1, mlp=16), tok)
    model.save_pretrained(tmp/'policy'); model = type(model).from_pretrained(tmp/'policy')   # a reference model is loaded from where the policy came
    data = Dataset.from_dict(dict(prompt=[f'go {a} {b}' for a in 'abcd' for b in 'abcd'][:steps*B]))
    args = cfg(output_dir=str(tmp), per_device_train_batch_size=B*group//pieces, gradient_accumulation_steps=pieces, num_generations=group, max_completion_length=T, max_steps=steps, learning_rate=1e-2, seed=seed,
               shuffle_dataset=False, report_to='none', logging_steps=1, save_strategy='no', use_cpu=True, bf16=False, disable_tqdm=True, dataloader_pin_memory=False, **dict(gradient_checkpointing=False)|kw)
    return cls(model=model, processing_class=tok, reward_funcs=reward or SetReward(scorer, M, d=2, k=16), args=args, train_dataset=data, peft_config=peft_config)

def run(t):
    t.train()
    drop = ('runtime','per_second','step_time','total_flos')
    return {k:v.clone() for k,v in t.model.state_dict().items()}, [{k:v for k,v in h.items() if not any(d in k for d in drop)} for h in t.state.log_history]

def forced(t, texts, first=0):
    "Make the trainer write the given completions, by turns from number `first` on, instead of sampling"
    tok = t.processing_class
    def single(prompt_ids, *a, **k):
        ids = [tok(texts[(first+i)%len(texts)]).input_ids+[tok.eos_token_id] for i in range(len(prompt_ids))]
        return ids, None
    t._generate_single_turn = single
    return t

def iter_step(t, first=0, count=B*G):
    "One generation step of `count` rollouts, from number `first` on, without an optimiser"
    t.model.train()
    return t._generate_and_score_completions([dict(prompt=p) for p in t.train_dataset['prompt'][:B] for _ in range(G)][first:first+count])

@pytest.fixture(scope='module')
def shared(tmp_path_factory): return parts(tmp_path_factory.mktemp('shared'), credit='telescoped')

OPTIONS = dict(credit_least_std=0., credit_offset=0., credit_pool=False)
@pytest.fixture
def step(shared):
    "What one step makes of given completions under given switches; one trainer serves all the tests, since making it takes longest"
    def f(texts, reward, advantage=None, credit=None, credit_scale='group', max_k=4, **options):
        for k,v in dict(advantage=advantage, credit=credit, credit_scale=credit_scale, max_k=max_k, **(OPTIONS|options)).items(): setattr(shared.args, k, v)
        shared.set_reward,shared.reward_funcs = reward,[reward]
        return iter_step(forced(shared, texts))
    return f

@pytest.mark.parametrize('extra', [dict(), dict(beta=.1, loss_type='grpo', scale_rewards='batch')])
def test_off_is_stock_bit_for_bit(tmp_path, extra):
    paid = lambda: SetReward(scorer, 1, tag=None, d=2, k=16)            # every text is an answer, so rewards differ from the first step on
    a,ha = run(parts(tmp_path/'a', GRPOTrainer, GRPOConfig, steps=5, reward=paid(), **extra))
    b,hb = run(parts(tmp_path/'b', steps=5, reward=paid(), **extra))
    assert a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    own = ('answers/diversity_l1','answers/ew_best_at_4')
    assert [{k:v for k,v in h.items() if k not in own} for h in hb]==ha
    start = parts(tmp_path/'c').model.state_dict()
    assert any(not torch.equal(a[k], start[k]) for k in a), 'nothing was trained: the comparison would hold for any trainer'

TEXTS = ['<answer_1> a a </answer_1> <answer_2> b b </answer_2>', '<answer_1> a </answer_1> <answer_2> a </answer_2>', 'c <answer_1> b b </answer_1>', 'd d d']

@pytest.mark.parametrize('credit', ['telescoped','leave_one_out','control_variate'])
@pytest.mark.parametrize('scale', ['group','batch'])
def test_credit_reaches_the_right_tokens(step, credit, scale):
    r = SetReward(scorer, M, d=2, k=16)
    out = step(TEXTS, r, credit=credit, credit_scale=scale)
    v = r.values(score_answers(TEXTS*B, M, scorer, {}), 0)
    want = answer_credit(v.prefix_BGM.view(B,G,M), v.loo_BGM.view(B,G,M), credit=credit, scale=scale).flatten(0,1)
    for i in range(B*G):
        s = SLOTS[i%4]
        assert torch.allclose(out['advantages'][i,:len(s)], want[i][s]) and out['answer_slots'][i,:len(s)].tolist()==s
    assert want.abs().max()>.1

@pytest.mark.parametrize('name', ['vpo','set_max','multi_rlvr'])
def test_group_transforms_of_sets(step, name):
    r = SetReward(scorer, M, method=name, d=2, k=16)
    out = step(TEXTS, r, advantage=name)
    b = score_answers(TEXTS*B, M, scorer, {})
    want = group_advantage(name, b.vectors_NMD.view(B,G,M,2), weights_KD=r.weights(2, 0), mask_BGM=b.mask_NM.view(B,G,M))
    assert torch.allclose(out['advantages'], want.flatten(), atol=1e-5) and want.abs().max()>.1

@pytest.mark.parametrize('name', ['grpo','max_at_k','maxrl','gdpo','pkpo','sloo_minus_one','rloo','dr_grpo','random_weight_grpo'])
def test_group_transforms_of_single_answers(shared, step, name):
    texts = ['a a b','a','b b','c']
    r = SetReward(scorer, 1, method=name, tag=None, d=2)
    out = step(texts, r, advantage=name, max_k=2)
    b = score_answers(texts*B, 1, scorer, {}, tag=None)
    w = r.prompt_weights(shared.train_dataset['prompt'][:B], 2, 0) if name=='random_weight_grpo' else None
    want = group_advantage(name, b.vectors_NMD.view(B,G,1,2), weights_KD=w, k=2)
    assert torch.allclose(out['advantages'], want.flatten(), atol=1e-5) and want.abs().max()>.1

def test_shared_credit_is_the_vpo_advantage(step):
    r = SetReward(scorer, M, d=2, k=16)
    a,b = step(TEXTS, r, credit='shared')['advantages'],step(TEXTS, r, advantage='vpo')['advantages']
    assert a.shape==(B*G,) and torch.equal(a, b) and a.abs().max()>.1

SLOTS = [[0]*4+[1]*4+[2], [0]*3+[1]*3+[2], [0]*5+[1], [0]*4]   # of TEXTS, by hand: tags belong to their answer, what follows the last block to the next slot
@pytest.mark.parametrize('extra', [dict(credit_scale='position'), dict(credit_least_std=.5), dict(credit_offset=1.), dict(credit='shared', credit_scale='batch')])
def test_options_of_credit_reach_it(step, extra):
    r = SetReward(scorer, M, d=2, k=16); credit = extra.get('credit', 'telescoped')
    out,plain = step(TEXTS, r, **dict(credit=credit)|extra)['advantages'],step(TEXTS, r, credit=credit)['advantages']
    v = r.values(score_answers(TEXTS*B, M, scorer, {}), 0)
    names = dict(credit_scale='scale', credit_least_std='least_std', credit_offset='offset', credit_pool='pool')
    want = answer_credit(v.prefix_BGM.view(B,G,M), v.loo_BGM.view(B,G,M), credit=credit, **{names[k]:x for k,x in extra.items() if k in names}).flatten(0,1)
    for i in range(B*G): assert torch.allclose(out[i,:len(SLOTS[i%4])], want[i][SLOTS[i%4]], atol=1e-6)
    assert out.shape!=plain.shape or not torch.allclose(out, plain)

def test_pooling_reaches_the_credit(step, monkeypatch):
    import diverse_rl.trainer as T
    seen = []; monkeypatch.setattr(T, 'answer_credit', lambda *a, **k: seen.append(k['pool']) or answer_credit(*a, **k))
    for pool in (True, False): step(TEXTS, SetReward(scorer, M, d=2, k=16), credit='control_variate', credit_pool=pool)
    assert seen==[True, False]

def test_drawing_shows_each_slot_with_its_number(shared, step):
    pytest.importorskip('IPython')
    tok = shared.processing_class
    out = step(TEXTS, SetReward(scorer, M, d=2, k=16), credit='telescoped'); html = draw_advantages(tok, out).data
    want = [f'{out["advantages"][i,j].item():+.2f}' for i in range(B*G) for j in range(out['answer_slots'].shape[1])
            if out['completion_mask'][i,j] and (j==0 or out['answer_slots'][i,j]!=out['answer_slots'][i,j-1])]
    assert re.findall(r'<small>([^<]*)</small>', html)==want and '<answer' not in html
    flat = draw_advantages(tok, step(TEXTS, SetReward(scorer, M, d=2, k=16), credit='shared')).data
    assert flat.count('<small>')==len(want) and draw_advantages(tok, dict(out, advantages=torch.zeros(B*G))).data.count('+0.00')==len(want)
    one = draw_advantages(tok, {k:v for k,v in out.items() if k!='answer_slots'} | dict(advantages=torch.ones(B*G))).data
    assert one.count('<small>')==B*G

def test_credit_trains_and_logs_each_answer(tmp_path):
    t = forced(parts(tmp_path, credit='telescoped'), TEXTS)
    before = {k:v.clone() for k,v in t.model.state_dict().items()}
    after,h = run(t)
    assert any(not torch.equal(before[k], after[k]) for k in before)
    for row in h[:2]: assert {'answers/entropy_1','answers/entropy_2','answers/ew_best_at_8','answers/diversity_l1','answers/pool_size'} <= set(row)
    assert 0<h[0]['answers/entropy_1']<=torch.tensor(len(t.processing_class)*1.).log()
    assert t._logs['advantages'] and len(t._logs['advantages'])==len(t._logs['completion'])

def test_unpatched_trainer_takes_the_set_reward(tmp_path):
    t = parts(tmp_path, GRPOTrainer, GRPOConfig, steps=2)
    _,h = run(t)
    assert {'answers/component_0','answers/component_1','answers/pool_size','answers/duplicate'} <= set(h[0])

def test_weights_change_with_the_step_and_agree_between_processes():
    a,b = SetReward(scorer, M, seed=3),SetReward(scorer, M, seed=3)
    assert torch.equal(a.weights(2, 5), b.weights(2, 5)) and not torch.equal(a.weights(2, 5), a.weights(2, 6))
    assert torch.equal(a.prompt_weights(['x','y'], 3, 1)[0], b.prompt_weights(['x'], 3, 1)[0])

@pytest.mark.parametrize('kw,word', [(dict(advantage='vppo'),'vppo'), (dict(credit='telescope'),'telescope'), (dict(credit='telescoped', credit_scale='pos'),'pos'), (dict(credit='telescoped', advantage='grpo'),'grpo'),
    (dict(credit='telescoped', credit_least_std=-1.),'credit_least_std=-1'), (dict(credit='telescoped', credit_offset=float('nan')),'credit_offset=nan')])
def test_bad_switches_are_named(tmp_path, kw, word):
    with pytest.raises(ValueError, match=word): parts(tmp_path, **kw)

def test_switch_without_a_set_reward(tmp_path):
    with pytest.raises(ValueError, match='SetReward'): parts(tmp_path, credit='telescoped', reward=lambda completions, **_: [0.]*len(completions))

def test_untested_trl_is_refused():
    check_trl('1.16.3')
    for v in ('1.15.9','1.17.0','2.0'):
        with pytest.raises(ImportError, match=v.replace('.',r'\.')): check_trl(v)

def test_nan_scores_and_empty_rollouts_are_normal_input(shared, step):
    bad = lambda text, **_: [float('nan'),0.] if 'b' in text else scorer(text)
    out = step(['','<answer_1> b </answer_1>','<answer_1> a </answer_1>','<answer_1> a a'], SetReward(bad, M, d=2, k=16), credit='telescoped')
    assert torch.isfinite(out['advantages']).all() and shared._metrics['train']['answers/unscorable'][-1]==.25

SPLIT = '''
import sys; sys.path.insert(0, {tests!r})
import torch; torch.set_num_threads(1)
import test_trainer as tt
from pathlib import Path
t = tt.parts(Path({out!r})/sys.argv[1], credit='telescoped'); rank = t.accelerator.process_index; n = tt.B*tt.G//2
assert t.accelerator.num_processes==2
out = tt.iter_step(tt.forced(t, tt.TEXTS, rank*n), rank*n, n)
torch.save(out['advantages'], Path({out!r})/f'adv_{{rank}}.pt')
'''
@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
@pytest.mark.timeout(600)
def test_a_group_split_over_two_processes_gets_the_same_advantages(tmp_path):
    two_processes(SPLIT.format(tests=str(Path(__file__).parent), out=str(tmp_path)), tmp_path)
    one = iter_step(forced(parts(tmp_path, credit='telescoped'), TEXTS))['advantages']
    two = [torch.load(tmp_path/f'adv_{r}.pt') for r in (0,1)]   # each is as wide as its own longest completion
    for i in range(B*G):
        t = two[i//(B*G//2)][i%(B*G//2)]
        assert torch.allclose(one[i,:len(t)], t[:one.shape[1]], atol=1e-6)
    assert one.abs().max()>.1
