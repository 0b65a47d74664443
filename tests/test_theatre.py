"The collapse theatre: what is recorded, what a table does, what the figure shows"
import itertools, json
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, torch
pytest.importorskip('trl')
from hypothesis import given, settings as hyp, strategies as st
import toy
from figures import BOX, OVER, contrast, drawn, live, module, nameless, put, shots, still_box, value
from diverse_rl import run as R, theatre as T
from diverse_rl.bandit import Bandit
from diverse_rl.maze import exact_front, from_json, make_maze, maze_config, score_text, to_json, walk_cells
from diverse_rl.recipes import RecipeError, load_recipe, make_recipe
from diverse_rl.theatre import *
from diverse_rl.widgets import js_source

RECORD = recorded_theatre()
MAZE = from_json(RECORD['maze'])
FRAMES = [f for a in RECORD['arms'].values() for f in a['frames']]

# ---- entropy, frames, tables

@given(st.lists(st.integers(1,40), min_size=1, max_size=12))
def test_entropy_is_that_of_the_shares(counts):
    n = sum(counts); slow = -sum(c/n*np.log(c/n) for c in counts)
    assert abs(answer_entropy(counts)-slow)<1e-9 and 0<=answer_entropy(counts)<=np.log(len(counts))+1e-9 and abs(answer_entropy([0,*counts])-slow)<1e-9

@given(st.lists(st.sampled_from(['','U','D D','D D L L L D D L','D D D D L L L L']), min_size=1, max_size=30))
def test_a_frame_counts_every_answer(answers):
    f = answer_frame(MAZE, answers)
    assert {t:n for t,_,n in f['answers']}=={t:answers.count(t) for t in answers} and [n for *_,n in f['answers']]==sorted((n for *_,n in f['answers']), reverse=True)
    assert all(np.allclose(score_text(MAZE,t), v, atol=1e-4) for t,v,_ in f['answers']) and json.loads(json.dumps(f))==f

@hyp(max_examples=40)
@given(st.integers(2,5), st.integers(1,3), st.integers(1,4), st.integers(1,3), st.integers(0,10**6))
def test_the_best_of_a_set_is_that_of_all_sets(A, D, K, M, seed):
    g = torch.Generator().manual_seed(seed); p = torch.rand(A, generator=g).double()+.05; p = p/p.sum()
    v = torch.randint(0,3,(A,D), generator=g).double()/2; w = torch.rand(K,D, generator=g).double()                          # ties are frequent
    slow = sum(p[list(s)].prod()*(v[list(s)]@w.T).amax(0).mean() for s in itertools.product(range(A), repeat=M))
    assert torch.isclose(best_value(p.log(),v,w,M), slow, atol=1e-9)

@hyp(max_examples=40)
@given(st.integers(2,9), st.integers(0,10**6))
def test_the_slope_of_entropy(A, seed):
    g = torch.Generator().manual_seed(seed); z,d = torch.randn(2,3,A, generator=g).double()
    H = lambda z: torch.distributions.Categorical(logits=z).entropy()
    assert torch.allclose(entropy_slope(z,d), torch.func.jvp(H,(z,),(d,))[1], atol=1e-9)

def test_a_climb_climbs_and_collapses():
    r = torch.tensor([1.,1.,.5,0.]).double(); z = climb(lambda l: (l.exp()*r).sum(), torch.tensor([.3,.1,.3,.3]).double().log(), steps=200, every=50)
    mean = z.softmax(-1)@r; assert z.shape==(5,4) and (mean.diff()>0).all() and z[-1].softmax(-1)[0]>.8
    b = climb_sampled(Bandit(r, z[0]), steps=20, every=10, samples=None, lr=4.); a = climb(lambda l: (l.exp()*r).sum(), z[0], steps=20, every=10, lr=4.)
    assert torch.allclose(a.softmax(-1), b.softmax(-1), atol=1e-9)                                                            # two ways to the same gradient

def test_tables_become_records():
    answers = first_answers(RECORD, ['grpo','vpo']); texts = [t for t,*_ in answers]; x = torch.zeros(3,len(texts)); x[2,4] = 50.
    both = [RECORD['arms'][a]['frames'][0]['answers'] for a in ('grpo','vpo')]
    assert {t:n for t,_,n in answers}=={t:sum(n for f in both for u,_,n in f if u==t) for t in {t for f in both for t,*_ in f}}
    t = table_record(RECORD, texts, dict(even=x, other=x.flip(0)), [0,5,9], torch.Generator().manual_seed(0), samples=20)
    f = t['arms']['even']['frames']; assert [sum(n for *_,n in o['answers']) for o in f]==[20]*3 and f[2]['answers']==[[answers[4][0],answers[4][1],20]] and f[2]['entropy']==0
    assert collapse_theatre(t).state['arms']==['even','other'] and t['steps']==[0,5,9]
    with pytest.raises(ValueError, match=rf"columns\['even'\] has shape \(2, {len(texts)}\): want \(3, {len(texts)}\)"): table_record(RECORD, texts, dict(even=x[:2]), [0,5,9], torch.Generator())

