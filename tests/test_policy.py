"The small policy: words and tokens, routes there and back, its teacher, its warm start and its cache"
import json, random
from types import SimpleNamespace
import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
pytest.importorskip('transformers')
from diverse_rl import policy as P
from diverse_rl.answers import parse_answers, multi_answer_prompt
from diverse_rl.maze import MANY_ROUTES, ONE_ROUTE, make_mazes, maze_from_ascii, sample_walks, score_moves, walk_cells
from diverse_rl.policy import (INTENTIONS, PolicyConfig, answer_words, cell_names, demonstrations, load_policy, make_mazes_for, make_policy, make_tokenizer,
                               maze_question, policy_vocab, read_route, route_words, sample_texts, score_route, symmetry, teacher_walks, warm_start)

MAZES = {n:make_mazes(4, n=n, seed=3) for n in (4,5,7)}
SIZE = PolicyConfig(hidden=16, layers=1, heads=2, kv_heads=1, mlp=16, mazes=2, long=1, rounds=2, batch=8)
TASK = SimpleNamespace(n=4, items=None, slack=None, lava=None)
mazes = st.sampled_from([z for zs in MAZES.values() for z in zs])
BOARD = maze_from_ascii("""
    +---+---+---+
    | S   .   G |
    +   +---+   +
    | .   L   . |
    +   +   +   +
    | D   .   E |
    +---+---+---+ """, budget=6)

# Words and tokens
@pytest.fixture(scope='module')
def tok5(): return make_tokenizer(policy_vocab(5))

def test_every_word_is_one_token_and_comes_back(tok5):
    for w in policy_vocab(5): assert len(ids:=tok5(w).input_ids)==1 and tok5.decode(ids)==w
    assert len(tok5)==len(policy_vocab(5))+3 and len({tok5.pad_token_id, tok5.eos_token_id, tok5.unk_token_id})==3

@settings(max_examples=60)
@given(mazes, st.integers(1, 8), st.integers(0, 999))
def test_prompts_and_answers_survive_the_tokenizer(maze, m, seed):
    tok = make_tokenizer(policy_vocab(maze.n))
    rows = demonstrations([maze], (1, m), np.random.default_rng(seed))
    for text in [maze_question(maze, m), *(r['completion'] for r in rows)]:
        ids = tok(text).input_ids
        assert tok.unk_token_id not in ids and tok.decode(ids, skip_special_tokens=True).split()==text.split()

def test_tags_are_words_without_blanks_too(tok5):
    assert tok5.tokenize('<answer_1>a1 b1</answer_1><answer_2>')==['<answer_1>','a1','b1','</answer_1>','<answer_2>']
    assert tok5('a1 nonsense').input_ids[1]==tok5.unk_token_id

@settings(max_examples=60)
@given(st.text(max_size=60))
def test_any_text_can_be_tokenized(text):
    assert all(0<=i<len(_tok4) for i in _tok4(text).input_ids)
_tok4 = make_tokenizer(policy_vocab(4))

# Routes in words
@settings(max_examples=120)
@given(mazes, st.integers(0, 10**6))
def test_read_route_is_the_inverse_of_route_words(maze, seed):
    for w in sample_walks(maze, 3, random.Random(seed)):
        assert read_route(maze, route_words(maze, w))==w==read_route(maze, answer_words(maze, w))
        assert (score_route(maze, answer_words(maze, w))==score_moves(maze, w)).all()

