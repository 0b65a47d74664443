"Interactive figures: one program in a page without a kernel, its maths against Python, hand, keyboard, light and dark"
import json, re
from pathlib import Path
import pytest, torch
from hypothesis import given, settings, strategies as st
from figures import BOX, OVER, centre, contrast, drawn, live, module, nameless, put, shots, still_box, value
from diverse_rl.experts import overlap
from diverse_rl.report import COLORS as REPORT
from diverse_rl.particles import (KERNELS, TARGETS, figure_force, least_overlap, particle_repulsion, principal_view,
    prototype_record, prototype_sphere, recorded_prototypes)
from diverse_rl.particles import _turned
from diverse_rl.widgets import COLORS, js_source
from diverse_rl.widgets import _json

NAMES = ('particles','sphere')
make = dict(particles=particle_repulsion, sphere=lambda **kw: prototype_sphere(recorded_prototypes(), **kw))

# ---- without a browser

@pytest.mark.parametrize('name', NAMES)
def test_a_module_fetches_nothing(name):
    s = js_source(name).replace('http://www.w3.org/2000/svg','')
    assert not re.search(r'^\s*import\b|import\(|https?:|fetch\(|</script|\beval\b', s, re.M) and s.rstrip().endswith('export default { render };')

def test_stored_figures_are_current():
    "The notebook keeps the programs in its outputs: run it again after a change of a program"
    def kept(name): return [''.join(h) for c in json.loads((Path(__file__).parents[1]/'nbs'/name).read_text())['cells'] for o in c.get('outputs',[]) if (h:=o.get('data',{}).get('text/html'))]
    fresh = lambda stored, names: len(stored)==len(names) and all(js_source(n) in h and make[n]().look.style() in h for n,h in zip(names, stored))
    assert fresh(kept('38_particles.ipynb'), NAMES) and fresh(kept('27_widgets.ipynb'), NAMES[:1])

def test_an_unknown_figure_is_named():
    with pytest.raises(FileNotFoundError, match="no figure 'spere'; there are: .*particles.*sphere"): js_source('spere')

def test_one_palette():
    assert COLORS == REPORT[:len(COLORS)] and json.loads(re.search(r'COLORS = (\[.*?\])', js_source('sphere'))[1]) == list(COLORS)

def test_programs_are_package_data():
    import tomllib
    data = tomllib.loads((Path(__file__).parents[1]/'pyproject.toml').read_text())['tool']['setuptools']['package-data']['diverse_rl']
    assert {'js/*.js','js/*.css','recorded/*.json'} <= set(data)

@given(st.text(max_size=30))
def test_json_cannot_end_a_script(text): assert '<' not in _json({'a':text}) and json.loads(_json({'a':text})) == {'a':text}

def test_json_refuses_nan():
    with pytest.raises(ValueError): _json([float('nan')])

@pytest.mark.parametrize('name', NAMES)
def test_a_fragment_is_small_and_repeatable(name):
    a = make[name]().html()
    assert len(a.encode()) < 300_000 and a == make[name]().html() and a.count('<script')==a.count('</script>')==1
    assert not re.search(r'''(src|href)=["'](?!data:)|@import|url\(''', a)

@pytest.mark.parametrize('name', NAMES)
def test_without_a_kernel_there_is_no_live_view(name):
    b = make[name]()._repr_mimebundle_()
    assert set(b) == {'text/html','text/plain','image/svg+xml'} and b['image/svg+xml'].startswith('<svg') and 'data:image/svg+xml;base64,' in b['text/html']
    assert 'state' not in b['text/plain'] and '0x' not in b['text/plain']

def test_with_a_kernel_there_is_one(monkeypatch):
    pytest.importorskip('anywidget')
    monkeypatch.setattr('diverse_rl.widgets._in_kernel', lambda: True)
    data,_ = particle_repulsion()._repr_mimebundle_()
    assert 'application/vnd.jupyter.widget-view+json' in data and 'text/html' in data

