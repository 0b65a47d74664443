"The answer parser, the prompt rewriting and the token slots"
import re, time
import pytest, torch
from hypothesis import example, given, settings, strategies as st
from diverse_rl.answers import (ANSWER_RULES, ASK, Answers, answer_blocks, answer_pattern, answer_slots, draw_answers, draw_rules,
                                format_answers, multi_answer_prompt, parse_answers, reasoning_end, token_offsets)
from diverse_rl.answers import _decoded

fuzz = settings(deadline=None, max_examples=60)
def pieces(tag="answer"):
    some = [f"<{tag}_{i}>" for i in (1, 2, 3, "01", 0, 9)] + [f"</{tag}_{i}>" for i in (1, 2, 3, "01", 9)]
    return st.sampled_from(some + [f"<{tag}_", f"</{tag}_", "1>", "1", "<", "/", ">", "_", " ", "\n", "U", "R", "é→", "\ufffd", "\ud800"])
thoughts = st.sampled_from(["<think>", "</think>", "<think", "think>"])
def texts(tag="answer", think=True):
    return st.lists(pieces(tag) | thoughts if think else pieces(tag), max_size=14).map("".join)

def slow_blocks(text, m, tag="answer"):
    "The rules, one character at a time: (number, start, inner, stop, end, closed)"
    def tag_at(i):
        for slash in ("", "/"):
            head = f"<{slash}{tag}_"
            if text[i:i+len(head)] == head:
                j = i + len(head)
                while j < len(text) and text[j] in "0123456789": j += 1
                if j > i + len(head) and text[j:j+1] == ">": return slash, text[i+len(head):j], j + 1
    i = max((j + 8 for j in range(len(text)) if text[j:j+8] == "</think>"), default=0)
    if any(text[j:j+7] == "<think>" for j in range(i, len(text))): return []
    out, used, block = [], [], None
    while i < len(text):
        found = tag_at(i)
        if found is None: i += 1; continue
        slash, digits, after = found
        if block is not None: out.append((*block, i, after, slash == "/" and digits == str(block[0]))); block = None
        number = [n for n in range(1, m + 1) if str(n) == digits]
        if slash == "" and number and number[0] not in used: used += number; block = (number[0], i, after)
        i = after
    return out + ([(*block, len(text), None, False)] if block else [])

@pytest.mark.parametrize("rule", ANSWER_RULES, ids=lambda r: r.case)
def test_rule(rule):
    got = parse_answers(rule.text, rule.m)
    assert (got.status, got.texts) == (rule.status, rule.texts)
    assert got.mask == tuple(s == "ok" for s in rule.status) and got.found == rule.m - rule.status.count("missing")

@pytest.mark.parametrize("rule", ANSWER_RULES, ids=lambda r: r.case)
def test_rule_with_another_tag(rule):
    got = parse_answers(rule.text.replace("<answer_", "<my-route_").replace("</answer_", "</my-route_"), rule.m, tag="my-route")
    assert got.status == rule.status if rule.case != "another tag name" else got.found == 0

@fuzz
@given(texts(), st.integers(1, 4))
def test_fast_is_slow(text, m):
    assert [tuple(b) for b in answer_blocks(text, m)] == slow_blocks(text, m)
    got, slow = parse_answers(text, m), slow_blocks(text, m)
    assert got.numbers[:got.found] == tuple(b[0] for b in slow) and got.ends[:got.found] == tuple(b[4] for b in slow)
    assert got.spans[:got.found] == tuple((b[1], b[4] if b[5] else b[3]) for b in slow)

@fuzz
@given(st.text() | texts(), st.integers(1, 5), st.sampled_from(["answer", "a", "think", "a_1"]))
def test_any_text(text, m, tag):
    got = parse_answers(text, m, tag=tag)
    assert all(len(field) == m for field in got)
    assert not any(answer_pattern(tag).search(t) for t in got.texts)
    assert "missing" not in got.status[:got.found] and set(got.status[got.found:]) <= {"missing"}
    used = [n for n in got.numbers if n is not None]
    assert len(set(used)) == len(used) == got.found and all(1 <= n <= m for n in used)
    spans = [s for s in got.spans if s]
    assert all(a < b <= c for (a, b), (c, _) in zip(spans, spans[1:])) and all(a >= reasoning_end(text) for a, _ in spans)
    good = [t for t, s in zip(got.texts, got.status) if s == "ok"]
    assert len(set(good)) == len(good)
    for t, s, span, n in zip(got.texts, got.status, got.spans, got.numbers):
        if s in ("ok", "duplicate"):
            block = text[slice(*span)]
            assert block.startswith(f"<{tag}_{n}>") and block.endswith(f"</{tag}_{n}>") and t in block and t == t.strip()
        else: assert t == ""
        if s == "duplicate": assert t in good

