"""Build the docs site into `_docs`, with no network: `python docs/build.py [KATEX_DIST]`

nbdev runs its own processors over the notebooks (`_proc`), and smalldocs renders them from the same
`nbs/_quarto.yml` that `nbdev-docs` hands to Quarto. Without KATEX_DIST (the `dist` folder of the npm
package `katex`) the pages load KaTeX from its public address."""
import functools, json, os, posixpath, re, shutil, subprocess, sys
from importlib.util import find_spec
from pathlib import Path
import yaml
from access import open_up_all
from copies import write_copies
from names import cross_link_all
from slim import slim_all
from stages import light_up_all

root = Path(__file__).resolve().parents[1]
HEAD = '<link rel="icon" href="data:,">\n<script src="{up}site_libs/figures.js" data-lib="{up}site_libs/plotly.min.js"></script>\n<script src="{up}site_libs/page.js" defer></script>'

def src(o): return ''.join(o) if isinstance(o, list) else o

def page(f):
    "Notebook, front matter and output name of `f`"
    nb = json.loads(f.read_text()); fm = {}
    if nb['cells'] and nb['cells'][0]['cell_type']=='raw': fm = yaml.safe_load(src(nb['cells'][0]['source']).strip().strip('-')) or {}
    return nb, fm, f.with_name(Path(fm.pop('output-file', f.name)).stem+'.ipynb')

def linker(rel, names, doc_url):
    "A function that makes links in the text of page `rel` work offline"
    d,up = str(rel.parent),'../'*len(rel.parent.parts)
    url = re.compile(re.escape(doc_url.rstrip('/'))+'/')
    link = re.compile(r'(\]\(|href=")(?!https?:|#|mailto:)([^)"\s#]+\.ipynb)(#[^)"\s]*)?(?=[)"])')
    def swap(m):
        tgt = names.get(posixpath.normpath(posixpath.join(d, m[2])))
        if tgt and m[1][0]=='h': tgt = posixpath.splitext(tgt)[0]+'.html'          # in HTML nobody else turns a notebook into its page
        return f"{m[1]}{posixpath.relpath(tgt, d)}{m[3] or ''}" if tgt else m[0]
    return lambda s: link.sub(swap, url.sub(up, src(s)))

def tidy(nb, fm, fix):
    "Rewrite the links of `nb`, and drop what smalldocs cannot read"
    for c in nb['cells']:
        c['metadata'].pop('execution', None)          # nbdev stores floats there, which nbformat refuses
        if c['cell_type']=='markdown': c['source'] = fix(c['source'])
        for o in c.get('outputs', []):
            for k in {'text/markdown','text/html'} & {*o.get('data', {})}: o['data'][k] = fix(o['data'][k])
    if nb['cells'] and nb['cells'][0]['cell_type']=='raw': nb['cells'][0]['source'] = '---\n'+yaml.safe_dump(fm)+'---\n'
    nb['metadata'].pop('widgets', None)

def stage(proc, out, doc_url):
    "Copy processed notebooks to `out` under their page names, with links that work offline"
    pages = {f.relative_to(proc):page(f) for f in proc.rglob('*.ipynb') if not any(p[0] in '._' for p in f.relative_to(proc).parts)}
    names = {str(k):str(v[2].relative_to(proc)) for k,v in pages.items()}
    for rel,(nb,fm,_) in pages.items():
        tidy(nb, fm, linker(rel, names, doc_url))
        dst = out/names[str(rel)]; dst.parent.mkdir(parents=True, exist_ok=True); dst.write_text(json.dumps(nb))
    return names

def merged(nbs):
    "`_quarto.yml` with the files it names merged in"
    q = yaml.safe_load((nbs/'_quarto.yml').read_text())
    for m in q.pop('metadata-files', []):
        for k,v in yaml.safe_load((nbs/m).read_text()).items():
            for kk,vv in v.items() if isinstance(v, dict) else ():
                if isinstance(vv, dict): q.setdefault(k,{}).setdefault(kk,{}).update(vv)
                else: q.setdefault(k,{})[kk] = vv
    return q

def contents(items, names):
    "Sidebar entries under their page names; an entry without a notebook is left out, and said"
    out = []
    for o in items:
        if isinstance(o, dict): o = {**o, 'contents':contents(o['contents'], names)}
        elif o not in names: print(f'sidebar.yml: no notebook {o}, left out')
        o = names.get(o) if isinstance(o, str) else o if o['contents'] else None
        if o: out.append(o)
    return out

def changelog(out, contents):
    "A page from CHANGELOG.md, the last entry of the sidebar's last section"
    body = (root/'CHANGELOG.md').read_text().split('\n', 1)[1]
    (out/'changelog.md').write_text('---\ntitle: Changelog\n---\n'+body)
    last = next(o for o in reversed(contents) if isinstance(o, dict)); last['contents'].append('changelog.md')

