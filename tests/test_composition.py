"Sets, exploration and experts in one trainer: each switch works beside the others, and a resumed run has its experts"
import itertools, json
from pathlib import Path
import pytest, torch
pytest.importorskip('trl')
from diverse_rl.policy import PolicyConfig, make_mazes_for, make_policy, make_tokenizer
from diverse_rl.recipes import make_recipe, recipe_dict
from diverse_rl.reward import SetReward
from diverse_rl.run import evaluate_arm, expert_row, read_json, train_arm
from diverse_rl.trainer import DiverseGRPOConfig, DiverseGRPOTrainer
from test_trainer import B, G, M, T, TEXTS, WORDS, forced, scorer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

VPO = dict(credit='telescoped')
EDO = dict(exploration='cover', exploration_coef=.3, snapshot_every=8)
VP2O = dict(transport=True, orthogonality_coef=.1, routing_diversity_coef=.01, anchor_budget=.3, behaviour_kl=.05, behaviour_ess=.5, max_reuse=3)
LOGS = dict(vpo='answers/diversity_l1', edo='exploration/kl_previous', transport='transport/', routing='routing/orthogonality', anchor='trust/angle_max', behaviour='trust/syncs')

def parts(tmp, cls=DiverseGRPOTrainer, cfg=DiverseGRPOConfig, steps=4, m=M, seed=0, **kw):
    "A tiny trainer on a policy with four experts"
    tok = make_tokenizer(WORDS); model = make_policy(PolicyConfig(hidden=16, layers=2, heads=2, kv_heads=1, mlp=16, experts=4), tok)
    data = Dataset.from_dict(dict(prompt=[f'go {a} {b}' for a in 'abcd' for b in 'abcd'][:steps*B]))
    args = cfg(output_dir=str(tmp), per_device_train_batch_size=B*G, num_generations=G, max_completion_length=T, max_steps=steps, learning_rate=1e-2, seed=seed, shuffle_dataset=False, report_to='none', logging_steps=1,
               save_strategy='no', use_cpu=True, bf16=False, disable_tqdm=True, dataloader_pin_memory=False, gradient_checkpointing=False, router_aux_loss_coef=0., **kw)
    return cls(model=model, processing_class=tok, reward_funcs=SetReward(scorer, m, tag='answer' if m>1 else None, d=2, k=16), args=args, train_dataset=data)

def trained(t):
    t.train(); return {k:v.clone() for k,v in t.model.state_dict().items()}

def test_all_off_is_stock_on_a_mixture_of_experts_too(tmp_path):
    a,b,c = (trained(parts(tmp_path/n, *x, m=1, **kw)) for n,x,kw in (('a',(GRPOTrainer,GRPOConfig),{}), ('b',(),{}), ('c',(),dict(transport=True))))
    assert all(torch.equal(a[k], b[k]) for k in a) and any(not torch.equal(a[k], c[k]) for k in a)

@pytest.mark.parametrize('vpo,edo,vp2o', list(itertools.product([False,True], repeat=3)))
def test_every_combination_runs_and_logs_what_is_on(tmp_path, vpo, edo, vp2o):
    t = forced(parts(tmp_path, **(VPO if vpo else {}), **(EDO if edo else {}), **(VP2O if vp2o else {})), TEXTS); before = {k:v.clone() for k,v in t.model.state_dict().items()}; after = trained(t)
    seen = {k for h in t.state.log_history for k in h}
    on = dict(vpo=True, edo=edo, transport=vp2o, routing=vp2o, anchor=vp2o, behaviour=vp2o)
    assert {k:any(s.startswith(v) for s in seen) for k,v in LOGS.items()}==on
    assert any(not torch.equal(before[k], after[k]) for k in before) and all(torch.isfinite(v).all() for v in after.values())
    assert any('answers/entropy_2' in h for h in t.state.log_history)==vpo       # credit per answer
    assert (t.snapshot is not None)==edo and (t.transport is not None)==vp2o and (t.anchors is not None)==vp2o
    assert not vp2o or t.anchors.prototypes is t.transport.prototypes             # one power iteration for both

