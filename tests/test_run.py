"A comparison from one command: complete, reused, resumed to the bit, stopped in time, over two processes"
import json, os, signal, shutil, time
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, torch
pytest.importorskip('trl')
from hypothesis import given, settings as hyp, strategies as st
import toy
from diverse_rl import run as R
from diverse_rl.cli import main
from diverse_rl.maze import exact_front, from_json, to_json
from diverse_rl.policy import make_mazes_for, read_route, route_words, score_route
from diverse_rl.recipes import RecipeError, load_recipe, make_recipe, recipe_dict

@pytest.fixture(scope='session')
def done(): return toy.compared()

def timeless(history):
    "A log without what a clock says"
    return [{k:v for k,v in h.items() if not any(c in k for c in ('time','per_second'))} for h in history]

def weights(folder): return (Path(folder)/'model/model.safetensors').read_bytes()
def warm_weights(root): return next((Path(root)/'_warm').glob('*/model.safetensors')).read_bytes()

# ---- the comparison

def test_results_hold_what_others_rely_on(done):
    res = json.loads((done.run/'results.json').read_text())
    assert {'command','commit','hardware','seconds','seeds','front','arms'} <= set(res) and res['seeds']==[0] and list(res['arms'])==['grpo','vpo']
    assert 'compare' in res['command'] and 'toy.yaml' in res['command'] and res['hardware']['cores']>=1 and res['seconds']>0
    for a in res['arms'].values():
        for key in ('ew_best_at_k','best_at_k'):
            assert list(a[key])==[str(k) for k in range(1, 7)] and all(len(v)==3 and v[1]<=v[0]<=v[2]<=1+1e-9 for v in a[key].values())
        assert list(a['entropy_nats'])==list(a['diversity_l1'])==list(a['reward'])==[str(s) for s in range(1, a['steps'][0]+1)]
        assert all(v>0 for v in a['entropy_nats'].values()) and a['generated_tokens'][0]>0 and a['seconds'][0]>0
    assert res['arms']['vpo']['ew_best_training'] and 0<res['front']<=1

def test_a_table_and_a_report_come_out(done):
    lines = [l for l in done.printed.splitlines() if l.startswith(('arm','GRPO','vpo','exact front'))]
    assert len(lines)==4 and 'E_w[best@6]' in lines[0] and (done.run/'report.html').stat().st_size>10_000

def test_every_arm_stops_within_a_step_of_the_budget(done):
    for arm in ('grpo','vpo'):
        log = R.read_json(done.run/arm/'seed0/log.json'); last = log['history'][-1]['completions/mean_length']*(16 if arm=='grpo' else 8)
        assert 600<=log['generated_tokens']<600+last and len(log['history'])<6, arm

def test_the_model_moved_and_loads(done):
    from diverse_rl.policy import load_policy
    for arm in ('grpo','vpo'): assert weights(done.run/arm/'seed0')!=warm_weights(done.runs) and load_policy(done.run/arm/'seed0/model')[0].num_parameters()<20_000

def test_a_second_call_reuses_everything(done, capsys):
    kept = {p:p.stat().st_mtime_ns for p in done.runs.rglob('*') if p.is_file() and p.name not in ('results.json','report.html')}
    before = json.loads((done.run/'results.json').read_text())
    assert main(['compare', str(done.recipe), '--out', str(done.runs)])==0
    after = json.loads((done.run/'results.json').read_text())
    assert kept=={p:p.stat().st_mtime_ns for p in done.runs.rglob('*') if p.is_file() and p.name not in ('results.json','report.html')}
    assert after['arms']==before['arms'] and after['commit']==before['commit'] and after['seconds']>=before['seconds']

def test_what_is_trained_and_not_measured_is_still_to_do(done, tmp_path):
    root = tmp_path/'runs'; shutil.copytree(done.runs, root); r = load_recipe(done.recipe); assert R.jobs_of(r, root)==[]
    (root/'toy/vpo/seed0/pool.json').unlink(); assert R.jobs_of(r, root)==[('vpo',0)]
    assert R.jobs_of(replace(r, evaluate=replace(r.evaluate, mazes=5)), root)==[('grpo',0),('vpo',0)]       # other questions
    toy.run('train', done.recipe, '--arm', 'vpo', '--out', root, '--evaluate'); assert R.jobs_of(r, root)==[] and (root/'toy/vpo/seed0/pool.json').read_bytes()==(done.run/'vpo/seed0/pool.json').read_bytes()

