"The Pareto explorer: best answers, cells and set rewards of the page are those of Python; hand, keyboard, hostile text, light and dark"
import itertools, json, re
from importlib import resources
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from figures import BOX, OVER, centre, drawn, live, module, nameless, put, shots, still_box, value
from diverse_rl.metrics import pareto_mask
from diverse_rl.pareto import best_answers, cell_shares, draws_reward, move_weight, pareto_explorer, pareto_run, run_table, utility_table
from diverse_rl.sets import set_reward
from diverse_rl.simplex import simplex_nodes
from diverse_rl.widgets import js_source

FOUR = [[1., 0.], [.2, .9], [.5, .5], [.4, .3]]
TEXTS = ['all gold','nearly all diamonds','some of both','an also-ran']
def rows(n, d, seed=0): return np.random.default_rng(seed).random((n,d)).round(3)
def record(d=4, frames=4, seed=0, names=('completion','gold','diamond','1-lava')):
    "Two arms over four steps: one narrows down to a single outcome, one keeps several"
    rng = np.random.default_rng(seed); v = rng.integers(0,3,(7,d))/2; out = {}
    for a,label in (('grpo','GRPO'),('vpo','VPO')):
        fs = []
        for f in range(frames):
            n = rng.integers(1,9,10) if a=='vpo' else np.where(np.arange(10)<8-2*f, 4, 0)+(np.arange(10)==0)
            fs.append(dict(answers=[[f'{label} text {j}', v[j%7].tolist(), int(c)] for j,c in enumerate(n) if c], entropy=1., greedy='x'))
        out[a] = dict(label=label, frames=fs)
    return dict(names=list(names[:d]), front=[[1.]*d], front_routes=['U'], steps=[10*i for i in range(frames)], arms=out)
def made(kind):
    if kind=='plane': return pareto_explorer(FOUR, TEXTS, names=['gold','diamond'], front_PD=[[1.,0.],[.2,.9],[.6,.6]])
    if kind=='space': return pareto_explorer(rows(6,3), [f'text {i}' for i in range(6)], front_PD=[[.9,.9,.95]])
    if kind=='axes': return pareto_explorer(rows(6,5), front_PD=[[.9]*5])
    return pareto_run(record(), components={'run2':('gold','diamond'),'run3':(0,1,'diamond'),'run4':range(4)}[kind])
KINDS = ('plane','space','axes','run2','run3','run4')
UTILITIES = ('linear','chebyshev')

# ---- without a browser

@settings(max_examples=60)
@given(st.integers(1,7), st.integers(2,5), st.integers(1,9), st.integers(0,10**6), st.sampled_from(UTILITIES))
def test_best_answer_and_cell_the_slow_way(n, d, k, seed, utility):
    rng = np.random.default_rng(seed); v = rng.integers(0,4,(n,d))/3; w = rng.dirichlet(np.ones(d), k)
    def u(r, w): return r@w if utility=='linear' else max(w) - max(b*(1-a) for a,b in zip(r,w))
    slow = np.array([[u(r,o) for o in w] for r in v]); best = [next(i for i in range(n) if slow[i,j] >= slow[:,j].max()-1e-12) for j in range(k)]
    assert np.allclose(utility_table(v,w,utility), slow, atol=1e-12) and best_answers(v,w,utility).tolist()==best
    assert cell_shares(v,w,utility).tolist()==[best.count(i)/k for i in range(n)]
    by_cell = sum(slow[i,j] for j,i in enumerate(best))/k
    assert abs(by_cell - set_reward(torch.tensor(v)[None,None], torch.tensor(w), utility=utility).item()) < 1e-9

@settings(max_examples=60)
@given(st.lists(st.floats(0,1), min_size=2, max_size=6), st.data(), st.floats(-1,2))
def test_a_moved_weight_stays_on_the_simplex(raw, data, value):
    w = np.array(raw)+1e-3; w /= w.sum(); d = data.draw(st.integers(0,len(w)-1)); new = move_weight(w,d,value)
    assert abs(sum(new)-1)<1e-9 and min(new)>=0 and new[d]==min(1,max(0,value))
    rest = [i for i in range(len(w)) if i!=d]; assert np.allclose(np.array(new)[rest]*w[rest].sum(), w[rest]*(1-new[d]))

