"Terms of the calculator against real models and against their formulas written slowly; what is picked, and why"
import math
from dataclasses import replace
from types import SimpleNamespace
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl import sizing
from diverse_rl.sizing import *

FAMILIES = ('qwen2','qwen3','olmoe','qwen3_moe')
@st.composite
def shapes(draw):
    f = draw(st.sampled_from(FAMILIES)); i = lambda a,b: draw(st.integers(a, b))
    kv = i(1, 3); heads = kv*i(1, 3); d = 2*i(2, 5)
    if f in ('olmoe','qwen2'): hidden = heads*d                 # these derive the size of a head from the width
    else: hidden = 4*i(2, 9)
    moe = f in ('olmoe','qwen3_moe'); e = i(2, 5) if moe else 0
    return Shape('x', None, 'Apache-2.0', f, hidden, i(1, 3), heads, kv, d, 4*i(2, 7), i(20, 60), draw(st.booleans()), e, i(1, e) if moe else 0)

def model(s, device='meta'):
    from transformers import AutoModelForCausalLM
    with torch.device(device): return AutoModelForCausalLM.from_config(config_of(s))

@settings(max_examples=25)
@given(shapes())
def test_parameters_are_those_of_a_real_model(s): assert parameters(s)==model(s).num_parameters()

@settings(max_examples=15)
@given(shapes(), st.integers(1, 9))
def test_adapters_by_a_walk_over_the_linear_maps(s, rank):
    "Slow: every linear map inside a layer that is not a router"
    maps = [m for n,m in model(s).model.layers.named_modules() if isinstance(m, torch.nn.Linear) and not n.endswith('mlp.gate')]
    assert lora_parameters(s, rank)==sum(rank*(m.in_features+m.out_features) for m in maps)

@settings(max_examples=15)
@given(shapes())
def test_active_parameters_leave_out_the_experts_a_token_does_not_visit(s):
    idle = s.layers*3*s.hidden*s.mlp*(s.experts-s.top_k) if s.experts else 0
    assert parameters(s, active=True)==parameters(s)-idle
    if s.experts: assert expert_parameters(s)==sum(p.numel() for n,p in model(s).model.layers[0].named_parameters() if 'experts' in n)

def test_bytes_that_lie_in_memory():
    p = Plan('toy-olmoe', weights='bfloat16', snapshot=True, anchors=True, reference=True); n = parameters(p.shape)
    got = static_bytes(p)
    assert got==dict(weights=2*n, gradients=2*n, optimizer=4*n, snapshot=2*n, anchors=2*64*32*8*2, reference=2*n)
    a = static_bytes(Plan('toy-qwen3', lora_rank=3, weights='bfloat16')); k = lora_parameters(SHAPES['toy-qwen3'], 3)
    assert a['gradients']==4*k and a['optimizer']==8*k and a['weights']==2*parameters(SHAPES['toy-qwen3'])+4*k     # adapters are in 32 bits
    assert all(math.ceil(v/3)==static_bytes(replace(p, cards=3))[k] for k,v in got.items())

def test_anchors_and_snapshot_are_what_the_library_keeps():
    from diverse_rl.experts import find_moe_layers
    from diverse_rl.exploration import Snapshot
    from diverse_rl.trust import AnchorBudget
    p = Plan('toy-olmoe', weights='float32', anchors=True, snapshot=True); m = model(p.shape, 'cpu')
    b = AnchorBudget(find_moe_layers(m), .1); b.sync()
    assert b.nbytes==static_bytes(p)['anchors'] and Snapshot(m).nbytes==static_bytes(p)['snapshot']

@pytest.mark.parametrize('name', ['toy-qwen2','toy-olmoe','toy-qwen3_moe'])
def test_cache_is_that_of_a_real_model(name):
    m = model(SHAPES[name], 'cpu').eval()
    with torch.no_grad(): c = m(torch.zeros(2*3*2, 11+5, dtype=torch.long), use_cache=True).past_key_values
    assert sum(l.keys.nbytes+l.values.nbytes for l in c.layers)==cache_bytes(Plan(name, prompts=2, group=3, micro=1, answers=2, prompt_tokens=11, answer_tokens=5, weights='float32'))

def test_the_arm_with_one_answer_has_the_larger_cache():
    many = Plan('toy-qwen3', prompts=2, group=4, answers=3, prompt_tokens=50, answer_tokens=10)
    assert cache_bytes(many)==cache_bytes(replace(many, group=12, answers=1)) > cache_bytes(replace(many, answers=1))

