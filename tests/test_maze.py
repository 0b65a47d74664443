"Mazes: rules of the walk, exact front against brute force, uniform walks, generator, text and drawings"
import json, random, re, time
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import product
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from diverse_rl import maze as module
from diverse_rl.maze import *

quick = settings(max_examples=60, deadline=None)
seeds, sizes = st.integers(0, 30), st.sampled_from([4, 5, 6])
moves = st.text(alphabet=MOVES, max_size=60)
ROOM = """
+---+---+---+
| S   .   G |
+   +---+   +
| .   L   . |
+   +   +   +
| D   .   E |
+---+---+---+"""

@lru_cache
def cached(seed, n=5): return make_maze(seed, n)
@lru_cache
def front_of(seed, n=5): return exact_front(cached(seed, n))
@pytest.fixture
def room(): return maze_from_ascii(ROOM, 6)
def weights(k=400, seed=0): return np.random.default_rng(seed).dirichlet(np.ones(4), k)

# ---- rules of the walk

def slow_score(maze, moves):
    "The rules on a drawing of characters, not on masks: walls are what `maze_ascii` prints."
    rows = maze_ascii(maze).splitlines()
    at = {k: [(r, c) for r in range(maze.n) for c in range(maze.n) if rows[2*r+1][4*c+2] == k] for k in "SEGDL"}
    (r, c), steps, seen = at["S"][0], 0, set()
    for mv in moves:
        if steps == maze.budget: break
        steps += 1
        dr, dc = {"U": (-1,0), "D": (1,0), "L": (0,-1), "R": (0,1)}[mv]
        if rows[2*r+1+dr][4*c+2+2*dc] == " ": r, c = r+dr, c+dc
        seen.add((r, c))
        if (r, c) == at["E"][0]: break
    if (r, c) != at["E"][0]: return [0., 0., 0., 0.]
    part = lambda k: len(seen & set(at[k]))/len(at[k]) if at[k] else 0.
    return [1., part("G"), part("D"), 1 - part("L")]

@quick
@given(seeds, sizes, st.data())
def test_score_is_the_slow_score(seed, n, data):
    maze = cached(seed, n)
    walk = sample_walk(maze, random.Random(seed))
    at = data.draw(st.integers(0, len(walk)))
    for text in (data.draw(moves), walk, walk[:at] + data.draw(st.text(alphabet=MOVES, max_size=3)) + walk[at:]):
        got = score_moves(maze, text)
        assert got.tolist() == slow_score(maze, text) and ((0 <= got) & (got <= 1)).all()

def test_bump_costs_a_step(room):
    assert score_moves(room, "URRDD").tolist() == [1, 1, 0, 1] and walk_cells(room, "URRDD") == [0, 0, 1, 2, 5, 8]
    assert score_moves(room, "UUURRDD").tolist() == [0]*4                     # 7 steps, budget 6
    assert score_moves(room, "UURRDD").tolist() == [1, 1, 0, 1]               # exactly 6

@quick
@given(seeds, moves)
def test_nothing_counts_after_the_exit(seed, tail):
    maze, (vectors, routes) = cached(seed), front_of(seed)
    for v,r in zip(vectors, routes):
        assert (score_moves(maze, r + tail) == v).all() and walk_cells(maze, r + tail)[-1] == maze.exit
        assert score_moves(maze, r[:-1]).tolist() == [0]*4

def test_no_lava_is_safe():
    maze = make_maze(3, lava=0)
    assert maze.lava == () and all(v[3] == 1 for v in exact_front(maze).vectors_PD)

@quick
@given(seeds, st.one_of(st.text(max_size=300), st.text(alphabet="UDLR \n\t", max_size=80), st.lists(st.sampled_from(["U", "D", "R", "L", "u", "UD", "<answer_1>"]), max_size=30).map(" ".join)))
def test_any_text_is_scored(seed, text):
    got = score_text(cached(seed), text)
    words = text.split()
    assert got.shape == (4,) and ((0 <= got) & (got <= 1)).all()
    assert got.tolist() == (slow_score(cached(seed), words) if all(w in ("U","D","L","R") for w in words) else [0]*4)

