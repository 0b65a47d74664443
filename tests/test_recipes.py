"Recipes: what cannot be run is refused before anything is computed, by key, value and remedy"
import copy, math, time
from dataclasses import fields, replace
from pathlib import Path
import pytest, yaml
from hypothesis import given, settings, strategies as st
from diverse_rl.advantages import ADVANTAGES
from diverse_rl.credit import CREDITS, SCALES
from diverse_rl.policy import PolicyConfig, make_mazes_for
from diverse_rl.recipes import LOSSES, ArmConfig, EvalConfig, Recipe, RecipeError, TaskConfig, TrainConfig, check_task, fingerprint, load_recipe, make_recipe, recipe_dict

root = Path(__file__).parents[1]
GOOD = dict(name='good', arms=dict(one=dict(method='grpo'), many=dict(method='vpo', credit='telescoped')))

def changed(path, value):
    "The good recipe with one key, given as a dotted path, set"
    d = copy.deepcopy(GOOD); *up,last = path.split('.'); at = d
    for k in up: at = at.setdefault(k, {})
    at[last] = value
    return d

def refused(d):
    with pytest.raises(RecipeError) as e: make_recipe(d)
    return str(e.value)

# ---- unknown keys

@pytest.mark.parametrize('path,near', [('trian',"'train'"), ('train.step',"'steps'"), ('task.item',"'items'"), ('policy.layer',"'layers'"), ('evaluate.maze',"'mazes'"), ('arms.one.credt',"'credit'"), ('arms.many.train.lrr',"'lr'")])
def test_unknown_keys_are_named_with_the_nearest(path, near):
    said = refused(changed(path, 1))
    assert path in said and near in said and 'known keys' in said

@pytest.mark.parametrize('path', ['zzzzzz','train.zzzzzz','task.zzzzzz','policy.zzzzzz','evaluate.zzzzzz','arms.one.zzzzzz','arms.one.train.zzzzzz'])
def test_unknown_keys_without_a_neighbour(path): assert path in (said := refused(changed(path, 1))) and 'did you mean' not in said

# ---- impossible values

WHOLE = {f'{s}.{f.name}' for s,c in dict(train=TrainConfig, evaluate=EvalConfig, policy=PolicyConfig).items() for f in fields(c) if f.type is int}
REAL = {f'{s}.{f.name}' for s,c in dict(train=TrainConfig, evaluate=EvalConfig, policy=PolicyConfig).items() for f in fields(c) if f.type is float}
FREE = {'train.entropy_coef'}                        # any finite number

@pytest.mark.parametrize('path', sorted(WHOLE))
@pytest.mark.parametrize('value', [-1, 2.5, '3', True, None, [1]], ids=repr)
def test_whole_numbers(path, value): assert path in refused(changed(path, value))

@pytest.mark.parametrize('path', sorted(REAL))
@pytest.mark.parametrize('value', [-1., math.nan, math.inf, 'fast', True, None], ids=repr)
def test_real_numbers(path, value):
    if path in FREE and value==-1.: assert make_recipe(changed(path, value))
    else: assert path in refused(changed(path, value))

ZERO = {'train.warmup','evaluate.seed','policy.seed','policy.long','policy.rounds','policy.experts','train.weight_decay','train.beta','train.entropy_coef','train.max_grad_norm'}
@pytest.mark.parametrize('path', sorted(WHOLE|REAL))
def test_zero_is_refused_unless_it_means_something(path):
    if path in ZERO: assert make_recipe(changed(path, 0))
    else: assert path in refused(changed(path, 0))

