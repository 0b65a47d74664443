"The report: its table and figures, and the page in a browser that is refused every request"
import json, os, shutil
from pathlib import Path
import numpy as np, pytest
pytest.importorskip('plotly'); pytest.importorskip('trl')
import toy
from diverse_rl.recipes import RecipeError
from diverse_rl.report import COLORS, best_figure, figures, maze_pictures, read_results, smooth, table, table_rows, training_figure, write_report


@pytest.fixture(scope='session')
def res(): return read_results(toy.compared().run)

# ---- without a browser

def test_table_has_a_row_per_arm_and_is_aligned(res):
    rows,lines = table_rows(res),table(res).splitlines()
    assert [r[0] for r in rows]==['arm','GRPO <b>','vpo'] and len({len(r) for r in rows})==1
    assert len({len(l) for l in lines[:4]})==1 and f"{res['front']:.3f}" in lines[4] and res['commit'] in lines[4]
    e = res['arms']['vpo']['ew_best_at_k']['6']; assert f'{e[0]:.3f} [{e[1]:.3f}, {e[2]:.3f}]' in rows[2] and f"{e[0]/res['front']:.1%}" in rows[2]

def test_table_without_interval_and_without_log(res):
    d = json.loads(json.dumps(res)); d['arms']['vpo']['ew_best_at_k']['6'][1:] = [float('nan')]*2; d['arms']['vpo']['entropy_nats'] = {}
    head,_,row = table_rows(d); cell = dict(zip(head, row))
    assert '[' not in cell['E_w[best@6]'] and cell['entropy']=='' and '[' in dict(zip(*table_rows(res)[::2]))['E_w[best@6]']

def test_figures_show_the_numbers_of_the_results(res):
    f = best_figure(res); line = [t for t in f.data if t.name=='vpo'][0]
    assert np.allclose(line.y, [v[0] for v in res['arms']['vpo']['ew_best_at_k'].values()], atol=1e-6) and f.layout.shapes[0].y0==pytest.approx(res['front'])
    t = training_figure(res, 'entropy_nats', 'a', 'b').data[1]; raw = list(res['arms']['vpo']['entropy_nats'].values())
    assert np.allclose(t.y, smooth(np.array(raw))) and len(figures(res))==8 and all(f.data for f in figures(res))

def test_smoothing_is_a_running_mean():
    y = np.random.default_rng(0).random(11)
    assert np.allclose(smooth(y), [np.mean([y[min(max(j, 0), 10)] for j in range(i-2, i+3)]) for i in range(11)], atol=1e-6)
    for n in range(5): assert len(smooth(np.arange(float(n))))==n

def test_more_arms_than_colours(res):
    d = dict(res, arms={str(i):dict(res['arms']['vpo'], label=f'arm {i}') for i in range(len(COLORS)+2)})
    assert len(training_figure(d, 'reward', '', '').data)==len(COLORS)+2 and len(table_rows(d))==len(COLORS)+3

def test_pictures_follow_the_pool(res, tmp_path):
    pics = maze_pictures(res, toy.compared().run); assert len(pics)==4 and list(pics[0])==['exact front','GRPO <b>','vpo']
    assert [list(p) for p in maze_pictures(res, tmp_path, 2)]==[['exact front']]*2
    from diverse_rl.maze import exact_front
    from diverse_rl.policy import route_words, score_route
    from diverse_rl.recipes import make_recipe
    from diverse_rl.run import held_out
    d = tmp_path/'vpo/seed0'; d.mkdir(parents=True); ms = held_out(make_recipe(res['recipe'])); f = [exact_front(z) for z in ms]
    pool = dict(texts=[[[route_words(z, r)] for r in g.routes]+[['nonsense']] for z,g in zip(ms, f)], vectors=[[[score_route(z, route_words(z, r)).tolist()] for r in g.routes]+[[[0.]*4]] for z,g in zip(ms, f)])
    (d/'pool.json').write_text(json.dumps(pool)); drawn = maze_pictures(res, tmp_path)
    count = lambda svg: svg.count('moves: gold'); assert all(count(p['vpo'])==count(p['exact front'])==len(g.routes) for p,g in zip(drawn, f))

def test_results_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match='diverse-rl compare'): read_results(tmp_path)
    (tmp_path/'results.json').write_text('{')
    with pytest.raises(RecipeError, match='not JSON'): read_results(tmp_path)

# ---- in a browser

@pytest.fixture(scope='session')
def report(tmp_path_factory):
    "A report whose names would break a page that does not escape them, and whose pools hold routes"
    from diverse_rl.maze import exact_front
    from diverse_rl.policy import route_words, score_route
    from diverse_rl.recipes import make_recipe
    from diverse_rl.run import held_out
    d = tmp_path_factory.mktemp('report')/'toy'; shutil.copytree(toy.compared().run, d, ignore=shutil.ignore_patterns('checkpoint-*','model'))
    ms = held_out(make_recipe(read_results(d)['recipe']))
    for arm,n in (('grpo',1), ('vpo',3)):
        texts = [[[route_words(z, r)] for r in exact_front(z).routes[:n]] for z in ms]
        (d/f'{arm}/seed0/pool.json').write_text(json.dumps(dict(texts=texts, vectors=[[[score_route(z, t).tolist()] for [t] in row] for z,row in zip(ms, texts)])))
    r = json.loads((d/'results.json').read_text()); r['arms']['vpo']['label'] = '</script><img src=x onerror=alert(1)> $title'; (d/'results.json').write_text(json.dumps(r))
    return write_report(d)

