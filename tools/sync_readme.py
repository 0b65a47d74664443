"README.md is written from nbs/index.ipynb: `python tools/sync_readme.py` writes it, `--check` fails when it is stale"
import json, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = '<!-- Written by tools/sync_readme.py from nbs/index.ipynb. Edit that file, not this one. -->\n'

def src(o): return ''.join(o) if isinstance(o, list) else o

def page(name): return re.sub(r'^\d+[a-z]?_', '', Path(name).stem)+'.html'     # the name nbdev gives a notebook's page

def links(s, docs):
    "Links to notebooks become links to their pages, pictures are found from the root"
    s = re.sub(r'!\[([^\]]*)\]\((?!https?:|data:)([^)\s]+)\)', r'![\1](nbs/\2)', s)
    return re.sub(r'\]\((?!https?:)([^)\s#]+\.ipynb)(#[^)\s]*)?\)', lambda m: f"]({docs}/{page(m[1])}{m[2] or ''})", s)

def output(o):
    "One stored output as Markdown; a picture is left to the notebook"
    d = o.get('data', {})
    if 'text/markdown' in d: return src(d['text/markdown'])
    if any(k.startswith(('image/','application/')) for k in d): return ''
    s = src(o.get('text', '')) or src(d.get('text/plain', ''))
    return f'```text\n{s.rstrip()}\n```' if s.strip() else ''

def cell(c, docs):
    "One cell as Markdown"
    s = src(c['source']); dirs = re.findall(r'^#\|\s*(\w+)(?::\s*(\w+))?', s, re.M)
    if c['cell_type']=='markdown': return links(s, docs)
    if c['cell_type']!='code' or 'hide' in dict(dirs): return ''
    code = '\n'.join(l for l in s.splitlines() if not l.startswith('#|')).strip()
    show = code and dict(dirs).get('echo')!='false'
    return '\n\n'.join(filter(None, [f'```python\n{code}\n```' if show else '', *map(output, c.get('outputs', []))]))

def build(root):
    nb = json.loads((root/'nbs/index.ipynb').read_text())
    docs = re.search(r'^Documentation = "(.*?)/?"', (root/'pyproject.toml').read_text(), re.M)[1]
    return HEAD+'\n'+'\n\n'.join(filter(None, (cell(c, docs).strip() for c in nb['cells'])))+'\n'

if __name__=='__main__':
    f = ROOT/'README.md'; s = build(ROOT)
    if '--check' in sys.argv: sys.exit(0 if f.exists() and f.read_text()==s else 'README.md is stale: run `python tools/sync_readme.py`')
    f.write_text(s)
