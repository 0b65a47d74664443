"The parts of the site's build that need no built site, the pictures in the notebooks, and the workflow that publishes"
import base64, html, importlib, json, re, subprocess, sys
from pathlib import Path
import pytest, yaml
from conftest import CHROMIUM, missing

root = Path(__file__).parents[1]

def module(name, folder='docs'):
    sys.path.insert(0, str(root/folder))
    try: return importlib.import_module(name)
    finally: sys.path.remove(str(root/folder))

# ---- links to other projects

def test_every_linked_name_exists():
    "A name in the table can be imported: `torch.X`, `trl.X`, or the class of one of the projects its address names"
    names,_ = module('names').load_names()
    for name,url in names.items():
        project = re.search(r'docs\.(?:py)?(torch)|/docs/(\w+)/', url); lib = next(filter(None, project.groups()))
        if lib=='pytorch': lib = 'torch'
        dotted = url.rsplit('#', 1)[-1] if '#' in url else name
        o = importlib.import_module(lib)
        for part in dotted.split('.')[1:]: o = getattr(o, part)
        assert dotted.split('.')[-1]==name.split('.')[-1], name

def test_cross_links():
    n = module('names'); names,starts = n.load_names()
    page = lambda s: f'<header>`torch.exp`</header><main>{s}</main>'
    link = lambda s: n.cross_link(page(s), names, starts)
    assert 'href="https://docs.pytorch.org/docs/stable/generated/torch.logsumexp.html"' in link('<code>torch.logsumexp</code>') and '#trl.GRPOTrainer"' in link('<code>GRPOTrainer</code>')
    for s in ('<code>torch</code>','<code>our_name</code>','<a href="x"><code>GRPOTrainer</code></a>','<h2><code>GRPOTrainer</code></h2>','<code>torch.float32.x.y.z</code>','<code>torch.Foo</code>'): assert link(s)==page(s)
    code = '<pre class="sourceCode"><code><span class="st">"Tensor"</span> x:Tensor y:Tensor Tensors <span class="co"># GRPOConfig</span></code></pre>'
    assert link(code).count('<a ')==1 and 'x:<a' in link(code)                                         # the first, not in text or comments
    assert n.cross_link('<pre>Tensor</pre>', names, starts)=='<pre>Tensor</pre>'                      # nothing outside the text

def test_a_bad_address_is_refused(tmp_path):
    f = tmp_path/'n.yml'; f.write_text('torch.: https://a.org/{}\nnames: {x: "ftp://a b"}')
    with pytest.raises(ValueError, match='not an address of the web: ftp://a b'): module('names').load_names(f)

# ---- style sheets

def test_slim():
    slim = module('slim').slim; have = {'a','b'}
    assert slim('.a{x:1}.c{x:2}', have)=='.a{x:1}' and slim('.a,.c,p{x:1}', have)=='.a,p{x:1}' and slim('.a .c{x:1}#b>i{y:2}', have)=='#b>i{y:2}'
    assert slim('@media (x){.c{x:1}}@media (y){.a{x:1}.c{y:1}}', have)=='@media (y){.a{x:1}}'
    assert slim('@keyframes k{from{x:1}}@font-face{src:url("a;b}")}', have)=='@keyframes k{from{x:1}}@font-face{src:url("a;b}")}'
    assert slim('.a:not(.c){x:1}.btn\\:x{y:1}[class~="c"]{z:1}', have)=='.a:not(.c){x:1}[class~="c"]{z:1}'
    assert slim('@charset "utf-8";.c{x:url(data:a;b)}p::before{content:"}"}', have)=='@charset "utf-8";p::before{content:"}"}'

# ---- copies for programs

def test_markdown_copy():
    c = module('copies'); cell = lambda s,kind='code',**o: dict(cell_type=kind, source=s, **({'outputs':o['outputs']} if o else {'outputs':[]} if kind=='code' else {}))
    fig = dict(data={'application/vnd.plotly.v1+json':dict(layout=dict(title=dict(text='A <b>b</b>')))}); own = dict(data={'text/html':'<style>s</style><div class="dr-figure" role="group" aria-label="Particles" style="x">'})
    nb = dict(cells=[cell('# T\n\n> s','markdown'), cell('[![Open In Colab](x)](y)','markdown'), cell('see [a](03_sets.ipynb#x) [b](no.ipynb)','markdown'), cell('#| hide\nsecret'),
                     cell('#| code-fold: true\n1+1', outputs=[dict(data={'text/plain':'2'})]), cell('#| echo: false\nf()', outputs=[dict(text='\x1b[1mhi\x1b[0m\n')]), cell('fig', outputs=[fig, own])])
    s = c.markdown(nb, {'03_sets.ipynb':'sets.html'})
    assert s=='# T\n\n> s\n\nsee [a](sets.html.md#x) [b](no.ipynb.md)\n\n```python\n1+1\n```\n\n```text\n2\n```\n\n```text\nhi\n```\n\n```python\nfig\n```\n\n[Figure: A  b /b ]\n\n[Interactive figure: Particles]\n'.replace('A  b /b ', 'A  b ')
    assert c.title(nb)==('T','s')

# ---- the same folder is tested and published

