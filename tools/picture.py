"A PNG of a recorded comparison, for pages that run no scripts: `python tools/picture.py maze_mini_full nbs/images/maze_mini_full.png`"
import os, sys
from pathlib import Path
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs
from diverse_rl.report import best_figure
from diverse_rl.results import recorded

def main(name, out, width=900, height=460):
    "Draw E_w[best@k] of `name` in a headless browser and save it"
    fig = best_figure(recorded(name)).update_layout(width=width, height=height, paper_bgcolor='white', plot_bgcolor='white', font_color='#333')
    page = f'<script>{get_plotlyjs()}</script><body style="margin:0">{fig.to_html(full_html=False, include_plotlyjs=False)}</body>'
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=os.getenv('CHROMIUM', '/usr/bin/chromium'), args=['--no-sandbox','--disable-gpu'])
        p = b.new_page(viewport=dict(width=width, height=height)); p.set_default_timeout(180_000); p.set_content(page); p.wait_for_selector('.main-svg'); p.wait_for_timeout(500)
        p.screenshot(path=out); b.close()

if __name__=='__main__': main(*sys.argv[1:3])
