"The KL compass as a figure: the page's gradients, variance, samples and flow against Python, hand, keyboard, light and dark"
import json, re
from pathlib import Path
import pytest, torch
from figures import OVER, module, nameless, put, shots, value
from diverse_rl.compass import *
from diverse_rl.compass import COLOURS
from diverse_rl.simplex import triangle_xy
from diverse_rl.widgets import COLORS, js_source

def T(x): return torch.tensor(x, dtype=torch.float64)
P, Q = T([.55,.3,.15]), T([.15,.25,.6])
CORNERS = T([[34,62+.866*440],[474,62+.866*440],[254,62]])

# ---- without a browser

@pytest.mark.parametrize('name', list(TERMS))
def test_the_flow_is_a_chain_of_steps(name):
    path = exact_flow(name, P.log(), Q.log(), step=.3, steps=7); z = P.log()
    for row in path[1:]:
        z = z-.3*exact_value_and_gradient(name, z, Q.log()).gradient_V
        assert torch.allclose(row, z.softmax(-1)) 
    assert torch.allclose(path[0], P) and len(path)==8

def test_a_flow_ends_where_an_answer_dies():
    path = exact_flow('log_q/p/reward/other', P.log(), T([.98,.01,.01]).log(), step=30., steps=50)
    assert len(path) < 51 and path.min() >= 1e-6

def test_one_palette(): assert set(COLOURS.values()) <= set(COLORS) and len(set(COLOURS.values()))==4

def test_the_fragment_is_small_and_alone():
    html = kl_compass().html(); assert len(html.encode()) < 150_000 and html==kl_compass().html() and not re.search(r'''(src|href)=["'](?!data:)|@import|url\(''', html)

def test_the_stored_figure_is_current():
    nb = json.loads((Path(__file__).parents[1]/'nbs/07_compass.ipynb').read_text())
    kept = [h for c in nb['cells'] for o in c.get('outputs',[]) if 'data-figure' in (h:=''.join(o.get('data',{}).get('text/html','')))]
    assert len(kept)==1 and js_source('compass') in kept[0] and kl_compass().look.style() in kept[0]

def test_the_poster_shows_the_exact_step():
    for minus in (False,True):
        svg = kl_compass(minus=minus).poster; x,y = map(float, re.search(r'L(\S+) (\S+)" stroke="#b8860b"', svg).groups())
        end = moved(P.log(), (-1 if minus else 1)*exact_value_and_gradient('k3/p/loss/q||p', P.log(), Q.log()).gradient_V[None], 2.)[0]; a,b = (triangle_xy(end)*440).tolist()
        assert abs(x-34-a) < .3 and abs(y-443+b) < .3

def test_errors():
    for kw,says in ((dict(policy=(.5,.5)),r'policy: got \[0.5, 0.5\]; want three'), (dict(other=(.5,.6,.1)),'other: got'), (dict(policy=(1.2,-.1,-.1)),'policy: got'), (dict(term='k3'),"term: got 'k3'; choose one of"),
        (dict(samples=0),'samples: got 0; want 1 to 256'), (dict(batches=65),'batches: got 65'), (dict(names=('a','b')),'names: got 2 of them')):
        with pytest.raises(ValueError, match=says): kl_compass(**kw)

# ---- in a browser, refused every outside request

def inside(w): return T(w)*(1-3e-4)+1e-4
def weights(xy): "Barycentric coordinates of places in the wide drawing"; return torch.linalg.solve(torch.cat([CORNERS, torch.ones(3,1,dtype=torch.float64)],1).T, torch.cat([T(xy).T, torch.ones(1,len(xy),dtype=torch.float64)])).T
def path(p, sel): return [[float(v) for v in q] for q in re.findall(r'[ML](\S+?) ([\d.-]+)', p.locator(sel).get_attribute('d'))]

def test_value_gradient_and_variance_of_every_term(show):
    p = show(kl_compass()); module(p, 'compass'); g = torch.Generator().manual_seed(4); rows = {t['name']:t for t in kl_compass().state['terms']}; assert list(rows)==list(TERMS)
    for seed in range(3):
        a,b = (torch.rand(2,3+seed,generator=g,dtype=torch.float64)+.02).log().softmax(-1)                  # also four and five answers
        for name,t in rows.items():
            js = p.evaluate('([t,p,q]) => [m.arms(t,p,q), m.moments(t,p,q)]', [t,a.tolist(),b.tolist()]); want,mean = arms(name,a.log(),b.log()),exact_value_and_gradient(name,a.log(),b.log())
            assert torch.allclose(T(js[0]['law']),want.law_V) or t['sampler']=='all', name
            assert torch.allclose(T(js[0]['value']),want.value_V,atol=1e-9) and torch.allclose(T(js[0]['gradient']),want.gradient_VV,atol=1e-9), name
            assert abs(js[1]['value']-mean.value)<1e-9 and torch.allclose(T(js[1]['gradient']),mean.gradient_V,atol=1e-9) and abs(js[1]['variance']-mean.gradient_var_V.sum())<1e-9, name
    assert not p.bad