@settings(max_examples=40)
@given(st.integers(1,3), st.integers(2,3), st.integers(1,5), st.integers(0,10**6), st.sampled_from(UTILITIES))
def test_draws_by_enumeration(n, d, m, seed, utility):
    rng = np.random.default_rng(seed); v = rng.random((n,d)); c = rng.integers(1,4,n); w = rng.dirichlet(np.ones(d),4)
    pool = v.repeat(c,0); hands = list(itertools.combinations(range(len(pool)), min(m,len(pool))))
    slow = np.mean([set_reward(torch.tensor(pool[list(h)])[None,None], torch.tensor(w), utility=utility).item() for h in hands])
    assert abs(draws_reward(v,c,w,m,utility)-slow) < 1e-9

def test_a_run_is_gathered_by_outcome():
    r = record(); v,texts,arms = run_table(r, ['vpo'], ['gold','1-lava'])
    for f,frame in zip(arms[0]['frames'], r['arms']['vpo']['frames']):
        assert sum(o[1] for o in f)==sum(a[2] for a in frame['answers'])
        for i,n,t,others in f:
            same = [a for a in frame['answers'] if [a[1][1],a[1][3]]==v[i].tolist()]
            assert n==sum(a[2] for a in same) and others==len(same)-1 and texts[t] in {a[0] for a in same if a[2]==max(a[2] for a in same)}
    assert len({tuple(o) for o in v.tolist()})==len(v) and run_table(r, ['vpo'], [1,3])[0].tolist()==v.tolist()

@pytest.mark.parametrize('kw,match', [
    (dict(vectors_ND=[[1.],[2.]]), r'vectors_ND: got shape \(2, 1\).*D at least 2'), (dict(vectors_ND=[]), r'vectors_ND: got shape \(0,\)'), (dict(vectors_ND=[[1.,2.],[3.]]), 'vectors_ND'),
    (dict(vectors_ND=[[float('nan'),1.]]), 'vectors_ND: 1 values are NaN'), (dict(vectors_ND=[[-.5,1.]]), r'vectors_ND: the lowest value is -0.5'), (dict(vectors_ND=np.ones((41,2))), 'vectors_ND: got 41; 40'),
    (dict(vectors_ND=np.ones((2,9))), 'components: got 9'), (dict(texts=['a']), 'texts: got 1 for 4'), (dict(names=['a','b','c']), 'names: got 3 for 2'), (dict(front_PD=[[1.,2.,3.]]), r'front_PD: got shape \(1, 3\); want \(N,2\)'),
    (dict(front_PD=[[float('inf'),0.]]), 'front_PD'), (dict(weights=[.5,.6]), 'weights: got .* sum to 1'), (dict(weights=[1.]), 'weights'), (dict(utility='max'), "utility: got 'max'; choose one of linear"),
    (dict(vectors_ND=[[2.,0.]], utility='chebyshev'), "utility: 'chebyshev' .* 2"), (dict(alpha=0.), 'alpha'), (dict(m=5), 'm: got 5; there are 4'), (dict(m=0), 'm: got 0'), (dict(k=1), 'k: got 1'), (dict(k=257), 'k: got 257')])
def test_errors_of_the_explorer(kw, match):
    with pytest.raises(ValueError, match=match): pareto_explorer(**{'vectors_ND':FOUR, **kw})

@pytest.mark.parametrize('kw,match', [(dict(arms=('grpo','ppo')), "arms: no arm 'ppo'; the record has grpo, vpo"), (dict(arms=()), 'arms'), (dict(arms='grpo'), 'arms'), (dict(components=('gold','luck')), "components: no component 'luck'"),
    (dict(components=('gold',)), 'components: got shape'), (dict(components=(1,9)), 'no component 9'), (dict(step=7), 'step: got 7; the record has 0 to 30'), (dict(m=0), 'm: got 0')])