def test_values_go_both_ways():
    pytest.importorskip('anywidget')
    fig = particle_repulsion(); w = fig.widget; seen = []
    w.observe(lambda c: seen.append((c['name'],c['new'])), ['temperature','particles','repulsion'])
    assert set(fig.state)|{'look','_esm','_css'} <= set(w.keys) and w.get_state('target')=={'target':'mixture'} and w._esm==js_source('particles')
    w.set_state(dict(temperature=2, particles=[[0,0],[1,1]], repulsion=False))                  # what a browser sends
    assert {n for n,_ in seen} == {'temperature','particles','repulsion'} and fig.values()['particles']==[[0,0],[1,1]] and fig.values()['temperature']==2
    assert fig.set(temperature=.5) is fig and w.get_state('temperature')=={'temperature':.5} and '"temperature":0.5' in fig.html()
    with pytest.raises(Exception, match='target'): w.target = 3

def test_figures_do_not_share_values():
    a,b = particle_repulsion(),particle_repulsion(); a.set(steps=5, particles=[[0.,0.],[1.,0.]])
    assert b.values()['steps']==0 and len(b.values()['particles'])==12 and len(a.values()['start'])==12

def test_errors():
    with pytest.raises(KeyError, match='bandwith.*it has .*bandwidth'): particle_repulsion().set(bandwith=1)
    with pytest.raises(ValueError, match="target: got 'ring'; choose one of gaussian"): particle_repulsion(target='ring')
    with pytest.raises(ValueError, match="kernel: got 'ring'"): particle_repulsion(kernel='ring')
    with pytest.raises(ValueError, match=r'shape \(3, 4\); want \(N,2\)'): particle_repulsion(torch.zeros(3,4))
    with pytest.raises(ValueError, match='frame: got 41; the record has 41 frames'): make['sphere'](frame=41)
    with pytest.raises(ValueError, match='want the same'): prototype_record(dict(a=torch.ones(3,2,5), b=torch.ones(4,2,5)), range(3))
    with pytest.raises(ValueError, match='with 2 steps'): prototype_record(dict(a=torch.ones(3,2,5)), range(2))

@settings(max_examples=40)
@given(st.integers(2,9), st.integers(1,7), st.integers(0,10**6))
def test_no_lines_are_further_apart_than_the_bound(experts, dim, seed):
    p = torch.nn.functional.normalize(torch.randn(experts, dim, generator=torch.Generator().manual_seed(seed)).double(), dim=-1)
    assert overlap(p) >= least_overlap(experts, dim) - 1e-9

def test_the_bound_is_reached():
    assert least_overlap(6,3)==.2 and least_overlap(3,3)==0 and least_overlap(2,5)==0
    t = torch.arange(3)*torch.pi/3
    assert torch.isclose(overlap(torch.stack([t.cos(), t.sin()], -1)), torch.tensor(least_overlap(3,2)))

@settings(max_examples=25)
@given(st.integers(1,3), st.integers(2,5), st.integers(4,9), st.integers(0,10**6))
def test_a_view_keeps_what_it_says(arms, experts, dim, seed):
    g = torch.Generator().manual_seed(seed); p = torch.nn.functional.normalize(torch.randn(arms, 2, experts, dim, generator=g).double(), dim=-1)
    view,share = principal_view(p); flat = p.reshape(-1,dim)
    assert view.shape==(arms,2,experts,3) and abs(view.square().sum()/p.square().sum()-share)<1e-9
    s = torch.linalg.svdvals(flat).square(); assert abs(s[:3].sum()/s.sum()-share)<1e-9                   # the slow way
    assert abs(principal_view(-p)[1]-share)<1e-9 and torch.equal(principal_view(p[...,:3])[0], p[...,:3])

def test_the_record():
    r = recorded_prototypes(); p = torch.tensor(r['prototypes'])
    assert p.shape==(2,41,6,3) and r['steps']==list(range(0,81,2)) and (p.norm(dim=-1)-1).abs().max()<2e-4
    assert overlap(p[1,-1])<.23<.3<overlap(p[0,-1]) and torch.equal(p[0,0], p[1,0])
    assert (p[:,1:]*p[:,:-1]).sum(-1).min()>0                                                              # signs go on from frame to frame