OTHER = [('train.loss','dapoo',"'dapo'"), ('train.loss','vespo','choose one of'), ('train.node_method','sobl',"'sobol'"), ('train.answers',9,'8 answers'), ('train.tokens',0,'positive budget'), ('train.tokens',5.5,'whole number or nothing'),
    ('train.max_k',0,'at least 1'), ('train.group',1,'at least 2'), ('evaluate.mazes',1,'at least 2'), ('evaluate.level',1.,'between 0 and 1'), ('evaluate.level',95,'between 0 and 1'), ('evaluate.pool',10,'multiple of the 3 answers'),
    ('evaluate.seed',100,'training with seed 0'), ('evaluate.seed',2000,'warm start'),
    ('task.n',3,'4 to 12'), ('task.n',13,'4 to 12'), ('task.n','5','whole number'), ('task.items',[2,1],'low <= high'), ('task.items',[1],'two whole numbers'), ('task.items',[1.,2.],'two whole numbers'), ('task.items',3,'list or nothing'),
    ('task.items',[0,2],'items'), ('task.slack',-1,'at least 0'), ('task.lava',-1,'lava'), ('task.components','colinear',"'collinear'"),
    ('policy.hidden',90,'multiple'), ('policy.hidden',12,'even number'), ('policy.kv_heads',3,'divisor'), ('policy.heads',0,'at least 1'), ('policy',dict(long=0, rounds=0),'nothing to learn from'),
    ('arms.one.method','grppo',"'grpo'"), ('arms.one.method','goal_grpo','random_weight_grpo'), ('arms.one.credit','shared','needs method vpo'), ('arms.many.credit','telescope',"'telescoped'"), ('arms.many.credit_scale','grup',"'group'"),
    ('arms.one.train',[1],'mapping'), ('arms.one.train',None,'mapping'), ('arms.one','grpo','mapping'), ('arms.many.train',dict(answers=2),'recipe of its own'), ('arms.one.label',5,'text or nothing'), ('arms.one.label','many','more than once'),
    ('arms',{},'arms is missing'), ('arms',['grpo'],'mapping'), ('seeds',[],'seeds'), ('seeds',[0,0],'different'), ('seeds',[-1],'from 0 on'), ('seeds',[True],'seeds'), ('seeds',3,'list of whole numbers'), ('seeds','012','list of whole numbers'),
    ('name','','cannot name a folder'), ('name','../up','cannot name a folder'), ('name','_warm','cannot name a folder'), ('name',7,'text'), ('train',None,'mapping'), ('policy',[],'mapping'), ('claim',['a'],'text or nothing')]

@pytest.mark.parametrize('path,value,remedy', OTHER, ids=lambda v: str(v)[:24])
def test_impossible_values(path, value, remedy):
    said = refused(changed(path, value))
    assert path.split('.')[-1] in said and remedy in said, said

@pytest.mark.parametrize('method,k,ok', [('max_at_k',24,True), ('max_at_k',25,False), ('pkpo',23,True), ('pkpo',24,False), ('sloo_minus_one',1,False), ('sloo_minus_one',2,True), ('grpo',99,True)])
def test_k_fits_the_group(method, k, ok):
    d = dict(GOOD, arms=dict(a=dict(method=method, train=dict(max_k=k))))       # G*M = 24 rollouts
    if ok: assert make_recipe(d)
    else: assert f'max_k={k}' in (said := refused(d)) and '24 rollouts' in said

def test_lattice_wants_a_size_that_exists_and_alpha_one():
    assert make_recipe(dict(GOOD, train=dict(node_method='lattice', nodes=120)))
    assert '120' in refused(dict(GOOD, train=dict(node_method='lattice', nodes=128))) and 'sobol' in refused(dict(GOOD, train=dict(node_method='lattice', nodes=120, alpha=2)))

@pytest.mark.parametrize('d', [None, [], 'name: a', 3])
def test_a_recipe_is_a_mapping(d): assert 'mapping' in refused(d)

def test_missing_parts(): assert 'name is missing' in refused(dict(arms=GOOD['arms'])) and 'arms is missing' in refused(dict(name='a'))

@pytest.mark.parametrize('name', ['a/b','..','.a','a b','',3,None])
def test_arms_name_folders(name): assert 'cannot name a folder' in refused(dict(GOOD, arms={name:{}}))

def test_nothing_is_computed_before_a_refusal(monkeypatch):
    import diverse_rl.maze as maze
    monkeypatch.setattr(maze, 'make_maze', lambda *a, **k: pytest.fail('a maze was drawn'))
    t = time.perf_counter(); refused(changed('train.steps', 0)); assert time.perf_counter()-t<.2

# ---- what is accepted

def test_every_method_credit_and_scale_can_be_named():
    arms = {m:dict(method=m) for m in ADVANTAGES if m!='goal_grpo'} | {f'v{i}':dict(credit=c, credit_scale=s) for i,(c,s) in enumerate((c,s) for c in CREDITS for s in SCALES)}
    r = make_recipe(dict(GOOD, arms=arms))
    assert len(r.arms)==len(arms) and all(r.answers_of(a)*r.group_of(a)==24 for a in arms)          # equally many answers per maze

@pytest.mark.parametrize('text', ['3e-4','3E-4','.5','1e-05'])
def test_yaml_exponents_are_numbers(text):
    d = yaml.safe_load(f'{{name: a, train: {{lr: {text}, beta: {text}}}, policy: {{lr: {text}}}, arms: {{a: {{train: {{lr: {text}}}}}}}}}'); r = make_recipe(d)
    assert r.train.lr==r.train.beta==r.policy.lr==r.train_of('a').lr==float(text)

def test_overrides_reach_their_arm_only():
    r = make_recipe(dict(GOOD, arms=dict(a=dict(train=dict(lr=1, temperature=2)), b={}, c=None)))
    assert (r.train_of('a').lr,r.train_of('a').temperature)==(1.,2.) and r.train_of('b')==r.train_of('c')==r.train and r.arms['c']==ArmConfig()