def test_errors_of_a_run(kw, match):
    with pytest.raises(ValueError, match=match): pareto_run(record(), **kw)

def test_a_record_with_a_frame_missing():
    r = record(); r['arms']['vpo']['frames'].pop()
    with pytest.raises(ValueError, match=r'record: 4 steps but \[4, 3\] frames'): pareto_run(r)

@pytest.mark.parametrize('fn', (utility_table, best_answers, cell_shares))
def test_errors_of_tables(fn):
    with pytest.raises(ValueError, match=r'vectors_ND \(4, 2\) and weights_KD \(1, 3\)'): fn(FOUR, [[.2,.3,.5]])
    with pytest.raises(ValueError, match="utility: got 'x'"): fn(FOUR, [[.5,.5]], 'x')

def test_chebyshev_is_not_offered_above_one():
    assert pareto_explorer([[2.,0.],[0.,1.]]).state['bounded'] is False and made('plane').state['bounded'] is True

@pytest.mark.parametrize('kind', KINDS)
def test_a_fragment_is_small_repeatable_and_alone(kind):
    a = made(kind).html()
    assert len(a.encode())<300_000 and a==made(kind).html() and a.count('<script')==a.count('</script>')==1
    assert not re.search(r'''(src|href)=["'](?!data:)|@import|url\(''', a) and set(made(kind)._repr_mimebundle_())=={'text/html','text/plain','image/svg+xml'}
    assert made(kind).poster.count('<svg')==1 and f'viewBox="0 0 {made(kind).look.wide[0]} {made(kind).look.wide[1]}"' in made(kind).poster

def test_a_module_fetches_nothing():
    s = js_source('pareto').replace('http://www.w3.org/2000/svg','')
    assert not re.search(r'^\s*import\b|import\(|https?:|fetch\(|</script|\beval\b|innerHTML', s, re.M) and 'function simplexHandle' in s

def test_the_largest_figure_is_small_enough(): assert len(pareto_explorer(rows(40,8), ['x'*2000]*40, k=256, front_PD=rows(60,8,1)).html().encode()) < 300_000

def test_stored_figures_are_current():
    nb = json.loads((Path(__file__).parents[1]/'nbs/33_pareto.ipynb').read_text())
    kept = [''.join(h) for c in nb['cells'] for o in c.get('outputs',[]) if (h:=o.get('data',{}).get('text/html')) and 'dr-figure' in ''.join(h)]
    assert len(kept)>=5 and all(js_source('pareto') in h for h in kept)

def test_values_go_both_ways():
    pytest.importorskip('anywidget')
    fig = made('space'); w = fig.widget; w.set_state(dict(weights=[.2,.3,.5], alpha='5.0', m=2, chosen=[1,1,0,0,0,0]))
    assert fig.values()['weights']==[.2,.3,.5] and fig.values()['alpha']=='5.0' and fig.values()['m']==2 and fig.set(utility='chebyshev').values()['utility']=='chebyshev'

def test_the_record_of_the_library():
    path = resources.files('diverse_rl')/'recorded'/'theatre.json'
    if not path.is_file(): pytest.skip('no recorded run yet')
    r = json.loads(path.read_text())
    for comps in (('gold','diamond'),(1,2,3),range(4)): assert len(pareto_run(r, components=comps).html().encode()) < 300_000

# ---- in a browser

def told(p): return p.locator('.dr-text').inner_text(), p.locator('.dr-numbers').inner_text()
def drag(p, sel, dx, dy, n=0):
    x,y = centre(p,sel,n); p.mouse.move(x,y); p.mouse.down(); p.mouse.move(x+dx/2,y+dy/2,steps=3); p.mouse.move(x+dx,y+dy,steps=3); p.mouse.up()

