"The built site, in a browser that is refused every request to the outside"
import functools, html.parser, http.server, json, os, posixpath, threading
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pytest

root = Path(__file__).parents[1]; site = root/'_docs'
if not (site/'index.html').exists() and not list(site.glob('*.html')):
    if os.getenv('CI'): raise RuntimeError('no site in _docs: run `make docs` before the tests')
    pytest.skip('no site in _docs: run `make docs`', allow_module_level=True)
if 'cdn.jsdelivr.net' in ''.join(p.read_text() for p in site.glob('*.html')):
    if os.getenv('CI'): raise RuntimeError('the site takes KaTeX from the web: install npm and build it again')
    pytest.skip('the site takes KaTeX from the web: install npm, run `make docs`', allow_module_level=True)
pages = sorted(str(p.relative_to(site)) for p in site.rglob('*.html'))
home = 'index.html' if 'index.html' in pages else pages[0]

def source(name): return (site/name).read_text()
maths = [p for p in pages if 'class="math' in source(p)]
figures = [p for p in pages if 'plotly-graph-div' in source(p).split('<main',1)[-1]]

# ---- what needs no browser

class Refs(html.parser.HTMLParser):
    "The ids of a page, and what it refers to"
    def __init__(self, text): super().__init__(); self.ids,self.refs = [],[]; self.feed(text)
    def handle_starttag(self, tag, attrs):
        d = dict(attrs); self.ids += [d['id']] if d.get('id') else []
        self.refs += [d[k] for k in ('href','src') if d.get(k)]

def refs(name, known):
    if name not in known: known[name] = Refs(source(name))
    return known[name]

def broken(name, known):
    "References inside the site that lead nowhere"
    out = []
    for r in refs(name, known).refs:
        u = urlsplit(r)
        if u.scheme or u.netloc or r.startswith(('data:','javascript:')): continue
        tgt = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(u.path))) if u.path else name
        if not (site/tgt).exists(): out.append(r)
        elif u.fragment and tgt.endswith('.html') and unquote(u.fragment) not in refs(tgt, known).ids: out.append(r)
    return out

def test_links_hold():
    known = {}; bad = {p:b for p in pages if (b:=broken(p, known))}
    assert not bad, json.dumps(bad, indent=1)

def test_ids_are_unique():
    known = {}
    for p in pages:
        ids = refs(p, known).ids; twice = {i for i in ids if ids.count(i)>1}
        assert not twice, f'{p}: {twice}'

def test_every_notebook_has_a_page():
    import re
    want = {re.sub(r'^\d+[a-z]?_','',p.stem)+'.html' for p in (root/'nbs').glob('*.ipynb')}
    assert want == {p for p in pages if p!='404.html'}, 'the site is older than the notebooks: run `make docs`'

def test_pipeline_is_on_every_page_with_its_stage_lit():
    import html, re, yaml
    t = yaml.safe_load((root/'docs/stages.yml').read_text()); rows = {re.sub(r'^\d+[a-z]?_','',Path(k).stem)+'.html':v for k,v in t['notebooks'].items()}
    for p in pages:
        nav = re.findall(r'<nav class="pipeline".*?</nav>', source(p), re.S)
        if p=='404.html': continue
        assert len(nav)==1, p
        lit = [html.unescape(o) for o in re.findall(r'aria-current="step">(.*?)<', nav[0])]
        assert lit==[o for o in [rows[p]['stage']] if o!='none'] and f">{rows[p]['form']}</a>" in nav[0], p
        entry = re.search(rf'<a href="{re.escape(p)}" class="sidebar-item-text.*?</a>', source(p), re.S)
        assert entry and f">{rows[p]['form']}</small>" in entry[0], f'{p}: its form is not in the sidebar'

# ---- the browser

class Server(http.server.ThreadingHTTPServer): request_queue_size = 128      # the default of 5 drops a browser's connections on a busy machine

class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *a): pass

@pytest.fixture(scope='session')
def base():
    s = Server(('127.0.0.1',0), functools.partial(Quiet, directory=site))
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{s.server_address[1]}'
    s.shutdown()