# ---- the recorder

TINY = dict(train=dict(toy.TOY['train'], tokens=None, steps=4, save_every=4), evaluate=dict(mazes=4, pool=4, nodes=16, bootstrap=20))
@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
    root = toy.warm(tmp_path_factory.mktemp('theatre')); r = load_recipe(toy.recipe(root, 'stage', **TINY))
    return r,root,record_theatre(r, out=root, every=2, samples=6, others=2)

def test_a_record(recorded):
    r,root,rec = recorded; z = from_json(rec['maze'])
    assert rec['steps']==[0,2,4] and list(rec['arms'])==['grpo','vpo'] and json.loads((root/'stage/theatre.json').read_text())==rec
    assert [a['answers_per_rollout'] for a in rec['arms'].values()]==[1,2] and {'command','commit','hardware','seed','front','front_routes','names'}<=set(rec)
    for a in rec['arms'].values():
        assert len(a['frames'])==3 and all(sum(n for *_,n in f['answers'])==6 and set(f['others'])=={'entropy','distinct','reward','front'} for f in a['frames'])
        assert all(np.allclose(score_text(z,t),v,atol=1e-4) for f in a['frames'] for t,v,_ in f['answers'])
    assert z in R.held_out(r) and rec['front']==exact_front(z).vectors_PD.round(4).tolist()

def test_looking_changes_nothing(recorded, tmp_path):
    r,root,_ = recorded; other = toy.warm(tmp_path)
    for arm in r.arms:
        plain = R.read_json(R.train_arm(r, arm, 0, other, progress=False)/'log.json')['history']; seen = R.read_json(root/'stage'/arm/'seed0/log.json')['history']
        timeless = lambda h: [{k:v for k,v in o.items() if not any(c in k for c in ('time','per_second'))} for o in h]
        assert len(plain)==4 and timeless(plain)==timeless(seen)

def test_a_finished_recording_is_read(recorded, monkeypatch):
    r,root,rec = recorded; monkeypatch.setattr(T, 'make_trainer', None)
    again = record_theatre(r, out=root, every=2, samples=6, others=2, maze=from_json(rec['maze']))
    assert again['arms']==rec['arms']
    with pytest.raises(TypeError): record_theatre(r, out=root, every=2, samples=8, others=2, maze=from_json(rec['maze']))     # asks for more: trains again
    with pytest.raises(RecipeError, match='other settings'): record_theatre(replace(r, train=replace(r.train, lr=.5)), out=root, every=2)

def test_arms_that_cannot_stand_side_by_side(tmp_path):
    with pytest.raises(RecipeError, match='tokens=600; the columns'): record_theatre(make_recipe(toy.TOY), out=tmp_path)
    arms = dict(a=dict(method='grpo'), b=dict(method='grpo', train=dict(steps=3)))
    with pytest.raises(RecipeError, match='arms.b: train.steps=3'): record_theatre(make_recipe({**toy.TOY, **TINY, 'arms':arms}), out=tmp_path)
    with pytest.raises(RecipeError, match="'idpo' learns from pairs"): record_theatre(make_recipe({**toy.TOY, **TINY, 'arms':dict(a=dict(method='idpo', dpo=dict(prompts=2)))}), out=tmp_path)
    with pytest.raises(ValueError, match='samples=7: give a multiple of the 2'): sample_frame(None, None, MAZE, 2, 7)

# ---- the record that comes with the library

def test_the_stored_record():
    f = Path(T.__file__).parent/'recorded/theatre.json'; assert f.stat().st_size < 120_000
    r = load_recipe(Path(__file__).parents[1]/'recipes/maze_theatre.yaml')
    assert list(RECORD['arms'])==list(r.arms) and all(RECORD['arms'][a]['label']==r.arms[a].label and RECORD['arms'][a]['answers_per_rollout']==r.answers_of(a) for a in r.arms)
    assert RECORD['steps']==list(range(0, r.train.steps+1, 10)) and RECORD['seed']==r.seeds[0] and 'maze_theatre.yaml' in RECORD['command']
    assert all(sum(n for *_,n in f['answers'])==RECORD['samples'] and abs(f['entropy']-answer_entropy(n for *_,n in f['answers']))<1e-3 and len({t for t,*_ in f['answers']})==len(f['answers']) for f in FRAMES)
    assert all(np.allclose(score_text(MAZE,t), v, atol=1e-4) for f in FRAMES for t,v,_ in f['answers'])
    front = exact_front(MAZE); assert np.allclose(front.vectors_PD, RECORD['front'], atol=1e-4) and len(RECORD['front'])>1 and [' '.join(o) for o in front.routes]==RECORD['front_routes']
    assert MAZE in R.held_out(r)[:24]

