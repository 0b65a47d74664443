"The pages that lead through the course: every name, test, recipe and link on them exists; and the table of stages and forms"
import ast, copy, importlib.util, json, re
from pathlib import Path
import pytest

root = Path(__file__).parents[1]
nbs = sorted(p.name for p in (root/'nbs').glob('*.ipynb'))
PAGES = ['90_reader_path.ipynb','91_paper_index.ipynb','92_symptoms.ipynb','93_glossary.ipynb','94_claims.ipynb']
FAMILIES = 'answers|exploration|transport|routing|trust'

def cells(name, kind): return [''.join(c['source']) for c in json.loads((root/'nbs'/name).read_text())['cells'] if c['cell_type']==kind]
def prose(name): return '\n\n'.join(cells(name, 'markdown'))
def sources(): return {p.stem:p.read_text() for p in (root/'diverse_rl').glob('*.py') if not p.stem.startswith('_')}

@pytest.fixture(scope='module')
def stages():
    spec = importlib.util.spec_from_file_location('stages', root/'docs/stages.py'); m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m

# ---- links and names

def slug(heading): return re.sub(r'[^\w\s-]', '', heading.lower()).strip().replace(' ', '-')

def broken(text):
    "Relative links of a notebook's text that lead nowhere"
    out = []
    for target,anchor in re.findall(r'\]\((?!https?:|#|mailto:)([^)\s#]+)(?:#([^)\s]+))?\)', text):
        if not (root/'nbs'/target).exists(): out.append(target)
        elif anchor and anchor not in {slug(h) for h in re.findall(r'^#+ (.+)$', prose(target), re.M)}: out.append(f'{target}#{anchor}')
    return out

@pytest.mark.parametrize('name', PAGES)
def test_links_resolve(name):
    assert len(re.findall(r'\.ipynb\)', prose(name)))>=3 and not broken(prose(name))

def test_link_check_can_fail(): assert broken('[a](no_such.ipynb) [b](00_answers.ipynb#no-such) [c](00_answers.ipynb)')==['no_such.ipynb','00_answers.ipynb#no-such']

@pytest.mark.parametrize('name', PAGES)
def test_tests_and_recipes_exist(name):
    "Every test that is named, by file or by function"
    text = prose(name)+'\n'.join(cells(name, 'code'))
    files = {f.stem:f.read_text() for f in (root/'tests').glob('test_*.py')}
    assert not [f for f in re.findall(r'\b(test_\w+)\.py', text) if f not in files]
    assert not [f'{f}::{t}' for f,t in re.findall(r'\b(test_\w+)\.py(?:::| -k )(test_\w+)', text) if f'def {t}(' not in files[f]]
    assert not [r for r in re.findall(r'recipes/([a-z]\w*\.yaml)', text) if not (root/'recipes'/r).exists()]

def test_commands_parse():
    "Commands of the reader path are ones that exist"
    from diverse_rl.cli import parser
    commands = re.findall(r'`((?:diverse-rl|make) [^`]+)`', prose('90_reader_path.ipynb'))
    targets = set(re.findall(r'^([a-z0-9]+):', (root/'Makefile').read_text(), re.M))
    assert len(commands)>8
    for c in commands:
        word,*rest = c.split()
        if word=='make': assert rest[0] in targets, c
        elif '--help' not in rest: parser().parse_args(rest)

# ---- each page

def test_every_lesson_is_on_the_path():
    on = set(re.findall(r'\]\((\w+\.ipynb)\)', prose('90_reader_path.ipynb')))
    lessons = [n for n in nbs if n!='index.ipynb' and n!='90_reader_path.ipynb']
    assert not [n for n in lessons if n not in on], 'give these notebooks a row in nbs/90_reader_path.ipynb'

