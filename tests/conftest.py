"Settings that must stand before torch is imported, one hypothesis profile and one browser for every test"
import os, shutil

os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')     # spinning threads on a busy machine cost far more than they give
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ['PLOTLY_RENDERER'] = 'plotly_mimetype'

from hypothesis import HealthCheck, settings

settings.register_profile('project', deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('project')

import pytest

NAMES = ('chromium','chromium-browser','google-chrome','google-chrome-stable')
CHROMIUM = os.getenv('CHROMIUM') or next(filter(None, map(shutil.which, NAMES)), '')
FLAGS = '--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync'.split()

def missing(why):
    "Skip with a reason on a person's machine; fail where tests are meant to be complete"
    if os.getenv('CI'): pytest.fail(why, pytrace=False)
    pytest.skip(why)

@pytest.fixture(scope='session')
def browser():
    "The one browser of a test session: Playwright refuses a second one beside it"
    sync = pytest.importorskip('playwright.sync_api')
    if not CHROMIUM: missing('no Chromium: install it, or name one in the environment variable CHROMIUM')
    with sync.sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=120_000)
        yield b
        b.close()
