"The dashboard: where keys go, rows to series, folders being written, live in a trainer and in a real kernel, and its page"
import json, math, os, re, sys, time
from pathlib import Path
import numpy as np
import pytest
from hypothesis import given, strategies as st
from figures import OVER, drawn, live, module, nameless, put, still_box, value
from diverse_rl import viz
from diverse_rl.viz import (PANELS, Log, axis_limits, board_state, by_step, dashboard, flatten, folder_samples, grid_of, log_rows, panel_table, panels_of, place, read_run, series_of, smoothed, thin, trainer_samples, with_steps)
from diverse_rl.widgets import COLORS, js_source

# ---- keys

def modules(*names): return "".join((Path(viz.__file__).parent/f'{n}.py').read_text() for n in names)
def test_every_key_that_our_trainers_write_has_a_place():
    "Read from the sources, so that a new metric without a panel is noticed"
    keys = set(re.findall(r"""\[f?['"]((?:answers|exploration|trust|transport|routing)/[a-z_0-9{}+]+)['"]\]|['"]((?:answers|trust)/[a-z_0-9]+)['"]:""", modules('trainer','exploration','reward','trust','transport','routing')))
    keys = {re.sub(r'\{.*?\}', '1', a or b) for a,b in keys if not re.search(r'/\{.*\}$', a or b) or 'component' in a}
    assert {'answers/diversity_l1','answers/ew_best_at_1','answers/entropy_1','exploration/kl_previous','trust/kl','trust/rollouts','transport/skipped'} <= keys and [k for k in keys if not place(k)]==[]

def test_every_key_of_a_trainer_with_everything_has_a_place(everything):
    seen = {k for h in everything.state.log_history for k in h}
    assert len(seen)>60 and [k for k in seen if not place(k)]==[]
    assert {p.group for p in PANELS} == {PANELS[[q.id for q in PANELS].index(place(k).panel)].group for k in seen if place(k).panel!='other'}

def test_keys_of_evaluation_stand_beside_those_of_training():
    for p in PANELS:
        for k in p.lines:
            k = k.replace('*','2'); a,b = place(k),place('eval_'+k)
            assert a.panel==b.panel==p.id and b.label==a.label+' (eval)' and b.rank>a.rank
    assert place('eval_runtime').panel=='other' and place('evaluate') is None and place('') is None

def test_no_key_has_two_places():
    for p in PANELS:
        for k in p.lines:
            k = k.replace('*','7'); hits = [(q.id,o) for q in PANELS for o in q.lines if viz._match(o,k)]
            assert len({q for q,_ in hits})==1, (k,hits)

def test_the_table_names_every_panel():
    head,*rows = panel_table()
    assert len(head)==5 and [r[0] for r in rows]==[p.title for p in PANELS] and all('`'+k+'`' in r[3] for r,p in zip(rows,PANELS) for k in p.lines)

def test_panels_follow_the_keys():
    panels,rest = panels_of(['reward','answers/component_10','answers/component_2','rewards/a/mean','zz','a10','a9'], ('one','two','three'))
    assert [(p['id'],[l['label'] for l in p['lines']]) for p in panels]==[('components',['three','component 10']),('reward',['mean'])] and rest==['a9','a10','zz']
    assert [p['id'] for p in panels_of(['rewards/a/mean','rewards/b/mean'])[0]]==['functions']
    many,rest = panels_of([f'answers/component_{j}' for j in range(11)]); assert [l['label'] for l in many[0]['lines']]==[f'component {j}' for j in range(8)] and rest==[f'answers/component_{j}' for j in (8,9,10)]
    own,rest = panels_of([f'x{i}' for i in range(30)]+['loss'], other=True); assert len(own)==25 and own[1]['group']=='Other' and len(rest)==6
    assert panels_of([])==([],[])

# ---- rows

def test_numbers_of_a_row():
    row = flatten(dict(a='1e-3', b=None, c=float('inf'), d='nan', e=True, f='x', g=[1], h=dict(i=2, j=dict(k=3)), l=np.float32(.5)))
    assert {k:v for k,v in row.items() if not math.isnan(v)}==dict(a=.001, l=.5, **{'h/i':2., 'h/j/k':3.}) and {k for k,v in row.items() if math.isnan(v)}=={'b','c','d'}

@given(st.lists(st.tuples(st.integers(1,12), st.sampled_from('ab'), st.floats(-9,9)), max_size=30))
def test_rows_by_step_the_slow_way(rows):
    "The later row counts; a row that goes back drops what it overtakes"
    got = by_step([dict(step=s, **{k:v}) for s,k,v in rows]); want = []
    for i,(s,k,v) in enumerate(rows):
        lost = any(t<rows[j-1][0] and t<=s for j,(t,_,_) in enumerate(rows) if j>i)          # some later row goes back to or before it
        if not lost: want.append((s,k,v))
    table = {}
    for s,k,v in want: table.setdefault(s,{})[k] = v
    assert {s:r for s,r in got.items() if r}==table and list(got)==sorted(got)

