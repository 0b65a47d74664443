"""What a reader or a program takes away from the site: every notebook as it stands in the repository, every page as Markdown,
the list of them in `llms.txt` (https://llmstxt.org), all in one file in `llms-full.txt`; and the links to them under each title"""
import json, posixpath, re, shutil
from pathlib import Path
import yaml

COLAB = re.compile(r'<p><a href="(https://colab\.research\.google\.com/[^"]+)"[^>]*><img [^>]*></a></p>')
BAR = re.compile(r'<nav class="pipeline".*?</nav>', re.S)
LINK = re.compile(r'\]\((?!https?:|#|mailto:)([^)\s#]+\.ipynb)(#[^)\s]*)?\)')

def src(o): return ''.join(o) if isinstance(o, list) else o
def directives(s): return {k:v for k,v in re.findall(r'^#\|\s*([\w-]+)(?::\s*(.*?))?\s*$', s, re.M)}

def title(nb):
    "Title and subtitle of a notebook, from its first cell"
    head = next((src(c['source']) for c in nb['cells'] if c['cell_type']=='markdown'), '')
    return re.search(r'^# (.+)$', head, re.M)[1], (re.search(r'^> (.+)$', head, re.M) or ['',''])[1]

def shown(o):
    "A stored output in words: text as it is, a figure by its title or its label"
    d = o.get('data', {}); html = src(d.get('text/html', ''))
    if 'text/markdown' in d: return src(d['text/markdown'])
    if 'application/vnd.plotly.v1+json' in d:
        name = d['application/vnd.plotly.v1+json'].get('layout', {}).get('title') or {}
        return f"[Figure: {re.sub('<[^>]+>', ' ', name if isinstance(name, str) else name.get('text') or 'no title')}]"
    if 'dr-figure' in html: return f"[Interactive figure: {re.search(r'aria-label=.([^>]*?). style', html)[1]}]"
    if any(k.startswith('image/') for k in d): return f"[Picture: {src(d.get('text/plain', 'no description'))[:80]}]"
    s = re.sub(r'\x1b\[[0-9;]*[A-Za-z]', '', src(o.get('text', '')) or src(d.get('text/plain', '')))
    return f'```text\n{s.rstrip()}\n```' if s.strip() else ''

def cell(c, names):
    "A cell as Markdown, with links to the other pages' Markdown; nothing for what the page hides"
    s = src(c['source']); dirs = directives(s)
    if c['cell_type']=='markdown': return '' if s.startswith('[![Open In Colab') else LINK.sub(lambda m: f"]({names.get(m[1], m[1])}.md{m[2] or ''})", s)
    if c['cell_type']!='code' or 'hide' in dirs or dirs.get('include')=='false': return ''
    code = '\n'.join(l for l in s.splitlines() if not l.startswith('#|')).strip()
    return '\n\n'.join(filter(None, [f'```python\n{code}\n```' if code and dirs.get('echo')!='false' else '', *map(shown, c.get('outputs', []))]))

def markdown(nb, names): return '\n\n'.join(filter(None, (cell(c, names).strip() for c in nb['cells'])))+'\n'

def listing(items, pages, base):
    "Lines of `llms.txt` for sidebar entries: Markdown, subtitle, notebook"
    out = []
    for o in items:
        if isinstance(o, dict): out += ['', f"## {o['section']}", '', *listing(o['contents'], pages, base)]
        elif o in pages: t,sub = title(pages[o][1]); out.append(f"- [{t}]({base}/{pages[o][0]}.md): {sub} ([notebook]({base}/notebooks/{o}))")
    return out

def take_away(text, page, nb):
    "The text of a page with links to Colab, to the notebook itself and to the Markdown copy under its title"
    up = '../'*page.count('/'); colab = COLAB.search(text)
    links = [f'<a href="{colab[1]}">Open in Colab</a>'] if colab else []
    links += [f'<a href="{up}notebooks/{nb}" download>Download notebook</a>', f'<a href="{posixpath.basename(page)}.md">Markdown</a>']
    bar = f'<p class="take-away">{" ".join(links)}</p>'
    return COLAB.sub(lambda _: bar, text, count=1) if colab else BAR.sub(lambda m: m[0]+bar, text, count=1)

def write_copies(site, nbs, names, contents, base):
    "Write every copy into `site`. `names`: page of each notebook; `contents`: sidebar entries by notebook; `base`: the site's address"
    (site/'notebooks').mkdir(exist_ok=True)
    pages = {str(k):(v, json.loads((nbs/k).read_text())) for k,v in names.items()}
    for nb,(page,d) in pages.items():
        shutil.copy(nbs/nb, site/'notebooks'); (site/f'{page}.md').write_text(markdown(d, names))
        f = site/page; f.write_text(take_away(f.read_text(), page, nb))
    _,summary = title(pages['index.ipynb'][1])
    about = next(src(c['source']) for c in pages['index.ipynb'][1]['cells'] if c['cell_type']=='markdown' and src(c['source'])[:1].isalpha()).split('\n\n')[0]
    head = [f"# {Path(base).name}", '', f'> {summary}', '', ' '.join(about.split()), '', f'All of it in one file: [llms-full.txt]({base}/llms-full.txt)', '', '## Start']
    (site/'llms.txt').write_text('\n'.join([*head, '', *listing(contents, pages, base)])+'\n')
    order = [o for e in contents for o in (e['contents'] if isinstance(e, dict) else [e])]
    (site/'llms-full.txt').write_text('\n\n---\n\n'.join((site/f'{pages[o][0]}.md').read_text().strip() for o in order if o in pages)+'\n')
