"The simplex explorer: quadrature against closed forms, tables and curves against loops, the page's maths against Python, hand and keyboard"
import json, math, re
from pathlib import Path
import pytest, torch
from hypothesis import given, settings, strategies as st
from figures import OVER, module, nameless, put, shots, value
from diverse_rl.advantages import group_advantage
from diverse_rl.nodes import *
from diverse_rl.nodes import _VECTORS
from diverse_rl.sets import exact_set_reward, set_reward
from diverse_rl.simplex import lattice_size, simplex_nodes
from diverse_rl.widgets import js_source

FIRST = torch.tensor(_VECTORS, dtype=torch.float64)
def T(x): return torch.tensor(x, dtype=torch.float64)
TWO = [[.9,.15],[.2,.85],[.62,.6]]
@pytest.fixture(scope='module')
def figures(): return {3:simplex_explorer(), 2:simplex_explorer(TWO, method='lattice', k=16, group=6)}
def fresh(fig, **kw): return type(fig)(fig.name, {**fig.state, **kw}, fig.look, fig.poster)

# ---- without a browser

@settings(max_examples=15)
@given(st.integers(1,5), st.integers(2,3), st.integers(0,10**6))
def test_the_product_rule_is_the_exact_value_at_one(m, d, seed):
    r = torch.rand(3, m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.allclose(dirichlet_set_reward(r, 1., 401), T([exact_set_reward(s) for s in r]), atol=2e-4)

@pytest.mark.parametrize('alpha', [.1,.7,3.,10.])
def test_one_answer_and_corners(alpha):
    "One answer is worth its mean; two opposite corners are worth E max(w, 1-w), by a fine sum over the density"
    r = torch.rand(4,1,3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(dirichlet_set_reward(r, alpha), r[:,0].mean(-1), atol=1e-6)
    z = torch.linspace(-15/alpha-2, 15/alpha+2, 400_001, dtype=torch.float64); t = z.sigmoid(); p = (alpha*(t.log()+torch.nn.functional.logsigmoid(-z))).exp()
    assert abs(dirichlet_set_reward(torch.eye(2)[None], alpha).item()-(p@torch.maximum(t,1-t)/p.sum()).item()) < 1e-4

def test_components_may_change_places():
    r = torch.rand(2,4,3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for alpha in (.2,4.): assert torch.allclose(dirichlet_set_reward(r,alpha), dirichlet_set_reward(r[...,[2,0,1]],alpha), atol=1e-4)

@settings(max_examples=10)
@given(st.integers(1,4), st.integers(2,4), st.integers(0,10**6), st.sampled_from(['iid','sobol']))
def test_running_rewards_are_set_rewards(m, d, seed, method):
    r = torch.rand(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64); t = node_tables(method, d, 1.5, 2, 40)
    got = running_rewards(r, t, (3,17,40))
    for i,k in enumerate((3,17,40)):
        for j in (0,1): assert torch.isclose(got[j,i], set_reward(r[None,None], t[j,:k]).squeeze())
    assert torch.equal(t[1], simplex_nodes(40, d, method=method, alpha=1.5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))

def test_rms_and_slope():
    assert rms(torch.tensor([[3.,0.],[4.,2.]])) == pytest.approx([math.sqrt(12.5), math.sqrt(2)]) and slope([2,4,8],[.5,.25,.125]) == pytest.approx(-1)

@settings(max_examples=20)
@given(st.integers(1,30), st.integers(2,3), st.integers(0,10**6))
def test_packing_keeps_seven_digits(k, d, seed):
    from base64 import b64decode
    w = simplex_nodes(k, d, method='iid', alpha=.3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64); b = b64decode(packed(w))
    back = [[int.from_bytes(b[3*(i*(d-1)+c):3*(i*(d-1)+c)+3],'big')/(2**24-1) for c in range(d-1)] for i in range(k)]
    assert len(packed(w))==4*k*(d-1) and (T(back)-w[:,:-1]).abs().max() < 4e-8

def test_a_group_begins_with_the_set():
    g = sample_rollouts(FIRST, 9); assert g.shape==(9,4,3) and torch.allclose(g[0],FIRST) and g.min()>=0 and g.max()<=1 and torch.equal(g, sample_rollouts(FIRST, 9))

def test_the_first_two_keep_their_order_at_every_alpha(figures):
    "What the figure shows with G=2 is no accident of one α"
    for row in figures[3].state['exact']: assert row[0]-row[1] > .1

def test_the_fragment_is_small(figures):
    for fig in figures.values():
        html = fig.html(); assert len(html.encode()) < 300_000 and not re.search(r'''(src|href)=["'](?!data:)|@import|url\(''', html)

def test_the_stored_figures_are_current(figures):
    nb = json.loads((Path(__file__).parents[1]/'nbs/34_nodes.ipynb').read_text())
    kept = [''.join(h) for c in nb['cells'] for o in c.get('outputs',[]) if (h:=o.get('data',{}).get('text/html'))]
    assert len(kept)==2 and all(js_source('nodes') in h and f.look.style() in h for h,f in zip(kept,figures.values()))

def test_errors():
    for kw,says in ((dict(vectors_MD=torch.rand(2,4)),r'vectors_MD: got shape \(2, 4\); want'), (dict(vectors_MD=[[1.5,.2]]),'vectors_MD: got values from 0.2 to 1.5'), (dict(method='grid'),"method: got 'grid'; choose one of iid, sobol, lattice"),
        (dict(alpha=.3),'alpha: got 0.3; choose one of 0.1'), (dict(k=100),'k: got 100; choose one of 4, 8'), (dict(group=17),'group: got 17; want 2 to 16'), (dict(transform='rank'),"transform: got 'rank'"), (dict(repeats=3),'repeats: got 3; want at least 4')):
        with pytest.raises(ValueError, match=says): simplex_explorer(**kw)
    with pytest.raises(ValueError, match=r'rewards_GMD: got shape \(2, 4\)'): dirichlet_set_reward(torch.rand(2,4))
    with pytest.raises(ValueError, match='alpha: got 0'): dirichlet_set_reward(torch.rand(1,2,3), 0)

# ---- in a browser, refused every outside request

def places(p, sel): return torch.tensor(p.evaluate("s => [...document.querySelectorAll(s)].map(e => [+e.getAttribute('cx'), +e.getAttribute('cy')])", sel)).double()

def test_the_maths_of_the_page_is_that_of_python(show, figures):
    p = show(figures[3]); module(p, 'nodes'); g = torch.Generator().manual_seed(7)
    for d in (2,3):
        for method,alpha in (('iid',.2),('sobol',1.),('sobol',5.)):
            w = simplex_nodes(37, d, method=method, alpha=alpha, generator=g, dtype=torch.float64); r = torch.rand(5,4,d, generator=g, dtype=torch.float64)
            js = p.evaluate('([t,d]) => m.unpack(t,d)', [packed(w),d]); assert torch.allclose(T(js), w, atol=1e-7)
            rewards = p.evaluate('([r,w]) => r.map(s => m.setReward(s,w))', [r.tolist(),js]); want = set_reward(r[None], w)
            assert torch.allclose(T(rewards), want[0], atol=1e-6)
            for name,transform in (('z_norm',None),('center','center')):
                a = p.evaluate('([v,t]) => m.advantage(v,t)', [want[0].tolist(),name]); assert torch.allclose(T(a), group_advantage('vpo', r[None], weights_KD=w, transform=transform)[0], atol=1e-6)
        for n in (0,1,4,9):
            js = p.evaluate('([n,d]) => m.lattice(n,d)', [n,d]); want = simplex_nodes(lattice_size(n,d), d, method='lattice', dtype=torch.float64)
            assert sorted([round(v,9)+0. for v in w] for w in js)==sorted([round(v,9)+0. for v in w] for w in want.tolist())
    assert p.evaluate("() => m.advantage([.3,.3,.3],'z_norm')")==[0,0,0] and not p.bad

def test_cells_are_where_an_answer_wins(show, figures):
    p = show(figures[3]); module(p, 'nodes')
    for m in range(4):
        poly = T(p.evaluate('([s,m]) => m_cell(s,m)'.replace('m_cell','window.m.cell'), [FIRST.tolist(),m])); mid = poly.mean(0)
        assert len(poly)>=3 and (FIRST@mid).argmax()==m and torch.allclose(poly.sum(-1), torch.ones(len(poly)).double())
        assert all((FIRST@v).max()-(FIRST[m]@v) < 1e-9 for v in poly)
    assert p.evaluate("() => window.m.cell([[1,1,1],[.5,.5,.5]],1).length")==0                        # a dominated answer never wins

def test_the_nodes_drawn_are_those_of_simplex_nodes(show, figures):
    p = show(figures[3]); corners = T([[24,48+.866*280],[304,48+.866*280],[164,48]])
    for rule,alpha,size,draw in (('sobol',3,3,0),('sobol',1,5,2),('iid',3,4,1),('lattice',3,2,0)):
        put(p, rule=rule, alpha=alpha, size=size, draw=draw); k = lattice_size(lattice_edges(3)[size],3) if rule=='lattice' else SIZES[size]
        n = k if rule=='lattice' else 256                                                                # the first k of a table
        w = simplex_nodes(n, 3, method=rule, alpha=1. if rule=='lattice' else ALPHAS[alpha], generator=torch.Generator().manual_seed(draw), dtype=torch.float64)[:k]
        got = places(p,'.dr-node'); want = w@corners
        assert len(got)==k and torch.cdist(got, want).min(1).values.max() < .02 and torch.cdist(want, got).min(1).values.max() < .02
    assert not p.bad

def test_the_readout_is_the_set_reward(show, figures):
    p = show(figures[3])
    for rule,alpha,size in (('iid',0,0),('sobol',3,4),('lattice',3,1)):
        put(p, rule=rule, alpha=alpha, size=size); k = lattice_size(lattice_edges(3)[size],3) if rule=='lattice' else SIZES[size]
        w = simplex_nodes(k if rule=='lattice' else 256, 3, method=rule, alpha=ALPHAS[alpha], dtype=torch.float64)[:k]
        said = [float(v) for v in re.findall(r'\d\.\d+', p.locator('.dr-panel .dr-line').first.inner_text())]
        assert abs(said[0]-set_reward(FIRST[None,None], w).item()) < 6e-5 and abs(said[1]-dirichlet_set_reward(FIRST[None], ALPHAS[alpha]).item()) < 2e-4 and abs(said[2]-abs(said[0]-said[1])) < 2e-4

def advantages(p): return ((places(p,'.dr-advantage')[:,0]-24)/652*6.4-3.2).flip(0)                     # drawn last to first
def test_two_rollouts_hide_everything(show, figures):
    p = show(figures[3]); seen = {}
    for alpha in (0,3,6):
        for rule,size in (('sobol',5),('iid',4),('sobol',3)):
            put(p, alpha=alpha, rule=rule, size=size); seen[alpha,rule,size] = advantages(p)
            assert torch.allclose(seen[alpha,rule,size], T([1.,-1.]), atol=1e-3) and 'off by 0.000 rms' in p.locator('.dr-panel').inner_text()
    a = places(p,'.dr-reward')[:,0].clone(); put(p, alpha=0); assert (places(p,'.dr-reward')[:,0]-a).abs().max() > 40     # the rewards move
    put(p, group=8, alpha=0); few = advantages(p); put(p, alpha=6); many = advantages(p); assert len(few)==8 and (few-many).abs().max() > .3
    w = simplex_nodes(256, 3, alpha=10., dtype=torch.float64)[:SIZES[3]]; sets = T(value(p,'sets'))
    assert torch.allclose(many, group_advantage('vpo', sets[None,:8], weights_KD=w)[0], atol=1e-3)
    put(p, group=2, transform='center', alpha=0); x = places(p,'.dr-advantage')[:,0].clone(); put(p, alpha=6); assert (places(p,'.dr-advantage')[:,0]-x).abs().max() > 5 and not p.bad

def test_controls(show, figures):
    p = show(figures[3]); dots = lambda: places(p,'.dr-node'); a = dots()
    p.get_by_role('button',name='Redraw').click(); b = dots(); assert value(p,'draw')==1 and not torch.equal(a,b)
    for _ in range(3): p.get_by_role('button',name='Redraw').click()
    assert value(p,'draw')==0 and torch.equal(dots(),a)
    p.locator('.dr-panel input').nth(0).focus(); p.keyboard.press('ArrowRight'); assert value(p,'size')==4 and len(dots())==64 and p.locator('.dr-panel input').nth(0).get_attribute('aria-valuetext')=='64'
    p.locator('.dr-panel input').nth(1).focus(); p.keyboard.press('ArrowLeft'); assert value(p,'alpha')==2 and p.locator('.dr-lattice').count()==0
    p.locator('.dr-panel select').nth(0).select_option('lattice'); assert p.locator('.dr-panel input').nth(1).is_disabled() and p.get_by_role('button',name='Redraw').is_disabled() and p.locator('.dr-panel input').nth(1).get_attribute('aria-valuetext')=='1'
    assert len(dots())==55 and p.locator('.dr-lattice').count()==1 and p.locator('.dr-panel input').nth(0).get_attribute('aria-valuetext')=='55'
    p.locator('.dr-panel select').nth(0).select_option('iid'); assert not p.locator('.dr-panel input').nth(1).is_disabled() and value(p,'alpha')==2
    p.locator('.dr-panel input').nth(2).focus(); p.keyboard.press('End'); assert value(p,'group')==16 and len(places(p,'.dr-advantage'))==16
    p.locator('.dr-panel select').nth(1).select_option('center'); assert value(p,'transform')=='center' and not p.bad

def test_the_curves_are_the_errors(show, figures):
    p = show(figures[3]); s = figures[3].state
    for name in ('iid','sobol'):
        pts = T([[float(v) for v in q.split(',')] for q in p.locator(f'.dr-{name}').get_attribute('points').split()]); e = T(s['errors'][name][3]); low = s['lowest']
        assert torch.allclose(pts[:,1], 52+210*(.2/e).log()/math.log(.2/low), atol=.02) and torch.allclose(pts[:,0], 384+300*(torch.tensor(SIZES)/3).double().log()/math.log(256/3), atol=.02)

@pytest.mark.parametrize('d', [2,3])
def test_no_jump_and_nothing_outside(show, figures, d):
    still,p = show(figures[d], script=False),show(figures[d]); fig = figures[d]
    for width in (900,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=1100))
        p.wait_for_timeout(120); a,b = still.locator('#after').bounding_box(),p.locator('#after').bounding_box(); assert abs(a['y']-b['y'])<.6
        for kv in (dict(group=2, transform='z_norm', rule='iid', alpha=0), dict(group=16, rule='lattice'), dict(rule='sobol', transform='center', size=6)):
            put(p, **kv); assert max(p.evaluate(OVER))<=1, (width,kv)
            out = p.evaluate("() => { const [,,w,h] = document.querySelector('.dr-stage svg').getAttribute('viewBox').split(' ').map(Number); return [...document.querySelectorAll('.dr-stage svg text')].filter(t => { const b = t.getBBox(); return b.x < -1 || b.x+b.width > w+1 || b.y < -1 || b.y+b.height > h+1; }).map(t => t.textContent); }")
            assert out==[], (width,kv)
    assert not p.bad

def test_everything_has_a_name(show, figures):
    p = show(figures[3]); assert nameless(p)==[]
    assert '32 Sobol weight vectors' in p.locator('.dr-stage svg').get_attribute('aria-label') and p.locator('.dr-figure').get_attribute('aria-label')

@pytest.mark.parametrize('d', [2,3])
def test_screenshots(show, figures, d, tmp_path):
    shots(show(fresh(figures[d], group=8)), f'nodes{d}', tmp_path, 1100)

def test_no_error_anywhere_and_a_picture_at_the_alpha_shown():
    fig = simplex_explorer([[0., 0.]], repeats=4); assert fig.state['lowest']>0 and 'NaN' not in fig.html() and not any(fig.state['errors']['lattice'])
    line = lambda **kw: re.findall(r'<polyline points="([^"]+)"', simplex_explorer(repeats=4, **kw).poster)
    assert len(line())==3 and len(line(alpha=.1))==2 and line(alpha=.1)[0]!=line()[0] and line(alpha=.1, method='lattice')==line(method='lattice')
    assert dirichlet_set_reward([[[1., 0.], [0., 1.]]]).item()==pytest.approx(.75, abs=1e-6)