def test_paper_index_covers_what_it_must():
    "Every baseline by name, and each method's terms; every entry has a mark"
    text = prose('91_paper_index.ipynb')
    heads = re.findall(r'^### (.+)$', text, re.M)
    assert len(heads)>=40 and all(re.search(r'\[(paper|seed|ours)\]$', h) for h in heads)
    for h in ('GRPO','Multi-RLVR','set max','Max-at-k','PKPO','MaxRL','RLOO','Dr. GRPO','GDPO','ED-GRPO','ED-iDPO','Telescoped','Stein','Anchor budget','Behaviour budget'): assert any(h in o for o in heads), h
    assert text.count('$$')==2*len(heads)

def test_ours_is_not_given_to_a_paper():
    "What methods and code call ours has that mark in the index too"
    text = prose('91_paper_index.ipynb'); ours = ('Telescoped credit','Leave-one-out credit','ED-GRPO: novelty','Chebyshev utility','Attraction','Repulsion','Anchor budget','Behaviour budget','Prototype of an expert')
    for h in ours: assert '[ours]' in re.search(rf'^### {h}.*$', text, re.M)[0] and '[paper]' not in re.search(rf'^### {h}.*$', text, re.M)[0]

def glossary(): return {m for l in prose('93_glossary.ipynb').splitlines() if l.startswith('| `') for m in re.findall(r'`([\w/]+)`', l.split(' | ')[0])}

def test_glossary_has_every_name_that_stands_in_a_module():
    "Names written out in the modules; those put together at run time are collected in the notebook itself"
    names = {m for s in sources().values() for m in re.findall(rf"'((?:{FAMILIES})/[a-z]\w*[a-z0-9])'", s)}
    names = {re.sub(r'component_\d$', 'component_j', m) for m in names}
    assert len(names)>=14 and not names-glossary()

def test_symptoms_use_names_of_the_glossary():
    known,rows = glossary(),[l.strip('|').split(' | ') for l in prose('92_symptoms.ipynb').splitlines() if l.startswith('| ')]
    used = {m for r in rows if len(r)==4 for m in re.findall(rf'`((?:{FAMILIES}|completions|clip_ratio)/\w+)`', r[1]+r[2])}
    numbered = lambda m: re.sub(r'entropy_\d+$', 'entropy_j', re.sub(r'best_at_\d+$', 'best_at_k', m))
    assert len(used)>20 and not {numbered(m) for m in used}-known

def test_claims_fill_in_when_results_come(tmp_path, monkeypatch):
    "With a recorded result the row is computed; without, it says so"
    ns = {}
    for s in cells('94_claims.ipynb', 'code')[:6]: exec(s, ns)
    claim = next(c for c in ns['claims'] if c.recipe=='maze_edo' and 'entropy' in c.text)
    one = lambda h,g: dict(entropy_nats={str(i):h for i in range(12)}, greedy=[g,g-.01,g+.01], voted_at_k={'1':[g]*3,'12':[g+h]*3})
    arms = dict(grpo=one(.1,.6), novelty_3=one(.3,.6))
    def fake(name):
        if name!='maze_edo': raise FileNotFoundError(name)
        return dict(arms=arms, seeds=[0])
    ns['recorded'] = fake
    assert ns['outcome'](claim)[1]=='holds' and '0.300 against 0.100' in ns['outcome'](claim)[0]
    arms['novelty_3'] = one(.3,.5)
    assert ns['outcome'](claim)[1]=='failed'                                             # more entropy, bought with a worse greedy answer
    arms['novelty_3']['greedy'] = None; assert ns['outcome'](claim)==('greedy of novelty_3 is not recorded','not run yet')
    del arms['novelty_3']; assert ns['outcome'](claim)==('novelty_3 is not recorded','not run yet')
    assert ns['outcome'](next(c for c in ns['claims'] if c.recipe=='maze_vp2o'))==('','not run yet')
    table = ns['ledger']('VP2O').splitlines()
    assert len({l.count('|') for l in table})==1 and len(table)>5