def slow_read(maze, text):
    "The definition, cell by cell: names of neighbours, a wall is a bump, the exit ends it, anything else spoils it"
    words = text.split()
    if words and words[0] in INTENTIONS: words = words[1:]
    place = {k:(i//maze.n, i%maze.n) for i,k in enumerate(cell_names(maze.n))}
    here,moves = (maze.start//maze.n, maze.start%maze.n),''
    for w in words:
        if w not in place: return ''
        to = place[w]; d = (to[0]-here[0], to[1]-here[1])
        if d not in (way := {(-1,0):'U', (1,0):'D', (0,-1):'L', (0,1):'R'}): return ''
        moves += way[d]
        if maze.openings[here[0]*maze.n+here[1]]>>'UDLR'.index(way[d]) & 1: here = to
        if here==(maze.exit//maze.n, maze.exit%maze.n): break
    return moves

@st.composite
def steps(draw):
    "A maze and a text of cell names that mostly are neighbours, walls or not, with now and then another word"
    maze = draw(mazes); names = cell_names(maze.n); r,c = divmod(maze.start, maze.n); out = []
    for _ in range(draw(st.integers(0, 14))):
        dr,dc = draw(st.sampled_from([(0,1),(1,0),(0,-1),(-1,0)])); nr,nc = r+dr,c+dc
        if not (0<=nr<maze.n and 0<=nc<maze.n): continue
        a = 'UDLR'.index({(-1,0):'U', (1,0):'D', (0,-1):'L', (0,1):'R'}[dr,dc]); out.append(names[nr*maze.n+nc])
        if maze.openings[r*maze.n+c]>>a & 1: r,c = nr,nc
    if draw(st.integers(0, 3))==0: out.insert(draw(st.integers(0, len(out))), draw(st.sampled_from([*INTENTIONS, 'z9', 'U', names[0], names[-1]])))
    return maze, ' '.join(out)

@settings(max_examples=200)
@given(steps())
def test_fast_and_slow_reader_agree(case):
    maze,text = case
    assert read_route(maze, text)==slow_read(maze, text)

def test_bumps_and_broken_rows():
    assert read_route(BOARD, 'b1 c1 c2 c3')=='RRDD' and (score_route(BOARD, 'b1 c1 c2 c3')==[1,1,0,1]).all()
    assert read_route(BOARD, 'b1 b2 c1 c2 c3')=='RDRDD'                # b1|b2 is a wall: a step, and still in b1
    assert (score_route(BOARD, 'b1 b2 c1 c2 c3')==[1,1,0,1]).all()     # five steps, budget six
    assert (score_route(BOARD, 'b1 b2 b2 b2 c1 c2 c3')==0).all()       # seven
    assert read_route(BOARD, 'b1 c1 c2 c3 c2')=='RRDD'                 # over is over
    for bad in ('', 'gold', 'c1', 'b2', 'a1', 'b1 b1', 'b1 c1 gold c2 c3', 'plain gold b1', 'R R D D', 'B1 C1', 'b1,c1'): assert read_route(BOARD, bad)=='' and (score_route(BOARD, bad)==0).all(), bad
    assert read_route(BOARD, 'a2 a3')=='DD' and (score_route(BOARD, 'a2 a3')==0).all()   # legal so far, and no exit

def test_the_edge_of_the_board_is_not_a_neighbour():
    maze = MAZES[4][0]; names = cell_names(4)
    for a,b in ((3,4),(4,3),(7,8)):                                    # one apart as numbers, on different rows
        z = SimpleNamespace(n=4, start=a, exit=15, openings=maze.openings)
        assert read_route(z, names[b])==''

@settings(max_examples=150)
@given(mazes, st.one_of(st.text(max_size=60), st.lists(st.sampled_from([*cell_names(5), *INTENTIONS, '\x00', '🪙', 'a0', 'a99', '<answer_1>']), max_size=12).map(' '.join)))
def test_hostile_text_never_raises(maze, text):
    v = score_route(maze, text)
    assert v.shape==(4,) and (0<=v).all() and (v<=1).all() and set(read_route(maze, text))<=set('UDLR')

# The teacher and the formats
@settings(max_examples=25)
@given(mazes, st.integers(1, 9), st.integers(0, 999))
def test_the_teacher_reaches_the_exit_within_the_budget(maze, count, seed):
    walks = teacher_walks(maze, count, np.random.default_rng(seed))
    assert len(walks)==count and walks==teacher_walks(maze, count, np.random.default_rng(seed))
    for w in walks:
        cells = walk_cells(maze, w)
        assert cells[-1]==maze.exit and len(w)<=maze.budget and len(cells)==len(w)+1 and all(a!=b for a,b in zip(cells, cells[1:]))

def test_the_teacher_is_diverse_and_takes_short_ways_too():
    maze = MAZES[5][0]; walks = teacher_walks(maze, 200, np.random.default_rng(0)); lengths = {len(w) for w in walks}
    assert len(set(walks))>20 and min(lengths)==P.exit_steps(maze)[maze.start] and len(lengths)>1

def test_intentions_say_what_is_collected():
    board = P.replace(BOARD, budget=9)
    assert [answer_words(board, w).split()[0] for w in ('RRDD','DDRR','DRRD','DDUURRDD')]==['gold','diamond','plain','both']
    assert answer_words(board, 'RRDDLLRR').split()[0]=='gold'          # what lies after the exit is not collected

@pytest.mark.parametrize('ms', [(1,), (1,2,2), (8,3)])
def test_demonstrations_have_the_asked_formats_and_all_arrive(ms):
    zs = MAZES[5]; rows = demonstrations(zs, ms, np.random.default_rng(1))
    assert len(rows)==len(ms)*len(zs) and rows==demonstrations(zs, ms, np.random.default_rng(1))
    ask = {maze_question(v, k):(v,k) for z in zs for v in (symmetry(z, i) for i in range(16)) for k in ms}
    for r in rows:
        z,k = ask[r['prompt']]; a = parse_answers(r['completion'], 9)
        assert a.found==k and a.numbers[:k]==tuple(range(1, k+1)) and all(score_route(z, t)[0]==1 for t in a.texts[:k] if t)
    assert sorted(ask[r['prompt']][1] for r in rows)==sorted(ms*len(zs))

@settings(max_examples=60)
@given(mazes, st.integers(0, 15), st.integers(0, 999))
def test_a_symmetry_keeps_what_walks_are_worth(maze, k, seed):
    v = symmetry(maze, k); turn = dict(zip('UDLR', 'UDLR'))
    if k&1: turn = {a:dict(U='L', D='R', L='U', R='D')[b] for a,b in turn.items()}
    if k&2: turn = {a:dict(L='R', R='L').get(b, b) for a,b in turn.items()}
    if k&4: turn = {a:dict(U='D', D='U').get(b, b) for a,b in turn.items()}
    order = [0,2,1,3] if k&8 else [0,1,2,3]
    for w in [*sample_walks(maze, 2, random.Random(seed)), ''.join(random.Random(seed).choices('UDLR', k=9))]:
        assert (score_moves(v, [turn[o] for o in w])==score_moves(maze, w)[order]).all()
    assert symmetry(maze, 0)==maze and len({symmetry(maze, i) for i in range(16)})>=8

def test_questions_tell_the_whole_maze():
    for n,zs in MAZES.items():
        asked = {maze_question(z) for z in zs}
        assert len(asked)==len(zs) and all(q.endswith(ONE_ROUTE) and q.count(ONE_ROUTE)==1 for q in asked)
        assert maze_question(zs[0], 3)==multi_answer_prompt(maze_question(zs[0]), 3, sentence=ONE_ROUTE, replacement=MANY_ROUTES.format(m=3))
    z = MAZES[5][0]
    for k,v in dict(budget=z.budget-1, lava=(), start=z.exit, exit=z.start).items():
        both = dict(start=z.exit, exit=z.start) if k in ('start','exit') else {k:v}
        assert maze_question(P.replace(z, **both))!=maze_question(z)

def test_tasks_change_the_generator():
    task = SimpleNamespace(n=5, items=[1,2], slack=1, lava=0)
    for z in make_mazes_for(task, 6, 4): assert z.n==5 and z.lava==() and 1<=len(z.gold)<=2 and 1<=len(z.diamond)<=2
    assert make_mazes_for(TASK, 3, 4)==make_mazes(3, n=4, seed=4) and not set(make_mazes_for(TASK, 6, 4)) & set(make_mazes_for(TASK, 6, 5))

# The model
@pytest.mark.parametrize('n', [4,5,7,9])
def test_the_default_size(n):
    tok = make_tokenizer(policy_vocab(n))
    assert 200_000<=make_policy(PolicyConfig(), tok).num_parameters()<=1_500_000

def test_the_model_is_reproducible_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state(); a,b,c = make_policy(SIZE, _tok4),make_policy(SIZE, _tok4),make_policy(P.replace(SIZE, seed=1), _tok4)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(x, y) for x,y in zip(a.parameters(), b.parameters())) and any(not torch.equal(x, y) for x,y in zip(a.parameters(), c.parameters()))
    assert a.config.model_type=='qwen3' and a.config.pad_token_id==_tok4.pad_token_id and a.config.eos_token_id==_tok4.eos_token_id

@pytest.mark.parametrize('kw,word', [(dict(hidden=97),'hidden=97.*multiple'), (dict(kv_heads=3),'heads=4.*kv_heads=3'), (dict(layers=0),'layers=0'), (dict(mazes=0),'mazes=0'), (dict(batch=0),'batch=0')])
def test_impossible_sizes_are_refused(kw, word):
    with pytest.raises(ValueError, match=word): PolicyConfig(**kw)

# The warm start and its cache
@pytest.fixture(scope='module')
def warm(tmp_path_factory):
    "A warm start of two steps"
    cache = tmp_path_factory.mktemp('warm')
    return cache, warm_start(SIZE, TASK, 2, cache, 'abc', progress=False)

def never(*a, **k): raise AssertionError('the warm start was made again')

def test_the_cache_is_used(warm, monkeypatch):
    cache,out = warm; monkeypatch.setattr(P, 'fine_tune', never)
    assert warm_start(SIZE, TASK, 2, cache, 'abc', progress=False)==out==cache/'abc'
    with pytest.raises(AssertionError, match='made again'): warm_start(SIZE, TASK, 2, cache, 'other', progress=False)

def test_a_half_written_warm_start_is_not_taken(warm, tmp_path, monkeypatch):
    import shutil
    def stop(*a, **k): raise KeyboardInterrupt
    real = P.fine_tune; monkeypatch.setattr(P, 'fine_tune', stop)
    with pytest.raises(KeyboardInterrupt): warm_start(SIZE, TASK, 2, tmp_path, 'x', progress=False)
    assert not (tmp_path/'x').exists()
    for gone in ('warm.json','model.safetensors'):                     # each of the two alone does not make a finished one
        shutil.copytree(warm[1], tmp_path/'x'); (tmp_path/'x'/gone).unlink(); (tmp_path/'x'/'stale').touch()
        with pytest.raises(KeyboardInterrupt): warm_start(SIZE, TASK, 2, tmp_path, 'x', progress=False)
        shutil.rmtree(tmp_path/'x')
    shutil.copytree(warm[1], tmp_path/'x'); (tmp_path/'x'/'warm.json').unlink(); (tmp_path/'x'/'stale').touch()
    monkeypatch.setattr(P, 'fine_tune', real)
    out = warm_start(SIZE, TASK, 2, tmp_path, 'x', progress=False)
    assert (out/'warm.json').exists() and not (out/'stale').exists()
    a,b = (load_policy(o)[0].state_dict() for o in (out, warm[1]))
    assert all(torch.equal(a[k], b[k]) for k in a)                     # and making it again gives the same

def test_it_was_trained_and_says_how(warm):
    d = json.loads((warm[1]/'warm.json').read_text())
    assert d['policy']==P.asdict(SIZE) and d['parameters']==load_policy(warm[1])[0].num_parameters() and d['log']
    start = make_policy(SIZE, _tok4).state_dict(); end = load_policy(warm[1])[0].state_dict()
    assert any(not torch.equal(start[k], end[k]) for k in start)

def test_saved_as_safetensors_and_nothing_that_runs_code(warm):
    files = [f for f in warm[1].rglob('*') if f.is_file()]
    assert {f.suffix for f in files}<={'.safetensors','.json'} and (warm[1]/'model.safetensors').exists()
    model,tok = load_policy(warm[1])
    text = maze_question(MAZES[4][0], 2)
    assert tok(text).input_ids==_tok4(text).input_ids and tok.padding_side=='left' and tok.decode(tok(text).input_ids)==text
    assert tok.tokenize('<answer_1>a1</answer_1>')==['<answer_1>','a1','</answer_1>']

def test_pickles_are_not_loaded(warm, tmp_path):
    model,tok = load_policy(warm[1]); tok.save_pretrained(tmp_path); model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path/'pytorch_model.bin')
    with pytest.raises(FileNotFoundError, match='no model.safetensors in .*train first'): load_policy(tmp_path)

def test_samples_are_reproducible_and_leave_the_global_generator_alone(warm):
    model,tok = load_policy(warm[1]); prompts = [maze_question(z, 2) for z in MAZES[4]]
    torch.manual_seed(5); state = torch.get_rng_state()
    a = sample_texts(model, tok, prompts, max_new_tokens=6, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(6)
    assert a==sample_texts(model, tok, prompts, max_new_tokens=6, seed=1) and a!=sample_texts(model, tok, prompts, max_new_tokens=6, seed=2)
    assert len(a)==len(prompts) and all(len(t.split())<=6 and '<pad>' not in t and '<eos>' not in t for t in a)
    cold = sample_texts(model, tok, prompts, max_new_tokens=6, seed=1, temperature=1e-4)
    assert cold==sample_texts(model, tok, prompts, max_new_tokens=6, seed=2, temperature=1e-4)   # greedy: no seed matters
    assert len(sample_texts(model, tok, prompts, max_new_tokens=2, seed=1, batch=3))==len(prompts)
