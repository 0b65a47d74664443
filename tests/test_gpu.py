"The code paths of the GPU notebooks at toy size: no network, adapters, frozen layers, rounds of pairs, what a cut run comes to"
import ast, json, re, socket
from dataclasses import asdict, replace
from pathlib import Path
import numpy as np, pytest, torch
import diverse_rl.run as running
from diverse_rl.gpu import *
from diverse_rl.maze import make_maze, score_text
from diverse_rl.policy import score_route
from diverse_rl.run import read_json
from diverse_rl.sizing import Plan

root = Path(__file__).parents[1]
DENSE = Plan('toy-qwen2', lora_rank=4, prompts=2, group=4, prompt_tokens=90, answer_tokens=12, micro=4, steps=2, weights='float32')
MOE = replace(DENSE, model='toy-olmoe', lora_rank=0)
COLD = dict(steps=20, batch=8, lr=1e-2)

@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(self, address, *a): raise AssertionError(f'a connection to {address}')
    for name in ('connect','connect_ex'): monkeypatch.setattr(socket.socket, name, refuse)

@pytest.fixture
def sums(tmp_path): return dict(data=toy_questions(tmp_path/'sums'), tokens=12)
def questions(sums, name='q', plan=DENSE, **kw):
    return Experiment('gsm8k', name, 'c', plan, **{**dict(arms=dict(grpo=dict(method='grpo')), task=sums, evaluate=dict(mazes=3, pool=4, nodes=16, bootstrap=20), cold=COLD, train=dict(lr=1e-3)), **kw})

def test_the_network_is_refused():
    with pytest.raises(AssertionError, match='a connection'): socket.create_connection(('127.0.0.1', 9))

def test_a_comparison_of_mazes(tmp_path):
    p = replace(DENSE, model='toy-qwen3', answers=2, answer_tokens=24)
    e = Experiment('maze', 'm', 'c', p, arms=dict(grpo=dict(method='grpo'), vpo=dict(method='vpo', credit='telescoped')), task=dict(n=4), evaluate=dict(mazes=2, pool=4, nodes=16, bootstrap=20), cold=dict(steps=4, batch=4, lr=1e-2))
    res = run_experiment(e, tmp_path, progress=False)
    assert [a['answers'] for a in res['arms'].values()]==[1,2] and (tmp_path/'m/report.html').exists()
    h = read_json(tmp_path/'m/vpo/seed0/log.json')['history']; assert len(h)==2 and 'answers/ew_best_at_8' in h[0]
    assert running.work_of(e.recipe).__class__.__name__=='MazeWork'                     # given back

def test_experts_of_the_last_layer_alone(tmp_path, sums):
    e = questions(sums, plan=replace(MOE, last_layers=1), arms=dict(vp2o=dict(method='grpo', experts=dict(transport=True, orthogonality_coef=.1, routing_diversity_coef=.01, behaviour_kl=.02, max_reuse=2))))
    res = run_experiment(e, tmp_path, progress=False); work = experiment_work(e)
    before,after = (work.load(p)[0].state_dict() for p in (work.start(tmp_path), tmp_path/'q/vp2o/seed0/model'))
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved and all('layers.1.mlp.experts' in n for n in moved)
    assert 0<=res['arms']['vp2o']['experts']['prototype_overlap'][0]<=1 and 'experts of the last 1 layers' in (tmp_path/'q/README.md').read_text()
    assert 'transport/overlap' in read_json(tmp_path/'q/vp2o/seed0/log.json')['history'][0]

def test_adapters_are_put_on_the_policy_they_were_trained_on(tmp_path, sums):
    e = questions(sums); out = train_gpu(e, 'grpo', 0, tmp_path, progress=False); work = experiment_work(e); base,tok = work.load(work.start(tmp_path)); model,_ = work.load(out/'model')
    ids = tok('Tom has', return_tensors='pt').input_ids
    assert (out/'model/adapter_model.safetensors').exists() and not (out/'model/model.safetensors').exists()
    assert not torch.equal(base(ids).logits, model(ids).logits)

