"Arithmetic as a second task of the same comparison: recipes, a whole comparison at toy size, and its report"
import json
from pathlib import Path
import numpy as np, pytest, yaml
pytest.importorskip('trl'); pytest.importorskip('reasoning_gym')
import toy
from diverse_rl.pretrained import make_toy
from diverse_rl.recipes import PretrainedConfig, RecipeError, load_recipe, make_recipe, recipe_dict
from diverse_rl.report import text_pictures, vote_rows
from diverse_rl.run import read_json, run_folder, train_arm, work_of

def plain(folder, **changes):
    return {**dict(name='sums', claim='none', task=dict(kind='arithmetic', tasks=['sum','letters'], tokens=12), policy=dict(source=str(folder/'model'), steps=4, batch=4, lr=1e-2, bf16=False),
        train=dict(steps=2, prompts=2, group=4, answers=1, micro=4, lr=1e-3), dpo=dict(rounds=2, prompts=3, samples=4, batch=2), evaluate=dict(mazes=4, pool=4, nodes=16, bootstrap=50),
        arms=dict(grpo=dict(method='grpo'), cover=dict(method='grpo', exploration='cover', exploration_coef=.5, snapshot_every=2), ed=dict(method='ed_idpo', exploration_coef=.5))), **changes}

@pytest.fixture(scope='module')
def done(tmp_path_factory):
    d = tmp_path_factory.mktemp('arithmetic'); make_toy(d/'model')
    (d/'sums.yaml').write_text(yaml.safe_dump(plain(d), sort_keys=False))
    toy.run('compare', d/'sums.yaml', '--out', d/'runs')
    return d

def test_a_comparison_from_the_command_line(done):
    res = read_json(done/'runs/sums/results.json')
    assert list(res['arms'])==['grpo','cover','ed'] and res['front']==1. and all(len(a['voted_at_k'])==4 and len(a['greedy'])==3 for a in res['arms'].values())
    assert 'trained' not in res and res['arms']['ed']['generated_tokens'][0]>0 and [len(a['reward']) for a in res['arms'].values()]==[2,2,2]
    page = (done/'runs/sums/report.html').read_text()
    assert 'Question <output' in page and 'right: ' in page and 'Routes' not in page and 'vote@4' in page and 'seeds and' not in page and 'questions (one seed)' in page
    pics = text_pictures(res, done/'runs/sums'); assert len(pics)==4 and list(pics[0])==['question','grpo','cover','ed'] and all('×' in p['grpo'] or 'no answer' in p['grpo'] for p in pics)
    assert [r[0] for r in vote_rows(res)]==['arm','grpo','cover','ed']

def test_the_cold_start_is_shared_and_belongs_to_one_model(done, tmp_path):
    r = load_recipe(done/'sums.yaml'); w = work_of(r); assert w.start(done/'runs', False)==next((done/'runs/_warm').glob('*/source.json')).parent
    make_toy(tmp_path/'model', seed=1); other = make_recipe(plain(tmp_path)); assert work_of(other).start(tmp_path/'runs', False).name!=w.start(done/'runs', False).name

def test_micro_batches_change_nothing_but_memory(done, tmp_path):
    r = load_recipe(done/'sums.yaml'); d = recipe_dict(r)
    for name,micro in (('whole',None),('pieces',2)):
        q = make_recipe({**d, 'name':name, 'train':{**d['train'], 'micro':micro}}); train_arm(q, 'grpo', 0, done/'runs', progress=False)
    a,b = (read_json(run_folder(make_recipe({**d, 'name':n}), 'grpo', 0, done/'runs')/'log.json')['history'] for n in ('whole','pieces'))
    assert [h['reward'] for h in a]==[h['reward'] for h in b] and np.allclose([h['grad_norm'] for h in a], [h['grad_norm'] for h in b], rtol=1e-3)

