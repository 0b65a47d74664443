"""A PNG in every stored figure, for readers that run no script, such as GitHub's view of a notebook

    python tools/posters.py             every notebook in nbs/
    python tools/posters.py 02 sets     those whose names contain a word
    python tools/posters.py --check     say which pictures are missing or older than their figure, and change nothing

Figures are plotly's (stored as JSON) and ours (stored as a fragment of HTML); Jupyter, Colab and the site go on showing those. Each picture
holds a hash of the figure it was taken from: one that is current is left alone. Needs Chromium; with Pillow the pictures are a third of the size."""
import base64, hashlib, json, os, shutil, struct, sys, zlib
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLOTLY,WIDTH,LIMIT = 'application/vnd.plotly.v1+json',720,60_000          # pixels, bytes
MAGIC,KEY = b'\x89PNG\r\n\x1a\n',b'Figure\0'
PAGE = '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light"><style>body{{margin:0;padding:8px;width:{w}px;background:#fff;color:#222;font:15px system-ui,sans-serif}}</style><body><div id="shot">{body}</div>'

def src(o): return ''.join(o) if isinstance(o, list) else o

def figure(output):
    "What a stored output draws: plotly's JSON or our fragment as text; nothing for another output"
    d = output.get('data') or {}
    if PLOTLY in d: return json.dumps(d[PLOTLY], sort_keys=True)
    html = src(d.get('text/html', ''))
    return html if 'class="dr-figure"' in html else None

def figure_hash(fig): return hashlib.sha256(fig.encode()).hexdigest()[:16]

def stamp(png, key):
    "The picture with a text in it: the hash of its figure"
    body = b'tEXt'+KEY+key.encode()
    return png[:33]+struct.pack('>I', len(body)-4)+body+struct.pack('>I', zlib.crc32(body))+png[33:]          # after the header, 8+25 bytes

def stamped(png):
    "The hash in a picture, or nothing"
    i = png.find(b'tEXt'+KEY)
    return png[i+11:i+27].decode('latin1') if i>0 and png.startswith(MAGIC) else None

def stale(output):
    "Does this output draw a figure whose picture is missing or of an older figure?"
    fig = figure(output)
    return fig is not None and stamped(base64.b64decode(src(output['data'].get('image/png', '')) or b''))!=figure_hash(fig)

def figures(nb): return [o for c in nb['cells'] for o in c.get('outputs', []) if figure(o) is not None]

def small(png, limit=LIMIT):
    "A picture of few colours, and if that is not enough of fewer pixels, with at most `limit` bytes"
    if not find_spec('PIL'): return png
    from PIL import Image
    img = Image.open(BytesIO(png)).convert('RGB')
    for colours,scale in ((128,1), (64,1), (32,1), (32,.8), (16,.6)):
        im = img.resize([round(o*scale) for o in img.size], Image.LANCZOS) if scale<1 else img
        b = BytesIO(); im.quantize(colours).save(b, 'PNG', optimize=True)
        if b.tell()<=limit: break
    return b.getvalue()

def body(output):
    "HTML that draws one figure"
    d = output['data']
    if PLOTLY not in d: return src(d['text/html'])
    fig = d[PLOTLY]; layout = {**fig.get('layout', {}), 'width':min(WIDTH, fig.get('layout', {}).get('width') or WIDTH), 'paper_bgcolor':'white'}
    show = json.dumps({'data':fig.get('data', []), 'layout':layout, 'config':{'displayModeBar':False}}).replace('</', '<\\/')
    return f'<div id="plot"></div><script>Plotly.newPlot("plot", {show}).then(() => document.getElementById("shot").dataset.done = 1)</script>'

def shoot(page, output):
    "PNG of one figure, drawn in an open browser page"
    plotly = PLOTLY in output['data']
    page.set_viewport_size(dict(width=WIDTH+16, height=900))
    page.set_content(PAGE.format(w=WIDTH, body='')); lib = Path(__import__('plotly').__file__).parent/'package_data/plotly.min.js'
    if plotly: page.add_script_tag(path=str(lib))
    page.evaluate("html => { const d = document.getElementById('shot'); d.append(document.createRange().createContextualFragment(html)); }", body(output))
    if plotly: page.wait_for_selector('#shot[data-done]')
    else: page.wait_for_selector('.dr-stage svg, .dr-stage canvas', state='attached')
    page.wait_for_timeout(400)
    return page.locator('#shot').screenshot(animations='disabled')

def add_pictures(path, page):
    "Take the pictures that a notebook lacks; returns how many"
    nb = json.loads(path.read_text()); todo = [o for o in figures(nb) if stale(o)]
    for o in todo: o['data']['image/png'] = base64.b64encode(stamp(small(shoot(page, o)), figure_hash(figure(o)))).decode()
    if todo: path.write_text(json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True)+'\n')
    return len(todo)

def missing(paths): return {p:n for p in paths if (n:=sum(map(stale, figures(json.loads(p.read_text())))))}

def main(words, check=False):
    paths = [p for p in sorted((ROOT/'nbs').glob('*.ipynb')) if not words or any(w in p.name for w in words)]
    todo = missing(paths)
    if check: sys.exit('\n'.join(f'{p.name}: {n} pictures missing or stale; run python tools/posters.py' for p,n in todo.items()) or 0)
    if not todo: return print('Every picture is current')
    from playwright.sync_api import sync_playwright
    chrome = os.getenv('CHROMIUM') or next(filter(None, map(shutil.which, ('chromium','chromium-browser','google-chrome','google-chrome-stable'))), None)
    with sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=chrome, args=['--no-sandbox','--disable-gpu'], timeout=300_000)
        for p in todo:
            page = b.new_page(color_scheme='light'); page.set_default_timeout(300_000)
            print(f'{p.name}: {add_pictures(p, page)} pictures', flush=True); page.close()
        b.close()

if __name__=='__main__': main([a for a in sys.argv[1:] if not a.startswith('-')], '--check' in sys.argv)