@pytest.mark.parametrize("text,value", [("", 0), ("  ", 0), ("R R D D", 1), ("R R D D x", 0), ("RRDD", 0), ("r r d d", 0), ("R, R, D, D", 0)])
def test_words(room, text, value): assert score_text(room, text)[0] == value

def test_huge_text_is_cheap(room):
    for text,value in (("U "*500_000, 0), ("R R D D " + "U "*500_000, 1), ("x"*1_000_000, 0)):
        t = time.perf_counter(); got = score_text(room, text)[0]
        assert got == value and time.perf_counter()-t < 2

def test_unknown_move_names_it(room):
    for bad in ("RRX", ["R", "UD"], ["R", ""]):
        with pytest.raises(ValueError, match="moves holds .*use the letters U D L R"): score_moves(room, bad)

# ---- the exact front

def brute_front(maze):
    vectors = {tuple(score_moves(maze, o).tolist()) for o in product(MOVES, repeat=maze.budget)}
    better = lambda b, a: b != a and all(x >= y for x,y in zip(b, a))
    return sorted((a for a in vectors if not any(better(b, a) for b in vectors)), reverse=True)

@pytest.mark.parametrize("seed,budget,lava", [(0, 6, 2), (1, 7, 0), (2, 8, 3), (5, 8, 1)])
def test_front_is_brute_force(seed, budget, lava):
    maze = replace(make_maze(seed, 4, lava=lava), budget=budget)
    front = exact_front(maze)
    assert front.vectors_PD.tolist() == [list(v) for v in brute_front(maze)] and len(front.routes) == len(front.vectors_PD)

def walk_by_walk(maze):
    "Exact outcomes by a depth-first search over all walks without bumps: no masks of items, no layers, no shared states."
    best, near = {}, module._neighbours(maze.n)
    def go(c, seen, left):
        if c == maze.exit:
            v = tuple(module._vector(maze, *(len(seen & set(o)) for o in (maze.gold, maze.diamond, maze.lava))))
            best[v] = max(best.get(v, 0), left); return
        if left < far[c]: return
        for a,to in near[c]:
            if maze.openings[c]>>a & 1: go(to, seen | {to}, left-1)
    far = exit_steps(maze)
    go(maze.start, frozenset(), maze.budget)
    return {v: maze.budget-left for v,left in best.items()}

@pytest.mark.parametrize("seed", range(4))
def test_front_routes_are_shortest(seed):
    maze, (vectors, routes) = cached(seed, 5), front_of(seed, 5)
    found = walk_by_walk(maze)
    front = [v for v in found if not any(b != v and all(x >= y for x,y in zip(b, v)) for b in found)]
    assert sorted(front, reverse=True) == [tuple(v) for v in vectors.tolist()]
    assert [len(r) for r in routes] == [found[tuple(v)] for v in vectors.tolist()]

@quick
@given(seeds, st.sampled_from([4, 5, 6, 7]))
def test_front_is_attained_and_undominated(seed, n):
    maze, (vectors, routes) = cached(seed, n), front_of(seed, n)
    for v,r in zip(vectors, routes): assert (score_moves(maze, r) == v).all() and len(r) <= maze.budget
    for a,b in product(vectors, vectors): assert (a == b).all() or (a > b).any()
    assert len(np.unique(vectors, axis=0)) == len(vectors)
    pool = np.array([score_moves(maze, o) for o in sample_walks(maze, 40, random.Random(seed))])
    assert all((vectors >= o).all(1).any() for o in pool)                     # every walk lies under some vector of the front

def test_no_way_out():
    closed = maze_from_ascii(ROOM, 3)
    assert exact_front(closed).vectors_PD.tolist() == [[0]*4] and exact_front(closed).routes == ("",)
    with pytest.raises(ValueError, match="budget=3.*4 steps away; raise the budget"): sample_walk(closed, random.Random(0))