def test_the_input_is_left_alone():
    d = copy.deepcopy(GOOD); make_recipe(d); assert d==GOOD

SOME = st.fixed_dictionaries({}, optional=dict(
    seeds=st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True), claim=st.text(max_size=20),
    task=st.fixed_dictionaries({}, optional=dict(n=st.integers(4, 12), lava=st.integers(0, 2), slack=st.integers(0, 3), components=st.sampled_from(['all','collinear']))),
    policy=st.fixed_dictionaries({}, optional=dict(layers=st.integers(1, 5), hidden=st.sampled_from([8,16,96]), lr=st.floats(1e-6, 1.))),
    train=st.fixed_dictionaries({}, optional=dict(steps=st.integers(1, 999), group=st.integers(4, 32), tokens=st.none()|st.integers(1, 10**9), lr=st.floats(1e-9, 1.), loss=st.sampled_from(LOSSES), alpha=st.floats(.1, 9))),
    evaluate=st.fixed_dictionaries({}, optional=dict(mazes=st.integers(2, 99), pool=st.integers(1, 9).map(lambda n: 12*n), level=st.floats(.01, .99)))))

@given(SOME)
@settings(max_examples=60)
def test_round_trip_through_yaml(extra):
    r = make_recipe({**GOOD, **extra}); d = recipe_dict(r)
    again = make_recipe(yaml.safe_load(yaml.safe_dump(d)))
    assert again==r and recipe_dict(again)==d and fingerprint(recipe_dict(again))==fingerprint(d)

def test_fingerprint_sees_every_field():
    base = recipe_dict(make_recipe(GOOD)); prints = {fingerprint(base)}
    other = dict(name='b', seeds=[1], claim='c', task={**base['task'], 'lava':1}, train={**base['train'], 'lr':1.}, policy={**base['policy'], 'seed':1}, evaluate={**base['evaluate'], 'level':.5}, arms={'one':base['arms']['one']})
    for k,v in other.items(): prints.add(fingerprint({**base, k:v}))
    assert len(prints)==len(other)+1 and fingerprint(dict(reversed(base.items())))==fingerprint(base)

def test_configs_are_frozen():
    for o in (make_recipe(GOOD), TrainConfig(), TaskConfig(), EvalConfig(), ArmConfig()):
        with pytest.raises(AttributeError): setattr(o, fields(o)[0].name, 1)

# ---- tasks and files

def test_the_task_is_the_generator_of_training():
    t = TaskConfig(n=6, items=[1,2], slack=2, lava=1); z = make_mazes_for(t, 1, seed=3)[0]; c = t.config()
    assert (c.n,c.items,c.slack,c.lava)==(6,(1,2),2,(1,1)) and len(z.lava)==1 and len(z.gold) in (1,2)

def test_a_task_without_mazes_is_refused():
    check_task(TaskConfig())
    with pytest.raises(RecipeError, match='no maze in 50 draws.*lower task.items'): check_task(TaskConfig(slack=30), tries=50)

@pytest.mark.parametrize('f', sorted((root/'recipes').rglob('*.yaml')), ids=lambda f: f.stem)
def test_every_recipe_of_the_project_loads(f):
    r = load_recipe(f)
    assert r.name==f.stem and r.claim, 'named as its file, with a claim that was written down first'

def test_some_recipe_was_tested(): assert list((root/'recipes').rglob('*.yaml'))

def written(tmp_path, text, name='r.yaml'):
    f = tmp_path/name; f.write_text(text)
    with pytest.raises(RecipeError) as e: load_recipe(f)
    return str(e.value)

def test_files_that_cannot_be_read(tmp_path):
    assert 'line 3' in (s := written(tmp_path, 'name: a\narms: {a: {}}\nname: b\n')) and 'name comes twice' in s
    assert 'line 2' in written(tmp_path, 'name: [a\narms: {}\n') and 'mapping' in written(tmp_path, '')
    assert 'r.yaml' in (s := written(tmp_path, 'name: a\narms: {a: {}}\ntrain: {steps: 0}\n')) and 'train.steps=0' in s
    assert 'cannot be read' in written(tmp_path, 'name: !!python/object/apply:os.getcwd []\n')           # data only: no code is run
    with pytest.raises(RecipeError, match='no recipe at .*gone.yaml; there are: .*r.yaml'): load_recipe(tmp_path/'gone.yaml')
    with pytest.raises(RecipeError, match='no recipe'): load_recipe(tmp_path)

def test_yaml_merge_keys_still_work(tmp_path):
    f = tmp_path/'m.yaml'; f.write_text('name: m\narms:\n  a: &a {method: vpo, credit: shared}\n  b: {<<: *a, credit: telescoped}\n')
    r = load_recipe(f); assert r.arms['b']==replace(r.arms['a'], credit='telescoped')