def test_what_is_published_was_tested():
    flows = {p.name:yaml.safe_load(p.read_text()) for p in (root/'.github/workflows').glob('*.yml')}
    jobs = [(f,j,d) for f,w in flows.items() for j,d in w['jobs'].items()]
    deploy = [(f,d) for f,_,d in jobs if any('deploy-pages' in s.get('uses','') for s in d['steps'])]
    assert len(deploy)==1; f,d = deploy[0]
    assert d['needs']=='test' and "refs/heads/main" in d['if'] and not any('run' in s or 'checkout' in s.get('uses','') for s in d['steps']), 'the job that publishes builds nothing'
    steps = flows[f]['jobs']['test']['steps']; uses = [s.get('uses','').split('@')[0] or s.get('run','') for s in steps]
    up = next(s for s in steps if 'upload-pages-artifact' in s.get('uses',''))
    assert up['with']['path']=='_docs' and uses.index('actions/upload-pages-artifact')>next(i for i,u in enumerate(uses) if 'make test' in u) and 'always' not in up.get('if','')
    assert sum('upload-pages-artifact' in s.get('uses','') for _,_,j in jobs for s in j['steps'])==1

# ---- pictures for readers that run no script

def test_every_stored_figure_has_its_picture():
    "GitHub shows a notebook without scripts: each figure holds a picture of itself, at most 60 KB"
    p = module('posters', 'tools'); bad = {f.name:n for f,n in p.missing(sorted((root/'nbs').glob('*.ipynb'))).items()}
    assert not bad, f'pictures missing or stale: run `python tools/posters.py`: {bad}'
    for f in (root/'nbs').glob('*.ipynb'):
        for o in p.figures(json.loads(f.read_text())): assert len(base64.b64decode(o['data']['image/png']))<=60_100, f.name

def test_pictures_are_taken_once(tmp_path, monkeypatch):
    "A notebook with two figures gets two pictures that are not blank; a second run changes nothing; a changed figure is stale"
    if not CHROMIUM: missing('no Chromium: install it, or name one in the environment variable CHROMIUM')
    Image = pytest.importorskip('PIL.Image'); from io import BytesIO
    p = module('posters', 'tools'); plot = {p.PLOTLY:dict(data=[dict(type='bar', y=[1,3,2])], layout=dict(height=200, title=dict(text='t')))}
    own = {'text/html':'<div class="dr-figure"><div class="dr-stage" style="height:90px"></div></div><script type="module">document.querySelector(".dr-stage").innerHTML = "<svg width=90 height=80><circle cx=40 cy=40 r=30 fill=red /></svg>";</script>'}
    outs = [dict(output_type='display_data', metadata={}, data=d) for d in (plot, own, {'text/plain':'1'})]
    nb = dict(cells=[dict(cell_type='code', id='a', metadata={}, execution_count=None, source=['x'], outputs=outs)], metadata={}, nbformat=4, nbformat_minor=5)
    f = tmp_path/'nbs/a.ipynb'; f.parent.mkdir(); (tmp_path/'tools').mkdir(); f.write_text(json.dumps(nb)); tool = tmp_path/'tools/posters.py'; tool.write_bytes((root/'tools/posters.py').read_bytes())
    run = lambda *a: subprocess.run([sys.executable, str(tool), *a], capture_output=True, text=True, env={**__import__('os').environ, 'CHROMIUM':CHROMIUM})
    assert run('--check').returncode==1 and 'a.ipynb: 2 pictures' in run('--check').stderr
    r = run(); assert r.returncode==0 and 'a.ipynb: 2 pictures' in r.stdout, r.stderr
    first = f.read_text(); got = [o['data'] for o in json.loads(first)['cells'][0]['outputs']]
    assert got[0][p.PLOTLY]==plot[p.PLOTLY] and got[1]['text/html']==own['text/html'] and 'image/png' not in got[2]
    colours = [Image.open(BytesIO(base64.b64decode(d['image/png']))).convert('RGB').getcolors(1<<20) for d in got[:2]]
    assert all(len(c)>5 for c in colours) and any(c[0]>200 and max(c[1:])<90 for _,c in colours[1])                   # bars and words; a red disc
    assert 'current' in run().stdout and f.read_text()==first and run('--check').returncode==0
    f.write_text(first.replace('3', '4', 1) if '[1, 3, 2]' in first else re.sub(r'(\n\s+)3(,\n)', r'\g<1>4\2', first, count=1))
    assert 'a.ipynb: 1 pictures' in run('--check').stderr

def test_a_picture_says_what_it_shows():
    p = module('posters', 'tools'); png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
    key = p.figure_hash('x'); out = p.stamp(png, key)
    assert p.stamped(png) is None and p.stamped(out)==key and len(key)==16 and p.stamped(b'')is None
    Image = pytest.importorskip('PIL.Image'); from io import BytesIO
    img = Image.open(BytesIO(out)); img.load(); assert img.size==(1,1) and img.text['Figure']==key

# ---- links between notebooks

def test_links_to_notebooks_become_links_to_pages():
    fix = module('build').linker(Path('a.ipynb'), {'03_sets.ipynb':'sets.ipynb'}, 'https://x.org/d')
    assert fix('[a](03_sets.ipynb#b) <a href="03_sets.ipynb#b">') == '[a](sets.ipynb#b) <a href="sets.html#b">'
    for s in ('[a](no.ipynb)','<a href="no.ipynb">','[a](https://y.org/03_sets.ipynb)','<a href="https://y.org/03_sets.ipynb">','03_sets.ipynb'): assert fix(s)==s
    assert fix('https://x.org/d/sets.html')=='sets.html'