def guard(p, base):
    "Collect errors of page `p` in `p.bad`, and refuse what is not served by the site"
    p.bad = []; p.set_default_timeout(180_000)
    def gate(r):
        u = r.request.url
        if u.startswith((base,'data:','blob:')): r.continue_()
        elif 'colab-badge.svg' in u: r.fulfill(status=200, content_type='image/svg+xml', body='<svg xmlns="http://www.w3.org/2000/svg" width="117" height="20"><rect width="117" height="20" rx="3" fill="#888"/></svg>')
        else: p.bad.append(f'outside request: {u}'); r.abort()
    p.route('**/*', gate)
    p.on('console', lambda m: m.type=='error' and p.bad.append(m.text)); p.on('pageerror', lambda e: p.bad.append(str(e)))
    p.on('response', lambda r: r.status>=400 and p.bad.append(f'{r.status} {r.url}'))
    return p

@pytest.fixture
def page(browser, base):
    p = guard(browser.new_page(), base)
    yield p
    p.close()

@pytest.fixture
def open_page(browser, base):
    "Open a page of the site at a size and in a colour scheme"
    made = []
    def _open(name, scheme='light', width=1280, height=900):
        p = guard(browser.new_page(viewport=dict(width=width, height=height), color_scheme=scheme), base); made.append(p)
        p.goto(f'{base}/{name}'); settle(p)
        return p
    yield _open
    for p in made: p.close()

def settle(p):
    "Wait until fonts are in, figures are drawn and maths is set"
    p.evaluate('document.fonts.ready')
    p.wait_for_function("document.querySelectorAll('main .plotly-graph-div').length == document.querySelectorAll('main .plotly-graph-div .main-svg:first-of-type').length"
                        " && [...document.querySelectorAll('main .math')].every(e => e.querySelector('.katex'))", timeout=180_000)
    p.wait_for_timeout(150)

def css(p, sel, key): return p.evaluate('([s,k]) => getComputedStyle(document.querySelector(s))[k]', [sel,key])

def light(colour):
    "Luminance of a CSS colour, 0 to 1"
    r,g,b = [float(o) for o in colour[colour.index('(')+1:-1].split(',')[:3]]
    return (.299*r+.587*g+.114*b)/255

def prose(p):
    "The text a reader sees outside code and formulas"
    return p.evaluate("(() => { const m = document.querySelector('main').cloneNode(true);"
                      "m.querySelectorAll('pre, code, .katex, script, style').forEach(e => e.remove()); return m.textContent; })()")

FIGURES = """[...document.querySelectorAll('main .plotly-graph-div')].map(e => {
  const b = e.querySelector('.main-svg').getBoundingClientRect(), d = e.parentElement.getBoundingClientRect();
  return [b.width, b.height, d.width]; })"""

def faults(p, name):
    "What is wrong with an open page, by kind"
    s = prose(p); wide = p.evaluate('document.documentElement.scrollWidth'); boxes = p.evaluate(FIGURES)
    set_ = p.evaluate("[...document.fonts].some(f => f.family.includes('KaTeX') && f.status=='loaded')") if name in maths else True
    return dict(errors=p.bad, empty=not s.strip(), raw=[o for o in ('\\frac','\\mathbb','$$',':::','#| ','{#','Traceback (most recent') if o in s],
                maths=p.locator('.katex-error').count(), maths_font_missing=not set_,
                figures=[b for b in boxes if not (b[0]>120 and b[1]>80 and b[0]<=b[2]+1)], figures_missing=name in figures and not boxes,
                wider_than_window=wide if wide>p.viewport_size['width'] else 0)

@pytest.mark.parametrize('width', [1280,390], ids=['desktop','phone'])
@pytest.mark.parametrize('name', pages)
def test_page_is_clean(open_page, name, width):
    "No error, no raw markup, maths set in its font, figures drawn and inside the page, no sideways scrolling"
    bad = {k:v for k,v in faults(open_page(name, width=width), name).items() if v}
    assert not bad, bad

def test_some_page_has_maths_and_some_a_figure(): assert maths and figures

def test_page_is_styled(page, base):
    page.goto(f'{base}/{home}')
    assert 'sans' in css(page,'body','fontFamily').lower() and css(page,'nav.navbar','backgroundColor') not in ('rgba(0, 0, 0, 0)','transparent')

def test_search(page, base):
    page.goto(f'{base}/{home}'); page.locator('#quarto-search input').click(); page.keyboard.type('figure as a fragment'); page.wait_for_timeout(600)
    hits = page.locator('.smalldocs-search-results')
    assert 'How these pages are made' in hits.inner_text() and not page.bad
    hits.locator('a').first.click(); page.wait_for_url('**/docs.html*')
    assert page.locator('h1').first.inner_text()=='How these pages are made'