@fuzz
@given(texts())
def test_answers_of_fewer_slots_are_not_better(text):
    "Asking for more answers accepts a superset of numbers"
    assert set(parse_answers(text, 1).numbers) - {None} <= set(parse_answers(text, 3).numbers)

@pytest.mark.parametrize("unit", ["<answer_1>", "</answer_1>", "<answer_1></answer_1>", "<answer_", "<answer_1", "</", "<", "1", "<think>", "</think>",
                                  "<answer_1>x</answer_2>", "<answer_9>", "<answer_11111", " "])
def test_linear_time(unit):
    def seconds(n):
        text, best = "<answer_" + unit*n, 9.
        for _ in range(3):
            t = time.process_time(); parse_answers(text, 3); best = min(best, time.process_time() - t)
        return best
    assert seconds(60_000) < 60*max(seconds(6_000), 2e-4)  # quadratic: 100

def test_huge_numbers_and_many_slots():
    assert parse_answers(f"<answer_{'7'*200_000}>U</answer_{'7'*200_000}>", 2).found == 0
    t = time.process_time(); n = 20_000
    got = parse_answers(format_answers([str(i) for i in range(n)]), n)
    assert got.texts == tuple(map(str, range(n))) and all(got.mask) and time.process_time() - t < 10

def test_key():
    moves = lambda t: tuple(c for c in t.upper() if c in "UDLR")
    text = "<answer_1>R R</answer_1><answer_2>r,r</answer_2><answer_3>?</answer_3><answer_4></answer_4>"
    assert parse_answers(text, 4).mask == (True,)*4
    assert parse_answers(text, 4, key=moves).status == ("ok", "duplicate", "ok", "duplicate")
    with pytest.raises(TypeError, match="key returned list.*return a str or a tuple"): parse_answers(text, 4, key=list)

def test_m_of_numpy():
    import numpy as np
    assert parse_answers("<answer_1>U</answer_1>", np.int64(3)) == parse_answers("<answer_1>U</answer_1>", 3)

def test_cut_blocks_never_reach_the_key():
    met = []
    parse_answers("<answer_1>a<answer_2>b</answer_2><answer_3>c", 3, key=lambda t: met.append(t) or t)
    assert met == ["b"]

@pytest.mark.parametrize("m", [0, -1, 1.0, True, None, "3"])
def test_impossible_m(m):
    with pytest.raises(ValueError, match="m is .*at least 1"): parse_answers("", m)
    with pytest.raises(ValueError, match="m is .*at least 1"): multi_answer_prompt("a", m, sentence="a")

@pytest.mark.parametrize("tag", ["", "a b", "a.b", "(a", "a+", "[x]", "1a", "_a", "a>", "<a", "a\n", "é", None, 3])
def test_impossible_tag(tag):
    for f in (lambda: parse_answers("", 2, tag=tag), lambda: format_answers(["a"], tag=tag), lambda: multi_answer_prompt("a", 2, sentence="a", tag=tag)):
        with pytest.raises(ValueError, match="tag is .*use a letter followed"): f()

@pytest.mark.parametrize("text", [None, b"U", ["U"], {"content": "U"}])
def test_text_must_be_str(text):
    with pytest.raises(TypeError, match="text is .*not str"): parse_answers(text, 2)

# demonstrations
plain = st.text(max_size=12).map(lambda t: t.replace("think>", "").replace("_", ""))
@fuzz
@given(st.lists(plain, min_size=1, max_size=5), st.sampled_from(["answer", "route-x"]), st.sampled_from(["", " ", "\n"]), st.sampled_from(["", " ", "\nor\n"]))
@example(["a", "a", "", "<answer>"], "answer", "", "")
def test_round_trip(answers, tag, pad, sep):
    out = format_answers(answers, tag=tag, sep=sep, pad=pad)
    for m in (len(answers), len(answers) + 2):
        got, stripped = parse_answers(out, m, tag=tag), [t.strip() for t in answers]
        assert list(got.texts[:len(answers)]) == stripped and got.numbers[:len(answers)] == tuple(range(1, len(answers) + 1))
        assert list(got.status) == ["duplicate" if t in stripped[:i] else "ok" for i, t in enumerate(stripped)] + ["missing"]*(m - len(answers))

