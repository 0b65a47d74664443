"settings.ini is written from pyproject.toml: `python tools/sync_settings.py` writes it, `--check` fails when it is stale"
import re, sys, tomllib
from pathlib import Path

SPDX = {'Apache-2.0':'apache2', 'MIT':'mit'}
HEAD = '# Written by tools/sync_settings.py from pyproject.toml, which nbdev 3 reads. Edit that file, not this one.\n[DEFAULT]\n'

def version(root, lib): return re.search(r'__version__ = "(.*?)"', (root/lib/'__init__.py').read_text())[1]

def urls(p):
    "What the two project addresses say"
    git,doc = p['urls']['Repository'].rstrip('/'), p['urls']['Documentation'].rstrip('/')
    user,repo = git.split('/')[-2:]; host,base = re.match(r'(https?://[^/]+)(.*)', doc).groups()
    return dict(user=user, repo=repo, git_url=git, doc_host=host, doc_baseurl=base)

def values(root):
    "The settings, in order"
    t = tomllib.loads((root/'pyproject.toml').read_text()); p,n = t['project'],t['tool']['nbdev']
    lib,extra,author = n.get('lib_path', p['name'].replace('-','_')), p['optional-dependencies'], p['authors'][0]
    u = urls(p)
    return dict(repo=u['repo'], lib_name=p['name'], version=version(root, lib), min_python=p['requires-python'].lstrip('>='),
        license=SPDX[p['license']], doc_path=n.get('doc_path','_docs'), lib_path=lib, nbs_path=n.get('nbs_path','nbs'),
        recursive=n.get('recursive',True), tst_flags=n.get('tst_flags','notest'), put_version_in_init=True, update_pyproject=False,
        branch=n.get('branch','main'), custom_sidebar=n.get('custom_sidebar',False), doc_host=u['doc_host'], doc_baseurl=u['doc_baseurl'],
        git_url=u['git_url'], title=n.get('title',p['name']), audience='Developers', author=author['name'], author_email=author.get('email',''),
        description=p['description'], keywords=' '.join(p['keywords']), language='English', status=3, user=u['user'],
        requirements=' '.join(p['dependencies']), dev_requirements=' '.join(extra['dev']),
        **{f'{k}_requirements':' '.join(v) for k,v in extra.items() if k!='dev'})

def build(root): return HEAD+''.join(f'{k} = {v}'.rstrip()+'\n' for k,v in values(root).items())

if __name__=='__main__':
    root = Path(__file__).resolve().parents[1]; s = build(root); f = root/'settings.ini'
    if '--check' in sys.argv: sys.exit(0 if f.exists() and f.read_text()==s else 'settings.ini is stale: run `python tools/sync_settings.py`')
    f.write_text(s)
