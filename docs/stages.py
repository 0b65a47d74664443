"""The picture of the pipeline on every page, with the stage of that page lit, and the form of every page

The table of notebooks is `stages.yml`. Everything is plain HTML, there before any script runs: nothing moves when the page loads."""
import html, re
from pathlib import Path
import yaml

TABLE = Path(__file__).with_name('stages.yml')
HEADER = re.compile(r'<header id="title-block-header".*?</header>', re.S)
ENTRY = re.compile(r'(<a href="([^"]+)" class="sidebar-item-text sidebar-link[^>]*><span class="menu-text">.*?)(</span></a>)', re.S)

def load_table(path=TABLE):
    "The table, checked. Raises `ValueError` naming the row that does not fit."
    t = yaml.safe_load(Path(path).read_text())
    for nb,row in t['notebooks'].items():
        if set(row)!={'stage','form'}: raise ValueError(f"{nb}: give `stage` and `form`, got {', '.join(map(str, row))}")
        if row['stage'] not in (*t['stages'],'none'): raise ValueError(f"{nb}: stage {row['stage']!r} is not known; choose one of {', '.join(t['stages'])} or none")
        if row['form'] not in t['forms']: raise ValueError(f"{nb}: form {row['form']!r} is not known; choose one of {', '.join(t['forms'])}")
    lost = [nb for nb,_ in t['stages'].values() if nb not in t['notebooks']]
    if lost: raise ValueError(f"stages begin with {', '.join(lost)}, which have no row")
    return t

def page_of(nb):
    "The page of a notebook: its name without the number"
    return re.sub(r'^\d+[a-z]?_', '', Path(nb).stem)+'.html'

def by_page(table): return {page_of(nb):row for nb,row in table['notebooks'].items()}

def picture(table, row, up=''):
    "The pipeline as a list of links, the stage of `row` lit; beneath it the form of the page"
    def item(name, nb, what):
        here = ' aria-current="step"' if row and row['stage']==name else ''
        return f'<li><a href="{up}{page_of(nb)}" title="{html.escape(what)}"{here}>{html.escape(name)}</a></li>'
    items = ''.join(item(name, nb, what) for name,(nb,what) in table['stages'].items())
    form = f'<p class="page-form"><a href="{up}reader_path.html#four-kinds-of-page">{row["form"]}</a>: {html.escape(table["forms"][row["form"]])}</p>' if row else ''
    return f'<nav class="pipeline" aria-label="The pipeline, and where this page stands in it"><ol>{items}</ol>{form}</nav>'

def light_up(text, name, table):
    "The text of page `name` with the picture under its title, and a form beside every entry of the sidebar"
    up,rows = '../'*name.count('/'),by_page(table)
    def entry(m):
        row = rows.get(m[2].rsplit('/', 1)[-1])
        return f'{m[1]} <small class="form">{row["form"]}</small>{m[3]}' if row else m[0]
    text = ENTRY.sub(entry, text)
    return HEADER.sub(lambda m: m[0]+picture(table, rows.get(name), up), text, count=1)

def light_up_all(site, names):
    "Change every page of `site`; a notebook among `names` without a row is said"
    table = load_table()
    for nb in sorted(set(names)-set(table['notebooks'])): print(f'stages.yml: no row for {nb}: its page shows no stage and no form')
    for p in site.rglob('*.html'): p.write_text(light_up(p.read_text(), str(p.relative_to(site)), table))