def test_rows_are_the_frames():
    for a,rows in zip(RECORD['arms'].values(), theatre_rows(RECORD).values()):
        for f,o in zip(a['frames'],rows):
            every = [v for _,v,n in f['answers'] for _ in range(n)]
            assert abs(o['entropy']-f['entropy'])<1e-3 and o['distinct']==len(f['answers']) and abs(o['top']-f['answers'][0][2]/len(every))<1e-9 and abs(o['reward']-np.mean(every))<1e-9
            assert abs(o['on_front']-np.mean([v in RECORD['front'] for v in every]))<1e-9 and abs(o['front']-np.mean([v in every for v in RECORD['front']]))<1e-9

def test_letters_are_the_commonest_routes():
    top = common_routes(RECORD); share = lambda t: sum(n for f in FRAMES for u,_,n in f['answers'] if u==t)
    assert len(top)==10 and [share(t) for t in top]==sorted(map(share,top), reverse=True) and all(score_text(MAZE,t)[0]==1 for t in top)
    left = {t for f in FRAMES for t,v,_ in f['answers'] if v[0]}-set(top); assert max(map(share,left))<=share(top[-1])

def test_errors_of_the_figure():
    with pytest.raises(ValueError, match='record lacks arms, steps'): collapse_theatre({k:v for k,v in RECORD.items() if k not in ('arms','steps')})
    with pytest.raises(ValueError, match='record has 0 arms'): collapse_theatre({**RECORD, 'arms':{}})
    with pytest.raises(ValueError, match='arms.grpo has .* frames for 1 steps'): collapse_theatre({**RECORD, 'steps':[0]})
    with pytest.raises(ValueError, match='frame=99: the record has'): collapse_theatre(RECORD, frame=99)

def test_a_fragment_is_small_and_fetches_nothing():
    import re
    h = collapse_theatre(RECORD).html(); assert len(h.encode())<300_000 and not re.search(r'''(src|href)=["'](?!data:)|@import|fetch\(|import\(''', h)
    assert 'uses:' not in js_source('theatre').split('\n')[0] and collapse_theatre(RECORD).poster.startswith('<svg')

def test_the_stored_figure_is_current():
    nb = json.loads((Path(__file__).parents[1]/'nbs/35_theatre.ipynb').read_text())
    kept = [''.join(h) for c in nb['cells'] for o in c.get('outputs',[]) if (h:=o.get('data',{}).get('text/html')) and 'data-figure' in ''.join(h)]
    assert len(kept)==2 and all(js_source('theatre') in h for h in kept) and kept[0]==collapse_theatre(RECORD).html()

# ---- in a browser

make = lambda **kw: collapse_theatre(RECORD, **kw)
def test_numbers_are_those_of_python(show):
    fig = make(frame=0); p = show(fig); module(p,'theatre'); s = fig.state
    for arm,rows in zip(s['frames'], theatre_rows(RECORD).values()):
        for f,o in zip(arm,rows):
            js = p.evaluate('([f,r]) => [m.entropy(f), m.shares(f), m.onFront(f,r)]', [f,s['routes']]); n = sum(c for _,c in f)
            assert abs(js[0]-o['entropy'])<1e-9 and np.allclose(js[1], [c/n for _,c in f]) and abs(js[2]['share']-o['on_front'])<1e-9 and js[2]['reached']==round(o['front']*len(s['front']))
    assert p.evaluate('m.entropy([[0,7]])')==0 and p.evaluate("m.entropy([])")==0 and not p.bad

def test_walks_are_those_of_python(show):
    p = show(make()); module(p,'theatre'); rng = np.random.default_rng(0)
    for seed,n in ((0,4),(1,5),(2,6)):
        z = make_maze(seed, config=maze_config(n)); texts = [' '.join('UDLR'[i] for i in rng.integers(0,4,k)) for k in (0,1,5,12,40)]
        got = p.evaluate('([z,ts]) => ts.map(t => m.cells(z,t))', [json.loads(to_json(z)),texts])
        assert got==[walk_cells(z, t.split()) for t in texts]
    assert not p.bad

