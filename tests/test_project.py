"What holds for the whole project: light imports, house style, files that parse, nothing of one machine in it"
import ast, functools, importlib, importlib.util, inspect, json, re, statistics, subprocess, sys
from pathlib import Path
import pytest, yaml

root = Path(__file__).parents[1]
nbs = sorted((root/'nbs').glob('*.ipynb'))
modules = sorted(p for p in (root/'diverse_rl').glob('*.py') if not p.name.startswith('_'))
name = lambda p: p.name

def tracked():
    "Files of the project: those git tracks, or would"
    r = subprocess.run(['git','ls-files','-co','--exclude-standard'], cwd=root, capture_output=True, text=True)
    if r.returncode: pytest.skip('not a git checkout')
    return [p for p in (root/o for o in r.stdout.splitlines()) if p.is_file() and not p.is_symlink()]

def text(p):
    b = p.read_bytes()
    return '' if b'\0' in b[:8192] else b.decode(errors='replace')

# ---- imports

@functools.cache
def loaded(code):
    r = subprocess.run([sys.executable, '-c', f'import sys\n{code}\nprint(*sys.modules)'], cwd=root, capture_output=True, text=True)
    assert r.returncode==0, r.stderr[-2000:]
    return {m.split('.')[0] for m in r.stdout.split()}

HEAVY = {'trl','sympy','math_verify','reasoning_gym','peft','transformers','datasets','accelerate','plotly','ipywidgets','anywidget','moocore','matplotlib','pandas','scipy','IPython','yaml','tqdm'}

def test_import_is_light():
    got = loaded('import diverse_rl')
    extra = (got - loaded('import torch, numpy')) & HEAVY
    assert 'diverse_rl' in got and not extra, f'import diverse_rl pulls in {sorted(extra)}'

def test_import_check_can_fail(): assert 'yaml' in loaded('import torch, numpy, yaml') & HEAVY

@pytest.mark.parametrize('mod', ['answers','maze','simplex','sets','advantages','credit','metrics'])
def test_core_modules_need_core_only(mod):
    got = loaded(f'import diverse_rl.{mod}') - loaded('import torch, numpy')
    assert not got & HEAVY, f'diverse_rl.{mod} pulls in {sorted(got & HEAVY)}'

def imported(src):
    "Top-level packages that code imports, wherever the import stands"
    out = set()
    for o in ast.walk(ast.parse(src)):
        if isinstance(o, ast.Import): out |= {a.name.split('.')[0] for a in o.names}
        elif isinstance(o, ast.ImportFrom) and not o.level: out.add(o.module.split('.')[0])
        elif isinstance(o, ast.Call) and getattr(o.func, 'attr', '')=='importorskip': out.add(o.args[0].value.split('.')[0])
    return out - set(sys.stdlib_module_names) - {'diverse_rl'}

def declared(*extras):
    "Import names of the distributions that pyproject.toml asks for"
    import tomllib
    from importlib.metadata import packages_distributions
    from packaging.requirements import Requirement
    p = tomllib.loads((root/'pyproject.toml').read_text())['project']; o = p['optional-dependencies']
    norm = lambda n: n.lower().replace('_','-')
    names = {norm(Requirement(r).name) for r in [*p['dependencies'], *(r for e in extras for r in o[e])]}
    return {k for k,ds in packages_distributions().items() if set(map(norm, ds)) & names}

@pytest.mark.parametrize('p', modules, ids=lambda p: p.name)
def test_imports_of_a_module_are_declared(p):
    extra = imported(p.read_text()) - declared('train','viz','maths')
    assert not extra, f'{p.name} imports {sorted(extra)}: not in the dependencies of pyproject.toml'

def test_imports_elsewhere_are_declared():
    free = declared('train','viz','maths','dev') | {'IPython','fastcore','execnb','packaging','jupyter_client'}      # these come with nbdev and ipykernel
    src = {p:code(p) for p in nbs} | {p:p.read_text() for d in ('tests','benchmarks','docs','tools') for p in (root/d).glob('*.py')}
    local = {p.stem for d in ('tests','benchmarks','docs','tools') for p in (root/d).glob('*.py')}
    extra = {p.name:sorted(m) for p,s in src.items() if (m:=imported(s)-free-local)}
    assert not extra, f'not in the dependencies of pyproject.toml: {extra}'

# ---- house style