def test_steps_and_flow(show):
    p = show(kl_compass()); module(p, 'compass')
    for name in ('k3/p/loss/q||p','k2/p/reward/other','log_q/p/reward/other','k1/p/loss/none'):
        for step in (.2,-.2):
            t = next(t for t in kl_compass().state['terms'] if t['name']==name)
            js = T(p.evaluate('([t,p,q,s]) => m.flow(t,p,q,s,120)', [t,P.tolist(),Q.tolist(),step])); want = exact_flow(name,P.log(),Q.log(),step=step,steps=120)
            assert js.shape==want.shape and torch.allclose(js,want,atol=1e-6), (name,step)

def test_samples_come_from_the_law(show):
    p = show(kl_compass()); module(p, 'compass'); t = kl_compass().state['terms']
    for row in (t[6],t[9],t[14]):
        a = exact_value_and_gradient(row['name'],P.log(),Q.log()); run = lambda n,seed: T(p.evaluate('([t,p,q,n,s]) => m.sampled(t,p,q,2000,n,s)', [row,P.tolist(),Q.tolist(),n,seed]))
        for n in (1,16):
            g = run(n,3); assert ((g.mean(0)-a.gradient_V).abs() <= 4.5*(a.gradient_var_V/n/2000).sqrt()+1e-9).all()
            assert abs(g.var(0).sum()*n/a.gradient_var_V.sum()-1) < .25
        assert torch.equal(run(1,3),run(1,3)) and not torch.equal(run(1,3),run(1,4))
    u = T(p.evaluate('() => { const u = m.chance(9); return Array.from({length:20000}, u); }')); assert 0<=u.min() and u.max()<1 and abs(u.mean()-.5)<.01 and abs(u.var()-1/12)<.003 and abs(torch.corrcoef(torch.stack([u[1:],u[:-1]]))[0,1])<.03

def test_what_is_drawn_is_what_python_says(show):
    p = show(kl_compass())
    for name,minus in (('k3/p/loss/q||p',False),('k2/p/reward/other',False),('neg/q/loss/q||p',True)):
        put(p, term=name, minus=minus); a,b = inside(value(p,'p')),inside(value(p,'q')); m = exact_value_and_gradient(name,a.log(),b.log()); sign = -1 if minus else 1
        ends = weights(path(p,'.dr-arrow')); assert torch.allclose(ends[0],a,atol=2e-4) and torch.allclose(ends[1], moved(a.log(), sign*m.gradient_V[None], 2.)[0], atol=2e-4)
        said = [float(p.locator('.dr-number').nth(i).text_content().replace('−','-')) for i in range(4)]
        std = m.gradient_var_V.sum().sqrt().item(); assert said == pytest.approx([m.value.item(), m.gradient_V.norm().item(), std, std/8**.5], abs=6e-4)
        flow = weights([[float(v) for v in q.split(',')] for q in p.locator('.dr-flow').get_attribute('points').split()]); want = exact_flow(name,a.log(),b.log(),step=sign*.2)
        assert len(flow)==len(want) and torch.allclose(flow,want,atol=2e-4)
    assert not p.bad

def test_no_direction_no_arrow_but_rays(show):
    p = show(kl_compass(term='k1/p/loss/none')); assert p.locator('.dr-arrow').count()==0 and p.locator('.dr-ray').count()>8 and 'all noise' in p.locator('.dr-panel').inner_text()
    put(p, term='full_qp/all/loss/q||p'); assert p.locator('.dr-arrow').count()==1; r = {(round(x[0],1),round(x[1],1)) for x in p.evaluate("[...document.querySelectorAll('.dr-ray')].map(e => [+e.getAttribute('x2'),+e.getAttribute('y2')])")}; assert len(r)==1
    put(p, term='neg_k3/q/loss/q||p', p=value(p,'q')); assert p.locator('.dr-ray').count()==0                 # at p = q: no noise in this one
    put(p, term='neg/q/loss/q||p'); assert p.locator('.dr-ray').count()>8 and p.locator('.dr-arrow').count()==0 and not p.bad