TOY = dict(name='experts', task=dict(n=4), policy=dict(hidden=16, layers=1, heads=2, kv_heads=1, mlp=16, experts=4, mazes=4, long=2, rounds=1), train=dict(steps=4, prompts=2, group=4, answers=2, nodes=16, lr=1e-2, entropy_coef=.05, save_every=2),
    evaluate=dict(mazes=4, pool=4, nodes=16, bootstrap=50), arms=dict(grpo=dict(method='grpo'), balance=dict(method='grpo', experts=dict(load_balance=.01)),
        all=dict(method='vpo', credit='telescoped', exploration='cover', exploration_coef=.3, snapshot_every=6, experts=dict(transport=True, orthogonality_coef=.1, routing_diversity_coef=.01, anchor_budget=.3, behaviour_kl=.05, max_reuse=2))))

def test_one_recipe_with_everything_is_measured(tmp_path):
    r = make_recipe(TOY); assert make_recipe(recipe_dict(r))==r
    outs = {a:train_arm(r, a, 0, tmp_path, progress=False) for a in r.arms}
    pools = {a:evaluate_arm(r, a, 0, tmp_path) for a in r.arms}
    for a in r.arms:
        row = expert_row(r, a, [0], tmp_path, [read_json(outs[a]/'log.json')])
        assert 0<=row['prototype_overlap'][0]<=1 and 0<=row['output_overlap'][0]<=1 and 0<=row['token_routing_entropy'][0]<=row['routing_entropy'][0]+1e-6<=1.3863+1e-5 and row['reward_drop'][0]>=0
    assert expert_row(r, 'grpo', [0], tmp_path, [read_json(outs['grpo']/'log.json')])['syncs']==[4] and expert_row(r, 'all', [0], tmp_path, [read_json(outs['all']/'log.json')])['syncs'][0]<4
    assert any('aux_loss' in k for h in read_json(outs['balance']/'log.json')['history'] for k in h) and not any('aux_loss' in k for h in read_json(outs['grpo']/'log.json')['history'] for k in h)

@pytest.mark.parametrize('arm', ['grpo','all'])
def test_a_resumed_run_has_its_experts(tmp_path, arm, monkeypatch):
    "Stopped in step 3 of 4 and resumed from step 2. With a behaviour budget a resumed run samples anew, so only its start can be compared"
    import diverse_rl.run as R
    from diverse_rl.policy import load_policy
    r = make_recipe(TOY); whole = train_arm(r, arm, 0, tmp_path/'whole', progress=False); write,give,given = R.write_json,R.give_weights,[]
    def dark(path, obj):
        if Path(path).name=='progress.json' and obj['step']==3: raise KeyboardInterrupt
        write(path, obj)
    monkeypatch.setattr(R, 'write_json', dark)
    with pytest.raises(KeyboardInterrupt): train_arm(r, arm, 0, tmp_path/'cut', progress=False)
    last = R.last_checkpoint(tmp_path/f'cut/experts/{arm}/seed0'); kept = load_policy(last)[0].state_dict()
    def note(model, other): give(model, other); given.append({k:v.clone() for k,v in model.state_dict().items()})
    monkeypatch.setattr(R, 'write_json', write); monkeypatch.setattr(R, 'give_weights', note)
    out = train_arm(r, arm, 0, tmp_path/'cut', resume=True, progress=False)
    a,b,start = (load_policy(o)[0].state_dict() for o in (whole/'model', out/'model', next((tmp_path/'cut/_warm').iterdir())))
    moved = lambda x: max(float((x[k]-start[k]).abs().max()) for k in x if 'experts' in k)
    assert last.endswith('checkpoint-2') and len(given)==1 and all(torch.equal(given[0][k], kept[k]) for k in kept) and moved(kept)>1e-3 and moved(b)>1e-3
    if arm=='grpo': assert all(torch.equal(a[k], b[k]) for k in a)
