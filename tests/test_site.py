"The built site, in a browser that is refused every request to the outside"
import functools, html, html.parser, http.server, json, os, posixpath, re, shutil, subprocess, threading
from pathlib import Path
from urllib.parse import unquote, urlsplit
import pytest, yaml
from conftest import missing

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
def page_name(nb): return re.sub(r'^\d+[a-z]?_', '', Path(nb).stem)+'.html'
notebook = {page_name(p.name):p for p in (root/'nbs').glob('*.ipynb')}
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
    want = {page_name(p.name) for p in (root/'nbs').glob('*.ipynb')} | {'changelog.html'}
    assert want == {p for p in pages if p!='404.html'}, 'the site is older than the notebooks: run `make docs`'

def test_pipeline_is_on_every_page_with_its_stage_lit():
    t = yaml.safe_load((root/'docs/stages.yml').read_text()); rows = {re.sub(r'^\d+[a-z]?_','',Path(k).stem)+'.html':v for k,v in t['notebooks'].items()}
    for p in pages:
        nav = re.findall(r'<nav class="pipeline".*?</nav>', source(p), re.S)
        if p=='404.html': continue
        assert len(nav)==1, p
        if p=='changelog.html': continue
        lit = [html.unescape(o) for o in re.findall(r'aria-current="step">(.*?)<', nav[0])]
        assert lit==[o for o in [rows[p]['stage']] if o!='none'] and f">{rows[p]['form']}</a>" in nav[0], p
        entry = re.search(rf'<a href="{re.escape(p)}" class="sidebar-item-text.*?</a>', source(p), re.S)
        assert entry and f">{rows[p]['form']}</small>" in entry[0], f'{p}: its form is not in the sidebar'

def sidebar(name): return list(dict.fromkeys(h for h in re.findall(r'<a href="([^"]+)" class="sidebar-item-text', source(name).split('id="quarto-sidebar"',1)[1].split('</nav>',1)[0])))

def test_previous_and_next_follow_the_sidebar():
    "Whoever presses `next` from the first page on comes through every page, once, in the order of the sidebar"
    order,path = sidebar(home),[home]
    while True:
        nav = re.search(r'<nav class="page-navigation".*?</nav>', source(path[-1]), re.S)[0]
        before,after = (re.findall(rf'nav-page-{side}"><a href="([^"]+)"', nav) for side in ('previous','next'))
        assert before==path[-2:-1], path[-1]
        if not after: break
        assert after[0] not in path; path.append(after[0])
    assert path==order and set(order)=={p for p in pages if p!='404.html'}, 'nbs/sidebar.yml: every page needs a line'

def test_every_block_of_code_has_a_copy_button():
    n = {p:source(p).count('<pre class="sourceCode') for p in pages}
    assert sum(map(bool, n.values()))>25 and not [p for p in pages if source(p).count('class="code-copy-button"')!=n[p]]

def test_every_page_gives_its_notebook_as_it_stands():
    "Under the title: Colab, the notebook file with its outputs, Markdown"
    for p,nb in notebook.items():
        bar = re.search(r'<p class="take-away">(.*?)</p>', source(p))[1]
        file,md = re.search(r'href="(notebooks/[^"]+)" download', bar)[1], re.search(r'href="([^"]+\.md)"', bar)[1]
        assert (site/file).read_bytes()==nb.read_bytes(), f'{p}: the site is older than the notebooks: run `make docs`'
        assert re.search(r'href="https://colab\.research\.google\.com/[^"]*/'+nb.name+'"', bar) and 'colab-badge' not in source(p), p
        assert (site/md).read_text().startswith('# ')