@pytest.mark.parametrize("seed", range(3))
def test_reach_respects_blocked_cells(seed):
    maze = cached(seed, 6)
    steps = reach(maze, maze.gold, maze.lava).steps_CS
    assert (steps[list(maze.lava)] == -1).all() and steps[maze.start,0] == 0 and 0 <= steps[maze.exit,-1] <= maze.budget
    with pytest.raises(ValueError, match="19 entries.*at most 18"): reach(maze, range(19))

def test_layers_hold_each_state_once(monkeypatch):
    maze, layers, expand = cached(1, 6), [], module._expand
    monkeypatch.setattr(module, "_expand", lambda *a: layers.append(expand(*a)) or layers[-1])
    steps = reach(maze, maze.gold + maze.diamond).steps_CS.reshape(-1)
    states = np.concatenate(layers)
    assert len(layers) == maze.budget and len(states) == len(set(states.tolist())) == (steps > 0).sum()

def test_pareto_helper_keeps_ties():
    rows = np.array([[1., 0, 2], [1, 0, 2], [1, 0, 1], [0, 3, 0]])
    assert module._undominated(rows).tolist() == [True, True, False, True]

def test_solver_is_fast():
    maze = cached(0); exact_front(maze)
    def best(f): return min((lambda t: (f(), time.perf_counter()-t)[1])(time.perf_counter()) for _ in range(5))
    assert best(lambda: exact_front(maze)) < .03
    assert best(lambda: exact_front(make_maze(4, 9))) < 4

# ---- value, coverage, regret

@quick
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6))
def test_front_value_is_the_formula(P, D, K, seed):
    rng = np.random.default_rng(seed); v, w = rng.normal(size=(P, D)), rng.dirichlet(np.ones(D), K)
    assert front_value(v, w) == pytest.approx(sum(max(sum(a*b for a,b in zip(x, y)) for x in v) for y in w)/K)

def test_seven_eighths():
    pair = np.array([[1, 1, 0, 1], [1, 0, 1, 1]])
    assert front_value(pair, weights(100_000)) == pytest.approx(7/8, abs=.003)
    mazes = [cached(s) for s in range(31)]
    values = [front_value(front_of(s).vectors_PD, weights(20_000)) for s in range(31)]
    assert .873 < np.mean(values) < .882 and min(values) > .87 and mazes[0].budget < 14

def test_value_errors():
    assert front_value(np.zeros((0, 4)), weights()) == 0
    with pytest.raises(ValueError, match=r"vectors_PD \(2, 3\) and weights_KD \(400, 4\)"): front_value(np.ones((2, 3)), weights())

@quick
@given(seeds, st.integers(0, 20))
def test_regret_and_coverage(seed, count):
    maze, front, w = cached(seed), front_of(seed), weights(64, seed)
    pool = np.array([score_moves(maze, o) for o in sample_walks(maze, count, random.Random(seed))]).reshape(-1, 4)
    assert 0 <= regret(pool, front, w) <= front_value(front.vectors_PD, w)
    assert regret(pool, front, w) >= regret(np.concatenate([pool, front.vectors_PD[:1]]), front, w)
    have = {tuple(o) for o in pool.tolist()}
    assert coverage(pool, front) == pytest.approx(np.mean([tuple(v) in have for v in front.vectors_PD.tolist()]))
    assert coverage(front.vectors_PD, front) == 1 and regret(front.vectors_PD, front, w) == 0

def test_a_pool_of_another_maze_is_noticed(room):
    with pytest.raises(ValueError, match="more than the front: pool and front are of different instances"):
        regret(np.ones((1, 4)), exact_front(room), weights())

# ---- uniform walks

def legal_walks(maze):
    near, out = module._neighbours(maze.n), []
    def go(c, text):
        if c == maze.exit: out.append(text); return
        if len(text) == maze.budget: return
        for a,to in near[c]:
            if maze.openings[c]>>a & 1: go(to, text + MOVES[a])
    go(maze.start, "")
    return out

