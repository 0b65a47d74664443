"The smallest comparison there is, made once for every test that looks at one"
import atexit, functools, os, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path
from types import SimpleNamespace
import yaml

TOY = dict(name='toy', claim='Two steps <teach> "nothing" & more.', task=dict(n=4), policy=dict(hidden=16, layers=1, heads=2, kv_heads=1, mlp=32, mazes=4, long=2, rounds=1),
    train=dict(steps=6, prompts=2, group=4, answers=2, nodes=16, lr='1e-2', entropy_coef=.01, tokens=600, save_every=2), evaluate=dict(mazes=4, pool=6, nodes=64, bootstrap=200),
    arms=dict(grpo=dict(method='grpo', label='GRPO <b>'), vpo=dict(method='vpo', credit='telescoped')))

def recipe(folder, name='toy', train=(), **changes):
    "A YAML file with the toy recipe, changed; returns its path"
    f = Path(folder)/f'{name}.yaml'
    f.write_text(yaml.safe_dump({**TOY, 'name':name, 'train':{**TOY['train'], **dict(train)}, **changes}))
    return f

def environment():
    env = {**os.environ, 'OMP_NUM_THREADS':'1', 'OMP_WAIT_POLICY':'PASSIVE', 'TQDM_DISABLE':'1', 'HF_HUB_OFFLINE':'1'}
    return {k:v for k,v in env.items() if k not in ('WORLD_SIZE','RANK','LOCAL_RANK')}

def start(*args, launcher=('-m','diverse_rl.cli'), **kw):
    "The command line in a process of its own, which hears Ctrl-C whatever its parent ignores"
    return subprocess.Popen([sys.executable, *launcher, *map(str, args)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **kw)

def run(*args, status=0, **kw):
    "Its output, when it ends with `status`"
    p = start(*args, **kw)
    try: out,_ = p.communicate(timeout=600)
    finally: p.terminate()
    assert p.returncode==status, out[-3000:]
    return out

def until(done, p, seconds=240):
    "Wait for `done()` while process `p` lives"
    end = time.time()+seconds
    while not done():
        assert p.poll() is None, p.communicate()[0][-3000:]
        assert time.time()<end, 'took too long'
        time.sleep(.02)

def two_processes(code, folder, **env):
    "Run `code` as ranks 0 and 1 of one group, with `rank` as its argument; both have to end well"
    import socket, textwrap
    f = Path(folder)/'split.py'; f.write_text(textwrap.dedent(code))
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    env = {**os.environ, 'OMP_NUM_THREADS':'1', 'OMP_WAIT_POLICY':'PASSIVE', 'MASTER_ADDR':'127.0.0.1', 'MASTER_PORT':str(port), 'WORLD_SIZE':'2', **env}
    ps = [subprocess.Popen([sys.executable, f, str(r)], env={**env, 'RANK':str(r), 'LOCAL_RANK':str(r)}) for r in (0,1)]
    try: codes = [p.wait(timeout=500) for p in ps]
    finally:
        for p in ps: p.kill()
    assert codes==[0,0]

@functools.cache
def compared():
    "A finished comparison: where its recipe and its runs are, and what was printed"
    root = Path(tempfile.mkdtemp()); atexit.register(shutil.rmtree, root, ignore_errors=True)
    f = recipe(root)
    out = run('compare', f, '--out', root/'runs')
    return SimpleNamespace(recipe=f, runs=root/'runs', run=root/'runs/toy', printed=out)

def warm(root):
    "A folder of runs which already holds the warm start of the toy policy"
    shutil.copytree(compared().runs/'_warm', Path(root)/'_warm')
    return Path(root)