@fuzz
@given(st.lists(texts(), min_size=1, max_size=3))
def test_format_refuses_or_survives(answers):
    try: out = format_answers(answers)
    except ValueError as e: assert "would not read back" in str(e); return
    assert parse_answers(out, len(answers)).texts == tuple(t.strip() for t in answers)

def test_format_errors():
    for bad in ("x <answer_1>", "</answer_02>", "<think> a", "</think>"):
        with pytest.raises(ValueError, match="would not read back"): format_answers(["ok", bad])
    with pytest.raises(ValueError, match="would not read back"): format_answers(["a", "b"], sep="</think>")
    with pytest.raises(ValueError, match="pad is 'x'"): format_answers(["a"], pad="x")
    with pytest.raises(ValueError, match="texts is empty"): format_answers([])
    with pytest.raises(TypeError, match="pass a list"): format_answers("abc")

# prompts
SENTENCE = "Answer with one (1) route."
def test_plain_prompt():
    new = multi_answer_prompt(f"Maze {{m}} \\1\n{SENTENCE} Go!", 4, tag="route", sentence=SENTENCE)
    assert new == "Maze {m} \\1\n" + ASK.replace("{m}", "4").replace("{tag}", "route") + " Go!"
    assert "genuinely different" in new and "<route_4>" in new
    assert multi_answer_prompt(f"a {SENTENCE}", 2, sentence=SENTENCE, replacement="{m} \\g<0> {x} <{tag}_1>") == "a 2 \\g<0> {x} <answer_1>"

def test_chat_prompt():
    chat = [{"role": "system", "content": "s"}, {"role": "assistant", "content": SENTENCE, "tool_calls": []}, {"role": "tool", "content": SENTENCE},
            {"role": "assistant", "content": None}, {"role": "user", "content": f"m {SENTENCE}", "name": "n"}]
    kept = [dict(c) for c in chat]
    new = multi_answer_prompt(chat, 3, sentence=SENTENCE, replacement="{m}!")
    assert chat == kept and not any(a is b for a, b in zip(new, chat)) and new[:4] == chat[:4] and new[4] == {"role": "user", "content": "m 3!", "name": "n"}

def test_chat_parts():
    part = {"type": "image", "url": "x"}
    chat = [{"role": "user", "content": [part, {"type": "text", "text": f"m {SENTENCE}"}]}]
    new = multi_answer_prompt(chat, 3, sentence=SENTENCE, replacement="{m}!")
    assert new == [{"role": "user", "content": [part, {"type": "text", "text": "m 3!"}]}] and SENTENCE in chat[0]["content"][1]["text"]

@pytest.mark.parametrize("prompt,count", [
    ("nothing here", 0), ("Answer with one 1 route.", 0), ("", 0), ([], 0), (f"{SENTENCE}{SENTENCE}", 2),
    ([{"role": "user", "content": SENTENCE}, {"role": "system", "content": SENTENCE}], 2),
    ([{"role": "assistant", "content": SENTENCE}, {"role": "user", "content": "x"}], 0)])
def test_sentence_must_occur_once(prompt, count):
    with pytest.raises(ValueError, match=rf"occurs {count} times.*not once"): multi_answer_prompt(prompt, 3, sentence=SENTENCE)

def test_prompt_errors():
    with pytest.raises(ValueError, match="occurs 2 times"): multi_answer_prompt("aaa", 3, sentence="aa")  # overlapping
    with pytest.raises(ValueError, match="sentence is empty"): multi_answer_prompt("aaa", 3, sentence="")
    for bad in (None, 3, ["text"], {"role": "user"}):
        with pytest.raises(TypeError, match="prompt is"): multi_answer_prompt(bad, 3, sentence="a")

# slots
def char_offsets(n): return torch.stack([torch.arange(n), torch.arange(n) + 1], -1)