def test_runs_of_other_settings_are_refused(done, tmp_path, capsys):
    f = toy.recipe(tmp_path, train=dict(lr=.5))
    for args in (['compare',f], ['train',f,'--arm','vpo'], ['evaluate',f,'--arm','vpo']):
        assert main([*map(str, args), '--out', str(done.runs)])==2
        err = capsys.readouterr().err
        assert 'other settings' in err and '--out' in err and err.count('\n')==1
    assert R.read_json(done.run/'vpo/seed0/log.json')['settings']==R.fingerprint(R.settings(load_recipe(done.recipe), 'vpo'))

def test_an_unfinished_run_of_other_settings_is_refused_too(tmp_path):
    r = make_recipe(toy.TOY); out = R.run_folder(r, 'vpo', 0, tmp_path); out.mkdir(parents=True)
    R.write_json(out/'progress.json', dict(step=1, settings=R.fingerprint(R.settings(r, 'vpo')))); assert R.own_folder(r, 'vpo', 0, tmp_path)==out
    with pytest.raises(RecipeError, match='other settings'): R.own_folder(replace(r, task=replace(r.task, lava=0)), 'vpo', 0, tmp_path)

def test_results_of_the_runs_that_are_finished(done, tmp_path, capsys):
    "`--finished` trains nothing: two seeds are wanted, one is there"
    root = tmp_path/'runs'; shutil.copytree(done.runs, root, ignore=shutil.ignore_patterns('checkpoint-*')); f = toy.recipe(tmp_path, seeds=[0,1])
    assert main(['compare', str(f), '--out', str(root), '--finished'])==0 and not (root/'toy/vpo/seed1').exists()
    arms = R.read_json(root/'toy/results.json')['arms']; assert [a['seeds'] for a in arms.values()]==[[0],[0]]
    shutil.rmtree(root/'toy/grpo'); assert list(R.compare(f, root, finished=True)['arms'])==['vpo']
    assert main(['compare', str(f), '--out', str(tmp_path/'empty'), '--finished'])==2 and 'without --finished' in capsys.readouterr().err

def test_a_failed_process_is_shown(tmp_path, monkeypatch, capsys):
    import subprocess, sys
    def fail(recipe, arm, seed, root, log):
        log.parent.mkdir(parents=True); log.write_text('first\nout of luck\n')
        return subprocess.Popen([sys.executable,'-c','raise SystemExit(3)'])
    monkeypatch.setattr(R, 'start_job', fail); monkeypatch.setattr(R, 'warm_folder', lambda *a: None)
    assert main(['compare', str(toy.recipe(tmp_path)), '--out', str(tmp_path/'runs'), '--workers', '1'])==1
    err = capsys.readouterr().err
    assert 'status 3' in err and 'out of luck' in err and 'Traceback' not in err

# ---- interruption

LONG = dict(train=dict(tokens=None, steps=15, save_every=5))

@pytest.fixture(scope='session')
def whole(tmp_path_factory):
    "A run that nothing interrupts"
    d = tmp_path_factory.mktemp('whole'); f = toy.recipe(d, 'long', **LONG)
    return R.train_arm(load_recipe(f), 'vpo', 0, toy.warm(d/'runs'), progress=False)

def broken_off(args, out, step, sig):
    "Send signal `sig` to a training process when its checkpoint of `step` is there; its exit status and what it said"
    p = toy.start(*args)
    toy.until(lambda: str(R.last_checkpoint(out)).endswith(f'-{step}'), p)
    p.send_signal(sig); said,_ = p.communicate(timeout=120)
    assert not (out/'log.json').exists(), 'the run ended before the signal came'
    return p.returncode,said

