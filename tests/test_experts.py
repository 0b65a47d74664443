"Experts: found in every family, prototypes against the full decomposition, kernels against formulas, co-activation against counting"
import copy, math, pickle, subprocess, sys
from pathlib import Path
import pytest, torch
from hypothesis import given, strategies as st
from torch import nn
pytest.importorskip('transformers')
from diverse_rl.experts import (CoActivation, MOE_FAMILIES, Power, Prototypes, chosen, cosine_figure, find_moe_layers, median_tau, overlap, power_iteration,
    prototype_kernel, sign_aligned, start_vectors, tiny_moe, token_pairs, _times)
from toy import two_processes

E,K,H,F = 6,2,24,20
def gen(seed): return torch.Generator().manual_seed(seed)
def angle(a, b): return 2*torch.asin(((a-b*torch.where((a*b).sum(-1, keepdim=True)<0, -1., 1.)).norm(dim=-1)/2).clamp(max=1))
def decomposed(w):
    u,s,v = torch.linalg.svd(w.double(), full_matrices=False)
    return u[...,0],v[...,0,:],s
def spectrum(e, h, f, ratio, seed=0):
    "Matrices with first singular value 1, second `ratio`, the rest below"
    g,n = gen(seed),min(h,f); draw = lambda a: torch.linalg.qr(torch.randn(e,a,n, generator=g, dtype=torch.float64)).Q
    s = torch.cat([torch.ones(1), ratio*torch.linspace(1,.1,n-1)]).double()
    return (draw(h)*s) @ draw(f).mT
def tokens(b=3, t=5, seed=0): return torch.randint(2, 32, (b,t), generator=gen(seed))

# ---- layers

@pytest.mark.parametrize('family', MOE_FAMILIES)
def test_every_family_is_found(family):
    m = tiny_moe(family); layers = find_moe_layers(m); depth = range(family=='deepseek_v3', 2)
    assert len(layers)==len(depth) and [f'.{i}.' in l.name for i,l in zip(depth, layers)]==[True]*len(depth)
    for l in layers:
        assert m.get_submodule(l.name) is l.experts and (l.num_experts,l.top_k)==(E,K) and tuple(l.down_EHF.shape)==(E,H,F)
        assert m.get_submodule(l.name.rpartition('.')[0]) and 'Router' in type(l.router).__name__ and tuple(next(l.router.parameters()).shape)[0]==E
        assert (l.transposed,l.interleaved)==((True,True) if family=='gpt_oss' else (False,False)) and l.down is l.experts.down_proj
        bias = {'gate_up_proj_bias','down_proj_bias'} if family=='gpt_oss' else set()
        assert set(l.tensors)=={'gate_up_proj','down_proj'}|bias and all(p.shape[0]==E for p in l.tensors.values())
    l.down.requires_grad_(False); assert 'down_proj' not in l.tensors

@pytest.mark.parametrize('implementation', ['eager','grouped_mm'])
@pytest.mark.parametrize('family', MOE_FAMILIES)
def test_down_is_the_map_that_an_expert_applies(family, implementation):
    m = tiny_moe(family).eval(); m.config._experts_implementation = implementation; l = find_moe_layers(m)[-1]; x = torch.randn(7, H, generator=gen(1))
    if family=='gpt_oss':
        with torch.no_grad(): l.experts.down_proj_bias.normal_(generator=gen(2)); l.experts.gate_up_proj_bias.normal_(generator=gen(3))
    bias = getattr(l.experts, 'down_proj_bias', torch.zeros(E, H))
    alone = lambda e: l.experts(x, torch.full((7,1), e), torch.ones(7,1))-bias[e]
    with torch.no_grad():
        for e in (0, E-1):
            D,y = l.down_EHF[e].clone(),alone(e)
            l.down_EHF[e] = torch.eye(H)[:,:F]; inside = alone(e)          # the view writes through: now the expert shows what it feeds to its down projection
            assert inside[:,F:].abs().max()<1e-5 and torch.allclose(inside[:,:F]@D.mT, y, atol=1e-4) and y.abs().max()>1e-2
            l.down_EHF[e] = D