def slow_slots(text, m, offsets_T2): # how many blocks are over in the text in front of each token
    return [sum(b[4] is not None for b in slow_blocks(text[:a], m)) for a, _ in offsets_T2.tolist()]

@fuzz
@given(texts(think=False), st.integers(1, 3), st.data())
def test_slots_are_those_of_the_text_so_far(text, m, data):
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    offsets = torch.tensor([*zip(at, [*at[1:], len(text)])], dtype=torch.long).reshape(-1, 2)
    got = answer_slots(parse_answers(text, m), offsets)
    assert got.dtype == torch.long and got.tolist() == slow_slots(text, m, offsets)

@fuzz
@given(texts(think=False), texts(think=False), st.integers(1, 3))
def test_slots_and_settled_answers_ignore_the_future(text, rest, m):
    now, later, n = parse_answers(text, m), parse_answers(text + rest, m), len(text)
    a, b = answer_slots(now, char_offsets(n + 1)), answer_slots(later, char_offsets(n + 1))
    assert a.equal(b)
    j = int(a[n])
    assert now.status[:j] == later.status[:j] and now.texts[:j] == later.texts[:j] and now.ends[:j] == later.ends[:j]

@pytest.mark.parametrize("text,m,slots", [
    ("x <answer_1> U </answer_1> y <answer_2> R </answer_2> z", 2, [0, 0, 0, 0, 1, 1, 1, 1, 2]),
    ("x <answer_1> U </answer_1> y", 2, [0, 0, 0, 0, 1]),
    ("<answer_1> U <answer_2> R </answer_2> </answer_1>", 3, [0, 0, 0, 1, 1, 2]),
    ("<answer_1> U </answer_3> R", 3, [0, 0, 0, 1]),
    ("<answer_1> U", 1, [0, 0]), ("U R", 2, [0, 0]), ("</answer_1> U </answer_1>", 1, [0, 0, 0]),
    ("<answer_9> U </answer_9> <answer_1> U </answer_1> <answer_1> z", 1, [0, 0, 0, 0, 0, 0, 1, 1]),
    ("<think> <answer_1> U </answer_1> </think> <answer_1> R </answer_1>", 2, [0]*8),
    ("<answer_1> U </answer_1> <think> z", 2, [0]*5)])
def test_slots_of_words(text, m, slots):
    words = torch.tensor([w.span() for w in re.finditer(r"\S+", text)])
    assert answer_slots(parse_answers(text, m), words).tolist() == slots

def test_slots_edges():
    none = answer_slots(parse_answers("", 3), torch.zeros(0, 2, dtype=torch.long))
    assert none.shape == (0,) and none.dtype == torch.long
    assert answer_slots(parse_answers("<answer_1>U</answer_1>", 1), torch.tensor([[0, 3], [21, 24], [22, 22]], dtype=torch.int32)).tolist() == [0, 0, 1]
    for bad in (torch.zeros(3), torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, 3, 2, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"offsets_T2 has shape .*\(T, 2\)"): answer_slots(parse_answers("", 3), bad)

# tokenizers
WORDS = ["<answer_1>", "</answer_1>", "<answer_2>", "</answer_2>", "U", "D", "R", "so"]
CORPUS = ["so <answer_1> U U R </answer_1> <answer_2> R → é 🙂 </answer_2>\n", "<answer_1>U</answer_1><answer_2>R R</answer_2>\n"]

@pytest.fixture(scope="module")
def word_level():
    tf = pytest.importorskip("transformers", reason="token offsets need transformers: pip install diverse_rl[train]")
    from tokenizers import Tokenizer, models, pre_tokenizers
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")