@pytest.mark.parametrize("rng", [random.Random(1), np.random.default_rng(1)], ids=["random", "numpy"])
def test_walks_are_uniform(room, rng):
    walks, each = legal_walks(room), 300
    drawn = sample_walks(room, each*len(walks), rng)
    seen = np.array([drawn.count(o) for o in walks])
    chi2, df = ((seen-each)**2/each).sum(), len(walks)-1
    assert set(drawn) == set(walks) and abs(chi2-df) < 4*np.sqrt(2*df)

@pytest.mark.parametrize("seed", range(4))
def test_counts_are_enumeration(seed):
    maze = replace(make_maze(seed, 4), budget=9)
    for t in range(10): assert walk_counts(maze)[t,maze.start] == (len(legal_walks(replace(maze, budget=t))) if t else 0)

@quick
@given(seeds, st.sampled_from([4, 5, 7]))
def test_walks_are_legal(seed, n):
    maze = cached(seed, n)
    for o in sample_walks(maze, 5, random.Random(seed)):
        cells = walk_cells(maze, o)
        assert len(o) <= maze.budget and cells[-1] == maze.exit and len(cells) == len(o)+1
        assert all(a != b for a,b in zip(cells, cells[1:])) and maze.exit not in cells[:-1]

def test_walks_follow_their_generator():
    assert sample_walks(cached(0), 5, random.Random(3)) == sample_walks(cached(0), 5, random.Random(3))
    assert sample_walks(cached(0), 5, random.Random(3)) != sample_walks(cached(0), 5, random.Random(4))
    rng = random.Random(3); assert [sample_walk(cached(0), rng) for _ in range(5)] == sample_walks(cached(0), 5, random.Random(3))

# ---- generator

