"""Links from names of torch, transformers, TRL and others to their documentation: the table is `names.yml`"""
import html, re
from pathlib import Path
import yaml

TABLE = Path(__file__).with_name('names.yml')
FOUND = re.compile(r'(<a\b.*?</a>|<script\b.*?</script>|<h[1-6]\b.*?</h[1-6]>|<header\b.*?</header>)|(<pre\b.*?</pre>)|<code>([A-Za-z_][\w.]*)(\(\))?</code>', re.S)

def load_names(path=TABLE):
    "The table: addresses of names, and of functions by the beginning of their names"
    t = yaml.safe_load(Path(path).read_text()); names = t.pop('names')
    bad = [u for u in (*names.values(), *t.values()) if not re.fullmatch(r'https://[\w.-]+/[\w./{}-]+(#[\w.]+)?', u)]
    if bad: raise ValueError(f"{Path(path).name}: not an address of the web: {', '.join(bad)}")
    return names, t

def address(name, names, starts):
    "Where `name` is documented; nothing for a name that the table does not know"
    return names.get(name) or next((u.format(name) for s,u in starts.items() if name.startswith(s) and name.count('.')<4 and name.rsplit('.', 1)[-1].islower()), None)

def link(name, url, inner): return f'<a class="ext" href="{html.escape(url)}" title="{html.escape(name)}: its documentation">{inner}</a>'

def in_code(pre, names, seen):
    "A code block in which the first use on its page of each name of a class is a link"
    def swap(m):
        if m[0].startswith('<') or m[0] not in names or m[0] in seen: return m[0]
        seen.add(m[0]); return link(m[0], names[m[0]], m[0])
    return re.sub(r'<span class="(?:st|co|do|ss)">.*?</span>|<[^>]*>|(?<![\w.])[A-Z]\w+(?![\w.=])', swap, pre, flags=re.S)

def cross_link(text, names, starts):
    "The text of a page with its names linked: in prose every one, in code the first of each class. What is a link or a heading already stays."
    seen = set(); head,sep,body = text.partition('<main')
    def swap(m):
        if m[1]: return m[0]
        if m[2]: return in_code(m[2], names, seen) if 'sourceCode' in m[2][:60] else m[2]
        url = address(m[3], names, starts)
        return link(m[3], url, m[0]) if url else m[0]
    return head+sep+FOUND.sub(swap, body)

def cross_link_all(site):
    names,starts = load_names()
    for p in site.rglob('*.html'): p.write_text(cross_link(p.read_text(), names, starts))