def shown(p, sel): return p.evaluate("s => [...document.querySelectorAll(s)].map(e => e.textContent)", sel)
def test_every_frame_is_shown_as_recorded(show):
    p = show(make(frame=0)); rows = theatre_rows(RECORD)
    for k in (0,len(RECORD['steps'])//2,len(RECORD['steps'])-1):
        put(p, frame=k); now = [r[k] for r in rows.values()]
        assert shown(p,'.dr-nats')==[f"{o['entropy']:.2f} nats" for o in now] and shown(p,'.dr-kinds')==[f"{o['distinct']} different answers" for o in now]
        assert [t.split(' (')[0] for t in shown(p,'.dr-front')]==[f"front {round(o['front']*len(RECORD['front']))} of {len(RECORD['front'])}" for o in now]
        widths = p.evaluate("[...document.querySelectorAll('.dr-strip')].map(s => [...s.querySelectorAll('.dr-part > rect:first-of-type')].map(r => +r.getAttribute('width')))")
        for w,a in zip(widths,RECORD['arms'].values()):
            side = min(760/len(RECORD['arms'])-16,150); want = sorted(side*n/RECORD['samples'] for *_,n in a['frames'][k]['answers'])
            assert np.allclose(sorted(w), [max(.6,o-.8) for o in want], atol=.01)
        assert [len(o) for o in p.evaluate("[...document.querySelectorAll('.dr-maze')].map(g => [...g.querySelectorAll('.dr-route')].map(() => 1))")]==[sum(v[0]>0 for _,v,_ in a['frames'][k]['answers']) for a in RECORD['arms'].values()]
    assert not p.bad

def test_an_answer_has_one_colour_everywhere(show):
    p = show(make(frame=0)); s = theatre_state(RECORD); seen = {}
    for k in range(len(RECORD['steps'])):
        put(p, frame=k)
        for letter,fill in p.evaluate("[...document.querySelectorAll('.dr-part')].filter(g => g.querySelector('text')).map(g => [g.querySelector('text').textContent, g.querySelector('rect').getAttribute('fill')])"): seen.setdefault(letter,set()).add(fill)
    keys = dict(p.evaluate("[...document.querySelectorAll('.dr-key')].map(g => [g.querySelector('text').textContent, g.querySelectorAll('rect')[1].getAttribute('fill')])"))
    assert len(keys)==10 and len(set(keys.values()))==10 and seen and all(v=={keys[k]} for k,v in seen.items()) and not p.bad

def test_time_runs_stops_and_starts_again(show):
    p = show(make(frame=0)); t = p.get_by_label('training step'); t.focus(); last = len(RECORD['steps'])-1
    for _ in range(2): p.keyboard.press('ArrowRight')
    assert value(p,'frame')==2 and t.get_attribute('aria-valuetext')==str(RECORD['steps'][2])
    p.get_by_role('button',name='Play').click(); p.wait_for_function("k => document.querySelector('.dr-figure').model.get('frame') == k", arg=last); p.get_by_role('button',name='Play').wait_for()
    assert f"Step {RECORD['steps'][-1]}" in p.locator('[role=status]').inner_text() and 'entropy' in p.locator('[role=status]').inner_text()
    p.get_by_role('button',name='Play').click(); p.wait_for_function("k => document.querySelector('.dr-figure').model.get('frame') < k", arg=last); p.get_by_role('button',name='Pause').click(); assert not p.bad

def test_with_reduced_motion_it_jumps(show):
    p = show(make(frame=0), motion='reduce'); p.get_by_role('button',name='Play').click()
    assert value(p,'frame')==len(RECORD['steps'])-1 and p.get_by_role('button',name='Play').count()==1 and not p.bad

def test_answers_are_read_by_keyboard(show):
    p = show(make(frame=0)); box = p.locator('g[role=slider]'); assert box.count()==len(RECORD['arms'])
    for _ in RECORD['arms']: p.keyboard.press('Tab')
    assert RECORD['arms']['grpo']['label'] in box.nth(0).get_attribute('aria-label'); box.nth(0).focus(); p.keyboard.press('ArrowRight'); a = value(p,'pick')
    said = box.nth(0).get_attribute('aria-valuetext'); text,v,_ = theatre_state(RECORD)['routes'][a]
    assert text in said and f"completion {v[0]}" in said and said==p.locator('.dr-read').inner_text() and said.startswith(RECORD['arms']['grpo']['label']+':')
    seen = {a}
    for _ in range(len(RECORD['arms']['grpo']['frames'][0]['answers'])-1): p.keyboard.press('ArrowRight'); seen.add(value(p,'pick'))
    assert len(seen)==len(RECORD['arms']['grpo']['frames'][0]['answers'])                                # every answer can be reached
    p.keyboard.press('Home'); p.keyboard.press('Escape'); assert value(p,'pick')==-1 and p.evaluate('document.activeElement.textContent')=='Play' and not p.bad

def test_answers_are_read_by_pointer(show):
    p = show(make(frame=0)); part = p.locator('.dr-part').first; part.hover(); a = value(p,'pick')
    assert a>=0 and theatre_state(RECORD)['routes'][a][0] in p.locator('.dr-read').inner_text()
    dim = p.evaluate("[...document.querySelectorAll('.dr-part')].filter(g => +g.getAttribute('opacity') == 1).length"); assert 1<=dim<=len(RECORD['arms'])     # the same answer in other columns too
    p.locator('.dr-key').nth(3).hover(); assert value(p,'pick')==theatre_state(RECORD)['named'][3]
    p.mouse.move(2,2); assert value(p,'pick')==-1 and 'Point at an answer' in p.locator('.dr-read').inner_text() and not p.bad

def test_the_page_does_not_jump(show):
    still,p = show(make(), script=False),show(make())
    for width in (1280,800,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=1300))
        p.wait_for_timeout(150); box = p.evaluate(BOX)
        assert box==pytest.approx(still_box(still), abs=.5), width
        longest = max((t for f in FRAMES for t,*_ in f['answers']), key=len); put(p, pick=[r[0] for r in theatre_state(RECORD)['routes']].index(longest))
        assert max(over := p.evaluate(OVER))<=1, (width,over)
        put(p, pick=-1, frame=0); assert p.evaluate(BOX)==box; put(p, frame=3)
    assert not p.bad