# ---- in a browser: a page that is refused every request but its own

def test_forces_are_those_of_python(show):
    p = show(particle_repulsion()); module(p,'particles'); g = torch.Generator().manual_seed(0)
    sets = [torch.randn(n,2,generator=g).double()*s for n,s in ((1,1.),(2,1.),(7,.3),(12,1.5),(33,1.))] + [torch.full((3,2),.5).double()]
    for x in sets:
        for target in TARGETS:
            for kernel in KERNELS:
                for h in (None,.05,1.7):
                    js = p.evaluate('([x,t,k,h]) => window.m.forces(x,t,k,h)', [x.tolist(),target,kernel,h]); want = figure_force(x,target,kernel,h)
                    for key,w in (('driving',want.driving_LND),('repulsive',want.repulsive_LND)):
                        assert torch.allclose(torch.tensor(js[key]).double(), w, rtol=1e-6, atol=1e-5), (len(x),target,kernel,h,key)
    assert not p.bad

def test_a_step_is_that_of_python(show):
    p = show(particle_repulsion(target='banana', kernel='imq', bandwidth=.4, temperature=1.7))
    for _ in range(5): p.get_by_role('button',name='Step').click()
    x = torch.tensor(value(p,'start')).double()
    for _ in range(5): x = x + .15*figure_force(x,'banana','imq',.4).total(1.7)
    assert value(p,'steps')==5 and torch.allclose(torch.tensor(value(p,'particles')).double(), x, atol=1e-5) and not p.bad
    assert 'step 5 · h 0.40' in p.locator('.dr-panel').inner_text()

def test_repulsion_keeps_particles_apart(show):
    near = {}
    for on in (True,False):
        p = show(particle_repulsion(repulsion=on), motion='reduce')
        p.get_by_role('button',name='Run').click(); p.get_by_role('button',name='Run').click()             # sixty steps at once, nothing moves by itself
        assert value(p,'steps')==120 and p.get_by_role('button',name='Run').count()==1
        near[on] = torch.pdist(torch.tensor(value(p,'particles'))).min().item()
    assert near[True] > 10*near[False] and near[True] > .1

def test_run_pause_reset(show):
    p = show(particle_repulsion()); before = p.locator('.dr-driving').get_attribute('d')
    p.get_by_role('button',name='Run').click(); p.wait_for_function("document.querySelector('.dr-figure').model.get('steps') > 5")
    p.get_by_role('button',name='Pause').click(); n = value(p,'steps'); p.wait_for_timeout(200)
    assert value(p,'steps')==n and p.locator('.dr-driving').get_attribute('d')!=before and f'Step {n}' in p.locator('[role=status]').inner_text()
    p.get_by_role('button',name='Reset').click()
    assert value(p,'steps')==0 and value(p,'particles')==value(p,'start') and p.locator('.dr-driving').get_attribute('d')==before and not p.bad

def test_a_particle_is_dragged(show):
    p = show(particle_repulsion()); x,y = centre(p,'.dr-dot'); a = value(p,'particles')[0]
    p.mouse.move(x,y); p.mouse.down(); p.mouse.move(x-40,y+20,steps=4); p.mouse.move(x-80,y+40,steps=4); p.mouse.up()
    b = value(p,'particles')[0]; scale = p.locator('.dr-stage').bounding_box()['width']/6.8
    assert abs(b[0]-a[0]+80/scale)<.02 and abs(b[1]-a[1]+40/scale)<.02 and value(p,'particles')[1:]==value(p,'start')[1:]
    p.mouse.move(0,0); assert value(p,'particles')[0]==b and not p.bad                                    # let go is let go