def test_rounds_of_pairs_go_on_where_they_were_cut(tmp_path, sums):
    import shutil
    from safetensors.torch import load_file
    pairs = dict(rounds=2, prompts=6, samples=6, batch=2, micro=2, lr=1e-3)
    e = questions(sums, 'p', arms=dict(ed=dict(method='ed_idpo', exploration_coef=.3)), dpo=pairs, train=dict(steps=4))
    out = train_gpu(e, 'ed', 0, tmp_path, progress=False); f = out/'model/model.safetensors'; once = load_file(f)
    log = read_json(out/'log.json'); assert len(log['history'])==2 and log['generated_tokens']>0
    (out/'log.json').unlink(); shutil.rmtree(out/'model')
    (out/'rounds/round_02/round.json').unlink()
    assert train_gpu(e, 'ed', 0, tmp_path, progress=False)==out
    again = load_file(f); assert all(torch.equal(once[k], again[k]) for k in once)
    start = load_file(experiment_work(e).start(tmp_path)/'model.safetensors'); assert any(not torch.equal(start[k], once[k]) for k in once)
    with pytest.raises(ValueError, match='previous'): train_gpu(replace(e, name='z', dpo=dict(pairs, reference='initial')), 'ed', 0, tmp_path, progress=False)

def test_a_finished_run_of_other_settings_is_refused(tmp_path, sums):
    e = questions(sums); train_gpu(e, 'grpo', 0, tmp_path, progress=False)
    with pytest.raises(ValueError, match='other settings'): train_gpu(replace(e, train=dict(lr=2e-3)), 'grpo', 0, tmp_path, progress=False)
    assert train_gpu(replace(e, plan=replace(DENSE, vllm=True)), 'grpo', 0, tmp_path, progress=False)      # how it samples is no setting of the experiment

def test_an_experiment_is_one_file(tmp_path, sums):
    e = questions(sums, seeds=(0,3)); save_experiment(e, tmp_path/'e.json')
    assert load_experiment(tmp_path/'e.json')==e
    with pytest.raises(ValueError, match="kind='chess'"): replace(e, kind='chess').recipe
    assert main([])==2

def test_routes_are_spelled_as_the_report_reads_them():
    rng = np.random.default_rng(0)
    for i in range(40):
        z = make_maze(i, n=4); text = ' '.join(rng.choice(list('UDLR'), z.budget))
        v = score_text(z, text)
        if v.any(): assert (score_route(z, spelled(z, text))==v).all()
    assert spelled(z, 'no route')=='no route'
    from diverse_rl.policy import teacher_walks
    for w in teacher_walks(z, 5, rng): assert (score_route(z, spelled(z, ' '.join(w)))==score_text(z, ' '.join(w))).all() and score_text(z, ' '.join(w))[0]==1

def test_scorer_and_vector_agree(tmp_path, sums):
    w = experiment_work(questions(sums)); i = w.held_out()[0]
    for t in (f"#### {i['gold']}", 'nothing', '#### 999'): assert w.vector(i, t)==list(w.scorer()(t, **w.row(i)))
    m = experiment_work(Experiment('maze', 'm', 'c', replace(DENSE, answers=2), arms=dict(vpo=dict(method='vpo')), task=dict(n=4), evaluate=dict(mazes=2, pool=4))); z = m.held_out()[0]
    for t in ('D R', 'x'): assert m.vector(z, t)==m.scorer()(t, **m.row(z))

def test_without_peft_the_error_says_how_to_get_it(monkeypatch):
    import diverse_rl.gpu as gpu
    monkeypatch.setattr(gpu, 'find_spec', lambda n: None)
    with pytest.raises(ImportError, match='pip install peft'): gpu.trainable(torch.nn.Linear(2, 2), DENSE)