def test_killed_interrupted_and_resumed_gives_the_numbers_of_an_uninterrupted_run(whole, tmp_path, capsys):
    "kill -9 after step 5 (with half a checkpoint beside it), --resume, Ctrl-C after step 10, --resume"
    f = toy.recipe(tmp_path, 'long', **LONG); root = toy.warm(tmp_path/'runs'); out = root/'long/vpo/seed0'; args = ['train', f, '--arm', 'vpo', '--out', root]
    assert broken_off(args, out, 5, signal.SIGKILL)[0]==-signal.SIGKILL and R.last_checkpoint(out)
    (out/'checkpoint-99').mkdir(); (out/'checkpoint-99/trainer_state.json').write_text('{"log_history": [')
    status,said = broken_off([*args,'--resume'], out, 10, signal.SIGINT)
    assert status==130 and '--resume' in said and 'Traceback' not in said and R.last_checkpoint(out) and not (out/'checkpoint-99').exists()
    assert main(list(map(str, args)))==2 and 'unfinished run' in capsys.readouterr().err
    R.train_arm(load_recipe(f), 'vpo', 0, root, resume=True, progress=False)
    a,b = R.read_json(whole/'log.json'),R.read_json(out/'log.json')
    assert len(a['history'])==15 and timeless(a['history'])==timeless(b['history']) and a['generated_tokens']==b['generated_tokens'] and a['settings']==b['settings']
    assert weights(whole)==weights(out)!=warm_weights(root)
    assert b['seconds']>=.99*sum(h['step_time'] for h in b['history'])                                            # of all steps, not of the last process alone

ENDED = """
import subprocess, sys; from diverse_rl import cli, run
def start(recipe, arm, seed, root, log):
    p = subprocess.Popen(['sleep','600'], stdout=subprocess.DEVNULL); print(p.pid, flush=True); return p
run.start_job = start; sys.exit(cli.main())
"""
def test_a_comparison_that_is_ended_ends_its_training(tmp_path):
    root = toy.warm(tmp_path/'runs'); p = toy.start('compare', toy.recipe(tmp_path, 'long', **LONG), '--out', root, launcher=('-c', ENDED))
    pids = [int(p.stdout.readline()) for _ in range(2 if os.cpu_count()>1 else 1)]
    assert all(Path(f'/proc/{i}').exists() for i in pids) or not Path('/proc').exists()
    time.sleep(1)                                                          # it has them in its books by now
    p.send_signal(signal.SIGTERM); p.communicate(timeout=120)
    assert p.returncode==143
    for i in pids:
        with pytest.raises(ProcessLookupError): os.kill(i, 0)

@pytest.mark.parametrize('extra', [dict(), dict(exploration_coef=.1)])
def test_a_training_process_without_its_comparison_saves_and_ends(tmp_path, monkeypatch, extra):
    root = toy.warm(tmp_path); arms = {'vpo':dict(method='vpo', credit='telescoped', **extra)}
    r = make_recipe({**toy.TOY, 'name':'long', 'arms':arms, **dict(train={**toy.TOY['train'], **LONG['train']})})
    monkeypatch.setenv('DIVERSE_RL_BOSS', str(os.getpid()))                # not the parent of this process
    with pytest.raises(SystemExit) as e: R.train_arm(r, 'vpo', 0, root, progress=False)
    out = R.run_folder(r, 'vpo', 0, root); last = R.last_checkpoint(out)
    assert e.value.code==143 and last.endswith('-1') and not (out/'log.json').exists() and (Path(last)/'snapshot.safetensors').exists()==bool(extra)
    monkeypatch.setenv('DIVERSE_RL_BOSS', str(os.getppid())); assert not R.orphaned()

def test_switches_that_are_off_do_not_make_a_run_stale():
    base = dict(method='vpo', credit='telescoped')
    of = lambda **kw: R.settings(make_recipe({**toy.TOY, 'arms':{'a':{**base, **kw}}}), 'a')
    assert of()==of(label='other')==of(exploration='repel', snapshot_every=7) and of(credit=None)==of(credit=None, credit_scale='batch')
    assert of()!=of(credit_scale='batch') and of(exploration_coef=.1)!=of() and of(exploration_coef=.1, exploration='cover')!=of(exploration_coef=.1, exploration='repel')
    assert 'exploration' in of(exploration_coef=.1)['arm']                    # a default that changes later makes such a run stale