def test_a_particle_is_moved_by_keyboard(show):
    p = show(particle_repulsion()); p.keyboard.press('Tab'); p.keyboard.press('Tab'); a = value(p,'particles')[1]
    assert 'particle 2 of 12' in p.evaluate('document.activeElement.getAttribute("aria-label")')
    for k in ('ArrowRight','ArrowUp','Shift+ArrowLeft'): p.keyboard.press(k)
    b = value(p,'particles')[1]; assert abs(b[0]-a[0]+.4)<1e-5 and abs(b[1]-a[1]-.1)<1e-5
    assert f'{b[0]:.2f} across' in p.evaluate('document.activeElement.getAttribute("aria-valuetext")')
    p.get_by_role('button',name='Step').click(); p.locator('.dr-dot').nth(1).focus()
    for _ in range(60): p.keyboard.press('Shift+ArrowUp')
    assert value(p,'particles')[1][1]==3.1                                                               # it stays in the picture
    p.keyboard.press('Escape'); assert p.evaluate('document.activeElement.textContent')=='Run' and not p.bad

def test_controls_set_values_and_values_set_controls(show):
    p = show(particle_repulsion(bandwidth=.5)); arrows = lambda: p.locator('.dr-repulsive').get_attribute('d')
    seen = [arrows()]
    p.get_by_label('bandwidth h').evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }"); assert value(p,'bandwidth')==1.; seen.append(arrows())
    p.get_by_label('temperature').evaluate("e => { e.value = 2; e.dispatchEvent(new Event('input')); }"); assert value(p,'temperature')==2; seen.append(arrows())
    p.get_by_label('kernel').select_option('imq'); assert value(p,'kernel')=='imq'; seen.append(arrows())
    p.get_by_label('median').check(); assert value(p,'median') is True and p.get_by_label('bandwidth h').is_disabled(); seen.append(arrows())
    p.get_by_label('repulsion', exact=True).uncheck(); assert value(p,'repulsion') is False and float(p.locator('.dr-repulsive').locator('..').get_attribute('opacity'))<.5
    d = p.locator('.dr-driving').get_attribute('d'); p.get_by_label('target').select_option('banana'); assert p.locator('.dr-driving').get_attribute('d')!=d
    assert len(set(seen))==len(seen)
    put(p, target='gaussian', median=False, bandwidth=2., repulsion=True)
    assert p.get_by_label('target').input_value()=='gaussian' and p.get_by_label('repulsion',exact=True).is_checked() and abs(float(p.get_by_label('bandwidth h').input_value())-.3)<.01 and not p.bad

def test_rotation_and_overlap_are_those_of_python(show):
    p = show(make['sphere']()); module(p,'sphere'); q = torch.tensor(recorded_prototypes()['prototypes'])[0,-1].double()
    for yaw,pitch in ((.6,.4),(-2.,1.3)):
        js = p.evaluate('([q,a,b]) => q.map(v => window.m.rotate(v,a,b))', [q.tolist(),yaw,pitch])
        assert torch.allclose(torch.tensor(js).double(), _turned(q,yaw,pitch), atol=1e-6) and torch.allclose(torch.tensor(js).norm(dim=-1), q.norm(dim=-1).float(), atol=1e-5)
    c = p.evaluate('q => window.m.cosines(q)', q.tolist())
    assert torch.allclose(torch.tensor(c).double(), q@q.mT, atol=1e-9) and abs(p.evaluate('c => window.m.overlap(c)', c)-overlap(q).item())<1e-5

def shown(p): return [[float(t or 'nan') for t in p.evaluate("i => [...document.querySelectorAll('.dr-map')[i].querySelectorAll('text')].map(t => t.textContent).filter(t => t=='' || t.includes('.'))", i)] for i in (0,1)]

def test_the_heat_map_shows_the_recorded_cosines(show):
    p = show(make['sphere']()); r = torch.tensor(recorded_prototypes()['prototypes'])
    for k in (0,17,40):
        put(p, frame=k)
        for arm,cells in enumerate(shown(p)):
            want = (r[arm,k]@r[arm,k].mT).square(); off = ~torch.eye(6,dtype=bool)
            assert torch.allclose(torch.tensor(cells).view(6,6)[off], want[off], atol=.0051)
            assert p.locator('.dr-map').nth(arm).get_attribute('aria-label').endswith(f'mean {overlap(r[arm,k]):.2f}')
    assert not p.bad