def test_verdicts():
    ns = {}
    for s in cells('94_claims.ipynb', 'code')[:6]: exec(s, ns)
    res = dict(front=1., arms={k:dict(ew_best_at_k={'1':[0,0,0],'12':v}, experts=dict(x=e)) for k,v,e in (('a',[.8,.7,.9],[.1,.2]), ('b',[.5,.4,.6],[.5,.6]), ('c',[.82,.75,.9],[.15,.7]))})
    assert [ns['above'](*p)(res)[1] for p in (('a','b'),('b','a'),('a','c'))]==['holds','failed','not told apart']
    assert [ns['by_seed'](*p, 'x')(res)[1] for p in (('a','b'),('b','a'),('a','c'))]==['holds','failed','not told apart']
    assert [ns['share']('a', s)(res)[1] for s in (.8,.81)]==['holds','failed'] and [ns['level']('a','c',b)(res)[1] for b in (.03,.01)]==['holds','failed']
    assert [ns['not_worse'](*p)(res)[1] for p in (('a','b'),('b','a'),('a','c'))]==['holds','failed','not told apart']

# ---- stages and forms

def test_every_notebook_has_a_stage_and_a_form(stages):
    assert sorted(stages.load_table()['notebooks'])==nbs, 'docs/stages.yml: give each notebook a row'

def test_every_stage_and_form_is_used(stages):
    t = stages.load_table(); rows = t['notebooks'].values()
    assert {r['stage'] for r in rows}=={*t['stages'],'none'} and {r['form'] for r in rows}==set(t['forms'])
    for stage,(nb,_) in t['stages'].items(): assert t['notebooks'][nb]['stage']==stage
    kinds = re.findall(r'^\| (\S+) \| [^|]+ \| [^|]+ \|$', prose('90_reader_path.ipynb').split('## Four kinds of page')[1], re.M)
    assert set(t['forms'])==set(kinds)-{'kind','---'}

@pytest.mark.parametrize('text,why', [('stages: {a: [x.ipynb, b]}\nforms: {t: u}\nnotebooks: {x.ipynb: {stage: z, form: t}}', "stage 'z' is not known"), ('stages: {a: [x.ipynb, b]}\nforms: {t: u}\nnotebooks: {x.ipynb: {stage: a, form: z}}', "form 'z' is not known"),
    ('stages: {a: [y.ipynb, b]}\nforms: {t: u}\nnotebooks: {x.ipynb: {stage: a, form: t}}', 'y.ipynb, which have no row'), ('stages: {a: [x.ipynb, b]}\nforms: {t: u}\nnotebooks: {x.ipynb: {stage: a}}', 'give `stage` and `form`')])
def test_a_wrong_table_is_refused(stages, tmp_path, text, why):
    (tmp_path/'t.yml').write_text(text)
    with pytest.raises(ValueError, match=re.escape(why)): stages.load_table(tmp_path/'t.yml')

def test_one_stage_is_lit(stages):
    t = stages.load_table()
    for nb,row in t['notebooks'].items():
        s = stages.picture(t, row)
        assert s.count('aria-current="step"')==(row['stage']!='none') and s.count('<li>')==len(t['stages']) and row['form'] in s
        if row['stage']!='none': assert re.search(r'aria-current="step">([^<]+)<', s)[1]==row['stage']

def test_pages_are_changed_in_two_places_only(stages):
    t = stages.load_table()
    side = '<a href="sets.html" class="sidebar-item-text sidebar-link"><span class="menu-text">Sets</span></a>'
    text = f'<nav>{side}</nav><main><header id="title-block-header">T</header><p>x</p></main>'
    out = stages.light_up(text, 'sets.html', t)
    assert out==text.replace('Sets</span>', 'Sets <small class="form">tutorial</small></span>').replace('</header>', '</header>'+stages.picture(t, t['notebooks']['03_sets.ipynb']))
    assert stages.light_up('<p>no title</p>', 'sets.html', t)=='<p>no title</p>'
    assert 'href="../answers.html"' in stages.light_up(text, 'deep/sets.html', t)

# ---- exercises of the tutorials

TUTORIALS = re.findall(r'^  (\w+\.ipynb): \{.*form: tutorial\}', (root/'docs/stages.yml').read_text(), re.M)
ANSWER = re.compile(r'#\| code-fold: true\n#\| code-summary: "Answer to exercise (\d+)"\n')
def notebook(name): return json.loads((root/'nbs'/name).read_text())
def source(c): return ''.join(c['source'])