def test_one_process_per_folder(tmp_path, capsys):
    f = toy.recipe(tmp_path); out = tmp_path/'runs/toy/vpo/seed0'; out.mkdir(parents=True)
    with R.only_one(out): assert main(['train', str(f), '--arm', 'vpo', '--out', str(tmp_path/'runs')])==2
    assert f'process {os.getpid()}' in capsys.readouterr().err

def test_a_run_cut_between_its_last_checkpoint_and_its_log_is_only_saved(done, tmp_path):
    root = tmp_path/'runs'; shutil.copytree(done.runs, root); out = root/'toy/grpo/seed0'
    before,log = weights(out),R.read_json(out/'log.json')
    shutil.rmtree(out/'model'); (out/'log.json').unlink()
    R.train_arm(load_recipe(done.recipe), 'grpo', 0, root, resume=True, progress=False)
    assert before==weights(out) and timeless(log['history'])==timeless(R.read_json(out/'log.json')['history'])

def test_newest_complete_checkpoint(tmp_path):
    for s,text in ((9,'{"a": 1}'), (25,'{"a": 1}'), (100,'{"a"'), (200,None)):
        (tmp_path/f'checkpoint-{s}').mkdir()
        if text: (tmp_path/f'checkpoint-{s}/trainer_state.json').write_text(text)
    assert R.last_checkpoint(tmp_path)==str(tmp_path/'checkpoint-25') and R.last_checkpoint(tmp_path/'nowhere') is None

# ---- two processes

@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
def test_two_processes_train_one_policy(done, tmp_path):
    f = toy.recipe(tmp_path, 'pair', train=dict(tokens=None, steps=3)); root = tmp_path/'runs'
    said = toy.run('train', f, '--arm', 'vpo', '--out', root, launcher=('-m','torch.distributed.run','--standalone','--nproc_per_node','2','-m','diverse_rl.cli'))
    logs = list(root.rglob('log.json')); log = R.read_json(logs[0])
    assert len(logs)==1 and [h['step'] for h in log['history']]==[1,2,3] and said.count('trained:')==1
    mean = [h['completions/mean_length'] for h in log['history']]; assert log['generated_tokens']==round(8*sum(mean))        # 8 rollouts in all, not per process
    assert warm_weights(done.runs)==warm_weights(root)!=weights(logs[0].parent)                                   # one warm start, as one process makes it

BY_LENGTH = "import sys\nfrom diverse_rl import cli, run\nrun.pair_score = lambda r: lambda text, **_: float(len(text) % 2)\nsys.exit(cli.main())\n"      # a toy reaches no exit, and would have no pairs
@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
def test_two_processes_train_one_policy_in_rounds(done, tmp_path):
    f = toy.recipe(tmp_path, 'rounds', arms=dict(ed=dict(method='ed_idpo', exploration_coef=.5)), dpo=dict(rounds=2, prompts=4, samples=4, batch=4)); (tmp_path/'by_length.py').write_text(BY_LENGTH); outs = []
    for n in ('1','2'):
        toy.warm(tmp_path/n); outs.append(tmp_path/n/'rounds/ed/seed0')
        said = toy.run('train', f, '--arm', 'ed', '--out', tmp_path/n, launcher=('-m','torch.distributed.run','--standalone','--nproc_per_node',n,tmp_path/'by_length.py')); assert said.count('trained:')==1
    a,b = (R.read_json(o/'log.json') for o in outs); first = [{k:v for k,v in l['history'][0].items() if k!='loss'} for l in (a,b)]
    assert first[0]['counts']==first[1]['counts'] and first[0]['distinct']==first[1]['distinct'] and len(b['history'])==2 and all(h['counts']['pairs']>=4 for h in b['history'])
    steps = [[sum('loss' in h for h in R.read_json(o/f'rounds/round_0{t}/model/log.json')) for t in (1,2)] for o in outs]; assert steps[0][0]==steps[1][0]           # the batch is the recipe's, however many share it
    assert weights(outs[1])!=warm_weights(tmp_path/'2') and not list(outs[1].glob('rounds/*/*.tmp'))

def test_rollouts_must_divide_over_processes(monkeypatch, tmp_path):
    monkeypatch.setenv('WORLD_SIZE', '3')
    with pytest.raises(RecipeError, match=r'prompts\*group=8 .* 3 processes'): R.trainer_args(make_recipe(toy.TOY), 'vpo', 0, tmp_path, 9, False)