def test_an_arm_with_pairs_goes_on_where_it_was_cut(done, monkeypatch):
    import diverse_rl.dpo as D
    monkeypatch.setattr('diverse_rl.run.pair_score', lambda r: lambda text, **_: float(len(text) % 2))      # a toy gets nothing right, and would have no pairs
    make = lambda name: make_recipe({**recipe_dict(load_recipe(done/'sums.yaml')), 'name':name})
    whole = train_arm(make('pairs'), 'ed', 0, done/'runs', progress=False); real = D.train_round
    def stop(*a, **k):
        if (done/'runs/cut/ed/seed0/rounds/round_01/round.json').exists(): raise KeyboardInterrupt
        return real(*a, **k)
    monkeypatch.setattr(D, 'train_round', stop)
    with pytest.raises(KeyboardInterrupt): train_arm(make('cut'), 'ed', 0, done/'runs', progress=False)
    monkeypatch.setattr(D, 'train_round', real); left = read_json(done/'runs/cut/ed/seed0/progress.json'); assert (left['step'],left['steps'])==(1,2)
    with pytest.raises(RecipeError, match='add --resume'): train_arm(make('cut'), 'ed', 0, done/'runs', progress=False)
    with pytest.raises(RecipeError, match='other settings'): train_arm(make_recipe({**recipe_dict(make('cut')), 'dpo':dict(rounds=2, prompts=3, samples=4, batch=2, lr=.5)}), 'ed', 0, done/'runs', resume=True, progress=False)
    with monkeypatch.context() as m:
        m.setenv('WORLD_SIZE', '3')
        with pytest.raises(RecipeError, match='dpo.batch=2 pairs do not divide over 3 processes'): train_arm(make('cut'), 'ed', 0, done/'runs', resume=True, progress=False)
    out = train_arm(make('cut'), 'ed', 0, done/'runs', resume=True, progress=False); a,b = (read_json(o/'log.json') for o in (whole, out))
    assert a['history']==b['history'] and a['generated_tokens']==b['generated_tokens'] and len(a['history'])==2 and all('loss' in h for h in a['history'])
    assert (out/'model/model.safetensors').read_bytes()==(whole/'model/model.safetensors').read_bytes()

@pytest.mark.parametrize('change,said', [(dict(task=dict(kind='sudoku')),'sudoku'), (dict(task=dict(kind='arithmetic', n=5)),'task.n'), (dict(policy=dict(hidden=8)),'policy.hidden'), (dict(train=dict(answers=2), arms=dict(v=dict(method='vpo'))),'does not teach'),
    (dict(arms=dict(e=dict(method='ed_idpo'))),'ed_idpo needs'), (dict(arms=dict(e=dict(method='idpo', exploration_coef=.1))),'take none'), (dict(arms=dict(e=dict(method='grpo', dpo=dict(rounds=2)))),'arms.e.dpo'),
    (dict(arms=dict(e=dict(method='idpo', dpo=dict(round=2)))),'arms.e.dpo.round'), (dict(dpo=dict(samples=0)),'dpo.samples=0'), (dict(train=dict(steps=1, prompts=3, group=3, answers=1, micro=2)),'train.micro=2')])
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path, change, said):
    with pytest.raises(RecipeError) as e: make_recipe(plain(tmp_path, **change))
    assert said in str(e.value)

def test_too_few_questions_for_the_rounds_and_no_model(done, tmp_path):
    r = make_recipe(plain(done, name='few', dpo=dict(prompts=99)))
    with pytest.raises(RecipeError, match='dpo.prompts=99'): train_arm(r, 'ed', 0, done/'runs', progress=False)
    with pytest.raises(FileNotFoundError, match='make smollm2'): work_of(make_recipe(plain(tmp_path))).start(tmp_path, False)
    assert make_recipe(dict(name='d', task=dict(kind='arithmetic'), train=dict(answers=1), arms=dict(g=dict(method='grpo')))).policy==PretrainedConfig()