@pytest.mark.parametrize("n,count", [(4, 12), (5, 12), (6, 6), (7, 6), (8, 3), (9, 3), (12, 1)])
def test_instances_keep_the_rules(n, count):
    cfg = maze_config(n)
    for maze in make_mazes(count, n=n, seed=9):
        corner = {0, n-1, n*n-n, n*n-1}
        assert {maze.start, maze.exit} <= corner and maze.start + maze.exit == n*n-1
        doors = sum(bin(o).count("1") for o in maze.openings)//2 - (n*n-1)
        assert cfg.openings[0] <= doors <= cfg.openings[1] and max(exit_steps(replace(maze, budget=n*n))) < n*n
        ends = sorted(corner - {maze.start, maze.exit})
        far = lambda c, at: abs(c//n-at//n) + abs(c%n-at%n)
        assert any(all(far(c, a) <= cfg.radius for c in maze.gold) and all(far(c, b) <= cfg.radius for c in maze.diamond) for a,b in (ends, ends[::-1]))
        for got,(lo,hi) in ((maze.gold, cfg.items), (maze.diamond, cfg.items), (maze.lava, cfg.lava)): assert lo <= len(got) <= hi
        via = [reach(maze, o, maze.lava).steps_CS[maze.exit,-1] for o in (maze.gold, maze.diamond)]
        assert min(via) > 0 and maze.budget == max(via) + cfg.slack and (cfg.detour is None or max(via) <= 2*(n-1) + cfg.detour)
        assert reach(maze, maze.gold + maze.diamond).steps_CS[maze.exit,-1] == -1

def test_paper_numbers_at_nine():
    assert asdict(maze_config(9)) | dict(tries=0) == dict(n=9, openings=(18, 28), items=(3, 5), radius=2, lava=(3, 5), slack=7, detour=None, tries=0)

def test_same_seed_same_maze():
    a = make_mazes(5, n=5, seed=3)
    assert a == make_mazes(5, n=5, seed=3) == [make_maze(3*2**32+i) for i in range(5)] and len(set(a)) == 5
    assert not set(a) & set(make_mazes(5, n=5, seed=4)) and make_maze(7) == make_maze(np.int64(7))
    state = random.getstate(); make_maze(11); assert random.getstate() == state

def test_a_known_maze_stays():
    "Seeds are part of every result: this maze must never change."
    assert maze_words(make_maze(17)).split()[:5] == "E:D L:DR .:LR D:DLR D:DL".split() and make_maze(17).budget == 13

@pytest.mark.parametrize("call,words", [
    (lambda: make_maze(0, 3), "n=3: mazes are generated from 4 to 12"), (lambda: make_maze(0, 13), "n=13"), (lambda: make_maze(-1), "seed=-1: give an integer from 0"),
    (lambda: make_maze(0, lava=-1), r"lava=\(-1, -1\): give \(low, high\) with 0 <= low"), (lambda: maze_config(5, items=(0, 2)), r"items=\(0, 2\).*1 <= low"),
    (lambda: maze_config(5, openings=(4, 2)), r"openings=\(4, 2\)"), (lambda: maze_config(5, slack=-1), "slack=-1: give at least 0"), (lambda: maze_config(5, detour=-1), "detour=-1"),
    (lambda: maze_config(9, items=(3, 8)), "only 18 pieces in all"), (lambda: make_maze(0, config=maze_config(5, items=(9, 9), lava=(0, 0), tries=20)), "no maze within tries=20.*lower items"),
    (lambda: make_maze(0, config=maze_config(5, slack=12, tries=20)), "no maze within tries=20"), (lambda: make_maze(0, 7, config=maze_config(5)), "n=7 but config.n=5"),
])
def test_generator_errors(call, words):
    with pytest.raises(ValueError, match=words): call()

def test_lava_count(): assert [len(make_maze(1, lava=k).lava) for k in (0, 1, 3)] == [0, 1, 3]

# ---- the dataclass, text, JSON

@pytest.mark.parametrize("change,words", [
    (dict(budget=0), "budget=0: give a number of steps from 1 to n\\*n=9"), (dict(budget=10), "budget=10"), (dict(gold=()), "at least one cell of each"),
    (dict(gold=(9,)), "cells \\[9\\] are off the board"), (dict(lava=(2,)), "share a cell"), (dict(openings=(15,)*9), "leads off the board"),
    (dict(openings=(8,)+(0,)*8), "disagree on move R"), (dict(openings=(0,)), "1 entries: give one mask per cell"), (dict(n=1), "n=1: a maze has from 2 to 12"),
])
def test_maze_errors(room, change, words):
    with pytest.raises(ValueError, match=words): replace(room, **change)

@quick
@given(seeds, sizes)
def test_text_round_trips(seed, n):
    maze = cached(seed, n)
    assert maze_from_ascii(maze_ascii(maze), maze.budget) == maze and from_json(to_json(maze)) == maze
    words = maze_words(maze).split()
    assert len(words) == n*n + 5 and words[n*n:n*n+2] == ["budget", str(maze.budget)]
    for word,mask,content in zip(words, maze.openings, cell_contents(maze)):
        assert word == content + ":" + "".join(m for a,m in enumerate(MOVES) if mask>>a & 1)

@pytest.mark.parametrize("text,words", [("+---+\n| S |", "n cells need 2n\\+1 lines"), (ROOM.replace("E", "S"), "one S, one E"), (ROOM.replace("L", "X"), "one S, one E, and G D L")])
def test_ascii_errors(text, words):
    with pytest.raises(ValueError, match=words): maze_from_ascii(text, 6)

def test_json_errors(room):
    d = json.loads(to_json(room)); d["golds"] = d.pop("gold")
    for text in (json.dumps(d), "[1]", "{}"):
        with pytest.raises(ValueError, match="a maze has the fields"): from_json(text)
    with pytest.raises(ValueError, match="budget=99"): from_json(to_json(room).replace('"budget": 6', '"budget": 99'))

@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_vocabulary_is_closed(n):
    vocab = maze_vocab(n, 8)
    assert len(set(vocab)) == len(vocab) and all(o == o.strip() and " " not in o for o in vocab)
    texts = [t for s in range(6) for t in (maze_words(cached(s, n)), " ".join(front_of(s, n).routes[0]))] + [MANY_ROUTES.format(m=m) for m in range(2, 9)]
    texts += [f"<answer_{i}> </answer_{i}>" for i in range(1, 9)]
    assert set(" ".join(texts).split()) <= set(vocab)

def test_requests_are_plain_words():
    for o in (ONE_ROUTE, MANY_ROUTES.replace("{m} ", "")): assert re.fullmatch("[a-z]+( [a-z]+)*", o)
    assert MANY_ROUTES.count("{m}") == 1

@pytest.mark.parametrize("prompt", [maze_words, maze_prompt])
def test_request_comes_once_and_last(prompt):
    from diverse_rl.answers import multi_answer_prompt
    text = prompt(cached(0)); assert text.count(ONE_ROUTE) == 1 and text.endswith(ONE_ROUTE)
    new = multi_answer_prompt(text, 3, sentence=ONE_ROUTE, replacement=MANY_ROUTES)
    assert new == text[:-len(ONE_ROUTE)] + "write 3 genuinely different routes"

def test_prompt_tells_the_rules():
    maze = cached(0); text = maze_prompt(maze)
    assert maze_ascii(maze) in text and f"at most {maze.budget} moves" in text and "<answer_1>" in text

# ---- drawings

@quick
@given(seeds, sizes, st.integers(0, 8), st.text(max_size=20))
def test_drawing_is_wellformed(seed, n, count, label):
    label = re.sub("[^ -~é€]", "", label)
    maze = cached(seed, n); routes = sample_walks(maze, count, random.Random(seed))
    svg = draw_maze(maze, routes, labels=[label]*count)._repr_svg_()
    root = ET.fromstring(svg); tags = [o.tag.split("}")[1] for o in root.iter()]
    assert root.get("role") == "img" and f"{n} by {n}" in root.get("aria-label") and tags.count("polyline") == count
    assert not {"script", "image", "use", "style", "foreignObject"} & set(tags) and "href" not in svg and "url(" not in svg
    left, top, width, height = map(float, root.get("viewBox").split())
    xy = [tuple(map(float, p.split(","))) for o in root.iter("{*}polyline") for p in o.get("points").split()]
    assert all(0 < x < maze.n*44 and 0 < y < maze.n*44 for x,y in xy) and width >= maze.n*44

def test_drawing_follows_the_walk(room):
    svg = draw_maze(room, ["URRDD"], size=40).svg
    assert re.search('points="([^"]*)"', svg).group(1) == "20,20 20,20 60,20 100,20 100,60 100,100"
    assert "5 moves: gold 1/1, diamonds 0/1, lava 0/1" in svg and "no exit: worth nothing" in draw_maze(room, ["U"]).svg
    assert draw_maze(room, ["U R"]) == draw_maze(room, ["UR"])
    with pytest.raises(ValueError, match="moves holds 'X'"): draw_maze(room, ["X"])
    with pytest.raises(ValueError, match="labels has 1 entries for 2 routes"): draw_maze(room, ["U", "R"], labels=["a"])

def test_styles_differ(): assert len({module._style(j) for j in range(9)}) == 9

def contrast(a, b):
    def lum(h):
        rgb = [int(h[i:i+2], 16)/255 for i in (1, 3, 5)]
        return sum(k*(v/12.92 if v <= .04045 else ((v+.055)/1.055)**2.4) for k,v in zip((.2126, .7152, .0722), rgb))
    x, y = sorted((lum(a)+.05, lum(b)+.05)); return y/x

def test_routes_are_visible_on_light_and_dark():
    for j in range(3):
        colour = re.search("#[0-9A-F]{6}", module._style(j)).group()
        assert contrast(colour, "#FFFFFF") > 2.7 and contrast(colour, "#111111") > 3

def test_public_names():
    want = "Maze MazeConfig maze_config make_maze make_mazes score_moves score_text walk_cells exact_front Front front_value coverage regret sample_walk sample_walks walk_counts maze_words maze_ascii maze_from_ascii maze_prompt maze_vocab ONE_ROUTE MANY_ROUTES MOVES COMPONENTS to_json from_json draw_maze Drawing reach exit_steps cell_contents"
    assert set(want.split()) <= set(module.__all__)