BASE = dict(vocab_size=32, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=12, max_position_embeddings=64, pad_token_id=0, bos_token_id=None)
OTHERS = dict(llama4_text=dict(num_local_experts=E, num_experts_per_tok=K, intermediate_size=F, intermediate_size_mlp=28, interleave_moe_layer_step=1),
    gemma4_text=dict(enable_moe_block=True, num_experts=E, top_k_experts=K, moe_intermediate_size=F, intermediate_size=28, global_head_dim=12, hidden_size_per_layer_input=4, vocab_size_per_layer_input=32),
    longcat_flash=dict(n_routed_experts=E, zero_expert_num=2, moe_topk=K, expert_ffn_hidden_size=F, ffn_hidden_size=28, num_layers=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=12),
    nemotron_h=dict(n_routed_experts=E, num_experts_per_tok=K, moe_intermediate_size=F, intermediate_size=28, n_group=1, topk_group=1, layers_block_type=['moe','attention'], ssm_state_size=4, mamba_num_heads=4,
        mamba_head_dim=12, n_groups=1))
@pytest.mark.parametrize('family,transposed', [('llama4_text',True), ('gemma4_text',False), ('longcat_flash',False), ('nemotron_h',False)])
def test_structure_finds_what_nobody_listed(family, transposed):
    "No flag for the layout, a router three floors up, experts that compute nothing, experts without a gate"
    from transformers import AutoConfig, AutoModelForCausalLM
    layers = find_moe_layers(AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**BASE, **OTHERS[family]})))
    assert layers and all((l.num_experts,l.top_k,tuple(l.down_EHF.shape),l.transposed)==(E,K,(E,H,F),transposed) for l in layers)

class Fused(nn.Module):
    def __init__(self, up, down): super().__init__(); self.gate_up_proj,self.down_proj = nn.Parameter(torch.zeros(up)),nn.Parameter(torch.zeros(down))
def block(up, down, **router):
    m = nn.Module(); m.experts,m.gate = Fused(up, down),nn.Linear(5, 3)
    for k,v in router.items(): setattr(m.gate, k, v)
    return m
@pytest.mark.parametrize('up,down,transposed', [((3,8,5),(3,5,4),False), ((3,5,8),(3,4,5),True), ((3,8,8),(3,8,4),False), ((3,8,8),(3,4,8),True), ((3,8,4),(3,4,4),False), ((3,4,8),(3,4,4),True), ((3,4,4),(3,4,4),False)])
def test_layout_without_a_flag(up, down, transposed):
    assert find_moe_layers(block(up, down, top_k=2))[0].transposed==transposed

def test_models_without_experts_are_refused():
    from transformers import Qwen3Config, Qwen3ForCausalLM
    dense = Qwen3ForCausalLM(Qwen3Config(**{**BASE, 'intermediate_size':28}))
    with pytest.raises(ValueError, match='model: Qwen3ForCausalLM has no mixture-of-experts layer.*Qwen3-MoE.*switch off'): find_moe_layers(dense)
    with pytest.raises(ValueError, match=r'router of experts \(Linear\).*set its attribute top_k'): find_moe_layers(block((3,8,5), (3,5,4)))
    lone = nn.Module(); lone.experts = Fused((3,8,5), (3,5,4))
    with pytest.raises(ValueError, match='Module has no mixture'): find_moe_layers(lone)
    with pytest.raises(ValueError, match="family: got 'gpt2'; choose one of qwen3_moe"): tiny_moe('gpt2')

def test_a_few_layers_among_dense_ones():
    m = tiny_moe('qwen3_moe', num_hidden_layers=5, mlp_only_layers=[3], decoder_sparse_step=2)
    assert [l.name for l in find_moe_layers(m)]==['model.layers.1.mlp.experts']

def test_experts_that_nobody_routes_to_do_not_count():
    m = block((3,8,5), (3,5,4), top_k=2); m.shared = Fused((2,8,5), (2,5,4))
    assert [l.name for l in find_moe_layers(m)]==['experts']