OVERLAP = """(() => { const t = [...document.querySelectorAll('.dr-stage text')].filter(e => e.textContent && !e.closest('.dr-maze, .dr-strip')).map(e => [e.textContent, e.getBoundingClientRect()]), s = document.querySelector('.dr-stage').getBoundingClientRect(), bad = [];
    t.forEach(([a,r],i) => { if (r.right > s.right + 1 || r.bottom > s.bottom + 1 || r.left < s.left - 1) bad.push(a + ' leaves'); t.slice(0,i).forEach(([b,q]) => { if (r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 3 && q.top < r.bottom - 3) bad.push(a + ' | ' + b); }); }); return bad; })()"""
@pytest.mark.parametrize('arms', (1,2,4,5))
def test_no_words_on_words(show, arms):
    fig = collapse_theatre({**RECORD, 'arms':dict(list(RECORD['arms'].items())[:arms])}); p = show(fig)
    for width in (900,390):
        p.set_viewport_size(dict(width=width, height=1300)); p.wait_for_timeout(200); assert p.evaluate(OVERLAP)==[], (arms,width)
    assert not p.bad

def test_light_and_dark(show):
    p = show(make()); ink = {}
    for scheme,ground in (('light','rgb(255,255,255)'),('dark','rgb(18,18,18)')):
        p.emulate_media(color_scheme=scheme); p.wait_for_function("v => document.querySelector('.dr-figure').dataset.dark == v", arg=str(scheme=='dark').lower())
        for sel,key in (('.dr-nats','fill'),('.dr-kinds','fill'),('.dr-panel .dr-line:last-of-type','color')):
            assert contrast(p.evaluate('([s,k]) => getComputedStyle(document.querySelector(s))[k]', [sel,key]), ground) > 4.5, (scheme,sel)
        ink[scheme] = p.evaluate("getComputedStyle(document.querySelector('.dr-nats')).fill")
    assert contrast(ink['light'], ink['dark'])>10 and not p.bad

def test_everything_has_a_name_and_two_may_stand_on_a_page(show):
    p = show(make(), copies=2); assert nameless(p)==[] and p.locator('.dr-panel button').count()==2
    ids = p.evaluate("[...document.querySelectorAll('pattern')].map(e => e.id)"); assert len(ids)==len(set(ids))==10
    p.evaluate("document.querySelector('.dr-figure').model.set('frame', 0)"); assert p.evaluate("[...document.querySelectorAll('.dr-figure')].map(e => e.model.get('frame'))")[0]==0 and not p.bad

def test_a_live_model_is_drawn_the_same(show):
    fig = make(); p = show(fig)
    assert live(p, fig)==drawn(p) and p.evaluate('window.live.end()') is None and not p.bad

def test_screenshots(show, tmp_path):
    shots(show(make()), 'theatre', tmp_path, 1200)