# ---- parts

def test_training_mazes_are_those_of_the_task_and_none_is_held_out(tmp_path):
    r = make_recipe(toy.TOY); rows = R.training_mazes(r, 3, tmp_path)
    assert rows==[to_json(z) for z in make_mazes_for(r.task, 12, seed=103)] and R.training_mazes(r, 3, tmp_path)==rows
    assert not set(rows) & set(map(to_json, R.held_out(r)))
    other = replace(r, task=replace(r.task, lava=0))
    assert R.training_mazes(other, 3, tmp_path)==[to_json(z) for z in make_mazes_for(other.task, 12, seed=103)]        # a stale file is not used
    longer = make_recipe({**toy.TOY, 'arms':dict(a={}, b=dict(train=dict(steps=9)))}); assert len(R.training_mazes(longer, 3, tmp_path))==18

def test_scorer_follows_the_route_and_mixes():
    r = make_recipe(toy.TOY)
    for z in R.held_out(r):
        for v,route in zip(*exact_front(z)):
            text = route_words(z, route)
            assert R.MazeScorer()(text, to_json(z))==list(v)==score_route(from_json(to_json(z)), text).tolist()
            assert R.MazeScorer('collinear')(text, to_json(z))==[v[0], (v[1]+v[2])/2, (v[1]+v[2])/2, v[3]]

@given(st.integers(0, 2**32-1), st.integers(2, 4), st.integers(2, 3), st.integers(1, 3))
@hyp(max_examples=20)
def test_rows_are_the_plain_averages(seed, P, C, M):
    "best@k and E_w[best@k] against all subsets of the pool"
    from itertools import combinations
    g = np.random.default_rng(seed); v,ok,w = g.random((P,C,M,4)).round(1),g.random((P,C,M))<.8,g.dirichlet(np.ones(4), 5)
    v = v*ok[...,None]; rows = R.maze_rows(dict(vectors=v.tolist(), ok=ok.tolist()), w); flat = v.reshape(P,-1,4)
    for p in range(P):
        for k in range(1, C*M+1):
            sub = [list(s) for s in combinations(range(C*M), k)]
            assert np.isclose(rows['best_at_k'][p,k-1], np.mean([flat[p,s].mean(-1).max() for s in sub]))
            assert np.isclose(rows['ew_best_at_k'][p,k-1], np.mean([(flat[p,s]@w.T).max(0).mean() for s in sub]), atol=1e-6)
    assert np.allclose(rows['valid'], ok.mean((1,2))) and np.allclose(rows['completion'], v[...,0].mean((1,2)))

def test_by_step_and_progress(tmp_path):
    logs = [dict(history=[dict(step=1, a=2., ab=9), dict(step=2, a=4.)]), dict(history=[dict(step=1, a=3.), dict(step=10, a=None)])]
    assert R.by_step(logs, 'a')=={'1':2.5, '2':4.} and R.by_step([dict(history=[{'step':1, 'x/best_at_8':.5}])], 'x/best_at_')=={'1':.5} and R.by_step(logs, 'z')=={}
    assert R.fraction(tmp_path)==0
    R.write_json(tmp_path/'progress.json', dict(step=3, steps=12, tokens=50, budget=100)); assert R.fraction(tmp_path)==.5
    R.write_json(tmp_path/'progress.json', dict(step=3, steps=12, tokens=50, budget=None)); assert R.fraction(tmp_path)==.25
    R.write_json(tmp_path/'log.json', {}); assert R.fraction(tmp_path)==1

def test_json_is_written_in_one_move(tmp_path):
    f = tmp_path/'a.json'; R.write_json(f, dict(a=1))
    with pytest.raises(TypeError): R.write_json(f, dict(a=object()))
    assert R.read_json(f)==dict(a=1)

def test_commit_without_git(monkeypatch):
    def none(*a, **k): raise FileNotFoundError('git')
    monkeypatch.setattr(R.subprocess, 'run', none); assert R.commit()=='unknown'

def test_workers_are_checked(tmp_path):
    with pytest.raises(ValueError, match='workers=0'): R.compare(toy.recipe(tmp_path), tmp_path, workers=0)