def test_wrapped_models():
    peft = pytest.importorskip('peft'); lora = lambda **kw: peft.get_peft_model(tiny_moe(), peft.LoraConfig(r=2, task_type='CAUSAL_LM', **kw))
    outer = nn.Module(); outer.module = tiny_moe()
    assert [l.name for l in find_moe_layers(outer)]==[f'module.model.layers.{i}.mlp.experts' for i in (0,1)]
    plain = find_moe_layers(lora(target_modules=['q_proj'])); assert len(plain)==2 and not plain[0].tensors
    deep = find_moe_layers(lora(target_parameters=['mlp.experts.gate_up_proj','mlp.experts.down_proj']))
    assert [(l.num_experts,l.top_k,tuple(l.down.shape)) for l in deep]==[(E,K,(E,H,F))]*2 and 'base_layer' in deep[0].name and 'Router' in type(deep[0].router).__name__
    m = lora(target_modules=['q_proj'], modules_to_save=['gate']); l = find_moe_layers(m)
    assert len(l)==2 and type(l[0].router).__name__=='ModulesToSaveWrapper'
    with CoActivation(l) as c: m.train()(tokens()); assert [int(t) for t in c.tokens]==[15,15]
    l = find_moe_layers(lora(target_modules=['q_proj'], modules_to_save=['experts']))
    assert len(l)==2 and set(l[0].tensors)=={'gate_up_proj','down_proj'}

# ---- power iteration

@given(st.integers(1,4), st.integers(2,9), st.integers(2,9), st.integers(0,999))
def test_power_iteration_against_the_decomposition(e, h, f, seed):
    if h==f: f += 1
    w = spectrum(e, h, f, .5, seed); p,u,sigma = power_iteration(w, steps=60, generator=gen(seed)); P,U,S = decomposed(w)
    assert p.dtype==torch.float64 and angle(p, P).max()<1e-6 and angle(u, U).max()<1e-6 and torch.allclose(sigma, S[:,0])
    assert torch.allclose(p.norm(dim=-1), torch.ones(e).double()) and torch.allclose(u.norm(dim=-1), torch.ones(e).double())
    assert torch.allclose((p*(w@u[...,None])[...,0]).sum(-1), sigma)                                   # p and u have one sign together

@given(st.integers(2,9), st.integers(2,9), st.floats(.1,.95), st.integers(1,4), st.integers(0,999))
def test_the_error_shrinks_as_stated(h, f, ratio, steps, seed):
    w = spectrum(3, h, f, ratio, seed); u = start_vectors((3,f), gen(seed)).double(); _,U,_ = decomposed(w)
    def tan(x): c = (x*U).sum(-1, keepdim=True); return ((x-c*U).norm(dim=-1)/c[...,0].abs())
    assert (tan(power_iteration(w, u, steps).u_EF)<=ratio**(2*steps)*tan(u)*(1+1e-6)+1e-9).all()

def test_any_leading_axes_layout_and_precision():
    w = spectrum(6, 7, 5, .5).view(2,3,7,5); u = start_vectors((2,3,5)).double(); want = power_iteration(w, u, 3)
    for a,b in zip(want, power_iteration(w.mT.contiguous().mT, u, 3)): assert torch.allclose(a, b)      # as it lies in a transposed layout
    for i in range(2):
        for j in range(3): assert torch.allclose(want.p_EH[i,j], power_iteration(w[i,j], u[i,j], 3).p_EH)
    half = power_iteration(w.bfloat16(), u.bfloat16(), 3); assert half.p_EH.dtype==torch.float32 and angle(half.p_EH, want.p_EH).max()<2e-2
    with torch.autocast('cpu', dtype=torch.bfloat16): inside = power_iteration(w.float(), u.float(), 3)
    assert torch.equal(inside.p_EH, power_iteration(w.float(), u.float(), 3).p_EH)

def test_a_zero_matrix_keeps_its_start():
    w = torch.zeros(2,4,3); w[1] = torch.randn(4,3, generator=gen(0)); u = start_vectors((2,3)); w.requires_grad_()
    p,v,s = power_iteration(w, u); assert p[0].tolist()==[0]*4 and torch.equal(v[0], u[0]) and s[0]==0 and s[1]>0
    (p.sum()+s.sum()).backward(); assert torch.isfinite(w.grad).all()

def test_one_step_is_differentiable_with_its_start_held():
    w = torch.randn(2,4,3, dtype=torch.float64, generator=gen(0), requires_grad=True); u = start_vectors((2,3)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: power_iteration(w, u).p_EH, w)
    assert torch.autograd.grad(power_iteration(w, u).p_EH[:,0].sum(), u, allow_unused=True)==(None,)