def test_more_dimensions_keep_their_true_cosines(show):
    q = torch.nn.functional.normalize(torch.randn(2,5,7,generator=torch.Generator().manual_seed(3)), dim=-1)
    p = show(prototype_sphere(prototype_record(dict(a=q, b=q.flip(0)), [0,9]), frame=0)); share = principal_view(torch.stack([q,q.flip(0)]).double())[1]
    want = (q[0]@q[0].mT).square(); off = ~torch.eye(5,dtype=bool)
    assert torch.allclose(torch.tensor(shown(p)[0]).view(5,5)[off], want[off], atol=.0052) and f'{100*share:.0f} % of the squared length' in p.locator('.dr-panel').inner_text() and not p.bad

def ends(p): return p.evaluate("[...document.querySelectorAll('.dr-end')].map(e => [+e.getAttribute('cx'),+e.getAttribute('cy')]).sort((a,b) => a[0]-b[0] || a[1]-b[1])")

def test_time_moves_lines(show):
    p = show(make['sphere'](frame=0)); a = ends(p); t = p.get_by_label('training step'); t.focus()
    for _ in range(3): p.keyboard.press('ArrowRight')
    assert value(p,'frame')==3 and ends(p)!=a and t.get_attribute('aria-valuetext')=='6'
    p.get_by_role('button',name='Play').click(); p.wait_for_function("document.querySelector('.dr-figure').model.get('frame') == 40"); p.get_by_role('button',name='Play').wait_for()
    assert 'Step 80' in p.locator('[role=status]').inner_text()
    p.get_by_role('button',name='Play').click(); p.wait_for_function("document.querySelector('.dr-figure').model.get('frame') < 40"); assert not p.bad

def test_both_ends_of_a_line_are_drawn(show):
    p = show(make['sphere']()); c = "s => [...document.querySelectorAll(s)].map(e => [+e.getAttribute('cx'),+e.getAttribute('cy')])"
    plus,minus = p.evaluate(c,'.dr-end'),p.evaluate(c,'.dr-opposite'); assert len(plus)==len(minus)==12
    mid = [[170,180],[510,180]]; r = torch.tensor(p.evaluate("[...document.querySelectorAll('.dr-ball > circle:first-of-type')].map(e => [+e.getAttribute('cx'),+e.getAttribute('cy')])"))
    mirrored = (2*r.repeat_interleave(6,0)-torch.tensor(plus)); assert torch.allclose(mirrored.sort(0).values, torch.tensor(minus).sort(0).values, atol=.01)

def test_the_sphere_turns_by_hand_and_by_keyboard(show):
    p = show(make['sphere']()); a = ends(p); x,y = centre(p,'.dr-ball')
    p.mouse.move(x,y); p.mouse.down(); p.mouse.move(x+50,y,steps=5); p.mouse.up(); b = ends(p)
    assert value(p,'yaw')>.8 and abs(value(p,'pitch')-.4)<1e-6 and a!=b
    yaw = value(p,'yaw'); p.locator('.dr-ball').nth(1).focus(); p.keyboard.press('ArrowLeft'); p.keyboard.press('ArrowDown')
    assert abs(value(p,'yaw')-yaw+.1)<1e-4 and abs(value(p,'pitch')-.5)<1e-4 and ends(p)!=b
    p.get_by_role('button',name='Reset view').click(); assert ends(p)==a and not p.bad