def config(nbs, out, names):
    "One `_quarto.yml` from nbdev's three, without what only Quarto reads"
    q = merged(nbs); side = q['website']['sidebar']; side['contents'] = contents(side['contents'], names); changelog(out, side['contents'])
    q['project']['output-dir'] = '_site'; q['format'].pop('commonmark', None); q['format']['html'].pop('keep-md', None)
    (out/'_quarto.yml').write_text(yaml.safe_dump(q, sort_keys=False))
    for f in nbs.glob('*.css'): shutil.copy(f, out)
    if (nbs/'images').is_dir(): shutil.copytree(nbs/'images', out/'images')

def self_host(site, katex):
    "Serve figures (and maths, if `katex` is given) from the site itself, and drop web fonts"
    lib = site/'site_libs'; k = lib/'katex'
    shutil.copy(Path(find_spec('plotly').origin).parent/'package_data/plotly.min.js', lib)
    for f in ('figures.js','page.js'): shutil.copy(root/'docs'/f, lib)
    if katex:
        (k/'contrib').mkdir(parents=True, exist_ok=True)
        for f in ('katex.min.css','katex.min.js','contrib/auto-render.min.js'): shutil.copy(katex/f, k/f)
        shutil.copytree(katex/'fonts', k/'fonts', ignore=lambda d,fs: [f for f in fs if not f.endswith('.woff2')], dirs_exist_ok=True)
    cdn = re.compile(r'https://cdn\.jsdelivr\.net/npm/katex@[\d.]+/dist')
    for p in site.rglob('*.html'):
        up = '../'*len(p.relative_to(site).parent.parts); s = p.read_text()
        if katex: s = cdn.sub(f'{up}site_libs/katex', s)
        p.write_text(s.replace('</head>', HEAD.format(up=up)+'\n</head>', 1))
    font = re.compile(r'''@import\s*url\([^)]*//[^)]*\)\s*;|@import\s*(["'])https?://.*?\1\s*;''')   # a font's address may hold `;`
    for p in lib.rglob('*.css'): p.write_text(font.sub('', p.read_text()))

def unlink(site):
    "A name in the prose that no page explains (a private helper, an overridden hook) stays plain text: nbdev links all it exported"
    ids = {p.name:set(re.findall(r'\sid="([^"]+)"', p.read_text())) for p in site.rglob('*.html')}
    link = re.compile(r'<a href="([\w.-]+\.html)#([^"]+)"[^>]*>(<code>.*?</code>)</a>')
    for p in site.rglob('*.html'):
        p.write_text(link.sub(lambda m: m[0] if m[1] not in ids or m[2] in ids[m[1]] else m[3], p.read_text()))

def check(small, out):
    "Stop when smalldocs finds a broken link or syntax it cannot render"
    r = subprocess.run([small,'check',str(out)], capture_output=True, text=True)
    bad = [l for l in r.stdout.splitlines() if 'thing(s)' not in l and 'format-links' not in l]
    if bad: sys.exit('\n'.join(bad))

def read_settings_once():
    "nbdev parses pyproject.toml again for every cell: a third of the time of a build"
    import nbdev.process, nbdev.processors
    for m in (nbdev.process, nbdev.processors): m.get_config = functools.cache(m.get_config)

def finish(site, katex, cfg, names):
    "What smalldocs leaves to do on the pages it wrote"
    pages = {k:Path(v).with_suffix('.html').as_posix() for k,v in names.items()}
    self_host(site, katex and Path(katex)); unlink(site); cross_link_all(site); light_up_all(site, names)
    write_copies(site, cfg.nbs_path, pages, merged(cfg.nbs_path)['website']['sidebar']['contents'], cfg.doc_url.rstrip('/'))
    open_up_all(site); slim_all(site)

def main(katex=None):
    os.chdir(root)
    os.environ.setdefault('PLOTLY_RENDERER', 'plotly_mimetype')
    from nbdev.config import get_config
    from nbdev.quarto import refresh_quarto_yml
    from nbdev.serve import proc_nbs
    cfg = get_config(); refresh_quarto_yml(); read_settings_once()
    shutil.rmtree(root/'_proc', ignore_errors=True)      # a page whose notebook is gone must not stay
    proc = proc_nbs(force=True, n_workers=0)
    out = root/'_proc/_stage'; shutil.rmtree(out, ignore_errors=True); out.mkdir()
    names = stage(proc, out, cfg.doc_url); config(cfg.nbs_path, out, names)
    small = str(Path(sys.executable).parent/'smalldocs')
    subprocess.run([small,'render','--quiet',str(out)], check=True)
    finish(out/'_site', katex, cfg, names)
    check(small, out)
    shutil.rmtree(cfg.doc_path, ignore_errors=True); shutil.move(out/'_site', cfg.doc_path)
    print(f"{len(list(cfg.doc_path.rglob('*.html')))} pages in {cfg.doc_path.name}/, maths from {'the site itself' if katex else 'the web'}")

if __name__=='__main__': main(*sys.argv[1:2])