SETS = [rows(1,2), np.array(FOUR), np.array(FOUR+FOUR[:2]), rows(7,2,1), rows(5,3), np.repeat(rows(2,3,2),2,0), rows(6,4), np.eye(5), np.zeros((3,2))]
@pytest.mark.parametrize('utility', UTILITIES)
def test_best_answers_and_set_reward_are_those_of_python(show, utility):
    p = show(made('plane')); module(p, 'pareto')
    for v in SETS:
        for alpha in (.2,1.,7.):
            nodes = simplex_nodes(32, v.shape[1], alpha=alpha, dtype=torch.float64)
            for m in {1,len(v)//2,len(v)}-{0}:
                js = p.evaluate('([v,i,w,u]) => window.m.fill(v,i,w,u)', [v.tolist(),list(range(m)),nodes.tolist(),utility])
                assert js['best']==best_answers(v[:m],nodes,utility).tolist() and np.allclose(js['value'], utility_table(v[:m],nodes,utility).max(0), atol=1e-12)
                for k in (1,9,32): assert abs(js['mean'][k-1]-set_reward(torch.tensor(v[:m])[None,None], nodes[:k], utility=utility).item()) < 1e-9
    empty = p.evaluate("window.m.fill([[1,0]],[],[[.5,.5]],'linear')"); assert empty=={'best':[-1],'value':[0],'mean':[0]} and not p.bad

def test_draws_and_moved_weights_are_those_of_python(show):
    p = show(made('run2')); module(p, 'pareto'); rng = np.random.default_rng(3)
    for d,n in ((2,1),(3,5),(4,8)):
        v,c,w = rows(n,d,n),rng.integers(1,9,n),simplex_nodes(16,d,dtype=torch.float64)
        for m in (1,3,16,500):
            for u in UTILITIES: assert abs(p.evaluate('([v,c,w,u,m]) => window.m.drawsReward(v,v.map((_,i) => i),c,w,u,m)', [v.tolist(),c.tolist(),w.tolist(),u,m])-draws_reward(v,c,w,m,u)) < 1e-9
        for x in (-.2,.3,1.,2.):
            for o in (w[3].tolist(),[0.]*(d-1)+[1.]): assert np.allclose(p.evaluate('([w,d,x]) => window.m.moved(w,d,x)', [o,d-1,x]), move_weight(o,d-1,x), atol=1e-12)

@pytest.mark.parametrize('utility', UTILITIES)
def test_cells_are_those_of_python(show, utility):
    p = show(made('plane')); module(p, 'pareto')
    for v in SETS:
        if v.shape[1]>3: continue
        members = list(range(len(v)))
        if v.shape[1]==2:
            parts = p.evaluate('([v,i,u]) => window.m.intervals(v,i,u)', [v.tolist(),members,utility])
            assert parts[0][1]==0 and parts[-1][2]==1 and all(a[2]==b[1] and a[0]!=b[0] for a,b in zip(parts,parts[1:]))
            t = np.random.default_rng(0).random(300); t = t[[all(abs(o-b[1])>1e-6 for b in parts) for o in t]]
            assert [next(i for i,a,b in parts if a<=o<=b) for o in t]==best_answers(v, np.stack([1-t,t],1), utility).tolist()
            share = np.bincount([i for i,*_ in parts], [b-a for _,a,b in parts], len(v)); assert np.abs(share-cell_shares(v, simplex_nodes(256,2,dtype=torch.float64), utility)).max()<.02
        else:
            cells = p.evaluate('([v,i,u]) => window.m.regions(v,i,u,window.m.simplexMap(0,0,300,3))', [v.tolist(),members,utility])
            area = sum(b-a for r in cells.values() for _,a,b in r)*1.5; assert abs(area/(300*300*.866/2)-1)<.02
            at = [(int(i),(a+b)/2,y+.75) for i,r in cells.items() for y,a,b in r[::5] if b-a>2]
            w = p.evaluate('xy => { const m = window.m.simplexMap(0,0,300,3); return xy.map(([i,x,y]) => m.weights(x,y)); }', at)
            assert len(at)>20 and best_answers(v,w,utility).tolist()==[i for i,*_ in at]
    assert not p.bad

def test_staircase_and_hull_are_those_of_python(show):
    p = show(made('plane')); module(p, 'pareto')
    for seed in range(6):
        v = np.random.default_rng(seed).integers(0,6,(9,2))/5
        front = np.unique(v[pareto_mask(v, maximise=True)], axis=0)
        assert p.evaluate('v => window.m.staircase(v)', v.tolist())==front.tolist()
        w = np.stack([t:=np.linspace(1e-6,1-1e-6,4001),1-t],1); seen = np.unique(v[best_answers(v,w)], axis=0)
        assert p.evaluate('v => window.m.hull(v)', v.tolist())==seen.tolist()

def number(p): return float(re.search(r'weight vectors: (\d\.\d+)', p.locator('.dr-trace').get_attribute('aria-label'))[1])
def wanted(p, nodes, k=128):
    v = np.array(value(p,'vectors'))[np.array(value(p,'chosen'),bool)]; u = value(p,'utility')
    return set_reward(torch.tensor(v)[None,None], torch.tensor(nodes[value(p,'alpha')][:k], dtype=torch.float64), utility=u).item()

@pytest.mark.parametrize('kind', ('plane','space','axes'))
def test_controls_change_what_is_shown(show, kind):
    fig = made(kind); p = show(fig); nodes = fig.state['nodes']; seen = [number(p)]
    assert abs(seen[0]-wanted(p,nodes)) < 6e-4
    for key,option in (('utility','chebyshev'),('alpha','0.2'),('alpha','5.0'),('utility','linear')):
        p.locator('.dr-panel select').nth(int(key=='utility')).select_option(option); assert value(p,key)==option; assert abs(number(p)-wanted(p,nodes)) < 6e-4; seen.append(number(p))
    p.get_by_label('answers M').evaluate("e => { e.value = 1; e.dispatchEvent(new Event('input')); }")
    assert value(p,'chosen')==[1]+[0]*(len(fig.state['vectors'])-1) and abs(number(p)-wanted(p,nodes)) < 6e-4; seen.append(number(p))
    p.get_by_label('weights K').evaluate("e => { e.value = 7; e.dispatchEvent(new Event('input')); }")
    assert value(p,'shown')==7 and abs(number(p)-wanted(p,nodes,k=7)) < 6e-4 and p.locator('.dr-trace circle:visible').count()==7; seen.append(number(p))
    assert len(set(seen))==len(seen)
    put(p, m=3); assert sum(value(p,'chosen'))==3 and not p.bad                                                 # from Python too

def test_fill_goes_from_the_first_weight_to_the_last(show):
    p = show(made('space')); p.get_by_role('button',name='Fill').click()
    p.wait_for_function("document.querySelector('.dr-figure').model.get('shown') < 100"); n = p.locator('.dr-nodes').get_attribute('d').count('M'); assert n < 128
    p.get_by_role('button',name='Pause').click(); k = value(p,'shown'); p.wait_for_timeout(200); assert value(p,'shown')==k
    p.get_by_role('button',name='Fill').click(); p.wait_for_function("document.querySelector('.dr-figure').model.get('shown') == 128"); p.get_by_role('button',name='Fill').wait_for()
    assert 'set reward' in p.locator('[role=status]').inner_text() and p.locator('.dr-nodes').get_attribute('d').count('M')==128
    q = show(made('space'), motion='reduce'); put(q, shown=5); q.get_by_role('button',name='Fill').click(); assert value(q,'shown')==128

def test_an_answer_is_taken_out_by_click_and_by_key(show):
    p = show(made('plane')); a = number(p); p.locator('.dr-point').nth(1).click()
    assert value(p,'chosen')==[1,0,1,1] and value(p,'m')==3 and number(p)<a and p.locator('.dr-point').nth(1).get_attribute('aria-pressed')=='false' and 'with 3 answers' in p.locator('[role=status]').inner_text()
    p.locator('.dr-point').nth(1).focus(); p.keyboard.press('Enter'); assert value(p,'chosen')==[1,1,1,1] and number(p)==a
    for i in range(4): p.locator('.dr-point').nth(i).focus(); p.keyboard.press(' ')
    p.mouse.move(0,0); p.get_by_role('button',name='Fill').focus()
    assert value(p,'m')==0 and number(p)==0 and 'No answer' in told(p)[0] and not p.bad

def test_the_also_ran_costs_nothing(show):
    p = show(made('plane')); a = number(p); p.locator('.dr-point').nth(3).click(); assert number(p)==a and not p.bad

@pytest.mark.parametrize('kind', ('plane','space'))
def test_the_weights_are_dragged(show, kind):
    p = show(made(kind)); h = '.dr-figure svg [role=slider]'; level = p.locator('.dr-level').get_attribute('d'); w = value(p,'weights'); drag(p,h,-60,-10)
    new = value(p,'weights'); assert new!=w and abs(sum(new)-1)<1e-3 and new[0]>w[0]+.1 and p.locator('.dr-level').get_attribute('d')!=level
    p.locator(h).first.focus(); p.keyboard.press('ArrowRight'); assert value(p,'weights')[0]<new[0]
    for _ in range(12): p.keyboard.press('Shift+ArrowRight')
    end = value(p,'weights'); v = np.array(value(p,'vectors')); best = int(best_answers(v,[end])[0]); p.mouse.move(0,0)
    p.get_by_role('button',name='Fill').focus(); assert told(p)[0].startswith(f'Answer {best+1}:') and f'worth {utility_table(v,[end]).max():.2f}, the best' in told(p)[1]
    assert ', '.join(f'{o:.2f}' for o in end)==p.locator(h).first.get_attribute('aria-valuetext') and not p.bad

def test_weights_under_axes(show):
    p = show(made('axes')); w = value(p,'weights'); drag(p,'.dr-weight',0,-20,2); new = value(p,'weights')
    assert np.allclose(new, move_weight(w,2,new[2]), atol=1e-5) and new[2]>w[2]+.1
    p.locator('.dr-weight').nth(0).focus(); p.keyboard.press('Shift+ArrowUp'); p.keyboard.press('ArrowLeft'); got = value(p,'weights')
    assert np.allclose(got, move_weight(move_weight(new,0,new[0]+.1),0,new[0]+.08), atol=1e-5) and p.locator('.dr-weight').nth(0).get_attribute('aria-valuetext')==f'{got[0]:.2f}'
    for _ in range(12): p.keyboard.press('Shift+ArrowUp')
    assert value(p,'weights')==[1,0,0,0,0]
    p.keyboard.press('Shift+ArrowDown'); assert np.allclose(value(p,'weights'), [.9]+[.025]*4) and not p.bad

def test_the_space_turns_and_comes_with_the_hand(show):
    p = show(made('space')); place = lambda: p.locator('.dr-point').first.get_attribute('transform'); a = place(); b = p.locator('.dr-space').bounding_box()
    p.mouse.move(b['x']+12,b['y']+12); p.mouse.down(); p.mouse.move(b['x']+52,b['y']+12,steps=4); p.mouse.up(); assert place()!=a and value(p,'pitch')==.4
    y = value(p,'yaw'); p.locator('.dr-space').focus(); p.keyboard.press('ArrowLeft'); p.keyboard.press('ArrowDown'); assert abs(abs(value(p,'yaw')-y)-.1)<1e-3 and abs(value(p,'pitch')-.5)<1e-6 and not p.bad

def test_hover_and_focus_show_the_text(show):
    p = show(made('plane')); p.locator('.dr-point').nth(2).hover(); assert told(p)[0]=='Answer 3: some of both' and 'gold 0.50, diamond 0.50 · worth 0.50 · best for 0 % of weights' in told(p)[1]
    p.mouse.move(0,0); assert told(p)[0].startswith('Answer 2')
    p.locator('.dr-point').nth(3).focus(); assert told(p)[0]=='Answer 4: an also-ran' and 'answer 4: gold 0.40, diamond 0.30; an also-ran'==p.locator('.dr-point').nth(3).get_attribute('aria-label')
    q = show(made('space')); cell = lambda i: float(q.locator(f'[data-cell="{i}"]').get_attribute('opacity')); i = int(q.locator('[data-cell]').first.get_attribute('data-cell'))
    q.locator('.dr-point').nth(i).hover(); assert cell(i)==.8 and not p.bad and not q.bad

EVIL = '</script><img src=x onerror="window.hit=1"><script>window.hit=1</script> & "quotes" \u2028 ${1}'
@pytest.mark.parametrize('d', (2,3,4))
def test_hostile_text_stays_text(show, d):
    p = show(pareto_explorer(rows(3,d), [EVIL]*3, names=[EVIL]*d)); p.locator('.dr-point').first.focus(); p.wait_for_timeout(100)
    assert p.evaluate('window.hit')is None and p.locator('.dr-figure img').count()==0 and p.locator('.dr-text').evaluate('e => e.textContent')==f'Answer 1: {EVIL}' and not p.bad
    r = record(d); r['arms']['vpo']['label'] = EVIL; r['names'] = [EVIL+str(i) for i in range(d)]
    for f in r['arms']['vpo']['frames']: f['answers'][0][0] = EVIL
    q = show(pareto_run(r, components=range(d))); q.locator('.dr-point:visible').last.focus(); assert q.evaluate('window.hit') is None and q.locator('.dr-figure img').count()==0 and not q.bad

def test_equal_answers_stand_side_by_side(show):
    p = show(pareto_explorer([[.5,.5]]*3, ['a','b','c'])); x = [centre(p,'.dr-point',i)[0] for i in range(3)]
    assert x[1]-x[0]>10 and x[2]-x[1]>10 and number(p)==.5
    p.locator('.dr-point').nth(2).click(); assert number(p)==.5 and not p.bad
    for d in (2,3,4): q = show(pareto_explorer(rows(1,d))); assert q.locator('.dr-point').count()==1 and not q.bad

@pytest.mark.parametrize('kind', ('run2','run3','run4'))
def test_a_run_slides_over_steps(show, kind):
    fig = made(kind); p = show(fig); s = fig.state; arms = s['arms']; v = np.array(s['vectors'])
    def want(a): f = arms[a]['frames'][value(p,'frame')]; return draws_reward(v[[o[0] for o in f]], [o[1] for o in f], s['nodes'][value(p,'alpha')], value(p,'m'), value(p,'utility'))
    def shown(): return [float(o) for o in re.findall(r'(?:GRPO|VPO) (\d\.\d+)', p.locator('.dr-trace').get_attribute('aria-label'))]
    t = p.get_by_label('training step'); assert value(p,'frame')==3
    for change in (dict(), dict(frame=0), dict(m=1), dict(m=16), dict(alpha='0.2'), dict(utility='chebyshev')):
        put(p, **change); assert np.allclose(shown(), [want(0),want(1)], atol=6e-4), change
        assert p.locator('.dr-point:visible').count()==sum(len(a['frames'][value(p,'frame')]) for a in arms)
    t.focus(); p.keyboard.press('ArrowRight'); assert value(p,'frame')==1 and t.get_attribute('aria-valuetext')=='10'
    p.get_by_role('button',name='Play').click(); p.wait_for_function("document.querySelector('.dr-figure').model.get('frame') == 3"); p.get_by_role('button',name='Play').wait_for()
    assert 'Step 30: GRPO' in p.locator('[role=status]').inner_text()
    p.locator('.dr-point:visible').first.focus(); assert re.match(r'GRPO, outcome \d+: GRPO text', told(p)[0]) and re.search(r'\d+ of \d+ samples', told(p)[1]) and not p.bad

def test_both_arms_follow_one_weight(show):
    p = show(made('run2')); h = '.dr-figure svg [role=slider]'; assert p.locator(h).count()==2; drag(p,h,40,0,1)
    assert p.locator(h).nth(0).get_attribute('aria-valuetext')==p.locator(h).nth(1).get_attribute('aria-valuetext')==', '.join(f'{o:.2f}' for o in value(p,'weights')) and value(p,'weights')[1]>.55

@pytest.mark.parametrize('kind', KINDS)
def test_the_page_does_not_jump(show, kind):
    "As high with its picture as with its program, whatever is hovered; controls fit; nothing is wider than the page"
    fig = made(kind); still,p = show(fig, script=False),show(fig)
    for width in (1280,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=900))
        p.wait_for_timeout(100); box = p.evaluate(BOX); assert box==pytest.approx(still_box(still), abs=.5), width
        assert max(over := p.evaluate(OVER))<=1, (width,over)
        view = [float(v) for v in p.locator('.dr-stage svg').get_attribute('viewBox').split()[2:]]; assert view==list((fig.look.narrow if width<560 else fig.look.wide)[:2])
        p.locator('.dr-point:visible').first.focus(); put(p, frame=0) if kind[:3]=='run' else put(p, shown=3, m=1)
        assert p.evaluate(BOX)==box and max(p.evaluate(OVER))<=1 and not p.bad
        out = p.evaluate("""(() => { const s = document.querySelector('.dr-stage').getBoundingClientRect(); return [...document.querySelectorAll('.dr-stage text')].filter(t => t.textContent).map(t => [t.textContent, t.getBoundingClientRect()])
            .filter(([t,b]) => b.width && (b.left < s.left-1.5 || b.right > s.right+1.5 || b.top < s.top-1.5 || b.bottom > s.bottom+1.5)).map(o => o[0]); })()""")
        assert out==[], (width,out)

