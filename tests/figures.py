"What the tests of interactive figures share: a figure's values, its program as a module, its boxes, its names, its pictures"
import os, re
from pathlib import Path
from diverse_rl.widgets import js_source

HOME = 'http://figure.test/'
def value(p, key): return p.evaluate("k => document.querySelector('.dr-figure').model.get(k)", key)
def put(page, /, **kv): page.evaluate("o => Object.entries(o).forEach(([k,v]) => document.querySelector('.dr-figure').model.set(k,v))", kv)
def module(p, name):
    "The program of a figure as `m` in the page"
    p.evaluate("async src => { window.m = await import(URL.createObjectURL(new Blob([src], {type:'text/javascript'}))); }", js_source(name))
def centre(p, sel, n=0):
    b = p.locator(sel).nth(n).bounding_box(); return b['x']+b['width']/2, b['y']+b['height']/2

BOX = "(() => { const b = document.querySelector('.dr-figure').getBoundingClientRect(), a = document.querySelector('#after').getBoundingClientRect(); return [b.width, b.height, a.top]; })()"
OVER = "(() => { const e = document.querySelector('.dr-panel'), b = e.getBoundingClientRect(); return [e.scrollHeight-e.clientHeight, e.scrollWidth-e.clientWidth, Math.max(...[...e.children].map(c => c.getBoundingClientRect().right))-b.right, document.documentElement.scrollWidth-innerWidth]; })()"
def still_box(p):
    "What `BOX` gives, on a page where no script runs"
    a,b = p.locator('.dr-figure').bounding_box(),p.locator('#after').bounding_box(); return [a['width'],a['height'],b['y']]

def nameless(p, hidden=True):
    "Controls that a screen reader has no name for; `hidden`: those that are not displayed too"
    return p.evaluate("""hidden => [...document.querySelectorAll('.dr-figure button, .dr-figure select, .dr-figure input, .dr-figure [tabindex], .dr-figure [role=img]')].filter(e => (hidden || getComputedStyle(e).display!='none') &&
        !((e.getAttribute('aria-label') || '').trim() || (e.labels && e.labels[0] && e.labels[0].textContent.trim()) || (e.tagName=='BUTTON' && e.textContent.trim()))).map(e => e.outerHTML)""", hidden)

def lightness(c):
    "Relative luminance of a CSS colour"
    r,g,b = [float(o)/255 for o in re.findall(r'[\d.]+', c)[:3]]; lin = lambda v: v/12.92 if v<=.04045 else ((v+.055)/1.055)**2.4
    return .2126*lin(r)+.7152*lin(g)+.0722*lin(b)
def contrast(a, b): a,b = sorted((lightness(a),lightness(b))); return (b+.05)/(a+.05)

def live(p, fig):
    "Draw the figure beside itself with a model like anywidget's, as `live` in the page; how many elements that are"
    module(p, fig.name)
    return p.evaluate("""state => { const heard = {}, model = { saved: 0, get: k => state[k], set: (k,v) => { state[k] = v; (heard['change:'+k] || []).forEach(f => f()); }, save_changes() { this.saved++; }, on: (e,f) => (heard[e] ||= []).push(f), off: () => {} };
        const el = document.createElement('div'); document.body.append(el); window.live = { model, el, end: window.m.default.render({ model, el }) }; return el.querySelectorAll('svg *').length; }""", fig._all())
def drawn(p): return p.evaluate("document.querySelector('main .dr-figure').querySelectorAll('svg *').length")

LOOKS = (('light','light',900),('dark','dark',900),('phone','light',390),('phone-dark','dark',390))
def shots(p, name, tmp_path, height=900, **kw):
    "Pictures to look at, in `SCREENSHOTS` if that is set"
    out = Path(os.getenv('SCREENSHOTS') or tmp_path); out.mkdir(parents=True, exist_ok=True)
    for look,scheme,width in LOOKS:
        p.emulate_media(color_scheme=scheme); p.set_viewport_size(dict(width=width, height=height)); p.wait_for_timeout(600)
        f = out/f'{name}-{look}.png'; p.screenshot(path=f, **kw); assert f.stat().st_size > 8_000