def test_llms_txt():
    "The list for programs: every page with its subtitle, in reach, and readable"
    s = (site/'llms.txt').read_text(); lines = s.splitlines(); base = re.search(r'^site-url: *"?([^"\n]+)|site-url: "([^"]+)"', (root/'nbs/nbdev.yml').read_text(), re.M); base = base[1] or base[2]
    assert lines[0].startswith('# ') and lines[2].startswith('> ') and len(lines[4])>100
    rows = [re.fullmatch(rf'- \[(.+?)\]\({re.escape(base)}/(.+?)\.md\): (.+) \(\[notebook\]\({re.escape(base)}/(notebooks/.+?)\)\)', l) for l in lines if l.startswith('- ')]
    assert all(rows) and {m[2] for m in rows}=={p for p in notebook}
    for m in rows:
        text = (site/f'{m[2]}.md').read_text(); head = '\n'.join(''.join(c['source']) for c in json.loads(notebook[m[2]].read_text())['cells'] if c['cell_type']=='markdown')
        assert head.startswith(f'# {m[1]}\n') and f'> {m[3]}' in head and (site/m[4]).exists()
        words = re.sub(r'```.*?```', '', text, flags=re.S)
        assert f'# {m[1]}\n' in text and not [o for o in ('dr-figure','Plotly.newPlot','#| ','<script','colab-badge') if o in words], m[2]
        assert text.strip() in (site/'llms-full.txt').read_text()

def test_names_of_other_projects_are_linked():
    "Every name in docs/names.yml is used, and its links lead to its documentation; none stands in a heading or in another link"
    names = yaml.safe_load((root/'docs/names.yml').read_text())['names']; found = set()
    for p in pages:
        for url,title in re.findall(r'<a class="ext" href="([^"]+)" title="([^"]+): its documentation">', source(p)):
            assert names.get(title)==url or url==f'https://docs.pytorch.org/docs/stable/generated/{title}.html'; found.add(title)
        assert not re.search(r'<a\b[^>]*>(?:(?!</a>).)*<a class="ext"', source(p).split('<main',1)[-1], re.S), p
    lost = sorted(set(names)-found); assert not lost, f'docs/names.yml: no page uses {lost}'

def test_changelog_is_a_page():
    s = source('changelog.html'); items = re.findall(r'^- (\w[\w ]+)', (root/'CHANGELOG.md').read_text(), re.M)
    assert items and all(html.escape(i) in s for i in items) and 'Changelog</h1>' in s

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

def test_figures_have_names(open_page):
    p = open_page('docs.html')
    assert p.locator('.js-plotly-plot').first.get_attribute('aria-label')=='Figure: Chance that one of n coin flips is heads'

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

def test_copy_button_copies(browser, base):
    c = browser.new_context(permissions=['clipboard-read','clipboard-write']); p = guard(c.new_page(), base)
    p.goto(f'{base}/docs.html'); settle(p)
    want = p.locator('pre.sourceCode code').first.inner_text(); p.locator('.code-copy-button').first.focus(); p.keyboard.press('Enter')
    p.wait_for_selector('.code-copy-button-checked')
    assert p.evaluate('navigator.clipboard.readText()').strip()==want.strip() and 'import' in want and not p.bad
    c.close()

def test_a_downloaded_notebook_runs(page, base, tmp_path, monkeypatch):
    "What the link gives is a whole notebook: it runs in an empty folder"
    from nbdev.test import test_nb as run_nb
    page.goto(f'{base}/docs.html')
    with page.expect_download() as d: page.locator('.take-away a[download]').click()
    f = tmp_path/d.value.suggested_filename; d.value.save_as(f); monkeypatch.chdir(tmp_path)
    assert f.name=='99_docs.ipynb' and run_nb(f, basepath=root)[0] and not page.bad

def test_folded_code_waits(open_page):
    "`#| code-fold: true` hides code, the keyboard opens it, and what it holds can be copied"
    p = open_page('docs.html'); code = p.locator('details.code-fold pre').first
    assert not code.is_visible() and 'An answer that waits' in p.locator('details.code-fold summary').first.inner_text()
    p.locator('details.code-fold summary').first.focus(); p.keyboard.press('Enter'); p.wait_for_timeout(200)
    assert code.is_visible() and 'chance' in code.inner_text()

def weigh(p, base, name):
    "Bytes of every file that a page fetches, by address"
    got = {}; p.on('response', lambda r: got.__setitem__(r.url, r)); p.goto(f'{base}/{name}', wait_until='networkidle'); settle(p)
    return {u:len(r.body()) for u,r in got.items()}

def test_landing_page_is_light(browser, base):
    "At most 1 MB beside plotly"
    p = guard(browser.new_page(), base); got = weigh(p, base, home); p.close()
    rest = {u:n for u,n in got.items() if 'plotly' not in u}
    assert len(rest)>5 and sum(rest.values())<=1_000_000, json.dumps(dict(sorted(rest.items(), key=lambda o: -o[1])), indent=1)