def test_wrong_arguments_of_power_iteration():
    with pytest.raises(ValueError, match=r'u_EF: got shape \(2, 4\).*\(2, 4, 3\).*\(2, 3\)'): power_iteration(torch.zeros(2,4,3), torch.zeros(2,4))
    with pytest.raises(ValueError, match='steps=0: must be at least 1'): power_iteration(torch.zeros(2,4,3), steps=0)

@given(st.integers(0,999))
def test_signs(seed):
    w = spectrum(3, 7, 5, .5, seed); a = power_iteration(w, steps=5, generator=gen(seed)); flips = torch.tensor([1.,-1.,-1.]).double()[:,None]
    b = Power(flips*a.p_EH, flips*a.u_EF, a.sigma_E)
    for x in (a, b):
        first = sign_aligned(x); assert (first.p_EH.gather(-1, first.p_EH.abs().argmax(-1, keepdim=True))>0).all()
        assert ((first.p_EH*(w@first.u_EF[...,None])[...,0]).sum(-1)>0).all()                         # u turns with p
        assert torch.equal(sign_aligned(x, a.p_EH).p_EH, a.p_EH) and torch.equal(sign_aligned(x, a.p_EH).u_EF, a.u_EF)

# ---- prototypes

def gapped(model, ratio=.6, seed=0):
    "Give every expert a direction of its own that is clearly its first"
    layers = find_moe_layers(model)
    with torch.no_grad():
        for i,l in enumerate(layers): l.down_EHF.copy_(spectrum(*l.down_EHF.shape, ratio, seed+i))
    return model, layers

@pytest.mark.parametrize('family', ['qwen3_moe','gpt_oss'])
def test_prototypes_follow_the_weights(family):
    m,layers = gapped(tiny_moe(family)); P = Prototypes(layers); first = P.update()
    assert [tuple(p.shape) for p in first]==[(E,H)]*2 and not torch.allclose(first[0], first[1], atol=.1)
    opt = torch.optim.Adam([l.down for l in layers], lr=1e-3); g = gen(1); total = 0
    for _ in range(15):
        before = [p.clone() for p in P.p]
        for l in layers: l.down.grad = torch.randn(l.down.shape, generator=g)
        opt.step(); P.update()
        for l,p,u,old in zip(layers, P.p, P.u, before):
            want,right,_ = decomposed(l.down_EHF.detach()); total += float(angle(p, old).mean())
            assert p.dtype==torch.float32 and not p.requires_grad and angle(p, want).max()<5e-3 and angle(u, right).max()<5e-3 and ((p*old).sum(-1)>.9).all()
    assert total>.05                                                     # and they did move
    with torch.no_grad(): layers[0].down.neg_()
    old = P.p[0].clone(); P.update(); assert ((P.p[0]*old).sum(-1)>.9).all()   # a change of sign alone is no change of direction

@pytest.mark.parametrize('shape', [(2,300,260), (2,260,300), (300,260), (2,3,260,270), (0,300,300), (3,6,5)])
@pytest.mark.parametrize('turned', [False,True])
def test_large_matrices_one_by_one_are_the_batched_product(shape, turned):
    w = torch.randn(shape, generator=gen(0)).double(); w = w.mT if turned else w; u = start_vectors(w.shape[:-2]+w.shape[-1:], gen(1)).double().requires_grad_()
    got = _times(w, u); assert got.shape==w.shape[:-1] and torch.allclose(got, torch.einsum('...hf,...f->...h', w, u))
    if got.numel(): assert torch.allclose(torch.autograd.grad(got.sum(), u)[0], w.sum(-2))

def test_prototypes_round_trip(tmp_path):
    m,layers = gapped(tiny_moe()); P = Prototypes(layers); assert P.state_dict()=={}; P.update(); torch.save(P.state_dict(), tmp_path/'p.pt')
    Q = Prototypes(layers); Q.load_state_dict(torch.load(tmp_path/'p.pt'))
    with torch.no_grad(): layers[1].down.add_(.01*torch.randn(layers[1].down.shape, generator=gen(3)))
    assert all(torch.equal(a, b) for a,b in zip(P.update(), Q.update())) and not torch.equal(Prototypes(layers).update()[1], P.p[1])
    with pytest.raises(ValueError, match='state_dict: p has shapes.*another model'): Prototypes(find_moe_layers(tiny_moe(hidden_size=32))).load_state_dict(P.state_dict())
    with pytest.raises(ValueError, match='another model'): Prototypes(layers[:1]).load_state_dict(P.state_dict())
    Q.load_state_dict({}); assert Q.p is None