def body_lines(f, lines):
    "Lines of a function's body without its docstring, blank lines and comments"
    body = f.body[1:] if ast.get_docstring(f) is not None else f.body
    if not body: return 0
    own = lines[body[0].lineno-1:f.end_lineno]
    return sum(bool(l.strip()) and not l.strip().startswith('#') for l in own)

def functions(src):
    return [(f.name, body_lines(f, src.splitlines())) for f in ast.walk(ast.parse(src)) if isinstance(f, (ast.FunctionDef,ast.AsyncFunctionDef))]

def cells(p, kind='code'): return [c for c in json.loads(p.read_text())['cells'] if c['cell_type']==kind]

def code(p):
    "The code of a notebook without magics"
    return '\n'.join('\n'.join('pass' if re.match(r'\s*[%!]',l) else l for l in ''.join(c['source']).splitlines()) for c in cells(p) if not ''.join(c['source']).startswith('%%'))

def test_body_lines_counts():
    src = 'def f(a):\n    "doc"\n    # note\n    b = a\n\n    return b\ndef g(): return 1\n'
    assert functions(src) == [('f',2),('g',1)]

def test_functions_are_short():
    size = sorted(n for p in modules for _,n in functions(p.read_text()))
    q9 = size[int(.9*(len(size)-1))]
    assert statistics.median(size)<=8 and q9<=25, f'median {statistics.median(size)}, ninth decile {q9}; the house wants 8 and 25'

@pytest.mark.parametrize('p', modules+nbs, ids=name)
def test_no_function_is_long(p):
    long = {f:n for f,n in functions(code(p) if p.suffix=='.ipynb' else p.read_text()) if n>40}
    assert not long, f'{p.name}: more than 40 lines in {long}'

@pytest.mark.parametrize('p', modules, ids=name)
def test_public_names_have_docstrings(p):
    mod = importlib.import_module(f'diverse_rl.{p.stem}')
    bare = [n for n in getattr(mod,'__all__',[]) if (inspect.isfunction(o:=getattr(mod,n)) or inspect.isclass(o)) and not (o.__doc__ or '').strip()]
    assert not bare, f'{p.name}: no docstring in {bare}'

def test_top_level_names():
    import diverse_rl
    want = 'set_reward exact_set_reward simplex_nodes group_advantage parse_answers pass_at_k best_at_k'.split()
    assert not [n for n in want if not callable(getattr(diverse_rl, n, None))]

# ---- notebooks

@pytest.mark.parametrize('p', nbs, ids=name)
def test_notebook_shape(p):
    first,second = (''.join(c['source']).strip() for c in cells(p,'markdown')[:2])
    assert cells(p,'markdown')[0] == json.loads(p.read_text())['cells'][0] and re.fullmatch(r'# [^\n]+\n\n> [^\n]+', first), 'first cell: `# Title`, blank line, `> subtitle`'
    assert re.fullmatch(rf'\[!\[Open In Colab\]\(\S+colab-badge\.svg\)\]\(\S+/nbs/{re.escape(p.name)}\)', second), 'second text cell: the Colab badge of this notebook alone'

def in_colab(p): return next((''.join(c['source']) for c in cells(p) if 'google.colab' in ''.join(c['source'])), '')

@pytest.mark.parametrize('p', nbs, ids=name)
def test_colab_installs(p):
    "Who comes by the badge has the library after the first cell of code; the notebooks for a card keep their results on the drive and have a cell of their own"
    own = in_colab(p)
    assert 'pip", "install"' in own and 'drive' in own if p.name[:2] in ('40','41','42') else own==in_colab(nbs[0]) and '#| eval: false' in own and own in [''.join(c['source']) for c in cells(p)[:2]]

def test_colab_cell_runs(tmp_path, monkeypatch):
    "Elsewhere it does nothing; in Colab it clones and installs once, and the notebook finds its folder"
    done,text = [],in_colab(nbs[0]).replace('/content', str(tmp_path)); monkeypatch.chdir(tmp_path)
    exec(text, {}); assert Path.cwd()==tmp_path and not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, 'google.colab', None)
    monkeypatch.setattr(subprocess, 'run', lambda c,**kw: (done.append(c), (tmp_path/'diverse_rl/nbs').mkdir(parents=True)))
    for _ in range(2): exec(text, {}); assert Path.cwd()==tmp_path/'diverse_rl/nbs'
    assert len(done)==1 and done[0].startswith('git clone') and 'pip install' in done[0]

