"""Style sheets without what no page uses: of Bootstrap's rules and icons the site needs a few"""
import re

WORD = re.compile(r'[A-Za-z_][\w-]*')
NAME = re.compile(r'[.#](-?[A-Za-z_](?:[\w-]|\\.)*)')

def words(site):
    "Every class and id that a page has, and every word of a script, which could name one"
    out = set()
    for p in site.rglob('*.html'):
        s = p.read_text()
        for a in re.findall(r'\s(?:class|id|for)="([^"]*)"', s): out.update(a.split())
        for a in re.findall(r'<script\b[^>]*>(.*?)</script>', s, re.S): out.update(WORD.findall(a))
    for p in site.rglob('*.js'):
        if 'plotly' not in p.name: out.update(WORD.findall(p.read_text()))
    return out

def rules(css):
    "Cut a style sheet into (head, body) pairs; a statement without a body has the body None"
    out,i,n = [],0,len(css)
    skip = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|url\([^"\')]*\)', re.S)
    start,depth,head = 0,0,''
    while i<n:
        m = skip.match(css, i)
        if m: i = m.end(); continue
        c = css[i]
        if c=='{':
            if depth==0: head,start = css[start:i],i+1
            depth += 1
        elif c=='}':
            depth -= 1
            if depth==0: out.append((head.strip(), css[start:i])); start = i+1
        elif c==';' and depth==0: out.append((css[start:i].strip(), None)); start = i+1
        i += 1
    return out

def used(selector, have):
    "Could `selector` meet an element? Only its classes and ids are looked at, those inside `:not()` are not."
    bare = re.sub(r':not\([^)]*\)|\[[^\]]*\]', '', selector)
    return ':is(' in bare or ':where(' in bare or all(n.replace('\\', '') in have for n in NAME.findall(bare))

def slim(css, have):
    "The rules of `css` that a page with the words `have` can use"
    out = []
    for head,body in rules(re.sub(r'/\*(?!!).*?\*/', '', css, flags=re.S)):
        if body is None: out.append(head+';')
        elif head.startswith(('@media','@supports','@layer')):
            inner = slim(body, have)
            if inner: out.append(f'{head}{{{inner}}}')
        elif head.startswith('@'): out.append(f'{head}{{{body}}}')
        else:
            keep = [s for s in re.split(r',(?![^(\[]*[)\]])', head) if used(s, have)]
            if keep: out.append(f'{",".join(keep)}{{{body}}}')
    return ''.join(out)

def slim_all(site):
    "Slim the style sheets of other projects in `site`"
    have,lib = words(site), site/'site_libs'
    for p in (*lib.glob('themes/*.css'), *lib.glob('bootstrap-icons/*.css')):
        p.write_text(slim(p.read_text(), have))