@pytest.mark.parametrize('name', ['40_gpu_vpo','41_gpu_edo','42_gpu_vp2o'])
def test_only_the_size_differs_and_no_magics(name):
    cells = [''.join(c['source']) for c in json.loads((root/f'nbs/{name}.ipynb').read_text())['cells'] if c['cell_type']=='code']
    src = '\n'.join(cells); ast.parse(src)
    assert len(re.findall(r'^SIZE = ', src, re.M))==1 and 'SIZE = "auto" if COLAB else "toy"' in src and not re.search(r'^\s*[%!]', src, re.M)
    tree = ast.parse(next(c for c in cells if c.startswith('SIZES')))
    sizes = [k.value for o in ast.walk(tree) if isinstance(o, ast.Dict) for k in o.keys]
    assert sizes[-1]=='toy' and len(sizes)>=4

@pytest.mark.parametrize('cold', [{}, dict(steps=2, batch=4, lr=1e-3)])
def test_the_path_of_hub_weights_with_a_folder_in_the_place_of_the_id(tmp_path, monkeypatch, cold):
    "Everything but the download: pretrained weights, adapters in the supervised start, merged, checkpointed, thinking off"
    from diverse_rl.gpu import _texts
    from diverse_rl.sizing import SHAPES
    p = replace(DENSE, model='toy-qwen3', answers=2, answer_tokens=16); e = Experiment('maze', 'h', 'c', p, arms=dict(vpo=dict(method='vpo', credit='telescoped')), task=dict(n=4), evaluate=dict(mazes=2, pool=2, nodes=16, bootstrap=20), cold=cold)
    model,tok = toy_model(p, _texts(experiment_work(e))); model.save_pretrained(tmp_path/'hub'); tok.save_pretrained(tmp_path/'hub')
    monkeypatch.setitem(SHAPES, 'local', replace(SHAPES['toy-qwen3'], name='local', hub=str(tmp_path/'hub')))
    e = replace(e, plan=replace(p, model='local')); run_experiment(e, tmp_path/'runs', progress=False)
    w = experiment_work(e); start = w.start(tmp_path/'runs'); after = w.load(start)[0].state_dict(); before = model.state_dict()
    assert (str(start)==str(tmp_path/'hub'))==(not cold) and any(not torch.equal(before[k], after[k]) for k in before)==bool(cold)
    assert f'base_model: {tmp_path}/hub' in (tmp_path/'runs/h/README.md').read_text()
    assert gpu_args(e, 'vpo', 0, tmp_path/'x', w).activation_checkpointing

def test_thinking_is_off_wherever_a_prompt_is_read(tmp_path, sums):
    from diverse_rl.pretrained import chat_text
    from diverse_rl.run import as_text
    w = experiment_work(questions(sums)); start = w.start(tmp_path, False); tok = w.load(start)[1]; q = w.question(w.held_out()[0]); plain = as_text(tok, q)
    tok.chat_template += '{% if enable_thinking is defined and enable_thinking is false %}quiet{% endif %}'; tok.save_pretrained(start)
    again = w.load(start)[1]
    assert as_text(again, q)==chat_text(again, q)==plain+'quiet' and again.chat_template==tok.chat_template

def test_a_cache_no_larger_than_counted(tmp_path, sums):
    "Evaluation samples hundreds of rows: with hub weights only as many tokens at a time as the plan's rollouts, with the same answers"
    e = questions(sums); start = experiment_work(e).start(tmp_path, False); plain,tok = experiment_work(e).load(start)
    model,_ = experiment_work(replace(e, plan=replace(DENSE, model='Qwen2.5-0.5B'))).load(start); rows = []        # 8 rollouts of 90 + 12 tokens
    x = tok(['1 + 2', 'Tom has 3 apples']*7, return_tensors='pt', padding=True, return_token_type_ids=False)
    hook = model.register_forward_pre_hook(lambda m, a, kw: rows.append(len(kw['input_ids'])), with_kwargs=True)
    got,want = (m.generate(**x, max_new_tokens=90, do_sample=False) for m in (model, plain)); hook.remove(); most = 8*102//(x.input_ids.shape[1]+90)
    text = lambda y: tok.batch_decode(y[:,x.input_ids.shape[1]:], skip_special_tokens=True)
    assert 'generate' not in plain.__dict__ and max(rows)==most<14 and len(got)==14 and text(got)==text(want)