@pytest.mark.parametrize('p', nbs, ids=name)
def test_imports_stand_alone(p):
    "The site's build runs each cell that holds an import, and nothing else: such a cell must not need another"
    quiet = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for c in cells(p):
        s = ''.join(c['source'])
        if re.search(r'^#\|\s*(export|eval: false)', s, re.M) or s.startswith(('%','!')): continue
        tree = ast.parse(s)
        if any(isinstance(o, (ast.Import, ast.ImportFrom)) for o in ast.walk(tree)):
            assert all(isinstance(o, quiet) for o in tree.body), f'{p.name}: give the imports a cell of their own:\n{s[:300]}'

@pytest.mark.parametrize('p', nbs, ids=name)
def test_notebook_has_outputs(p): assert any(c['outputs'] for c in cells(p)), 'stored without outputs'

@pytest.mark.parametrize('p', nbs, ids=name)
def test_notebook_is_small(p): assert p.stat().st_size < 2_500_000, 'outputs are too large: plotly JSON only, float32 arrays'

@pytest.mark.parametrize('p', nbs, ids=name)
def test_notebook_has_no_stored_error(p):
    assert not [o for c in cells(p) for o in c['outputs'] if o['output_type']=='error' and 'raises' not in c['metadata'].get('tags',[])]

@pytest.mark.parametrize('p', [p for p in nbs if p.stem!='index'], ids=name)
def test_notebook_asserts(p):
    n = sum(isinstance(o, ast.Assert) for o in ast.walk(ast.parse(code(p))))
    assert n>=3, f'{n} assertions'

def listed(o): return [o] if isinstance(o,str) else [x for i in (o if isinstance(o,list) else o.get('contents',[])) for x in listed(i)]

def test_sidebar_and_notebooks_agree():
    side = listed(yaml.safe_load((root/'nbs/sidebar.yml').read_text())['website']['sidebar'])
    assert sorted(side)==sorted(p.name for p in nbs), set(side)^{p.name for p in nbs}

def test_markup_is_portable():
    for p in nbs:
        s = '\n'.join(''.join(c['source']) for c in cells(p,'markdown'))
        bare = re.search(r'(?<!\$)\n\s*\\begin\{align|@(?:fig|eq)-\w|```\{?mermaid|:::', s)
        assert not bare, f'{p.name}: {bare[0]!r} does not read everywhere'

# ---- files

def test_yaml_parses():
    files = [*(root/'.github/workflows').glob('*.yml'), *(root/'nbs').glob('*.yml'), *(root/'recipes').rglob('*.yaml')]
    assert {'test.yml'} <= {f.name for f in files}
    for f in files: assert isinstance(yaml.safe_load(f.read_text()), dict), f

@pytest.mark.parametrize('f', ['test.yml'])
def test_workflows_run_the_makefile(f):
    w = yaml.safe_load((root/'.github/workflows'/f).read_text()); runs = [s.get('run','') for j in w['jobs'].values() for s in j['steps']]
    targets = set(re.findall(r'^([a-z]+):', (root/'Makefile').read_text(), re.M)); used = {t for r in runs for t in re.findall(r'\bmake ([a-z]+)', r)}
    assert used and used <= targets
    assert True in w or 'on' in w                        # YAML reads the key `on` as true

def test_pins_meet_the_requirements():
    from packaging.requirements import Requirement
    import tomllib
    pin = dict(l.strip().split('==') for l in (root/'constraints.txt').read_text().splitlines() if l.strip() and not l.startswith('#'))
    pin = {k.lower().replace('_','-'):v for k,v in pin.items()}
    p = tomllib.loads((root/'pyproject.toml').read_text())['project']
    for r in map(Requirement, [*p['dependencies'], *(o for v in p['optional-dependencies'].values() for o in v)]):
        assert r.name.lower() in pin, f'{r.name} is not pinned in constraints.txt'
        assert r.specifier.contains(pin[r.name.lower()], prereleases=True), f'{r} against {pin[r.name.lower()]}'
    assert not any('+' in v or '/' in v for v in pin.values())

def test_changelog_names_this_version():
    import diverse_rl
    assert f'## {diverse_rl.__version__}' in (root/'CHANGELOG.md').read_text()

PLACES = re.compile(r'(?<![\w.:/])/(?:%s)/' % '|'.join(('work','farm','root','opt','home/\\w+')))