def rays(p): return p.evaluate("[...document.querySelectorAll('.dr-ray')].map(e => e.getAttribute('x2'))")
def test_controls(show):
    p = show(kl_compass()); a = rays(p); p.get_by_role('button',name='Resample').click(); assert value(p,'seed')==1 and rays(p)!=a
    tip = weights(path(p,'.dr-arrow'))[1]; p.get_by_role('button',name='Step').click(); assert torch.allclose(T(value(p,'p')), tip, atol=4e-4)
    p.get_by_role('button',name='Reset').click(); assert value(p,'p')==[.55,.3,.15]
    p.locator('.dr-panel input[type=range]').focus(); p.keyboard.press('ArrowRight'); assert abs(value(p,'samples')-16)<.01 and 'std, mean of 16' in p.locator('.dr-stage').text_content()
    p.locator('.dr-panel select').select_option('k2/p/loss/p||q'); assert value(p,'term')=='k2/p/loss/p||q' and 'descends KL(p||q)' in p.locator('.dr-panel').inner_text()
    p.get_by_label('minus sign').check(); assert 'climbs KL(p||q)' in p.locator('.dr-panel').inner_text()
    p.get_by_label('trace', exact=True).uncheck(); assert p.locator('.dr-flow').count()==0
    for t in TERMS: put(p, term=t)
    assert not p.bad

def test_both_policies_move_by_hand_and_keyboard(show):
    p = show(kl_compass())
    for k in 'pq':
        before = value(p,k); b = p.locator(f'.dr-policy-{k}').bounding_box(); x,y = b['x']+b['width']/2,b['y']+b['height']/2
        p.mouse.move(x,y); p.mouse.down(); p.mouse.move(x+22,y-19.05,steps=4); p.mouse.up(); p.mouse.move(5,5); new = value(p,k)                     # 5 % of a side right, 5 % of the height up
        scale = p.locator('.dr-stage').bounding_box()['width']/700; got = T([new])@CORNERS-T([before])@CORNERS; assert torch.allclose(got*scale, T([[22,-19.05]]), atol=1.5)
        p.locator(f'.dr-policy-{k}').focus(); p.keyboard.press('ArrowUp'); assert value(p,k)[2] > new[2]+.01 and value(p,k)[2] < new[2]+.04
        assert k in p.evaluate('document.activeElement.getAttribute("aria-label")')
    put(p, p=[1.,0.,0.]); assert 'NaN' not in p.locator('.dr-stage').inner_html() and p.locator('.dr-number').first.text_content()!='NaN'      # a corner is a policy, too
    for t in TERMS: put(p, term=t); assert 'NaN' not in p.locator('.dr-stage').inner_html() and 'Infinity' not in p.locator('.dr-stage').inner_html(), t
    assert not p.bad

def test_no_jump_and_nothing_outside(show):
    still,p = show(kl_compass(), script=False),show(kl_compass())
    for width in (900,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=1000))
        p.wait_for_timeout(120); assert abs(still.locator('#after').bounding_box()['y']-p.locator('#after').bounding_box()['y'])<.6
        for kv in (dict(term='k2/p/reward/other', samples=1.), dict(term='k3/p/reward/other', minus=True, samples=256.), dict(term='full_pq/all/loss/p||q')):
            put(p, **kv); assert max(p.evaluate(OVER))<=1, (width,kv)
            out = p.evaluate("() => { const [,,w,h] = document.querySelector('.dr-stage svg').getAttribute('viewBox').split(' ').map(Number); return [...document.querySelectorAll('.dr-stage svg > text, .dr-stage svg > g:not([tabindex]) > text')].filter(t => { const b = t.getBBox(); return b.x < -1 || b.x+b.width > w+1 || b.y < -1 || b.y+b.height > h+1; }).map(t => t.textContent); }")
            assert out==[], (width,kv)
            clash = p.evaluate("() => { const b = [...document.querySelectorAll('.dr-stage svg > text, .dr-stage svg > g:not([tabindex]) > text')].filter(t => t.textContent).map(t => [t.textContent, t.getBBox()]); return b.flatMap(([s,a],i) => b.slice(i+1).filter(([t,c]) => a.x+a.width > c.x+1 && c.x+c.width > a.x+1 && a.y+a.height > c.y+4 && c.y+c.height > a.y+4).map(([t]) => [s,t])); }")
            assert clash==[], (width,kv)
    assert not p.bad

def test_everything_has_a_name(show):
    p = show(kl_compass()); assert nameless(p)==[]
    assert p.evaluate("() => [...document.querySelectorAll('.dr-figure [tabindex]')].every(e => e.getAttribute('aria-label') && e.getAttribute('aria-valuetext'))") and 'k3/p/loss/q||p: value 0.561' in p.locator('.dr-stage svg').get_attribute('aria-label')

def test_screenshots(show, tmp_path):
    shots(show(kl_compass()), 'compass', tmp_path, 1000)