def test_peak_of_a_training_step_is_within_a_factor():
    "Bytes alive at the end of a forward pass: what was saved for the backward pass and the weights"
    p = Plan('toy-qwen2', micro=3, prompt_tokens=48, answer_tokens=16, weights='float32', checkpointing=False, prompts=3, group=2); m = model(p.shape, 'cpu').train(); seen = {}
    def keep(t): seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(); return t
    ids = torch.randint(0, 500, (3, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        logits = m(input_ids=ids, use_cache=False, logits_to_keep=17).logits
        loss = torch.log_softmax(logits.float(), -1).gather(-1, ids[:,-17:,None]).sum()
    estimate = static_bytes(p)['weights']+activation_bytes(p)+logit_bytes(p)*2/3     # of the three copies the gradient is yet to come
    assert 1/1.6 < estimate/sum(seen.values()) < 1.6 and loss.requires_grad

def test_operations_scale_as_they_must():
    p = Plan('Qwen3-0.6B', checkpointing=False)
    assert step_flops(replace(p, checkpointing=True))==pytest.approx(4/3*step_flops(p)) and step_flops(replace(p, lora_rank=8))==pytest.approx(2/3*step_flops(p))
    assert step_flops(replace(p, prompts=16))==2*step_flops(p) and forward_flops(p, 200, 1)>2*forward_flops(p, 100, 1)        # attention grows faster than length

@pytest.mark.parametrize('bad,word', [(dict(model='gpt-9'),'choose one of'), (dict(weights='int3'),'int3'), (dict(optimizer='sgd'),'adafactor'), (dict(micro=7),'divide the 64'), (dict(prompts=0),'at least 1'),
    (dict(last_layers=1),'no experts'), (dict(model='OLMoE-1B-7B', last_layers=1, lora_rank=2),'choose one'), (dict(lora_rank=-8),'0 is off'), (dict(model='OLMoE-1B-7B', last_layers=17),'0 to 16')])
def test_errors_name_value_and_remedy(bad, word):
    with pytest.raises(ValueError, match=word): Plan(**{'model':'Qwen3-4B', **bad})

SMALL,LARGE = Plan('toy-qwen3', steps=2, weights='float32'),Plan('Qwen3-4B', lora_rank=8)
def test_pick_the_first_that_fits():
    got = [pick_size(c, dict(large=LARGE, small=SMALL)).name for c in (CARDS['T4'], CARDS['H100'])]
    assert got==['small','large'] and 'large needs an estimated' in pick_size(CARDS['T4'], dict(large=LARGE, small=SMALL)).why
def test_pick_by_hours_and_by_cards():
    slow = Card('slow', 1000, .001, 1, True)
    assert 'hours' in pick_size(slow, dict(large=LARGE, small=SMALL)).why
    shared = replace(SMALL, cards=4)
    assert pick_size(CARDS['H100'], dict(a=shared, b=SMALL)).name=='b' and pick_size(CARDS['H100']._replace(count=4), dict(a=shared, b=SMALL)).name=='a'
def test_pick_by_name_says_what_is_wrong():
    p = pick_size(CARDS['T4'], dict(large=LARGE, small=SMALL), 'large')
    assert p.name=='large' and 'needs an estimated' in p.why and p.plan.weights=='float32'
    with pytest.raises(ValueError, match="size='huge'"): pick_size(CARDS['T4'], dict(large=LARGE), 'huge')
    with pytest.raises(ValueError, match='no candidate fits'): pick_size(CARDS['T4'], dict(large=LARGE))
def test_vllm_only_where_it_fits():
    assert pick_size(CARDS['H100'], dict(a=LARGE), vllm=True).plan.vllm and not pick_size(CARDS['H100'], dict(a=LARGE)).plan.vllm
    full = replace(LARGE, weights='float32', prompts=1, group=2, micro=1); tight = CARDS['H100']._replace(gib=need(full).gib+.1)
    assert need(replace(full, vllm=True)).gib>tight.gib and not pick_size(tight, dict(a=full), vllm=True, most_hours=1e9).plan.vllm

@pytest.mark.parametrize('name,gib,major,like,bf16', [('Tesla T4', 14.7, 7, 'T4', False), ('NVIDIA H100 PCIe', 79., 9, 'H100', True), ('Some Card', 23., 8, 'L4', True), ('NVIDIA L40S', 76., 8, 'H100', True), ('NVIDIA L4', 22., 8, 'L4', True)])
def test_hardware_by_name_or_by_memory(monkeypatch, name, gib, major, like, bf16):
    monkeypatch.setattr(sizing.torch.cuda, 'is_available', lambda: True); monkeypatch.setattr(sizing.torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(sizing.torch.cuda, 'get_device_properties', lambda i: SimpleNamespace(name=name, total_memory=gib*2**30, major=major))
    h = find_hardware()
    assert (h.name, h.gib, h.tflops, h.bf16, h.count)==(name, gib, CARDS[like].tflops, bf16, 2)
def test_hardware_without_a_gpu(monkeypatch):
    monkeypatch.setattr(sizing.torch.cuda, 'is_available', lambda: False)
    assert find_hardware().name=='CPU' and find_hardware().gib>0

def test_rows_and_figure():
    rows = need_rows(dict(a=LARGE)); text = show_rows(rows).splitlines()
    assert rows[0]==['plan','GiB','tokens',*CARDS] and len({len(l) for l in text})==1 and rows[1][3]=='-'
    fig = memory_figure(dict(a=LARGE)); assert sum(t.y[0] for t in fig.data)==pytest.approx(need(LARGE).training, rel=.01)