def test_no_path_of_one_machine():
    hits = [f'{p.relative_to(root)}: {m[0]}' for p in tracked() for m in [PLACES.search(text(p))] if m]
    assert not hits, hits

def test_place_check_can_fail():
    assert PLACES.search('see '+'/'.join(['','work','x'])) and not PLACES.search('http://a.b/work/x')

def test_lint():
    r = subprocess.run([sys.executable,'-m','ruff','check','--select','E9,F63,F7,F82,B006,B008','diverse_rl','tests','tools','docs','benchmarks'], cwd=root, capture_output=True, text=True)
    assert r.returncode==0, r.stdout[-3000:]

# ---- tools

def bench():
    spec = importlib.util.spec_from_file_location('bench_run', root/'benchmarks/run.py'); m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m

def test_benchmarks_run_in_a_fresh_process(tmp_path):
    good = "import os\ndef rows():\n    print('said on the way')\n    return [dict(name='a', value=2, unit='ratio', against='b'), dict(name='t', value=os.environ['OMP_NUM_THREADS'], unit='threads', against='')]\n"
    (tmp_path/'good.py').write_text(good); (tmp_path/'other.py').write_text('x = 1\n'); m = bench()
    assert [p.name for p in m.benchmarks(tmp_path)] == ['good.py']
    assert [(r['name'],r['value']) for r in m.fresh(tmp_path/'good.py', 3)] == [('a',2.0),('t',3.0)]
    assert len(m.table(m.fresh(tmp_path/'good.py', 1)).splitlines()) == 4

def test_a_bad_benchmark_stops_the_run(tmp_path):
    (tmp_path/'bad.py').write_text("def rows(): return [dict(name='a', value=2)]\n"); m = bench()
    with pytest.raises(SystemExit, match='bad.py failed'): m.fresh(tmp_path/'bad.py', 1)
    with pytest.raises(ValueError, match='lacks unit, against'): m.check([dict(name='a', value=2)], 'bad.py')

@pytest.fixture
def folder(tmp_path):
    "A copy of what tools/venv.sh reads"
    import shutil
    for o in ('tools/venv.sh','constraints.txt','pyproject.toml'): (tmp_path/o).parent.mkdir(exist_ok=True); shutil.copy(root/o, tmp_path/o)
    return tmp_path

def venv(folder, **env):
    import os
    return subprocess.run(['bash','tools/venv.sh','train,viz'], cwd=folder, env={**os.environ,**env}, capture_output=True, text=True)

def test_a_missing_python_is_named(folder):
    r = venv(folder, PYTHON='no-such-python')
    assert r.returncode and 'PYTHON=no-such-python' in r.stderr and not (folder/'.venv').exists()

def test_a_broken_environment_is_moved_aside(folder):
    (folder/'.venv/bin').mkdir(parents=True); (folder/'.venv/bin/python').symlink_to('/nonexistent/python3'); (folder/'.venv/mine').write_text('keep')
    r = venv(folder, PYTHON='no-such-python')
    assert 'does not run' in r.stdout and [p.read_text() for p in folder.glob('.venv.old*/mine')]==['keep']

def test_a_ready_environment_is_reused(folder):
    "An environment made here, with a stamp for these pins: nothing is installed"
    subprocess.run([sys.executable,'-m','venv','--without-pip','.venv'], cwd=folder, check=True)
    site = next((folder/'.venv/lib').glob('python*'))/'site-packages'; (site/'pip').mkdir(); (site/'pip/__main__.py').write_text('')
    key = subprocess.run(['bash','-c','cat constraints.txt pyproject.toml <(.venv/bin/python --version) | sha256sum | cut -c1-16'], cwd=folder, capture_output=True, text=True).stdout.strip()
    (folder/'.venv/installed').write_text(f'{key} dev,train,viz\n')
    r = venv(folder)
    assert r.returncode==0 and 'up to date' in r.stdout, r.stdout+r.stderr
    (folder/'constraints.txt').write_text('torch==0.0.0\n')
    assert 'Installing torch==0.0.0' in venv(folder).stdout          # other pins: installed again (here by the empty pip above)

def test_the_picture_of_the_pipeline_has_its_stages():
    t = yaml.safe_load((root/'docs/stages.yml').read_text())
    shown = re.findall(r'font-weight="600" fill="#222">(.*?)<', (root/'nbs/images/pipeline.svg').read_text())
    assert shown==list(t['stages'])