@pytest.mark.parametrize('kind', KINDS)
def test_light_and_dark_and_names(show, kind):
    p = show(made(kind)); ink = {}
    for scheme in ('light','dark'):
        p.emulate_media(color_scheme=scheme); p.wait_for_function("v => document.querySelector('.dr-figure').dataset.dark == v", arg=str(scheme=='dark').lower())
        ink[scheme] = [sum(int(o) for o in re.findall(r'\d+', p.evaluate('s => getComputedStyle(document.querySelector(s)).color', s))[:3]) for s in ('.dr-figure','.dr-panel .dr-line')]
    assert all(a<300<500<b for a,b in zip(ink['light'],ink['dark']))
    assert nameless(p, hidden=False)==[] and p.locator('.dr-figure').get_attribute('aria-label') and not p.bad

def test_a_figure_may_stand_twice_and_live(show):
    fig = made('plane'); p = show(fig, copies=2); p.locator('.dr-figure').nth(1).locator('.dr-point').first.click()
    assert p.evaluate("[...document.querySelectorAll('.dr-figure')].map(e => e.model.get('m'))")==[4,3]
    assert live(p, fig)==drawn(p)
    p.evaluate("window.live.el.querySelector('.dr-point').dispatchEvent(new MouseEvent('click'))"); assert p.evaluate('window.live.model.saved')>0 and p.evaluate('window.live.end()') is None and not p.bad

@pytest.mark.parametrize('kind', KINDS)
def test_screenshots(show, kind, tmp_path):
    shots(show(made(kind)), f'pareto-{kind}', tmp_path)

def test_nothing_is_best_where_there_is_no_number():
    for bad in ([[np.nan, 1.], [0., 1.]], [[1., np.inf]]):
        with pytest.raises(ValueError, match='NaN or infinite'): cell_shares(bad, [[.5, .5]])
    for w,d in (([.5, .5], 2), ([.5, .5], -1), ([1.], 0)):
        with pytest.raises(ValueError, match='give 0 to D-1'): move_weight(w, d, .2)