def test_plotly_comes_only_where_a_figure_needs_it(browser, base):
    plain = next(p for p in pages if p not in figures)
    for name,want in ((plain,False), ('docs.html',True)):
        p = guard(browser.new_page(), base); got = weigh(p, base, name); p.close()
        assert any('plotly' in u for u in got)==want, name

STYLES = """(() => { const keys = ['display','position','color','backgroundColor','fontSize','fontWeight','fontFamily','lineHeight','margin','padding','border','width','height','textDecoration','listStyle','gap','opacity','visibility'];
  return [...document.querySelectorAll('body *')].filter(e => !e.closest('svg, .katex, pre')).map(e => { const c = getComputedStyle(e); return [e.tagName + '.' + e.className, ...keys.map(k => c[k])].join('|'); }); })()"""

@pytest.mark.parametrize('scheme,width', [('light',1280),('dark',390)])
def test_slim_style_sheets_change_nothing(browser, base, scheme, width):
    "Every element of a page looks the same with the whole style sheets as with the slim ones"
    import smalldocs
    vendor = Path(smalldocs.__file__).parent/'assets/vendor'; seen = []
    for whole in (False,True):
        p = guard(browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme), base)
        if whole:
            serve = lambda f: lambda route: route.fulfill(path=vendor/f, content_type='text/css')
            for f in ('bootswatch/cosmo','bootswatch/darkly','bootstrap-icons/bootstrap-icons'): p.route(f"**/{f.split('/')[1]}.min.css", serve(f'{f}.min.css'))
        p.goto(f'{base}/glossary.html'); settle(p); seen.append(p.evaluate(STYLES)); p.close()
    assert len(seen[0])>200 and not [(a,b) for a,b in zip(*seen) if a!=b] and len(seen[0])==len(seen[1])

# ---- axe-core looks for what keeps people from using a page

@pytest.fixture(scope='session')
def axe():
    if not shutil.which('npm') and not (root/'node_modules/axe-core/axe.min.js').exists(): missing('no npm: axe-core cannot be fetched; install Node.js to check accessibility')
    r = subprocess.run(['bash','tools/axe.sh'], cwd=root, capture_output=True, text=True)
    if r.returncode or not r.stdout.strip(): missing(f'axe-core could not be fetched: {r.stderr.strip()[-300:]}')
    return (root/r.stdout.strip()).read_text()

def axe_findings(p, axe, rules=None):
    "Serious and critical findings on an open page: rule, element, what to do"
    p.evaluate(axe)
    found = p.evaluate("r => axe.run(document, {resultTypes: ['violations'], ...(r ? {runOnly: r} : {})})", rules)['violations']
    return [(v['id'],n['html'][:160],n['failureSummary'][:300]) for v in found if v['impact'] in ('serious','critical') for n in v['nodes'][:5]]

THIN = """() => { const kinds = () => new Set([...document.querySelectorAll('main pre span')].map(e => e.className)).size, n = {}, all = kinds();
  document.querySelectorAll('main pre span').forEach(e => { if (e.querySelector('span')) return; const k = e.className; n[k] = (n[k] || 0)+1; if (n[k] > 3) e.replaceWith(e.textContent); }); return [all, kinds()]; }"""

@pytest.mark.timeout(900)
@pytest.mark.parametrize('name', pages)
def test_page_is_accessible(open_page, axe, name):
    "No serious finding: everything in light, what depends on colour in dark too; of thousands of equally coloured words of code three of each colour are looked at"
    p = open_page(name); all_,left = p.evaluate(THIN); assert all_==left
    bad = dict(light=axe_findings(p, axe))
    p.emulate_media(color_scheme='dark'); p.wait_for_timeout(300); assert light(css(p, 'body', 'backgroundColor')) < .3
    bad['dark'] = axe_findings(p, axe, ['color-contrast','link-in-text-block'])
    assert not any(bad.values()), json.dumps(bad, indent=1)

def test_axe_finds_what_is_wrong(open_page, axe):
    p = open_page('changelog.html')
    p.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p style=\"color:#aaa;background:#fff\">pale</p><button></button>')")
    assert {'color-contrast','button-name'} <= {f[0] for f in axe_findings(p, axe)}

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