@pytest.mark.parametrize('name', NAMES)
def test_the_page_does_not_jump(show, name):
    "The box is as high with its picture as with its program; controls fit in it; nothing is wider than the page"
    still,p = show(make[name](), script=False),show(make[name]())
    for width in (1280,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=900))
        p.wait_for_timeout(100); box = p.evaluate(BOX)
        assert box==pytest.approx(still_box(still), abs=.5), width
        assert max(over := p.evaluate(OVER))<=1, (width,over)
        view = [float(v) for v in p.locator('.dr-stage svg').get_attribute('viewBox').split()[2:]]
        assert view==list((make[name]().look.narrow if width<560 else make[name]().look.wide)[:2])
        if name=='particles': p.get_by_role('button',name='Step').click()
        else: put(p, frame=0)
        assert p.evaluate(BOX)==box and not p.bad

@pytest.mark.parametrize('name', NAMES)
def test_light_and_dark(show, name):
    ink,p = {},show(make[name]())
    for scheme,ground in (('light','rgb(255,255,255)'),('dark','rgb(18,18,18)')):
        p.emulate_media(color_scheme=scheme); p.wait_for_function("v => document.querySelector('.dr-figure').dataset.dark == v", arg=str(scheme=='dark').lower())
        for sel,key in (('.dr-figure','color'),('.dr-panel .dr-line','color'),('.dr-panel button','color')):
            assert contrast(p.evaluate('([s,k]) => getComputedStyle(document.querySelector(s))[k]', [sel,key]), ground) > 4.5, (scheme,sel)
        ink[scheme] = p.evaluate("getComputedStyle(document.querySelector('.dr-figure')).color")
        for c in COLORS: assert contrast('rgb(%d,%d,%d)' % tuple(bytes.fromhex(c[1:])), ground) > 2.9, (scheme,c)
    assert contrast(ink['light'], ink['dark']) > 10

def test_a_page_that_turns_dark_takes_the_figure_along(show):
    p = show(make['particles']()); wash = lambda: p.evaluate("[...document.querySelector('canvas').getContext('2d').getImageData(64,56,1,1).data]")
    a = wash(); p.evaluate("() => { document.body.style.background = '#202020'; document.documentElement.className = 'dark'; }"); p.wait_for_timeout(700)
    assert p.evaluate("document.querySelector('.dr-figure').dataset.dark")=='true' and wash()!=a
    p.evaluate("() => { document.body.style.background = '#fff'; document.documentElement.className = ''; }"); p.wait_for_timeout(700)
    assert p.evaluate("document.querySelector('.dr-figure').dataset.dark")=='false' and wash()==a

def test_a_figure_may_stand_twice_on_a_page(show):
    p = show(particle_repulsion(), copies=2); assert p.locator('.dr-panel button').count()==6
    p.get_by_role('button',name='Step').nth(1).click()
    assert p.evaluate("[...document.querySelectorAll('.dr-figure')].map(e => e.model.get('steps'))")==[0,1] and not p.bad

def test_the_picture_stands_where_no_script_runs(show):
    p = show(make['sphere'](), script=False); b = p.locator('.dr-stage img').bounding_box()
    assert b['width']>600 and b['height']>300

@pytest.mark.parametrize('name', NAMES)
def test_a_live_model_is_drawn_the_same(show, name):
    "What anywidget calls: the default export's render with a model it keeps, and the clean-up it returns"
    fig = make[name](); p = show(fig)
    assert live(p, fig)==drawn(p)
    p.evaluate("() => { const i = window.live.el.querySelector('input[type=range]'); i.value = 0; i.dispatchEvent(new Event('input')); }")
    assert p.evaluate('window.live.model.saved')>0 and p.evaluate('typeof window.live.end')=='function' and p.evaluate('window.live.end()') is None and not p.bad

@pytest.mark.parametrize('name', NAMES)
def test_everything_has_a_name(show, name): p = show(make[name]()); assert nameless(p)==[] and p.locator('.dr-figure').get_attribute('aria-label')

@pytest.mark.parametrize('name', NAMES)
def test_screenshots(show, name, tmp_path):
    p = show(make[name]())
    if name=='particles': [p.get_by_role('button',name='Step').click() for _ in range(3)]
    shots(p, f'widget-{name}', tmp_path)