def test_keyboard_reaches_search_and_contents(page, base):
    page.goto(f'{base}/{home}'); seen = []
    for _ in range(25):
        page.keyboard.press('Tab'); seen.append(page.evaluate("(document.activeElement.closest('#quarto-search') && 'search') || (document.activeElement.closest('#quarto-sidebar') && 'sidebar') || ''"))
    assert {'search','sidebar'} <= set(seen)

def test_dark(open_page):
    for scheme,dark in (('light',False),('dark',True)):
        p = open_page('docs.html', scheme)
        back,ink,tick = light(css(p,'body','backgroundColor')), light(css(p,'main p','color')), light(css(p,'.js-plotly-plot .xtick text','fill'))
        assert (back<.5)==dark and abs(back-ink)>.4 and abs(back-tick)>.4, (scheme,back,ink,tick)

def test_the_switch_takes_figures_along(open_page):
    p = open_page('docs.html'); tick = lambda: light(css(p,'.js-plotly-plot .xtick text','fill'))
    before = tick(); p.locator('.quarto-color-scheme-toggle').first.click(); p.wait_for_timeout(600)
    assert light(css(p,'body','backgroundColor'))<.5 and before<.5<tick() and not p.bad

PIPELINE = """(() => { const n = document.querySelector('nav.pipeline'), as = [...n.querySelectorAll('li a')], lit = n.querySelector('[aria-current]'), c = getComputedStyle(lit);
  return { boxes: as.map(a => { const b = a.getBoundingClientRect(); return [b.left, b.right, b.height]; }), ink: c.color, fill: c.backgroundColor, plain: getComputedStyle(as[1]).color, back: getComputedStyle(document.body).backgroundColor, name: n.getAttribute('aria-label') }; })()"""
def contrast(a, b):
    "Contrast of two CSS colours, 1 to 21"
    lin = lambda v: v/12.92 if v<=.03928 else ((v+.055)/1.055)**2.4
    lum = lambda c: sum(k*lin(float(o)/255) for k,o in zip((.2126,.7152,.0722), c[c.index('(')+1:-1].split(',')[:3]))
    hi,lo = sorted((lum(a), lum(b)), reverse=True)
    return (hi+.05)/(lo+.05)

def test_contrast_is_the_known_one(): assert abs(contrast('rgb(0, 0, 0)','rgb(255, 255, 255)')-21)<.01 and abs(contrast('rgb(119, 119, 119)','rgb(255, 255, 255)')-4.48)<.01

@pytest.mark.parametrize('width', [1280,390], ids=['desktop','phone'])
@pytest.mark.parametrize('scheme', ['light','dark'])
def test_pipeline_can_be_read(open_page, scheme, width):
    "Every stage inside the window and large enough for a finger, letters readable, the current stage told apart from the page"
    got = open_page('answers.html', scheme, width).evaluate(PIPELINE)
    assert len(got['boxes'])==8 and all(0<=l<r<=width and h>=24 for l,r,h in got['boxes']), got['boxes']
    assert contrast(got['ink'], got['fill'])>=4.5 and contrast(got['plain'], got['back'])>=4.5 and contrast(got['fill'], got['back'])>=2.5 and got['name']

def test_pipeline_does_not_jump_and_leads_on(page, base):
    page.add_init_script("window.jumps = []; new PerformanceObserver(l => l.getEntries().forEach(e => e.sources.forEach(s => { const n = s.node && (s.node.closest ? s.node : s.node.parentElement); if (n && n.closest('nav.pipeline')) jumps.push(e.value); }))).observe({type:'layout-shift', buffered:true});")
    page.goto(f'{base}/answers.html'); settle(page)
    assert page.evaluate('jumps')==[]
    page.locator('nav.pipeline [aria-current]').focus(); page.keyboard.press('Tab'); page.keyboard.press('Enter'); page.wait_for_url('**/maze.html')
    assert page.locator('nav.pipeline [aria-current=step]').inner_text()=='rewards' and not page.bad

@pytest.fixture(scope='session')
def shots(tmp_path_factory):
    d = Path(os.getenv('SCREENSHOTS') or tmp_path_factory.mktemp('screenshots')); d.mkdir(parents=True, exist_ok=True)
    print(f'screenshots in {d}')
    return d

@pytest.mark.parametrize('name', sorted({home, 'docs.html'}) if not os.getenv('SCREENSHOTS') else pages)
def test_screenshots(open_page, shots, name):
    for look,kw in dict(light={}, dark=dict(scheme='dark'), phone=dict(width=390, height=844)).items():
        f = shots/f'{Path(name).stem}-{look}.png'; open_page(name, **kw).screenshot(path=f, full_page=True)
        assert f.stat().st_size > 5_000