def test_prototypes_do_not_touch_the_global_generator_or_the_weights():
    m,layers = gapped(tiny_moe()); torch.manual_seed(5); a = torch.rand(1); torch.manual_seed(5); w = layers[0].down.detach().clone()
    Prototypes(layers).update(); assert torch.equal(torch.rand(1), a) and torch.equal(layers[0].down, w) and layers[0].down.grad is None

# ---- kernel

@given(st.integers(2,6), st.integers(2,9), st.floats(.05,5), st.booleans(), st.integers(0,999))
def test_kernel_tau_and_overlap_are_their_formulas(e, h, tau, signed, seed):
    p = start_vectors((e,h), gen(seed)).double(); p = p/p.norm(dim=1, keepdim=True); c = lambda i,j: float(p[i]@p[j]); dist = lambda i,j: 1-c(i,j) if signed else 1-c(i,j)**2
    want = torch.tensor([[math.exp(-dist(i,j)/tau) for j in range(e)] for i in range(e)]).double(); k = prototype_kernel(p, tau, signed)
    assert torch.allclose(k, want, atol=1e-9) and torch.linalg.eigvalsh(k).min()>-1e-9 and torch.allclose(k.diagonal(), torch.ones(e).double())
    pairs = sorted(dist(i,j) for i in range(e) for j in range(i)); assert math.isclose(float(median_tau(p, signed)), max(1e-4, pairs[(len(pairs)-1)//2]/math.log(e)), rel_tol=1e-5)
    assert math.isclose(float(overlap(p)), sum(c(i,j)**2 for i in range(e) for j in range(e) if i!=j)/(e*(e-1)), rel_tol=1e-6)
    flip = torch.where(torch.rand(e,1, generator=gen(seed))<.5, -1., 1.).double()
    assert torch.allclose(prototype_kernel(flip*p, tau), prototype_kernel(p, tau)) and torch.allclose(overlap(flip*p), overlap(p))

def test_kernel_on_leading_axes_with_a_temperature_each():
    p = start_vectors((2,3,4,5)); tau = median_tau(p); k = prototype_kernel(p, tau); assert tau.shape==(2,3) and k.shape==(2,3,4,4) and overlap(p).shape==(2,3)
    for i in range(2):
        for j in range(3): assert torch.allclose(k[i,j], prototype_kernel(p[i,j], float(tau[i,j]))) and torch.isclose(overlap(p)[i,j], overlap(p[i,j]))

def test_extreme_prototypes():
    same = start_vectors((1,7)).expand(4,7); flip = torch.tensor([1.,-1.,1.,-1.])[:,None]
    assert overlap(same)==pytest.approx(1) and overlap(torch.eye(4,7))==0 and median_tau(same)==pytest.approx(1e-4) and torch.isfinite(prototype_kernel(same, median_tau(same))).all()
    assert overlap(flip*same)==pytest.approx(1) and prototype_kernel(flip*same, .5, signed=True)[0,1]==pytest.approx(math.exp(-4)) and prototype_kernel(flip*same, .5)[0,1]==pytest.approx(1, abs=1e-5)
    assert float(overlap(start_vectors((200,50))))==pytest.approx(1/50, rel=.05)
    assert float(prototype_kernel(torch.eye(4,7), median_tau(torch.eye(4,7)))[0,1])==pytest.approx(1/4)  # the median rule: E neighbours weigh as much as oneself
    p = start_vectors((3,5)).requires_grad_(); prototype_kernel(p, median_tau(p)).sum().backward(); assert p.grad.abs().max()>0 and not median_tau(p).requires_grad

def test_wrong_arguments_of_kernels():
    with pytest.raises(ValueError, match='tau=0: must be positive; `median_tau`'): prototype_kernel(torch.eye(3), 0)
    for f in (overlap, median_tau):
        with pytest.raises(ValueError, match=r'p_EH: got shape \(1, 3\).*two experts'): f(torch.eye(1,3))

# ---- co-activation

@given(st.integers(1,9), st.integers(2,6), st.data())
def test_pairs_are_counted(t, e, data):
    k = data.draw(st.integers(1, e)); g = gen(data.draw(st.integers(0,999))); index = torch.stack([torch.randperm(e+1, generator=g)[:k] for _ in range(t)])     # e itself: no expert
    mask = data.draw(st.none() | st.lists(st.integers(0,1), min_size=t, max_size=t).map(torch.tensor))
    want = torch.zeros(e, e, dtype=torch.long)
    for n in range(t):
        for i in index[n]:
            for j in index[n]:
                if i<e and j<e and (mask is None or mask[n]): want[i,j] += 1
    assert torch.equal(token_pairs(index, e, mask), want) and torch.equal(token_pairs(index.int(), e, mask), want)
    if mask is not None: assert torch.equal(token_pairs(index, e, mask.bool()), want) and torch.equal(token_pairs(index, e, mask.float()), want)

def test_what_a_router_chose():
    logits = torch.randn(4,5, generator=gen(0)); index = logits.topk(2).indices
    for out in ((logits, logits.topk(2).values, index), (logits, index, logits.topk(2).values), logits, (torch.zeros(4,5).scatter(1, index, 1.), logits)):
        assert torch.equal(chosen(out, 5, 2).sort(-1).values, index.sort(-1).values)
    assert chosen(index.view(2,2,2), 5, 2).shape==(4,2)
    with pytest.raises(ValueError, match='router: returned neither'): chosen((torch.zeros(4,3),), 5, 2)

def routed(m, layers, ids, mask=None):
    "What each router chose, by running the model once"
    seen = []; hs = [l.router.register_forward_hook(lambda mod,a,out: seen.append(out[2])) for l in layers]
    with torch.no_grad(): m(ids, attention_mask=mask)
    for h in hs: h.remove()
    return seen
def frequency(index, mask=None):
    keep = index if mask is None else index[mask.flatten().bool()]
    hot = torch.zeros(len(keep), E).scatter(1, keep, 1.)
    return hot.T@hot/len(keep)

@pytest.mark.parametrize('family', MOE_FAMILIES)
def test_co_activation_of_every_family(family):
    m = tiny_moe(family); layers = find_moe_layers(m); ids = tokens(); m.eval(); want = [frequency(x) for x in routed(m, layers, ids)]
    with CoActivation(layers) as c:
        m.train()(ids); C = c.update()
        assert all(torch.allclose(a, b) for a,b in zip(C, want)) and float(C[0].diagonal().sum())==pytest.approx(K)
        a = c.affinity(0); assert torch.equal(a, a.T) and a.max()<=1 and all(a[i,j]==pytest.approx(float(C[0][i,j]/(C[0][i,i]*C[0][j,j])**.5) if C[0][i,i]*C[0][j,j]>0 else 0, abs=1e-5) for i in range(E) for j in range(E))

def test_only_training_counts():
    m = tiny_moe(); layers = find_moe_layers(m); ids = tokens()
    with CoActivation(layers) as c:
        m.eval()(ids); m.train()
        with torch.no_grad(): m(ids)
        with torch.inference_mode(): m(ids)
        m.generate(ids, max_new_tokens=3, do_sample=False)
        assert [int(t) for t in c.tokens]==[0,0]
        m.train()(ids); assert [int(t) for t in c.tokens]==[15,15]
        c.update(); assert [int(t) for t in c.tokens]==[0,0]
    m(ids); assert [int(t) for t in c.tokens]==[0,0] and not any(l.router._forward_hooks for l in layers)   # the hooks are gone

@pytest.mark.parametrize('reentrant', [False,True])
def test_checkpointing_counts_once(reentrant):
    m = tiny_moe().train(); layers = find_moe_layers(m); plain = CoActivation(layers)
    for s in (0,1): m(tokens(seed=s)).logits.sum().backward()
    want = [x.clone() for x in plain.update()]; plain.remove()
    m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=reentrant)); m.enable_input_require_grads()
    calls = []; h = layers[0].router.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    with CoActivation(layers) as c:
        for _ in range(2):                                                                  # the second round: nothing is left over from the first
            for s in (0,1): m(tokens(seed=s)).logits.sum().backward()
            assert [int(t) for t in c.tokens]==[30,30] and all(torch.allclose(a, b) for a,b in zip(c.update(), want))
    h.remove(); assert calls==([False,True] if reentrant else [True,True])*4                # it did run twice

def test_padding_does_not_count():
    m = tiny_moe().train(); layers = find_moe_layers(m); ids,mask = tokens(),torch.ones(3,5, dtype=torch.long); mask[0,:3] = 0; mask[2,:1] = 0
    want = [frequency(x, mask) for x in routed(m, layers, ids, mask)]
    assert not torch.allclose(want[1], frequency(routed(m, layers, ids, mask)[1]))
    with CoActivation(layers, model=m) as c: m(input_ids=ids, attention_mask=mask); assert all(torch.allclose(a, b) for a,b in zip(c.update(), want)); m(ids, mask); assert int(c.tokens[0])==11; m(ids); assert int(c.tokens[0])==26
    with CoActivation(layers) as c: c.mask = mask.bool(); m(ids, attention_mask=mask); assert all(torch.allclose(a, b) for a,b in zip(c.update(), want)) and c.update() is c.C
    with CoActivation(layers) as c:
        c.mask = mask[:2]
        with pytest.raises(ValueError, match=r'mask: got shape \(2, 5\) for 15 tokens'): m(ids)

def test_the_average_over_updates():
    m = tiny_moe().train(); layers = find_moe_layers(m)
    f = [[frequency(x) for x in routed(m, layers, tokens(b, seed=b))] for b in (1,2,4)]
    with CoActivation(layers, decay=.8) as c:
        m(tokens(1, seed=1)); c.update(); assert torch.allclose(c.C[0], f[0][0])               # the first count is taken as it is
        for b in (2,4): m(tokens(b, seed=b))                                                  # two passes of one update: every token weighs the same
        both = (2*f[1][0]+4*f[2][0])/6; c.update(); want = .8*f[0][0]+.2*both; assert torch.allclose(c.C[0], want, atol=1e-6)
        c.update(); assert torch.allclose(c.C[0], want, atol=1e-6)                            # nothing new, nothing forgotten
        saved = c.state_dict(); m(tokens(4, seed=4)); last = c.update()[0]
    with CoActivation(layers, decay=.8) as d: d.load_state_dict(saved); m(tokens(4, seed=4)); assert torch.allclose(d.update()[0], last) and torch.allclose(last, .8*want+.2*f[2][0], atol=1e-6)
    with pytest.raises(ValueError, match='another model'): CoActivation(find_moe_layers(tiny_moe(num_experts=4))).load_state_dict(saved)
    with pytest.raises(ValueError, match=r'decay=1: must be in \[0,1\)'): CoActivation(layers, decay=1)

def test_an_unused_expert_has_no_affinity():
    m = tiny_moe(); layers = find_moe_layers(m); c = CoActivation(layers); assert c.affinity(0).abs().max()==0
    c.C[0] = torch.tensor([[.5,.25,0],[.25,1.,0],[0,0,0]]); assert torch.allclose(c.affinity(0), torch.tensor([[1.,.25/.5**.5,0],[.25/.5**.5,1,0],[0,0,0]])); c.remove()

def test_copies_of_a_model_are_not_counted():
    "A reference model made by copying brings copies of the hooks; a deep copy and a pickled one count nothing, here or there"
    m = tiny_moe().train(); layers = find_moe_layers(m); ids,mask = tokens(),torch.ones(3,5, dtype=torch.long); mask[0,:2] = 0
    with CoActivation(layers, model=m) as c:
        for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
            twin(ids, attention_mask=mask); assert [int(t) for t in c.tokens]==[0,0] and c.mask is None
        m(ids, attention_mask=mask); assert [int(t) for t in c.tokens]==[13,13]
    m(ids); assert [int(t) for t in c.tokens]==[13,13]

@pytest.mark.parametrize('family', MOE_FAMILIES)
def test_every_family_takes_a_padding_mask(family):
    m = tiny_moe(family).train(); mask = torch.ones(3,5, dtype=torch.long); mask[0,:3] = 0
    with CoActivation(find_moe_layers(m), model=m) as c: m(input_ids=tokens(), attention_mask=mask).logits.sum().backward(); assert int(c.tokens[0])==12

def test_half_precision_is_counted_exactly():
    m = tiny_moe().train(); layers = find_moe_layers(m); ids = tokens(40, 30)
    with CoActivation(layers) as c, torch.autocast('cpu', dtype=torch.bfloat16): m(ids)
    assert int(c.pairs[0].sum())==40*30*K*K and int(c.pairs[0].diagonal().sum())==40*30*K

def test_picture():
    go = pytest.importorskip('plotly.graph_objects'); p = start_vectors((4,5)); f = cosine_figure(dict(a=p, b=torch.eye(4,5)))
    assert isinstance(f, go.Figure) and torch.allclose(torch.tensor(f.data[0].z, dtype=torch.float32), (p@p.T)**2, atol=1e-3) and f.data[1].z.tolist()==torch.eye(4).tolist()

# ---- processes

SPLIT = '''
import sys; sys.path.insert(0, {tests!r})
import torch, torch.distributed as dist; torch.set_num_threads(1)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
import test_experts as t
rank = int(sys.argv[1]); dist.init_process_group('gloo')
out = dict()
for name,(family,kw,where) in t.SPLITS.items():
    m,_ = t.gapped(t.tiny_moe(family, **kw)); layers = t.find_moe_layers(m)
    P = t.Prototypes(layers); c = t.CoActivation(layers, model=m)
    place = dict(shard_placement_fn=lambda p: Shard(where if p.ndim==3 else 0))
    for l in m.model.layers: fully_shard(l, **place)
    fully_shard(m, **place)
    assert all(isinstance(l.down, DTensor) and (rank==0 or l.down.to_local().numel()<l.down.numel()) for l in layers)
    first = [p.clone() for p in P.update()]
    opt = torch.optim.SGD([l.down for l in layers], lr=.05)
    m.train()(t.tokens(4)[2*rank:2*rank+2]).logits.square().mean().backward(); opt.step(); c.update()
    out[name] = (first, P.update(), P.u, c.C)
wrapped = torch.nn.parallel.DistributedDataParallel(t.tiny_moe())
out['ddp'] = [l.name for l in t.find_moe_layers(wrapped)]
torch.save(out, {folder!r}+f'/two_{{rank}}.pt'); dist.destroy_process_group()
'''
SPLITS = dict(even=('qwen3_moe',{},0), odd=('qwen3_moe',dict(num_experts=5),0), transposed=('gpt_oss',{},0), inside=('mixtral',{},1), one=('qwen3_moe',dict(num_experts=1, num_experts_per_tok=1),0))
def whole(family, kw):
    m,layers = gapped(tiny_moe(family, **kw)); P = Prototypes(layers); first = [p.clone() for p in P.update()]
    opt = torch.optim.SGD([l.down for l in layers], lr=.05)
    with CoActivation(layers) as c: m.train()(tokens(4)).logits.square().mean().backward(); opt.step(); c.update()
    return first, P.update(), P.u, c.C

@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
@pytest.mark.timeout(600)
def test_two_processes_have_the_prototypes_of_one(tmp_path):
    two_processes(SPLIT.format(tests=str(Path(__file__).parent), folder=str(tmp_path)), tmp_path)
    both = [torch.load(tmp_path/f'two_{r}.pt') for r in (0,1)]
    for name,(family,kw,_) in SPLITS.items():
        one = whole(family, kw); assert not torch.allclose(one[0][0], one[1][0], atol=1e-4)
        for two in both:
            for mine,want in zip(two[name], one): assert all(torch.allclose(a, b, atol=1e-4) for a,b in zip(mine, want)), name
    assert both[0]['ddp']==['module.model.layers.0.mlp.experts','module.model.layers.1.mlp.experts']

def test_the_module_needs_torch_only():
    r = subprocess.run([sys.executable, '-c', 'import sys, diverse_rl.experts; print(*sys.modules)'], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert r.returncode==0 and not {'transformers','trl','plotly','peft'} & {m.split('.')[0] for m in r.stdout.split()}