def test_rows_without_steps():
    assert list(by_step([dict(a=1),dict(a=2)]))==[1,2] and by_step([dict(a=1),dict(step=3,a=2),dict(b=1)])=={0:dict(a=1), 3:dict(a=2,b=1)}
    assert list(by_step([dict(step=.5,a=1),dict(step=2.,a=1)]))==[.5,2] and by_step([dict(step=float('nan'),a=1)])=={0:dict(a=1)}
    with pytest.raises(TypeError, match='row 2 is a int; want dictionaries'): by_step([{},3])

@given(st.lists(st.floats(-1e6,1e6)|st.just(math.nan), max_size=300), st.integers(4,60))
def test_thinning_keeps_extremes_and_order(values, points):
    k = thin(values, points); v = np.array(values, float)
    assert len(k)<=points and k==sorted(set(k)) and (not values or (k[0]==0 and k[-1]==len(values)-1)) and (len(values)>points or k==list(range(len(values))))
    real = v[np.isfinite(v)]; left = v[k][np.isfinite(v[k])]
    if len(real): assert left.min()==real.min() and left.max()==real.max()

def test_every_spike_stays():
    for at in range(0,5000,37):
        v = np.zeros(5000); v[at] = 1.; k = thin(v, 100); assert at in k and len(k)<=100
    with pytest.raises(ValueError, match='points: got 3; want at least 4'): thin([1.], 3)

@given(st.lists(st.floats(-5,5)|st.none(), min_size=1, max_size=40), st.floats(0,50))
def test_smoothing_stays_between(values, scale):
    s = np.cumsum(np.arange(len(values))%3+1).tolist(); out = smoothed(s, values, scale); real = [v for v in values if v is not None]
    assert [o is None for o in out]==[v is None for v in values] and all(min(real)-1e-9<=o<=max(real)+1e-9 for o in out if o is not None)
    if scale==0: assert out==values

# ---- folders

def write(f, text): f.parent.mkdir(parents=True, exist_ok=True); f.write_text(text); return f
def row(i, **kw): return dict(step=i, reward=i/10, **kw)

def test_a_finished_run(tmp_path):
    write(tmp_path/'log.json', json.dumps(dict(history=[row(1),row(2)]))); write(tmp_path/'progress.json', json.dumps(dict(step=2, steps=2)))
    write(tmp_path/'train.log', "{'reward': '9', 'epoch': '.1'}"); assert read_run(tmp_path)==Log([row(1),row(2)], 2, True)

def test_a_run_that_is_being_written(tmp_path):
    assert read_run(tmp_path)==Log([])
    lines = ["loading", "{'reward': '0.1', 'kl': nan, 'epoch': '0.1'}", "{'reward': '0.2', 'epoch': '0.2'}", "{'reward': '0.3', 'ep"]
    write(tmp_path/'train.log', '\n'.join(lines)); write(tmp_path/'progress.json', '{"step": 3, "steps": 10, "to')
    r = read_run(tmp_path); assert [o['step'] for o in r.rows]==[1,2] and r.total is None and not r.done and math.isnan(series_of(r.rows)['kl'][1][0])
    write(tmp_path/'progress.json', json.dumps(dict(step=3, steps=10))); assert read_run(tmp_path).total==10 and [o['step'] for o in read_run(tmp_path).rows]==[1,2]
    write(tmp_path/'progress.json', json.dumps(dict(step=23, steps=90))); assert [o['step'] for o in read_run(tmp_path).rows]==[11,22]
    write(tmp_path/'checkpoint-1/trainer_state.json', json.dumps(dict(global_step=1, max_steps=10, logging_steps=1, log_history=[row(1)]))); write(tmp_path/'checkpoint-2/trainer_state.json', '{"global_')
    assert [(o['step'],float(o['reward'])) for o in read_run(tmp_path).rows]==[(1,.1),(2,.2)] and read_run(tmp_path).rows[0]['reward']==.1
    write(tmp_path/'log.json', '{"history": ['); assert len(read_run(tmp_path).rows)==2

@given(st.integers(1,7), st.integers(1,60), st.integers(0,59))
def test_steps_from_epochs(stride, rows, cut):
    "Whatever the logging interval, also after a resume"
    cut = min(cut, rows); per = 73.; i = [*range(1,cut+1), *range(max(1,cut-3),rows+1)]
    got = with_steps([dict(epoch=f'{k*stride/per:.4g}') for k in i], stride)
    assert [r['step'] for r in got]==[k*stride for k in i]

def test_rows_that_have_steps_or_no_epochs_are_left(): assert with_steps([dict(step=4,epoch=1.)])==[dict(step=4,epoch=1.)] and with_steps([dict(a=1)])==[dict(a=1)] and with_steps([])==[]

def test_lines_that_are_not_rows(): assert log_rows('x\n{}\n{"a": NaN}\n{1}\n{\'a\': -inf}\n{"a": [1,\n{"a": 1}{\n  {"b": 2}  \n[1]')==[{}, {'a':pytest.approx(math.nan,nan_ok=True)}, {'a':None}, {'b':2}]

