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

@pytest.fixture
def show(browser, tmp_path):
    "Open an interactive figure as a page of its own, which is refused every request but its own; `p.bad` collects errors and outside requests"
    from figures import HOME
    made = []
    def _show(fig, scheme='light', width=900, height=900, motion='no-preference', copies=1, script=True):
        c = browser.new_context(viewport=dict(width=width, height=height), color_scheme=scheme, reduced_motion=motion, java_script_enabled=script); made.append(c)
        p = c.new_page(); p.bad = []; p.set_default_timeout(90_000)
        fig.save(tmp_path/'f.html'); body = (tmp_path/'f.html').read_text().replace('</main>', ''.join(fig.html() for _ in range(copies-1))+'<p id="after">after</p></main>')
        def gate(r):
            if r.request.url==HOME: r.fulfill(status=200, content_type='text/html; charset=utf-8', body=body)
            elif r.request.url.startswith('data:'): r.continue_()
            else: p.bad.append(f'outside request: {r.request.url}'); r.abort()
        p.route('**/*', gate)
        p.on('console', lambda m: m.type in ('error','warning') and p.bad.append(m.text)); p.on('pageerror', lambda e: p.bad.append(str(e)))
        p.goto(HOME)
        if script: p.wait_for_selector('.dr-panel :is(button,select)')
        return p
    yield _show
    for c in made: c.close()
