"The command line: help with examples, one line for a mistake, exit statuses"
import os, re, shlex, subprocess, sys
from pathlib import Path
import pytest
pytest.importorskip('trl')
import toy
from diverse_rl import cli, run as R
from diverse_rl.cli import EXAMPLES, main, parser

root = Path(__file__).parents[1]

def leaves(argv, capsys):
    with pytest.raises(SystemExit) as e: main(argv)
    o = capsys.readouterr()
    return e.value.code,o.out,o.err

@pytest.mark.parametrize('verb', ['train','evaluate','compare','report'])
def test_help_of_every_verb_has_examples(verb, capsys):
    code,out,_ = leaves([verb,'--help'], capsys); after = out.split('examples:')[1].strip().splitlines()
    assert code==0 and after and all(f' {verb} ' in l for l in after) and '--out' in out

def test_help_names_every_verb(capsys):
    code,out,_ = leaves(['--help'], capsys)
    assert code==0 and all(f'diverse-rl {v} ' in out for v in ('train','evaluate','compare','report')) and 'accelerate launch' in out and 'torchrun' in out

@pytest.mark.parametrize('line', [l.strip() for l in EXAMPLES.splitlines()[1:]], ids=lambda l: l[:40])
def test_examples_can_be_typed(line):
    "Each example parses, and names a recipe and an arm that exist"
    from diverse_rl.recipes import load_recipe
    words = shlex.split(line); a = parser().parse_args(words[words.index('diverse_rl.cli')+1:] if 'diverse_rl.cli' in words else words[1:])
    if a.command!='report':
        r = load_recipe(root/a.recipe); assert not hasattr(a, 'arm') or a.arm in r.arms

@pytest.mark.parametrize('argv,word', [([],'required'), (['tarin'],"'tarin'"), (['train','x.yaml'],'--arm'), (['compare','x.yaml','--workers','0'],'at least 1'), (['compare','x.yaml','--workers','two'],'at least 1'), (['train','x.yaml','--arm','a','--seed','x'],'--seed')])
def test_bad_arguments(argv, word, capsys):
    code,_,err = leaves(argv, capsys); assert code==2 and word in err

def said(argv, capsys):
    status = main([*map(str, argv)]); return status,capsys.readouterr().err

@pytest.mark.parametrize('change,words', [(dict(train=dict(stepz=3)),("train.stepz","'steps'")), (dict(train=dict(lr=-1)),('train.lr=-1','above 0')), (dict(arms={}),('arms','mapping')), (dict(task=dict(slack=30)),('no maze','task.slack'))], ids=['key','value','arms','task'])
@pytest.mark.parametrize('verb', ['train','evaluate','compare'])
def test_a_bad_recipe_is_one_line_and_status_2(verb, change, words, tmp_path, capsys, monkeypatch):
    import yaml
    for name in ('warm_folder','train_arm','evaluate_arm'): monkeypatch.setattr(R, name, lambda *a, **k: pytest.fail('something was computed'))
    f = tmp_path/'bad.yaml'; f.write_text(yaml.safe_dump({**toy.TOY, **change}))
    status,err = said([verb, f, *(['--arm','vpo'] if verb!='compare' else []), '--out', tmp_path/'runs'], capsys)
    assert status==2 and err.count('\n')==1 and err.startswith('diverse-rl: ') and all(w in err for w in words), err
    assert not (tmp_path/'runs').exists()

def test_what_is_not_there(tmp_path, capsys):
    f = toy.recipe(tmp_path)
    for argv,word in ((['compare',tmp_path/'gone.yaml'],'toy.yaml'), (['train',f,'--arm','ppo'],'grpo, vpo'), (['evaluate',f,'--arm','vpo'],'train first'), (['report',tmp_path/'nothing'],'diverse-rl compare')):
        status,err = said([*argv, '--out', tmp_path/'runs'], capsys); assert status==2 and word in err and err.count('\n')==1, err

def test_a_fault_of_ours_keeps_its_traceback(tmp_path, monkeypatch):
    def broken(*a, **k): raise ValueError('deep inside')
    monkeypatch.setattr(R, 'compare', broken)
    with pytest.raises(ValueError, match='deep inside'): main(['compare', str(toy.recipe(tmp_path))])

def test_ctrl_c(tmp_path, monkeypatch, capsys):
    def stop(*a, **k): raise KeyboardInterrupt
    monkeypatch.setattr(R, 'compare', stop); status,err = said(['compare', toy.recipe(tmp_path)], capsys)
    assert status==130 and '--resume' in err and err.count('\n')==1

def test_evaluate_and_report_of_a_finished_comparison(capsys):
    done = toy.compared()
    assert main(['evaluate', str(done.recipe), '--arm', 'vpo', '--out', str(done.runs)])==0
    out = capsys.readouterr().out; assert re.findall(r'E_w\[best@(\d+)\] = 0\.\d{3}', out)==['1','6'] and '4 mazes' in out
    (done.run/'report.html').unlink(); assert main(['report', str(done.run)])==0
    out = capsys.readouterr().out; assert 'exact front' in out and str(done.run/'report.html') in out and (done.run/'report.html').exists()

def test_a_process_of_its_own_sleeps_its_threads_and_ends_with_the_status(tmp_path):
    "Without the setting the process starts itself once more with it; the exit status comes through"
    env = {k:v for k,v in toy.environment().items() if k!='OMP_WAIT_POLICY'}
    code = "import os,sys; from diverse_rl import cli, recipes; cli.do_evaluate = lambda a: print('policy', os.environ['OMP_WAIT_POLICY']) or recipes.load_recipe(a.recipe); sys.exit(cli.main())"
    r = subprocess.run([sys.executable, '-c', code, 'evaluate', tmp_path/'gone.yaml', '--arm', 'a'], env=env, capture_output=True, text=True, timeout=120)
    assert r.returncode==2 and r.stdout=='policy PASSIVE\n' and 'no recipe' in r.stderr
    r = subprocess.run([sys.executable, '-m', 'diverse_rl.cli', 'compare', tmp_path/'gone.yaml'], env=env, capture_output=True, text=True, timeout=120)
    assert r.returncode==2 and r.stderr.count('\n')==1 and 'no recipe' in r.stderr

def test_main_changes_no_setting_of_a_program_that_calls_it(tmp_path, monkeypatch, capsys):
    import signal
    before = signal.getsignal(signal.SIGTERM); monkeypatch.delenv('OMP_WAIT_POLICY', raising=False)
    monkeypatch.setattr(os, 'execv', lambda *a: pytest.fail('the program was started again'))
    assert main(['compare', str(tmp_path/'gone.yaml')])==2 and signal.getsignal(signal.SIGTERM)==before