def says_something(o): return isinstance(o, ast.Assert) and any(isinstance(n, (ast.Call, ast.Compare)) for n in ast.walk(o.test))

def answer_faults(c, n):
    "What is wrong with the cell after the question of exercise `n`"
    s = source(c); m = c['cell_type']=='code' and ANSWER.match(s)
    if not m or int(m[1])!=n: return [f'exercise {n}: the next cell is not its folded answer']
    code = [l for l in s.splitlines() if l.strip() and not l.startswith('#|')]
    return [f'exercise {n}: {why}' for why,bad in (
        ('its answer asserts nothing', not any(says_something(o) for o in ast.walk(ast.parse(s)))),
        ('its answer is open in Jupyter or Colab', c['metadata'].get('jupyter')!={'source_hidden':True} or c['metadata'].get('cellView')!='form'),
        ('its output gives the answer away', bool(c['outputs'])), (f'its answer has {len(code)} lines, more than 12', len(code)>12)) if bad]

def exercise_faults(nb):
    "What is wrong with the exercises of a notebook: three or more, numbered, each question followed by its folded, asserted answer"
    cs = nb['cells']; at = [(i, m) for i,c in enumerate(cs) if c['cell_type']=='markdown' for m in re.findall(r'^\*\*Exercise (\d+)\.\*\*', source(c), re.M)]
    out = [] if sum(source(c).count('## Exercises\n') for c in cs if c['cell_type']=='markdown')==1 else ['no section `## Exercises`, or several']
    if len(at)<3: out.append(f'{len(at)} exercises; a tutorial has at least three')
    if [int(m) for _,m in at]!=list(range(1, len(at)+1)): out.append('not numbered 1, 2, 3, ...')
    if sum(bool(ANSWER.match(source(c))) for c in cs)!=len(at): out.append('questions and answers do not pair up')
    return out + [f for i,m in at for f in answer_faults(cs[i+1] if i+1<len(cs) else cs[i], int(m))]

@pytest.mark.parametrize('name', TUTORIALS)
def test_tutorials_have_exercises(name): assert not exercise_faults(notebook(name))

def test_the_check_of_exercises_can_fail():
    good = notebook('03_sets.ipynb'); first = next(i for i,c in enumerate(good['cells']) if ANSWER.match(source(c)))
    def faults(change):
        nb = copy.deepcopy(good); change(nb['cells']); return ' '.join(exercise_faults(nb))
    def answer(**kw): return lambda cs: cs[first].update(kw)
    lines = source(good['cells'][first]).splitlines(True)
    assert len(TUTORIALS)>=9 and not faults(lambda cs: None)
    assert 'asserts nothing' in faults(answer(source=lines[:2]+['assert True\n'])) and 'asserts nothing' in faults(answer(source=lines[:2]+['# assert x == 1\n']))
    assert 'open in Jupyter' in faults(answer(metadata={})) and 'gives the answer away' in faults(answer(outputs=[dict(data={})]))
    assert 'not its folded answer' in faults(answer(source=lines[2:])) and 'pair up' in faults(answer(source=lines[2:]))
    assert 'more than 12' in faults(answer(source=lines+['x = 1\n']*12)) and 'at least three' in faults(lambda cs: cs.__delitem__(slice(first+1, None)))
    assert 'no section' in faults(lambda cs: cs.__delitem__(slice(first-2, first-1)))

def shown_before_output(nb):
    "Lines of code that a page shows above the first output: folded and hidden cells and exported imports do not count"
    n = 0
    for c in nb['cells']:
        s = source(c)
        if c['cell_type']!='code' or re.match(r'#\| (hide|default_exp)', s): continue
        if not s.startswith(('#| export','#| code-fold: true')): n += len(s.splitlines())
        if c['outputs']: return n
    return n

@pytest.mark.parametrize('name', TUTORIALS)
def test_the_first_screen_shows_the_claim(name): assert shown_before_output(notebook(name))<=12
