"Every notebook runs top to bottom, as `nbdev-test` runs it, in at most two minutes, and shows what it stored"
import base64, json, os, re, time
from pathlib import Path
import nbdev.test, numpy as np, pytest
from nbdev.config import get_config
from nbdev.test import test_nb as run_nb

root = Path(__file__).parents[1]; cfg = get_config(root)
LIMIT = 120                                             # seconds, on two cores
nbs = sorted(p for p in cfg.nbs_path.rglob('*.ipynb') if not any(o[0] in '._' for o in p.relative_to(cfg.nbs_path).parts))
skip = cfg.tst_flags.split() if isinstance(cfg.tst_flags, str) else cfg.tst_flags
force = os.getenv('NB_FLAGS', '').split()

# ---- stored outputs against those of a run

CHEAP = '00 01 02 03 04 05 06 07 08 09 10 11 15 16 17 19 21 23 30 31 32 33 34 35 90 91 92 93 94 99 index'.split()      # notebooks that take seconds and train nothing: what comes from training, or names the machine, differs between machines
PLOTLY = 'application/vnd.plotly.v1+json'
NOISE = [(r'\x1b\[[0-9;]*[A-Za-z]', ''),                # colours of a terminal
         (r'\b0x[0-9a-f]+', '0x'), (r'(?<![\w.])[\d.]+(?: ?(?:ns|us|µs|ms|s|sec|seconds?|min|minutes?))\b', 'TIME'),      # addresses, durations
         (r'(?:/\w[\w.-]*)*/tmp\w*/[\w./-]+|/tmp/[\w./-]+', 'FOLDER'), (re.escape(str(root)), 'ROOT'),                    # places
         (r'\bid="[\w-]*[0-9a-f]{8,}"|data-figure="\w+"|"[0-9a-f]{10}"', 'ID'), (r'base64,[\w+/=]+', 'base64'), (r'\b\d{4}-\d\d-\d\d(?:[T ][\d:.]+)?', 'DATE')]
NOISE += [(r'(?i)\bcommit\b[*\s:]+(?:[0-9a-f]{7,40}\+?|unknown)', 'COMMIT'), (r'\bhardware\b[*\s:]+[^\n]*', 'HARDWARE')]      # where it ran
NUMBER = re.compile(r'(?<![\w.])[-+−]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?')

def text(o): return ''.join(o) if isinstance(o, list) else o or ''

def plain(s):
    "Text without what changes from run to run, and its numbers apart"
    for pat,new in NOISE: s = re.sub(pat, new, s)
    return re.sub(r'\s+', ' ', NUMBER.sub('#', s)).strip(), [float(m.replace('−','-')) for m in NUMBER.findall(s)]

def close(a, b): return len(a)==len(b) and np.allclose(a, b, rtol=2e-3, atol=2e-4, equal_nan=True)

def same_text(a, b):
    (s,m),(t,n) = plain(a),plain(b)
    return s==t and close(m, n)

def array(o):
    "An array as plotly stores it, typed or as a list; nothing for other things"
    if isinstance(o, dict) and 'bdata' in o: return np.frombuffer(base64.b64decode(o['bdata']), dtype=o['dtype'])
    if isinstance(o, list) and o and all(isinstance(x, (int,float)) or x is None for x in o): return np.array(o, float)

def same_figure(a, b):
    "Two figures, or parts of them: the same names and words, the same numbers but for a tolerance"
    x,y = array(a),array(b)
    if x is not None or y is not None: return x is not None and y is not None and x.shape==y.shape and np.allclose(x, y, rtol=2e-3, atol=2e-4, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict): return {*a}-{'uid','template'}=={*b}-{'uid','template'} and all(same_figure(a[k], b[k]) for k in a if k not in ('uid','template'))
    if isinstance(a, list) and isinstance(b, list): return len(a)==len(b) and all(map(same_figure, a, b))
    if isinstance(a, (int,float)) and isinstance(b, (int,float)): return bool(np.isclose(a, b, rtol=2e-3, atol=2e-4, equal_nan=True))
    return same_text(a, b) if isinstance(a, str) and isinstance(b, str) else a==b

def apart(a, b):
    "Where two texts part: a few words of each, without the noise; where they part in numbers, these"
    (a,m),(b,n) = plain(a),plain(b)
    if a==b: return f'{[x for x,y in zip(m, n) if not close([x], [y])][:5]}, now {[y for x,y in zip(m, n) if not close([x], [y])][:5]}'
    i = max(0, len(os.path.commonprefix([a, b]))-40)
    return f'{a[i:i+160]!r}, now {b[i:i+160]!r}'

def visible(cell): return [o for o in cell.get('outputs', []) if o.get('name')!='stderr' and (o.get('data') or text(o.get('text')).strip())]