@pytest.fixture(scope='session')
def see(browser, report):
    "Open the report once per scheme and width; errors and requests that leave the file are collected in `bad`"
    made = {}
    def _see(scheme='light', width=1280, height=900):
        if (scheme,width) in made: return made[scheme,width]
        p = made[scheme,width] = browser.new_page(viewport=dict(width=width, height=height), color_scheme=scheme); p.set_default_timeout(120_000); p.bad = []
        def gate(r):
            if r.request.url==report.as_uri() or r.request.url.startswith('data:'): r.continue_()
            else: p.bad.append(f'request: {r.request.url}'); r.abort()
        p.route('**/*', gate); p.on('dialog', lambda d: (p.bad.append(d.message), d.dismiss()))
        p.on('console', lambda m: m.type in ('error','warning') and p.bad.append(m.text)); p.on('pageerror', lambda e: p.bad.append(str(e)))
        p.goto(report.as_uri()); p.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg:first-of-type').length==8"); p.wait_for_timeout(150)
        return p
    yield _see
    for p in made.values(): p.close()

BOXES = """[...document.querySelectorAll('figure > .plotly-graph-div')].map(e => { const b = e.querySelector('.main-svg').getBoundingClientRect(), f = e.parentElement.getBoundingClientRect();
  return [b.left, b.top, b.right, b.bottom, f.left, f.right]; })"""
def light(colour):
    r,g,b = [float(o) for o in colour[colour.index('(')+1:-1].split(',')[:3]]
    return (.299*r+.587*g+.114*b)/255
def css(p, sel, key): return p.evaluate('([s,k]) => getComputedStyle(document.querySelector(s))[k]', [sel,key])

@pytest.mark.parametrize('scheme,width', [('light',1280), ('dark',1280), ('light',390), ('dark',390)])
def test_page(see, scheme, width, tmp_path):
    "No error, nothing fetched, figures inside their cells and apart, no sideways scrolling, readable ink; a screenshot"
    p = see(scheme, width); boxes = p.evaluate(BOXES)
    assert not p.bad and p.evaluate('document.documentElement.scrollWidth')<=width and len(boxes)==8
    assert all(l>=fl-1 and r<=fr+1 and r-l>250 and b-t>200 for l,t,r,b,fl,fr in boxes)
    assert not [(i,j) for i,a in enumerate(boxes) for j,c in enumerate(boxes[:i]) if a[0]<c[2]-1 and c[0]<a[2]-1 and a[1]<c[3]-1 and c[1]<a[3]-1], 'figures overlap'
    back,ink,tick = (light(css(p, s, k)) for s,k in (('body','backgroundColor'), ('body','color'), ('.xtick text','fill')))
    assert (back<.5)==(scheme=='dark') and abs(back-ink)>.6 and abs(back-tick)>.6
    shot = Path(os.getenv('SCREENSHOTS') or tmp_path)/f'report-{scheme}-{width}.png'; p.screenshot(path=shot, full_page=True); assert shot.stat().st_size>20_000

def test_slider_moves_the_pictures_by_mouse_and_keys(see):
    p = see(); pictures = lambda: p.locator('#mazes svg').evaluate_all('(o) => o.map(e => e.outerHTML)')
    first = pictures(); assert len(first)==3 and first[1]!=first[0] and p.locator('#which').inner_text()=='1'
    p.locator('#maze').focus(); p.keyboard.press('ArrowRight'); second = pictures()
    assert p.locator('#which').inner_text()=='2' and len(second)==3 and not set(first) & set(second)
    p.keyboard.press('End'); assert p.locator('#which').inner_text()=='4'
    p.locator('#maze').fill('0'); assert pictures()==first and not p.bad

def test_names_are_text(see):
    p = see()
    assert p.locator('#mazes figcaption').all_inner_texts()==['exact front','GRPO <b>','</script><img src=x onerror=alert(1)> $title']
    assert p.locator('main img').count()==0 and 'Two steps <teach> "nothing" & more.' in p.locator('main > p').first.inner_text() and not p.bad

def test_figures_follow_the_scheme_and_the_window(see):
    p = see(); p.emulate_media(color_scheme='dark'); p.wait_for_timeout(400)
    try:
        assert light(css(p, 'body', 'backgroundColor'))<.5<light(css(p, '.xtick text', 'fill'))
        p.set_viewport_size(dict(width=420, height=900)); p.wait_for_timeout(600)
        assert all(r<=fr+1 for l,t,r,b,fl,fr in p.evaluate(BOXES)) and not p.bad
    finally: p.emulate_media(color_scheme='light'); p.set_viewport_size(dict(width=1280, height=900))

def test_provenance_is_on_the_page(see, res):
    p = see(); text = p.locator('pre').first.inner_text()
    assert all(str(res[k]) in text for k in ('command','commit','seconds')) and res['hardware']['cpu'] in text
    p.locator('summary').click(); assert '"prompts": 2' in p.locator('details pre').inner_text()