def test_rounds_of_iterative_dpo(tmp_path):
    for t in (1,2): write(tmp_path/f'rounds/round_0{t}/round.json', json.dumps(dict(round=t, sampled_accuracy=.5, distinct=8., counts=dict(paired=3), train={'loss':.6,'rewards/accuracies':.7})))
    write(tmp_path/'rounds/round_03/round.json', '{"rou')
    b = dashboard(tmp_path); assert {'reward','distinct','prompts','loss','accuracy'}=={p['id'] for p in b.state['panels']} and b.state['runs'][0]['last']==2

def test_a_folder_of_runs_is_not_a_run(tmp_path):
    write(tmp_path/'vpo/seed0/log.json', json.dumps(dict(history=[row(1)])))
    with pytest.raises(ValueError, match=r"holds 1 runs; choose some, for instance dashboard\(\{'one': .*vpo/seed0"): dashboard(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"): dashboard(tmp_path/'none')

def test_answers_of_a_folder(tmp_path):
    pd = pytest.importorskip('pandas'); pytest.importorskip('pyarrow')
    write(tmp_path/'pool.json', json.dumps(dict(texts=[[['a','','b'],['c']],[['d']]]))); assert [(o['text'],o['about'],o['reward']) for o in folder_samples(tmp_path, 4, 9)]==[('a\nb','evaluation',None),('c','evaluation',None)]
    for i in range(1,30): (tmp_path/'completions').mkdir(exist_ok=True); pd.DataFrame(dict(step=[i]*5, prompt=[[dict(role='user',content='<q>')]]*5, completion=[f'{j}' for j in range(5)], set_reward=[.5,None,1,1,1], answers=[2]*5, advantage=[0.]*5)).to_parquet(tmp_path/f'completions/completions_{i:05d}.parquet')
    write(tmp_path/'completions/completions_00030.parquet', 'PAR1 half')
    s = folder_samples(tmp_path, 2); assert len({o['step'] for o in s})==7 and s[0]==dict(step=1, prompt='<q>', text='0', reward=.5, about='') and s[1]['reward'] is None and max(o['step'] for o in s)<30

# ---- the board

def rows_of(n, keys=('reward','reward_std','entropy','loss'), seed=0):
    g = np.random.default_rng(seed); return [dict(step=i+1, **{k:float(g.normal()) for k in keys}) for i in range(n)]
KEYS = [k.replace('*',str(j)) for p in PANELS for k in p.lines for j in (range(4) if '*' in k else (0,))]

@pytest.mark.parametrize('n,runs', [(20_000,1),(3_000,6),(1,1),(0,1)])
def test_a_page_is_small(n, runs):
    b = dashboard({f'run {i}':rows_of(n, KEYS, i) for i in range(runs)}); h = b.html()
    assert len(h.encode())<300_000 and h.count('<script')==h.count('</script>')==1 and len(b.poster)<50_000 and not re.search(r'''(src|href)=["'](?!data:)|@import|url\(''', h)
    if n: assert all(max(v for v in b.state['runs'][0]['series'][k][1])==pytest.approx(max(r[k] for r in b.sources['run 0']), rel=1e-3) for k in ('reward','loss'))

def test_one_row_no_row_only_gaps():
    b = dashboard([row(3)]); assert b.state['runs'][0]['series']['reward']==[[3],[.3]] and b.poster.count('<polyline')==1
    assert dashboard([]).state['runs']==[dict(name='', total=None, last=None, series={})]
    b = dashboard([dict(step=1, reward=None), dict(step=2, reward='nan')]); assert b.state['runs'][0]['series']['reward'][1]==[None,None] and 'NaN' not in b.html()

def test_refresh_and_the_reader_s_choice(tmp_path):
    f = write(tmp_path/'log.jsonl', json.dumps(row(1))+'\n'); b = dashboard(tmp_path); b.set(view='reward', smooth=3.)
    f.write_text(f.read_text()+json.dumps(row(2, loss=1.))+'\n'+'{"step": 3'); assert b.refresh() is b
    assert b.state['runs'][0]['last']==2 and [p['id'] for p in b.state['panels']]==['reward','loss'] and b.values()['view']=='reward' and b.values()['smooth']==3.

def test_watch(tmp_path):
    b = dashboard(tmp_path); assert not b.watching and b.stop() is b
    with pytest.raises(ValueError, match='seconds: got 0'): b.watch(0)
    b.watch(.01); write(tmp_path/'log.jsonl', json.dumps(row(1))); end = time.time()+60
    while not b.state['panels'] and time.time()<end: time.sleep(.01)
    assert b.watching and b.state['runs'][0]['last']==1
    os.rename(tmp_path/'log.jsonl', tmp_path/'gone'); time.sleep(.1); assert b.watching and not b.stop().watching
    write(tmp_path/'log.json', json.dumps(dict(history=[row(1),row(2)]))); b.watch(.01); b._thread.join(60); assert not b.watching and b.state['runs'][0]['last']==2

def test_refusals():
    for run,error,words in ((3,TypeError,'got int; want a folder'), ([3],TypeError,'got list'), ({'a':3},TypeError,r"run\['a'\]: got int"), ({},ValueError,'got 0 runs; want 1 to 6'), ({i:[] for i in 'abcdefg'},ValueError,'got 7 runs')):
        with pytest.raises(error, match=words): dashboard(run)
    with pytest.raises(ValueError, match="panels: no panel 'kls'; choose from components"): dashboard([], panels=['kls'])

def test_a_saved_page(tmp_path):
    dashboard(rows_of(5)).save(tmp_path/'x.html'); page = (tmp_path/'x.html').read_text(); assert page.startswith('<!doctype html>') and 'http' not in page.replace('http://www.w3.org/2000/svg','')

def test_stored_figures_are_current():
    nb = json.loads((Path(__file__).parents[1]/'nbs/36_dashboard.ipynb').read_text())
    kept = [h for c in nb['cells'] for o in c.get('outputs',[]) if 'dr-figure' in (h:=''.join(o.get('data',{}).get('text/html',[])))]
    assert len(kept)==2 and all(js_source('dashboard') in h and len(h.encode())<300_000 for h in kept)

# ---- in a trainer

@pytest.fixture(scope='module')
def everything(tmp_path_factory):
    pytest.importorskip('trl')
    from test_composition import EDO, VP2O, VPO, parts
    t = parts(tmp_path_factory.mktemp('all'), **VPO, **EDO, **VP2O); t.board = dashboard(t, every=0., components=('go','stay')); t.train(); return t

def test_a_trainer_fills_its_dashboard(everything):
    b = everything.board; own,want = b.state['runs'][0],board_state({'':Log(everything.state.log_history, 4)}, components=('go','stay'), only=None, other=False)
    assert own['last']==own['total']==4 and dict(b.state, **want)==b.state and {'Sets','Policy','Experts','Run'}=={p['group'] for p in b.state['panels']} and b.state['hidden']==[]
    s = b.state['samples']; assert s and {o['run'] for o in s}=={0} and all(o['text'] and o['reward'] is not None and o['prompt'].startswith('go') for o in s) and b.state['room'][1]>0
    assert trainer_samples(everything, 2)[0]['text']==everything._logs['completion'][0]

def test_a_dashboard_changes_nothing(tmp_path):
    pytest.importorskip('trl'); import torch
    from test_composition import parts, trained
    a = trained(parts(tmp_path/'a')); t = parts(tmp_path/'b'); dashboard(t, every=0.); b = trained(t); assert all(torch.equal(a[k],b[k]) for k in a)

def test_how_often_and_how_much_is_kept():
    pytest.importorskip('transformers')
    from types import SimpleNamespace as S
    from diverse_rl.viz import dashboard_callback
    t = S(add_callback=lambda c: None, state=S(global_step=0, log_history=[], max_steps=500, is_world_process_zero=True), _logs=dict(prompt=['p']*3, completion=['a','b','c'], rewards=dict(x=[1.,None,2.], y=[1.,1.,None])))
    b = dashboard(t, samples=2); calls = []; b.refresh = lambda: calls.append(t.state.global_step); c = dashboard_callback(b, '', every=1e6)
    for i in range(1,400):
        t.state.global_step = i; t._logs['completion'] = [f'{i//2}','b','c']; c.on_log(None, t.state, None)
    c.on_train_end(None, t.state, None); steps = sorted({o['step'] for o in b.kept['']})
    assert calls==[1,399] and len(steps)==12 and steps[0]<=1 and steps[-1]==398 and max(np.diff(steps))<160 and [o['reward'] for o in b.kept[''][:2]]==[2.,1.]
    t.state.is_world_process_zero = False; c.on_log(None, t.state, None); c.on_train_end(None, t.state, None); assert len(calls)==2
    assert trainer_samples(S(state=t.state))==[]

# ---- in a real kernel

@pytest.fixture(scope='module')
def kernel(tmp_path_factory):
    pytest.importorskip('jupyter_client'); pytest.importorskip('ipykernel'); pytest.importorskip('anywidget')
    from jupyter_client.manager import KernelManager
    km = KernelManager(kernel_name='python3'); km.kernel_spec.argv[0] = sys.executable
    km.start_kernel(cwd=str(tmp_path_factory.mktemp('kernel')), env={**os.environ, 'PYTHONPATH':str(Path(viz.__file__).parents[1])})
    c = km.blocking_client(); c.start_channels()
    try: c.wait_for_ready(timeout=300); yield c
    finally: c.stop_channels(); km.shutdown_kernel(now=True)

def cell(c, code):
    "Everything that a notebook hears while a cell runs"
    i,heard = c.execute(code),[]
    while True:
        m = c.get_iopub_msg(timeout=300)
        if m['parent_header'].get('msg_id')!=i: continue
        if m['msg_type']=='error': raise AssertionError('\n'.join(m['content']['traceback']))
        if m['msg_type']=='status' and m['content']['execution_state']=='idle': return heard
        heard.append(m)
def opened(heard): return [m['content'] for m in heard if m['msg_type']=='comm_open' and m['content']['target_name']=='jupyter.widget' and '_esm' in m['content']['data']['state']]
def updates(heard, comm): return [m['content']['data']['state'] for m in heard if m['msg_type']=='comm_msg' and m['content']['comm_id']==comm and m['content']['data']['method']=='update']
def shown_view(heard): return next(m['content']['data'] for m in heard if m['msg_type'] in ('execute_result','display_data'))
def printed(heard): return ''.join(m['content']['text'] for m in heard if m['msg_type']=='stream' and m['content']['name']=='stdout').strip()
def from_browser(c, comm, **state):
    c.shell_channel.send(c.session.msg('comm_msg', dict(comm_id=comm, data=dict(method='update', state=state, buffer_paths=[]))))

def test_a_dashboard_in_a_real_kernel(kernel):
    heard = cell(kernel, "from diverse_rl.viz import dashboard\nb = dashboard([dict(step=i, reward=i/10, entropy=1.) for i in range(1,6)])\nb")
    (o,) = opened(heard); view = shown_view(heard); state = o['data']['state']
    assert view['application/vnd.jupyter.widget-view+json']['model_id']==o['comm_id'] and 'dr-figure' in view['text/html'] and view['image/svg+xml'].startswith('<svg')
    assert state['_esm']==js_source('dashboard') and [p['id'] for p in state['panels']]==['reward','entropy'] and state['runs'][0]['series']['reward']==[[1,2,3,4,5],[.1,.2,.3,.4,.5]] and state['view']=='all' and state['look']['wide'][0]==760
    from_browser(kernel, o['comm_id'], view='entropy', step=3); assert printed(cell(kernel, "print(b.values()['view'], b.values()['step'], '\"view\":\"entropy\"' in b.html())"))=='entropy 3 True'
    (u,) = updates(cell(kernel, "b.sources[''].append(dict(step=6, reward=2.)); b.refresh().set(view='all')"), o['comm_id'])[-2:-1] or [None]; assert u['runs'][0]['last']==6

LIVE = """
import torch, transformers
from transformers import Trainer, TrainingArguments, PrinterCallback
class Line(torch.nn.Module):
    def __init__(self): super().__init__(); self.w = torch.nn.Linear(1, 1)
    def forward(self, x, y): return dict(loss=(self.w(x)-y).square().mean())
args = TrainingArguments('out', max_steps=6, logging_steps=1, report_to='none', save_strategy='no', use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
t = Trainer(Line(), args, train_dataset=[dict(x=torch.ones(1)*i, y=torch.ones(1)) for i in range(8)]); t.remove_callback(PrinterCallback)
live = dashboard(t, every=0.); display(live); t.train(); print('trained')
"""
def test_it_fills_while_the_cell_trains(kernel):
    heard = cell(kernel, "from IPython.display import display\nfrom diverse_rl.viz import dashboard\n"+LIVE); (o,) = opened(heard)
    assert o['data']['state']['panels']==[] and o['data']['state']['runs'][0]['last'] is None
    lasts = [u['runs'][0]['last'] for u in updates(heard, o['comm_id']) if 'runs' in u]; done = next(i for i,m in enumerate(heard) if m['msg_type']=='stream' and 'trained' in m['content']['text'])
    assert lasts==sorted(lasts) and set(range(1,7))<=set(lasts) and max(i for i,m in enumerate(heard) if m['msg_type']=='comm_msg')<done
    assert any({'loss','gradient','rate'}=={p['id'] for p in u.get('panels',[])} for u in updates(heard, o['comm_id']))

def test_a_watched_folder_in_a_real_kernel(kernel):
    heard = cell(kernel, "import json, os, time; os.makedirs('run'); w = dashboard('run').watch(.02); display(w)"); (o,) = opened(heard)
    cell(kernel, "json.dump(dict(history=[dict(step=1, reward=.5)]), open('tmp.json','w')); os.rename('tmp.json','run/log.json'); w._thread.join(60)")
    assert printed(cell(kernel, "print(w.watching, w.values()['runs'][0]['last'])"))=='False 1'

def test_particles_in_a_real_kernel(kernel):
    heard = cell(kernel, "from diverse_rl.particles import particle_repulsion\np = particle_repulsion()\np"); (o,) = opened(heard); s = o['data']['state']
    assert shown_view(heard)['application/vnd.jupyter.widget-view+json']['model_id']==o['comm_id'] and s['_esm']==js_source('particles') and len(s['particles'])==12 and s['target']=='mixture' and s['repulsion'] is True
    from_browser(kernel, o['comm_id'], particles=[[0,0],[1,.5]], temperature=2, steps=7)
    assert printed(cell(kernel, "v = p.values(); print(v['particles'], v['temperature'], v['steps'])"))=='[[0, 0], [1, 0.5]] 2.0 7'
    assert updates(cell(kernel, "p.set(target='banana')"), o['comm_id'])==[dict(target='banana')]

# ---- in a browser: a page that is refused every request but its own

def titles(p): return p.evaluate("[...document.querySelectorAll('.dr-cell')].map(e => e.dataset.panel)")
def full(n=40, **kw): return dashboard(rows_of(n, [k for k in KEYS if not re.search(r'^(distinct|counts|cispo|rewards/(acc|mar|cho|rej)|policy_loss|exploration/(loss|clip_rate)|kl$|answers/component_3|answers/ew_best_at_[023]|answers/entropy_[03]|rewards/[^0]/)', k)]), **kw)
def several(**kw): return dashboard({'stock':rows_of(30), 'a longer name of a run':rows_of(50, seed=1), 'third':rows_of(12, ('reward','answers/diversity_l1'), 2)}, **kw)

def test_maths_is_that_of_python(show):
    p = show(dashboard([])); module(p, 'dashboard'); g = np.random.default_rng(0)
    for n,scale in ((1,3.),(2,0.),(37,.5),(60,12.)):
        s = np.cumsum(g.integers(1,5,n)).tolist(); v = [None if g.random()<.2 else float(x) for x in g.normal(size=n)]
        assert p.evaluate('([s,v,k]) => window.m.smoothed(s,v,k)', [s,v,scale])==[o if o is None else pytest.approx(o, abs=1e-12) for o in smoothed(s,v,scale)]
        assert p.evaluate('v => window.m.limits(v)', v)==pytest.approx(list(axis_limits(v)))
        for at in (0,*s,s[-1]+9): assert p.evaluate('([s,v,k]) => window.m.valueAt(s,v,k)', [s,v,at])==next((x for t,x in zip(s[::-1],v[::-1]) if t<=at and x is not None), None)
    for v in ([],[None],[2.],[0.],[-3.],[1.,1.9],[1.,2.1],[-1.,4.]): assert p.evaluate('v => window.m.limits(v)', v)==pytest.approx(list(axis_limits(v)))
    for n in range(40): assert [tuple(p.evaluate('n => [window.m.gridOf(n,false), window.m.gridOf(n,true)]', n)[i]) for i in (0,1)]==[grid_of(n),grid_of(n,True)]

def test_numbers_are_short(show):
    p = show(dashboard([])); module(p, 'dashboard')
    for v,t in ((0,'0'),(.5,'.5'),(-.01234,'−.0123'),(1,'1'),(12.345,'12.3'),(999.4,'999'),(9994,'9994'),(12345,'12.3k'),(1.5e6,'1.5M'),(3e-4,'3e-4'),(-2.26e-7,'−2.3e-7'),(2e9,'2e9'),(999_600,'1M'),(None,'–')): assert p.evaluate('v => window.m.short(v)', v)==t
    assert all(len(p.evaluate('v => window.m.short(v)', float(v)))<=7 for v in np.random.default_rng(0).normal(size=200)*10**np.linspace(-6,9,200))

def test_lines_are_where_the_numbers_are(show):
    p = show(dashboard([dict(step=1,reward=0.), dict(step=3,reward=1.), dict(step=5,reward=None), dict(step=7,reward=.5), dict(step=9,reward=.5)], panels=['reward']))
    d = p.locator('.dr-trace').get_attribute('d'); pts = [(c,float(x),float(y)) for c,x,y in re.findall(r'([ML])([\d.]+) ([\d.]+)', d)]
    assert [c for c,_,_ in pts]==['M','L','M','L']                                                    # a gap breaks the line
    (_,x0,y0),(_,x1,y1),(_,x2,y2),(_,x3,y3) = pts; assert (x1-x0)/(x3-x0)==pytest.approx(.25, abs=.002) and (x2-x0)/(x3-x0)==pytest.approx(.75, abs=.002) and (y0-y2)/(y0-y1)==pytest.approx(.5, abs=.002) and y2==y3 and not p.bad

def test_one_row_and_none(show):
    p = show(dashboard([dict(step=3, reward=.5, loss=None)])); assert p.locator('.dr-cell circle').count()==1 and 'no finite value' in p.locator('.dr-stage').inner_text() and 'step 3' in p.locator('.dr-runs').inner_text() and not p.bad
    p = show(dashboard([])); assert 'Nothing logged yet' in p.locator('.dr-stage').text_content() and 'nothing logged yet' in p.locator('.dr-runs').inner_text() and not p.bad

def test_groups_and_one_chart(show):
    p = show(full()); every = titles(p); assert every==[o['id'] for o in full().state['panels']] and len(every)>=24
    p.get_by_label('show').select_option('Experts'); assert titles(p)==[o.id for o in PANELS if o.group=='Experts']
    p.locator('[data-panel=overlap]').click(); assert titles(p)==['overlap'] and value(p,'view')=='overlap'
    p.locator('[data-panel=overlap]').click(); assert value(p,'view')=='Experts'
    p.locator('[data-panel=norms]').focus(); p.keyboard.press('Enter'); assert titles(p)==['norms'] and p.evaluate("document.activeElement.dataset.panel")=='norms'
    told = p.locator('.dr-stage').text_content()
    assert 'repulsive' in told and 'lowest' in told; p.keyboard.press('Escape'); assert value(p,'view')=='Experts'
    p.locator('[data-panel=norms]').focus(); p.keyboard.press('ArrowUp'); assert p.evaluate("document.activeElement.dataset.panel")=='experts' and p.locator('.dr-cell[tabindex="0"]').get_attribute('data-panel')=='experts'
    p.keyboard.press('ArrowDown'); p.keyboard.press('ArrowDown'); assert p.evaluate("document.activeElement.dataset.panel")=='pairs'; p.keyboard.press('Tab'); assert p.evaluate("document.activeElement.tagName")=='SELECT'
    put(p, view='no such thing'); assert titles(p)==every and not p.bad

def test_the_cursor_reads_values(show):
    b = full(); p = show(b); rows = {r['step']:r for r in b.sources['']}; p.locator('[data-panel=entropy]').focus()
    for _ in range(3): p.keyboard.press('ArrowLeft')
    assert value(p,'step')==37 and f"{abs(rows[37]['entropy']):.3g}".lstrip('0') in p.locator('[data-panel=entropy]').get_attribute('aria-label') and 'at step 37' in p.locator('[role=status]').inner_text()
    p.keyboard.press('ArrowRight'); p.keyboard.press('ArrowRight'); p.keyboard.press('ArrowRight'); assert value(p,'step')==-1                                     # the end: follow the run
    t = p.get_by_role('slider', name='training step'); t.evaluate("e => { e.value = 5; e.dispatchEvent(new Event('input')); }"); assert value(p,'step')==5 and t.get_attribute('aria-valuetext')=='5'
    x = float(p.locator('[data-panel=loss] .dr-cursor').get_attribute('x1')); box = p.locator('[data-panel=reward]').bounding_box()
    p.mouse.move(box['x']+box['width']*.6, box['y']+box['height']/2); assert float(p.locator('[data-panel=loss] .dr-cursor').get_attribute('x1'))>x and value(p,'step')==5
    p.mouse.move(5, 990); assert float(p.locator('[data-panel=loss] .dr-cursor').get_attribute('x1'))==x and not p.bad

def test_smoothing_keeps_the_line_beneath(show):
    p = show(full()); before = p.locator('[data-panel=loss] .dr-trace').get_attribute('d'); p.get_by_label('smoothing').evaluate("e => { e.value = 8; e.dispatchEvent(new Event('input')); }")
    assert value(p,'smooth')==8 and p.locator('[data-panel=loss] .dr-raw').get_attribute('d')==before!=p.locator('[data-panel=loss] .dr-trace').get_attribute('d') and p.locator('[data-panel=syncs] .dr-raw').count()==0 and 'H' in p.locator('[data-panel=syncs] .dr-trace').first.get_attribute('d')

EVIL = '</script><img src=x onerror="document.title=1"><b>bold</b>'
def test_texts_are_text(show):
    b = dashboard({EVIL:[{'step':1,'answers/component_0':1.,EVIL:2.}], 'b':[]}, components=(EVIL,), other=True); b.kept = {EVIL:[viz._sample(1, EVIL, EVIL, 1.)]}; p = show(b.refresh())
    assert EVIL in p.locator('.dr-sample').inner_text() and p.locator('.dr-figure img, .dr-figure b').count()==0 and p.title()!='1'
    put(p, view='components'); assert p.locator('.dr-figure img').count()==0 and not p.bad

def test_answers_follow_the_cursor(show):
    b = dashboard(rows_of(9)); b.kept = {'':[viz._sample(s, 'p', f'text {s}', s/10) for s in (2,5,8)]}; p = show(b.refresh()); box = p.locator('.dr-samples')
    for step,t in ((-1,'text 8'),(7,'text 5'),(2,'text 2')): put(p, step=step); assert t in box.inner_text() and box.locator('.dr-sample').count()==1
    put(p, step=1); assert 'No sample answers up to step 1' in box.inner_text() and not p.bad

def test_it_grows(show):
    "What a live trainer sends: first nothing, then rows, then keys that were not there before; focus and choice stay"
    p = show(dashboard([])); a = dashboard(rows_of(3)).state; put(p, panels=a['panels'], runs=a['runs']); assert titles(p)==['reward','entropy','loss']
    p.locator('[data-panel=entropy]').focus(); b = dashboard([*rows_of(3), dict(step=4, reward=1., **{'trust/kl':.1})]).state; put(p, runs=b['runs'], panels=b['panels'], hidden=['odd'])
    assert titles(p)==['reward','entropy','kl','loss'] and p.evaluate("document.activeElement.dataset.panel")=='entropy' and '1 key without a panel' in p.locator('.dr-runs').inner_text()
    assert p.get_by_role('slider', name='training step').get_attribute('max')=='4' and 'KL terms' in p.get_by_label('show').inner_text() and not p.bad

def test_runs_on_top_of_each_other(show):
    p = show(several()); assert p.locator('.dr-runs > span').count()==3
    lines = p.evaluate("[...document.querySelectorAll('[data-panel=reward] .dr-trace')].map(e => [e.dataset.key, +e.dataset.run, e.getAttribute('stroke')])")
    assert sorted(lines)==sorted([k,r,COLORS[r]] for k,r in (('reward',0),('reward',1),('reward',2),('reward_std',0),('reward_std',1))) and not p.bad

CASES = dict(full=full, several=several, few=lambda: dashboard(rows_of(6)), empty=lambda: dashboard([]))
@pytest.mark.parametrize('name', CASES)
def test_the_page_does_not_jump(show, name):
    b = CASES[name](); b.kept = {k:[viz._sample(1,'p','t'*300,.5)] for k in b.sources} if name!='few' else {}; b.refresh(); still,p = show(b, script=False),show(b)
    for width in (1280,600,390,340):
        for o in (still,p): o.set_viewport_size(dict(width=width, height=900))
        p.wait_for_timeout(150); assert still_box(p)==pytest.approx(still_box(still), abs=.5), width
        for view in ('all','Sets','reward'): put(p, view=view); assert max(over := p.evaluate(OVER))<=1, (width,view,over)
    assert not p.bad

CLASH = """(() => { const t = [...document.querySelectorAll('.dr-stage text')].filter(e => e.textContent.trim() && getComputedStyle(e).visibility!=='hidden').map(e => [e.textContent, e.getBoundingClientRect()]), s = document.querySelector('.dr-stage').getBoundingClientRect(), out = [];
  t.forEach(([a,r],i) => { if (r.left<s.left-1 || r.right>s.right+1 || r.bottom>s.bottom+1) out.push(['outside',a]); t.slice(i+1).forEach(([b,q]) => { if (Math.min(r.right,q.right)-Math.max(r.left,q.left)>1 && Math.min(r.bottom,q.bottom)-Math.max(r.top,q.top)>3) out.push([a,b]); }); }); return out; })()"""
@pytest.mark.parametrize('name', CASES)
def test_no_text_lies_on_another(show, name):
    p = show(CASES[name]())
    for width in (900,390):
        p.set_viewport_size(dict(width=width, height=900)); p.wait_for_timeout(150)
        for view in ('all','Sets','Policy','Experts','Run','reward','syncs'): put(p, view=view); assert p.evaluate(CLASH)==[], (width,view)

def test_everything_has_a_name(show): p = show(full()); assert nameless(p)==[] and p.locator('.dr-figure').get_attribute('aria-label')=='Dashboard of a training run' and all(len(o)>10 for o in p.evaluate("[...document.querySelectorAll('.dr-cell')].map(e => e.getAttribute('aria-label'))"))

def test_a_live_model_is_drawn_the_same(show):
    b = full(); p = show(b)
    assert live(p, b)==drawn(p) and p.evaluate('window.live.end()') is None and not p.bad

@pytest.mark.parametrize('name', ('full','several'))
def test_screenshots(show, name, tmp_path):
    out = Path(os.getenv('SCREENSHOTS') or tmp_path); out.mkdir(parents=True, exist_ok=True); p = show(CASES[name]())
    for look,scheme,width,view in (('light','light',900,'all'),('dark','dark',900,'Sets'),('phone','light',390,'all'),('phone-dark','dark',390,'reward')):
        p.emulate_media(color_scheme=scheme); p.set_viewport_size(dict(width=width, height=1000)); put(p, view=view); p.wait_for_timeout(600); f = out/f'dashboard-{name}-{look}.png'; p.screenshot(path=f, full_page=True); assert f.stat().st_size>8_000

def test_what_is_not_known_is_not_nought(tmp_path):
    trainer = lambda rewards: type('T', (), dict(state=type('S', (), dict(global_step=3)), _logs=dict(prompt=['p', 'p'], completion=['a', 'b'], rewards=rewards)))
    assert [o['reward'] for o in trainer_samples(trainer(dict(f=[None, 1.], g=[None, .5])))]==[None, 1.5] and [o['reward'] for o in trainer_samples(trainer({}))]==[None, None]
    assert flatten(dict(loss=10**400, kl=1))==dict(kl=1.)
    (tmp_path/'checkpoint-2').mkdir(); (tmp_path/'checkpoint-2/trainer_state.json').write_text('{"log_history": null, "global_step": null}'); assert read_run(tmp_path).rows==[]

def test_more_than_a_hundred_rounds_stay_in_order(tmp_path):
    for t in (9, 10, 11, 99, 100, 101):
        (f := tmp_path/'rounds'/f'round_{t:02d}').mkdir(parents=True); (f/'round.json').write_text(json.dumps(dict(round=t, sampled_accuracy=t/200)))
    assert series_of(read_run(tmp_path).rows)['reward']==([9, 10, 11, 99, 100, 101], [t/200 for t in (9, 10, 11, 99, 100, 101)])