def differs(old, new):
    "What is not the same in the stored outputs `old` of a cell and those of a run; nothing if all is"
    a,b = visible(old),visible(new)
    if [o['output_type'] for o in a]!=[o['output_type'] for o in b]: return f"{len(a)} outputs are stored, a run gives {len(b)}"
    for o,n in zip(a, b):
        d,e = o.get('data', {}),n.get('data', {})
        if not same_text(text(o.get('text')), text(n.get('text'))): return f"printed {apart(text(o.get('text')), text(n.get('text')))}"
        if {*d}-{'image/png'}!={*e}-{'image/png'}: return f"stored as {sorted(d)}, now {sorted(e)}"
        for k in {*d} & {*e}:
            if k==PLOTLY:
                if not same_figure(json.loads(json.dumps(d[k])), json.loads(json.dumps(e[k]))): return 'the figure is another one'
            elif k.startswith(('text/','image/svg')) and not same_text(text(d[k]), text(e[k])): return f"{k} {apart(text(d[k]), text(e[k]))}"

def stored_differently(nb, ran):
    "Cells of the notebook file whose stored outputs are not those of the run"
    new = {c.get('id'):c for c in ran.cells}
    cells = [c for c in json.loads(nb.read_text())['cells'] if c['cell_type']=='code' and c.get('id') in new]
    last = lambda c: (text(c['source']).strip().splitlines() or [''])[-1].strip()
    return [f"{last(c)[:90]}\n      {why}" for c in cells if (why:=differs(c, new[c['id']]))]

@pytest.fixture
def kept(monkeypatch):
    "The notebook that a run works on, with its outputs"
    got = []; make = nbdev.test.NBProcessor
    monkeypatch.setattr(nbdev.test, 'NBProcessor', lambda *a, **k: got.append(make(*a, **k)) or got[-1])
    return got

@pytest.mark.timeout(600)
@pytest.mark.parametrize('nb', nbs, ids=lambda p: str(p.relative_to(root)))
def test_notebook(nb, capfd, monkeypatch, kept):
    monkeypatch.chdir(root)                              # the notebooks name files from here
    before = dict(os.environ); start = time.process_time()
    try: ok,secs = run_nb(nb, skip_flags=skip, force_flags=force, basepath=cfg.config_path)
    finally: os.environ.clear(); os.environ.update(before)
    used = time.process_time()-start
    if not ok: pytest.fail(capfd.readouterr().err[-3000:], pytrace=False)
    assert used <= LIMIT, f'{nb.name} took {used:.0f} s of processor time; {LIMIT} s is the most a notebook may take'
    bad = stored_differently(nb, kept[0].nb) if kept and nb.stem.split('_')[0] in CHEAP else []
    if bad: pytest.fail(f'{nb.name}: stored outputs are not those of this commit: run the notebook and save it\n  '+'\n  '.join(bad), pytrace=False)

def test_every_notebook_stores_outputs():
    "A notebook in which nothing was ever run would pass everything else that only reads it"
    bare = [p.name for p in nbs if not any(visible(c) for c in json.loads(p.read_text())['cells'] if c['cell_type']=='code')]
    assert not bare, 'run these notebooks and save them'

def test_the_cheap_notebooks_are_there(): assert {p.stem.split('_')[0] for p in nbs} >= {*CHEAP}

def out(data=None, text=None, kind='execute_result'): return dict(outputs=[dict(output_type='stream' if text else kind, **(dict(text=text) if text else dict(data=data)))])

@pytest.mark.parametrize('a,b,same', [('1.0000 a','1.0001 a',True), ('1.00 a','1.02 a',False), ('a','b',False), ('took 3.1 s','took 12 s',True), ('<f at 0x7f1>','<f at 0x8e2>',True), ('[1, 2]','[1, 2, 3]',False), ('nan','nan',True), ('x1','x2',False), ('commit 1a39b5922623+','commit unknown',True), ('- **hardware**: A','- **hardware**: B',True)])
def test_text_is_compared(a, b, same): assert (differs(out({'text/plain':a}), out({'text/plain':b})) is None)==same==(differs(out(text=a), out(text=[b])) is None)

def test_figures_are_compared():
    fig = lambda y,**k: out({PLOTLY:dict(data=[dict(type='bar', y=y, **k)], layout={})}, kind='display_data')
    typed = dict(dtype='f4', bdata=base64.b64encode(np.array([1,2,3], 'f4').tobytes()).decode())
    assert not differs(fig([1,2,3]), fig(typed)) and not differs(fig([1,2,3], uid='a'), fig([1,2,3.001], uid='b')) and not differs(fig(list('ab')), fig(list('ab')))
    for other in (fig([1,2,4]), fig([1,2]), fig(typed, name='n'), out({'text/plain':'x'})): assert differs(fig([1,2,3]), other)

def test_pictures_of_figures_do_not_count():
    assert not differs(out({'text/plain':'1','image/png':'x'}), out({'text/plain':'1'})) and differs(out({'text/plain':'1'}), dict(outputs=[])) and differs(dict(outputs=[]), out({'text/plain':'1'}))

def test_a_failing_notebook_fails(tmp_path, capfd):
    "The check above can fail: the runner reports a false assertion"
    cell = dict(cell_type='code', id='a', metadata={}, execution_count=None, outputs=[], source=['assert 1==2'])
    meta = dict(kernelspec=dict(display_name='python3', language='python', name='python3'))
    nb = tmp_path/'bad.ipynb'; nb.write_text(json.dumps(dict(cells=[cell], metadata=meta, nbformat=4, nbformat_minor=5)))
    ok,_ = run_nb(nb, skip_flags=skip, force_flags=force, basepath=cfg.config_path)
    assert not ok and 'AssertionError' in capfd.readouterr().err