@pytest.fixture(scope="module")
def bpe():
    tf = pytest.importorskip("transformers", reason="token offsets need transformers: pip install diverse_rl[train]")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    tok.train_from_iterator(CORPUS*4, trainers.BpeTrainer(vocab_size=330, special_tokens=["<pad>", "<eos>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_special_tokens([AddedToken("<turn>", special=True)])
    return tf.PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>")

class Slow:
    "A tokenizer that can only decode"
    is_fast = False
    def __init__(self, tok): self.tok, self.all_special_ids, self.added_tokens_decoder = tok, tok.all_special_ids, tok.added_tokens_decoder
    def decode(self, ids, skip_special_tokens): return self.tok.decode(ids, skip_special_tokens=skip_special_tokens)

def decode(tok, ids): return tok.decode(list(ids), skip_special_tokens=True) if len(ids) else ""

def check_offsets(tok, ids):
    at, text = token_offsets(tok, ids), decode(tok, ids)
    assert at.shape == (len(ids), 2) and at.dtype == torch.long
    assert (at[1:, 0] >= at[:-1, 0]).all() and (at[:, 1] >= at[:, 0]).all() and (at >= 0).all() and (at <= len(text)).all()
    return at, text

def test_word_level(word_level):
    text = "so <answer_1> U R </answer_1> <answer_2> R </answer_2>"
    ids = word_level(text).input_ids
    at, got = check_offsets(word_level, ids)
    assert got == text and [text[a:b] for a, b in at.tolist()] == text.split()
    slots = answer_slots(parse_answers(text, 2), at)
    assert slots.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    eos = word_level.eos_token_id
    at, _ = check_offsets(word_level, ids + [eos, 0, 0])
    assert answer_slots(parse_answers(text, 2), at).tolist() == slots.tolist() + [2]*3
    assert answer_slots(parse_answers(text, 3), at).tolist() == slots.tolist() + [2]*3
    cut = ids[:-1] + [eos]  # the end of sequence is what cut answer 1
    at, got = check_offsets(word_level, cut)
    assert answer_slots(parse_answers(got, 2), at).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert answer_slots(parse_answers(got, 2), check_offsets(Slow(word_level), cut)[0]).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]

@fuzz
@given(data=st.data())
def test_word_level_both_ways(word_level, data):
    ids = data.draw(st.lists(st.integers(0, len(WORDS) + 2), max_size=25))
    (fast, text), (slow, _) = check_offsets(word_level, ids), check_offsets(Slow(word_level), torch.tensor(ids, dtype=torch.int32))
    assert [text[a:b] for a, b in fast.tolist() if b > a] == text.split() == [text[a:b].strip() for a, b in slow.tolist() if b > a]
    answers = parse_answers(text, 2)
    assert answer_slots(answers, fast).equal(answer_slots(answers, slow))
    for t in range(len(ids)):  # each token's slot is that of the text in front of it
        assert sum(b[4] is not None for b in slow_blocks(decode(word_level, ids[:t]), 2)) == answer_slots(answers, fast)[t]

def test_bpe_uses_the_offset_mapping(bpe):
    text = CORPUS[0]
    ids = bpe(text).input_ids
    at, got = check_offsets(bpe, ids)
    assert got == text and at.tolist() == [list(o) for o in bpe(text, return_offsets_mapping=True).offset_mapping]

def test_bpe_when_tokenising_again_gives_other_ids(bpe):
    text = CORPUS[0] + "🦊!"
    usual, spelled = bpe(text).input_ids, [i for c in text for i in bpe(c).input_ids]
    assert usual != spelled and decode(bpe, spelled) == text and len(bpe("🦊").input_ids) > 2
    answers = parse_answers(text, 2)
    (a, _), (b, _) = check_offsets(bpe, usual), check_offsets(bpe, spelled)
    assert "".join(text[i:j] for i, j in b.tolist()) == text
    per_char = answer_slots(answers, char_offsets(len(text)))
    for at in (a, b): assert answer_slots(answers, at).equal(per_char[at[:, 0]])
    multi = [t for t in range(len(spelled)) if b[t, 0] == text.index("🦊")]
    assert len(multi) == len(bpe("🦊").input_ids) and b[multi[0]].tolist() == [b[multi[0], 0]]*2 and text[slice(*b[multi[-1]].tolist())] == "🦊"

def test_bpe_special_tokens(bpe):
    eos, turn = bpe.eos_token_id, bpe.convert_tokens_to_ids("<turn>")
    written = "<answer_1> U </answer_1>\n"
    body = bpe(written).input_ids
    ids = [turn, *body[:3], turn, *body[3:], eos, 0]
    at, text = check_offsets(bpe, ids)
    assert text == written and turn not in bpe.all_special_ids
    assert at[[t for t, i in enumerate(ids) if i not in (turn, eos, 0)]].tolist() == [list(o) for o in bpe(written, return_offsets_mapping=True).offset_mapping]
    assert at[0].tolist() == [0, 0] and at[4, 0] == at[4, 1] == at[3, 1] and at[-1].tolist() == at[-2].tolist() == [at[-3, 1]]*2
    assert answer_slots(parse_answers(text, 2), at)[-2:].tolist() == [1, 1]
    assert token_offsets(bpe, []).shape == (0, 2) and token_offsets(bpe, [eos, eos]).tolist() == [[0, 0]]*2

def test_a_token_across_the_end_of_a_block_belongs_to_it(bpe):
    "`><`, the end of one tag and the beginning of the next, is one token"
    text = "<answer_1>U</answer_1><answer_2>R R</answer_2>"
    ids = bpe(text).input_ids
    for tok in (bpe, Slow(bpe)):
        at, _ = check_offsets(tok, ids)
        slots, across = answer_slots(parse_answers(text, 2), at), [t for t, i in enumerate(ids) if bpe.decode([i]).startswith("><")]
        assert len(across) == 1 and slots[:across[0] + 1].tolist() == [0]*(across[0] + 1) and set(slots[across[0] + 1:].tolist()) == {1}

def slow_starts(tok, ids, text):
    "Longest prefix of the text that the tokens in front of each have fixed, by decoding from the beginning every time"
    out, last = [], 0
    for t in range(len(ids)):
        so_far, n = decode(tok, ids[:t]), 0
        while n < min(len(so_far), len(text)) and so_far[n] == text[n]: n += 1
        last = max(last, n); out.append(last)
    return out

@fuzz
@given(data=st.data())
def test_decoding_in_windows_is_decoding_from_the_start(bpe, data):
    ids = data.draw(st.lists(st.integers(2, len(bpe) - 2), max_size=20))
    text = decode(bpe, ids)
    assert [a for a, _ in _decoded(lambda x: decode(bpe, x), ids, text)] == slow_starts(bpe, ids, text)

@fuzz
@given(data=st.data())
def test_bpe_slots_of_random_tokens(bpe, data):
    known = bpe(CORPUS[1]).input_ids + bpe("</answer_2>").input_ids
    ids = data.draw(st.lists(st.sampled_from([[i] for i in sorted(set(known))] + [bpe(w).input_ids for w in WORDS] + [[1], [150], [len(bpe) - 1]]), max_size=14))
    ids = sum(ids, [])
    at, text = check_offsets(bpe, ids)
    slots = answer_slots(parse_answers(text, 2), at).tolist()
    for t in range(len(ids)):
        assert slots[t] == sum(b[4] is not None for b in slow_blocks(decode(bpe, ids[:t]), 2))

def test_offsets_take_linear_time(bpe):
    calls = []
    count = lambda ids: calls.append(len(ids)) or decode(bpe, ids)
    ids = [i for c in CORPUS[0]*40 for i in bpe(c).input_ids]
    _decoded(count, ids, decode(bpe, ids))
    assert len(calls) == 2*len(ids) > 3000 and max(calls) < 20

def test_offsets_errors(bpe):
    for bad in ([[1, 2], [3, 4]], torch.tensor(3)):
        with pytest.raises(ValueError, match=r"ids has shape .*\(T,\)"): token_offsets(bpe, bad)

# pictures
@fuzz
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=20) | texts(), st.integers(1, 3))
def test_picture_shows_the_whole_text(text, m):
    pytest.importorskip("IPython", reason="pictures need IPython")
    from html import unescape
    html = draw_answers(text, parse_answers(text, m)).data
    assert unescape(re.sub(r"<small[^>]*>[^<]*</small>|<[^>]*>", "", html)) == text
    assert html.count("<small") == parse_answers(text, m).found + 1 and set(re.findall("</?([a-z]+)", html)) == {"pre", "small", "span"}

def test_picture_names_slots():
    pytest.importorskip("IPython", reason="pictures need IPython")
    text = "<answer_1>U</answer_1><answer_2>U</answer_2><answer_3>R"
    assert re.findall(r">(\d \w+)</small>", draw_answers(text, parse_answers(text, 4)).data) == ["0 ok", "1 duplicate", "2 cut", "3 missing"]
    assert re.findall(r">(\d \w+)</small>", draw_answers(text, parse_answers(text, 1)).data) == ["0 ok", "1 after"]
    assert draw_rules().data.count("<tr>") == len(ANSWER_RULES) + 1
