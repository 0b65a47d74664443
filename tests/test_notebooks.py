"Every notebook runs top to bottom, as `nbdev-test` runs it, in at most two minutes"
import os
from pathlib import Path
import pytest
from nbdev.config import get_config
from nbdev.test import test_nb as run_nb

root = Path(__file__).parents[1]; cfg = get_config(root)
LIMIT = 120                                             # seconds, on two cores
nbs = sorted(p for p in cfg.nbs_path.rglob('*.ipynb') if not any(o[0] in '._' for o in p.relative_to(cfg.nbs_path).parts))
skip = cfg.tst_flags.split() if isinstance(cfg.tst_flags, str) else cfg.tst_flags
force = os.getenv('NB_FLAGS', '').split()

@pytest.mark.timeout(300)
@pytest.mark.parametrize('nb', nbs, ids=lambda p: str(p.relative_to(root)))
def test_notebook(nb, capfd, monkeypatch):
    monkeypatch.chdir(root)                              # the notebooks name files from here
    before = dict(os.environ)
    try: ok,secs = run_nb(nb, skip_flags=skip, force_flags=force, basepath=cfg.config_path)
    finally: os.environ.clear(); os.environ.update(before)
    if not ok: pytest.fail(capfd.readouterr().err[-3000:], pytrace=False)
    assert secs <= LIMIT, f'{nb.name} took {secs:.0f} s; {LIMIT} s is the most a notebook may take'

def test_a_failing_notebook_fails(tmp_path, capfd):
    "The check above can fail: the runner reports a false assertion"
    import json
    cell = dict(cell_type='code', id='a', metadata={}, execution_count=None, outputs=[], source=['assert 1==2'])
    meta = dict(kernelspec=dict(display_name='python3', language='python', name='python3'))
    nb = tmp_path/'bad.ipynb'; nb.write_text(json.dumps(dict(cells=[cell], metadata=meta, nbformat=4, nbformat_minor=5)))
    ok,_ = run_nb(nb, skip_flags=skip, force_flags=force, basepath=cfg.config_path)
    assert not ok and 'AssertionError' in capfd.readouterr().err
