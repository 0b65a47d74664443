"Stein transport: the formulas against slow ones and autograd, in place against out of place, and the callback in four trainers"
import copy, gc, math, weakref
from dataclasses import dataclass
from pathlib import Path
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.experts import Prototypes, find_moe_layers, prototype_kernel, tiny_moe
from diverse_rl.trust import AnchorBudget
from diverse_rl.transport import (ATTRACTS, REPELS, SCALES, SteinTransport, TransportConfig, add_transport, attract, attract_, attraction_weights, chance_affinity, load_transport, prototype_push,
    push_factor, repelled_pairs, repulsion_gradient, save_transport, transport_callback, transport_layer, written)
from toy import two_processes

def rand(*shape, seed=0, dtype=torch.float64): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
def affinity(e, seed=0):
    a = torch.rand(e, e, generator=torch.Generator().manual_seed(seed), dtype=torch.float64); a = (a+a.T)/2
    return a.fill_diagonal_(1.)
def unit(x): return x/x.norm(dim=-1, keepdim=True)

# ---- attraction

def slow_weights(k, a, rho, kind, alpha):
    e = len(k); out = torch.zeros(e, e, dtype=k.dtype)
    for i in range(e):
        row = [float(k[i,j]) if i==j or kind=='similar' or a[i,j]>=rho else 0. for j in range(e)]
        for j in range(e): out[i,j] = (1-alpha)*(i==j)+alpha*row[j]/sum(row)
    return out

@given(st.integers(1, 7), st.integers(0, 10**6), st.sampled_from(ATTRACTS), st.sampled_from([0.,.3,1.]), st.floats(0, 1))
def test_weights_are_the_formula(e, seed, kind, alpha, rho):
    k,a = prototype_kernel(unit(rand(e, 5, seed=seed)), .4),affinity(e, seed)
    w = attraction_weights(k, a, rho, kind, alpha)
    assert torch.allclose(w, slow_weights(k, a, rho, kind, alpha)) and torch.allclose(w.sum(-1), torch.ones(e, dtype=w.dtype))

@given(st.integers(2, 7), st.integers(0, 10**6), st.floats(0, 1))
def test_pairs(e, seed, rho):
    a = affinity(e, seed); rare,near,every = (repelled_pairs(a, rho, r) for r in REPELS)
    assert not (rare&near).any() and torch.equal(rare|near, every) and every.sum()==e*(e-1) and torch.equal(rare, rare.T)
    assert all(bool(rare[i,j])==(i!=j and bool(a[i,j]<rho)) for i in range(e) for j in range(e))

def test_an_affinity_at_the_threshold_is_coactivated():
    a = torch.tensor([[1.,.25],[.25,1.]])
    assert not repelled_pairs(a, .25).any() and attraction_weights(torch.ones(2,2), a, .25)[0,1]==.5 and chance_affinity(20, 2)==1/19 and chance_affinity(1, 1)==0

@given(st.integers(1, 6), st.integers(1, 5), st.sampled_from([1,7,4099]), st.sampled_from([torch.float64,torch.float32,torch.bfloat16]), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=40)
def test_in_place_is_out_of_place(e, h, f, dtype, turned, seed):
    g = rand(e, f, h, seed=seed).to(dtype); g = g.transpose(1,2) if turned else g
    w = torch.softmax(rand(e, e, seed=seed+1), -1); mine = g.clone(memory_format=torch.preserve_format); assert mine.stride()==g.stride()
    want = (w @ g.double().flatten(1)).view(e, *g.shape[1:])
    squares,left = attract_(mine, w); assert left==0; tol = {torch.float64:1e-10, torch.float32:1e-4, torch.bfloat16:2e-2}[dtype]
    assert mine.dtype==g.dtype and torch.allclose(mine.double(), want, atol=tol, rtol=tol) and torch.allclose(attract(g, w).double(), want, atol=tol, rtol=tol)
    assert torch.allclose(squares.double(), want.square().sum(), rtol=1e-3)

@pytest.mark.parametrize('a,b', [(3,5), (5,4100), (9,1500)])
@pytest.mark.parametrize('turned', [False,True])
def test_a_second_part_goes_in_with_the_first(a, b, turned):
    g = rand(4, b, a).transpose(1,2) if turned else rand(4, a, b); w,l,r = torch.softmax(rand(4, 4), -1),rand(4, a, seed=1),rand(4, b, seed=2)
    want = attract(g, w); squares,_ = attract_(g, w, plus=(l, r))
    assert torch.allclose(g, want+l[:,:,None]*r[:,None]) and torch.allclose(squares, want.square().sum())

def test_attraction_keeps_what_clipping_bounded():
    for seed in range(20):
        k,a,g = prototype_kernel(unit(rand(6, 5, seed=seed)), .5),affinity(6, seed),rand(6, 4, 3, seed=seed)
        m = attract(g, attraction_weights(k, a, .5)); d = torch.where(~repelled_pairs(a, .5), k, 0.).sum(1)
        assert m.flatten(1).norm(dim=1).max() <= g.flatten(1).norm(dim=1).max()+1e-12 and m.norm() <= g.norm()*(d.max()/d.min()).sqrt()+1e-12

# ---- repulsion

def energy(w, u, pairs, tau, signed):
    p = unit(torch.einsum('ehf,ef->eh', w, u)); c = p @ p.T
    return torch.where(pairs, (((c if signed else c*c)-1)/tau).exp(), 0.)

@given(st.integers(2, 6), st.integers(2, 7), st.integers(1, 5), st.integers(0, 10**6), st.booleans(), st.sampled_from([.1,.7]))
@settings(max_examples=40)
def test_repulsion_is_autograd(e, h, f, seed, signed, tau):
    w,u,pairs = rand(e, h, f, seed=seed).requires_grad_(),unit(rand(e, f, seed=seed+1)),repelled_pairs(affinity(e, seed), .5)
    got = repulsion_gradient(w.detach(), u, pairs, tau, signed)
    every, = torch.autograd.grad(energy(w, u, pairs, tau, signed).sum()/2, w)
    assert torch.allclose(got, every, atol=1e-9)
    for i in range(e):
        own, = torch.autograd.grad(energy(w, u, pairs, tau, signed)[i].sum(), w)
        assert torch.allclose(got[i], own[i], atol=1e-9)
    p = written(torch.einsum('ehf,ef->eh', w.detach(), u)).p_EH
    assert ((prototype_push(p, pairs, tau, signed)*p).sum(-1).abs()<1e-9).all()

def test_descent_lowers_the_kernel():
    for seed in range(10):
        w,pairs = rand(5, 7, 4, seed=seed),~torch.eye(5, dtype=torch.bool)
        u = torch.linalg.svd(w).Vh[:,0]; g = repulsion_gradient(w, u, pairs, .4)
        def kernel(w):
            p = torch.linalg.svd(w).U[:,:,0]
            return prototype_kernel(p, .4)[pairs].sum()
        step = .02/g.norm()
        assert kernel(w-step*g)<kernel(w)<kernel(w+step*g)

def test_no_force_between_copies_and_none_on_zero():
    w = rand(1, 5, 4).repeat(3, 1, 1); u = torch.linalg.svd(w).Vh[:,0]; pairs = ~torch.eye(3, dtype=torch.bool)
    assert repulsion_gradient(w, u, pairs, .5).abs().max()<1e-12
    w = rand(3, 5, 4); w[1] = 0
    for signed in (False,True):
        g = repulsion_gradient(w, unit(rand(3, 4)), pairs, .5, signed)
        assert g.isfinite().all() and (g[1]==0).all() and g[0].abs().max()>0

@given(st.integers(2, 5), st.integers(0, 10**6), st.floats(0, 2))
def test_strength(e, seed, eta):
    push,s,d = 2*rand(e, 4, seed=seed),rand(e, seed=seed).abs()+.1,rand(e, seed=seed+1).abs()
    own,layer,plain = (push_factor(push, s, d, eta, x) for x in SCALES)
    n = push.norm(dim=1).clamp(max=1)
    assert torch.allclose(own.norm(dim=1), eta*d*n) and torch.allclose(layer.norm(dim=1), eta*d.square().mean().sqrt()*n) and torch.allclose(plain, eta*push/s[:,None])

# ---- on a model

FAMILIES = ('qwen3_moe','gpt_oss','granitemoe','deepseek_v3')
def batch(seed=0, n=4, t=12): return torch.randint(4, 30, (n, t), generator=torch.Generator().manual_seed(seed))
def backward(model, seed=0):
    x = batch(seed); model.train(); model(input_ids=x, labels=x).loss.backward()
def on(**kw): return TransportConfig(transport=True, **kw)
def stepped(family='qwen3_moe', dtype=torch.float32, seed=0, **kw):
    "A model with gradients, a transport that is one step old, its own gradients and the u it holds next"
    m = tiny_moe(family, seed, **({} if dtype==torch.float32 else dict(moe_intermediate_size=24))).to(dtype); t = SteinTransport(m, on(**kw))
    backward(m, 1); t.apply(); m.zero_grad(); backward(m, 2)
    ahead = Prototypes(t.layers); ahead.load_state_dict(t.prototypes.state_dict())
    for _ in range(t.config.power_steps-1): ahead.update()
    return m,t,[{n:p.grad.clone() for n,p in l.tensors.items()} for l in t.layers],ahead.u

def reference(t, own, held):
    "The formulas, out of place"
    out = []
    for i,l in enumerate(t.layers):
        turn = lambda g: {n:x.transpose(1,2) if n=='down_proj' and l.transposed else x for n,x in g.items()}
        r = transport_layer(turn(own[i]), l.down_EHF.detach().float(), held[i], t.coactivation.affinity(i), l.top_k, t.config)
        out.append((turn(r.grads), r))
    return out

@pytest.mark.parametrize('kw', [{}, dict(repulsion=0.), dict(attraction=0., repulsion=2.), dict(attract='similar', attraction=.5, repel='coactivated'), dict(repel='all', repulsion_scale='layer', transport_tau=.3, transport_threshold=.2),
    dict(repulsion_scale='absolute', repulsion=.01, transport_signed=True), dict(power_steps=2)])
@pytest.mark.parametrize('family', FAMILIES[:2])
def test_apply_is_the_formulas(family, kw):
    m,t,own,held = stepped(family, **kw)
    numbers = t.apply()
    for l,(want,_),g in zip(t.layers, reference(t, own, held), own):
        for n,p in l.tensors.items(): assert torch.allclose(p.grad, want[n], atol=1e-6, rtol=1e-4) and not torch.equal(p.grad, g[n])*(n=='down_proj')
    parts = [r for _,r in reference(t, own, held)]; norm = lambda xs: math.sqrt(sum(float(x.square().sum()) for x in xs))
    assert numbers['transport/driving_norm']==pytest.approx(norm(r.driving['down_proj'] for r in parts), rel=1e-3)
    assert numbers['transport/repulsive_norm']==pytest.approx(norm(r.repulsive_EHF for r in parts), rel=1e-3)
    assert numbers['transport/gradient_norm']==pytest.approx(norm(g['down_proj'] for g in own), rel=1e-3)
    assert numbers['transport/skipped']==0 and 0<=numbers['transport/attracting']<=1 and 0<numbers['transport/overlap']<1

@pytest.mark.parametrize('family', FAMILIES[2:])
def test_other_families(family):
    m,t,own,held = stepped(family); t.apply()
    for l,(want,_) in zip(t.layers, reference(t, own, held)):
        assert all(torch.allclose(p.grad, want[n], atol=1e-6, rtol=1e-4) for n,p in l.tensors.items())

def test_biases_are_transported():
    m,t,own,_ = stepped('gpt_oss', attract='similar', repulsion=0.); names = set(t.layers[0].tensors); t.apply()
    assert {n for n in names if 'bias' in n} and not any(torch.equal(p.grad, own[0][n]) for n,p in t.layers[0].tensors.items())

def test_half_precision_gradients():
    m,t,own,held = stepped(dtype=torch.bfloat16); t.apply()
    for l,(want,_) in zip(t.layers, reference(t, own, held)):
        for n,p in l.tensors.items(): assert p.grad.dtype==torch.bfloat16 and (p.grad-want[n]).float().norm()<.01*p.grad.float().norm()

@pytest.mark.parametrize('bad', [float('nan'),float('inf')])
def test_gradients_that_are_not_finite_leave_the_step_alone(bad):
    m,t,own,_ = stepped(); own[1]['down_proj'][2,3,1] = bad; t.layers[1].down.grad[2,3,1] = bad
    n = t.apply()
    assert n['transport/skipped']==1==t.skipped and 'transport/driving_norm' not in n
    assert all(torch.equal(p.grad.nan_to_num(7, 7, 7), own[i][k].nan_to_num(7, 7, 7)) for i,l in enumerate(t.layers) for k,p in l.tensors.items())
    m.zero_grad(); backward(m, 3); assert t.apply()['transport/driving_norm']>0 and t.skipped==1

@pytest.mark.parametrize('bad', [float('nan'),float('inf')])
@pytest.mark.parametrize('dtype', [torch.float32,torch.bfloat16])
def test_what_is_not_finite_spreads_to_nobody(bad, dtype):
    m,t,own,held = stepped(dtype=dtype); gate = t.layers[1].tensors['gate_up_proj'].grad; gate[2,3,1] = bad
    n = t.apply(); (_,first),(_,second) = reference(t, own, held)
    assert n['transport/skipped']==1==t.skipped and n['transport/driving_norm']>0 and sum(~gate.isfinite().flatten())==1 and ~gate[2,3,1].isfinite()
    keep = gate.clone(); keep[2,3,1] = own[1]['gate_up_proj'][2,3,1]; assert torch.equal(keep, own[1]['gate_up_proj'])                # one block here: all of it is as it came
    for l,r in zip(t.layers, (first, second)): assert (l.down.grad-r.grads['down_proj']).float().norm()<=.01*l.down.grad.float().norm()
    assert not torch.equal(t.layers[0].tensors['gate_up_proj'].grad, own[0]['gate_up_proj'])

def test_blocks_without_it_are_averaged_and_large_numbers_are_finite():
    g = torch.randn(3, 2, 9000); w = torch.softmax(rand(3, 3), -1).float(); g[1,0,5] = math.nan; own = g.clone(); squares,left = attract_(g, w)
    done = (g!=own).flatten(1) & own.isfinite().flatten(1); assert left==3 and not done[:,:8192].any() and done[:,8192:].all() and squares.isfinite()
    big = torch.full((2, 4), 3e38); squares,left = attract_(big, torch.eye(2).mean(0).expand(2, 2)); assert left==0 and (big==3e38).all()

def test_missing_gradients_stay_missing():
    m,t,own,held = stepped(attract='similar'); t.layers[0].down.grad = None; other = t.layers[1]
    for p in other.tensors.values(): p.grad = None
    n = t.apply(); (_,r),_ = reference(t, own, held)
    assert t.layers[0].down.grad is None and all(p.grad is None for p in other.tensors.values()) and n['transport/repulsive_norm']==0
    assert torch.allclose(t.layers[0].tensors['gate_up_proj'].grad, r.driving['gate_up_proj'], atol=1e-6)
    m.zero_grad(); assert t.apply()['transport/driving_norm']==0

def test_an_expert_without_tokens_stays_where_it_is():
    "Zero gradient and nobody to take one from: no push of its own scale, but one on the layer's"
    moved = {}
    for scale in ('expert','layer'):
        m,t,own,_ = stepped(attraction=0., repulsion_scale=scale)
        for p in t.layers[0].tensors.values(): p.grad[2] = 0
        t.apply(); moved[scale] = t.layers[0].down.grad[2].norm().item()
    assert moved['expert']==0<moved['layer']

def test_watching_changes_nothing():
    m,t,own,_ = stepped(attraction=0., repulsion=0.); n = t.apply()
    assert n['transport/overlap']>0 and all(torch.equal(p.grad, own[i][k]) for i,l in enumerate(t.layers) for k,p in l.tensors.items())

def test_frozen_experts():
    m = tiny_moe()
    for l in find_moe_layers(m): l.experts.requires_grad_(False)
    with pytest.raises(ValueError, match='Qwen3MoeForCausalLM trains none of its experts'): SteinTransport(m, on())
    assert not SteinTransport(m, TransportConfig()).on
    m = tiny_moe()
    for l in find_moe_layers(m): l.down.requires_grad_(False)
    with pytest.raises(ValueError, match='does not train down_proj of model.layers.0.mlp.experts.*repulsion=0'): SteinTransport(m, on())
    backward(m); own = find_moe_layers(m)[0].tensors['gate_up_proj'].grad.clone(); n = SteinTransport(m, on(repulsion=0., attract='similar')).apply()
    assert n['transport/mixing']>0==n['transport/driving_norm'] and not torch.equal(own, find_moe_layers(m)[0].tensors['gate_up_proj'].grad)

def test_adapters_on_attention_alone():
    peft = pytest.importorskip('peft')
    m = peft.get_peft_model(tiny_moe(), peft.LoraConfig(target_modules=['q_proj']))
    with pytest.raises(ValueError, match='LoRA on the attention alone'): SteinTransport(m, on())

def test_half_of_the_layers_frozen():
    m = tiny_moe(); find_moe_layers(m)[0].experts.requires_grad_(False); t = SteinTransport(m, on()); backward(m)
    assert [l.name for l in t.layers]==['model.layers.1.mlp.experts'] and t.apply()['transport/driving_norm']>0

def test_a_model_without_experts():
    with pytest.raises(ValueError, match='no mixture-of-experts layer'): SteinTransport(torch.nn.Sequential(torch.nn.Linear(2,2)), on())
    assert SteinTransport(torch.nn.Linear(2,2), TransportConfig()).apply()=={}

@pytest.mark.parametrize('kw,say', [(dict(attraction=1.5), 'attraction=1.5'), (dict(repulsion=-1.), 'repulsion=-1.0.*not by a sign'), (dict(repulsion=math.nan), 'repulsion=nan'), (dict(attract='near'), "attract='near'.*coactivated, similar"),
    (dict(repel='few'), "repel='few'"), (dict(repulsion_scale='x'), "repulsion_scale='x'"), (dict(transport_tau=0.), 'transport_tau=0.0'), (dict(transport_threshold=2.), 'transport_threshold=2.0'), (dict(coactivation_decay=1.), 'coactivation_decay=1.0'), (dict(power_steps=0), 'power_steps=0')])
def test_switches_are_checked(kw, say):
    with pytest.raises(ValueError, match=say): TransportConfig(**kw)

def test_errors_of_the_functions():
    with pytest.raises(ValueError, match=r"grads_En: got 3 experts .*weights_EE is for 2"): attract(torch.zeros(3,2), torch.eye(2))
    with pytest.raises(ValueError, match="attract='x'"): attraction_weights(torch.eye(2), torch.eye(2), .1, 'x')
    with pytest.raises(ValueError, match="repel='x'"): repelled_pairs(torch.eye(2), .1, 'x')
    with pytest.raises(ValueError, match="repulsion_scale='x'"): push_factor(torch.eye(2), torch.ones(2), torch.ones(2), 1., 'x')

def test_with_one_expert_per_token_nobody_shares_and_all_repel():
    "Chance gives a threshold of 0 there, which every pair would reach"
    m = tiny_moe(num_experts_per_tok=1); t = SteinTransport(m, on()); backward(m); own = [l.tensors['gate_up_proj'].grad.clone() for l in t.layers]; n = t.apply()
    assert n['transport/attracting']==0 and n['transport/repelling']==1 and n['transport/mixing']==0 and n['transport/repulsive_norm']>0
    assert all(torch.equal(g, l.tensors['gate_up_proj'].grad) for g,l in zip(own, t.layers))

@pytest.mark.parametrize('k', [3,6])
def test_more_experts_per_token(k):
    "At K=E all pairs always meet: all share, nobody is pushed"
    m = tiny_moe(num_experts_per_tok=k); t = SteinTransport(m, on())
    for s in range(4): m.zero_grad(); backward(m, s); n = t.apply()
    assert (n['transport/attracting'],n['transport/repelling'],n['transport/repulsive_norm'])==(1,0,0) if k==6 else 0<n['transport/attracting']<1 and n['transport/attracting']+n['transport/repelling']==pytest.approx(1)

def test_a_single_expert_is_refused():
    with pytest.raises(ValueError, match='one expert in model.layers.0.mlp.experts.*transport=False'): SteinTransport(tiny_moe(num_experts=1, num_experts_per_tok=1), on())

def test_a_step_along_the_transport_lowers_the_kernel():
    "The whole way, on the layout that lies transposed too: repulsion alone, through the optimiser"
    for family in FAMILIES[:2]:
        m = tiny_moe(family); t = SteinTransport(m, on(attraction=0., repulsion=1., repulsion_scale='absolute', repel='all', transport_tau=.3)); opt = torch.optim.SGD([l.down for l in t.layers], lr=.02)
        kernel = lambda: sum(prototype_kernel(torch.linalg.svd(l.down_EHF.detach()).U[...,0], .3).sum().item() for l in t.layers)
        backward(m); before = kernel()
        for l in t.layers: l.down.grad.zero_()
        t.apply(); opt.step(); down = kernel()
        with torch.no_grad():
            for l in t.layers: l.down.add_(.04*l.down.grad)
        assert down<before-1e-4<before+1e-4<kernel(), family

def test_state_goes_on(tmp_path):
    m,t,own,_ = stepped(); save_transport(t, tmp_path); other = SteinTransport(copy.deepcopy(m), on())
    for p,q in zip(m.parameters(), other.model.parameters()): q.grad = None if p.grad is None else p.grad.clone()
    load_transport(other, tmp_path); t.coactivation._reset(); assert t.apply()==other.apply() and (t.steps,t.skipped)==(other.steps,other.skipped)==(2,0)
    assert all(torch.equal(p.grad, q.grad) for p,q in zip(m.parameters(), other.model.parameters()) if p.grad is not None) and [p.name for p in tmp_path.iterdir()]==['transport.safetensors']
    with pytest.raises(ValueError, match='another model'): load_transport(SteinTransport(tiny_moe(num_experts=4), on()), tmp_path)
    with pytest.raises(FileNotFoundError, match='no transport.safetensors'): load_transport(t, tmp_path/'none')

def test_hooks_come_and_go():
    m = tiny_moe(); hooks = lambda: sum(len(x._forward_hooks)+len(x._forward_pre_hooks) for x in m.modules())
    t = SteinTransport(m, on()); assert hooks()==3
    backward(m); t.apply(); before = [c.clone() for c in t.coactivation.C]; t.remove(); assert hooks()==0
    t.watch(); t.watch(); assert hooks()==3 and all(map(torch.equal, t.coactivation.C, before)) and before[0].sum()>0
    t.remove(); SteinTransport(m, TransportConfig()); assert hooks()==0

# ---- with an anchor budget beside it

def beside(shared, tmp=None, budget=.1, lr=1e-6, steps=4, **kw):
    "Gradients and angles of some steps of a model whose projections are large enough for the quick path; with `tmp`, cut and gone on with in the middle"
    m = tiny_moe('qwen3_moe', hidden_size=128, moe_intermediate_size=96).train(); t = SteinTransport(m, on(**kw)); g = torch.Generator().manual_seed(0)
    for l in t.layers:
        q = [torch.linalg.qr(torch.randn(l.num_experts, n, 96, generator=g)).Q for n in (128,96)]; l.down_EHF.data.copy_(q[0]*torch.cat([torch.ones(1), .5*torch.rand(95, generator=g)])@q[1].mT)
    b = AnchorBudget(t.layers, budget, prototypes=t.prototypes if shared else None); b.sync(); opt = torch.optim.AdamW(m.parameters(), lr=lr); out = []
    for i in range(steps):
        if tmp and i==2: save_transport(t, tmp); t.remove(); t = SteinTransport(m, on(**kw)); load_transport(t, tmp); b.share(t.prototypes)
        m.zero_grad(); backward(m, i); t.apply(); out.append([p.grad.clone() for l in t.layers for p in l.tensors.values()]); opt.step(); out[-1].append(b.project())
    return out

@pytest.mark.parametrize('kw', [{}, dict(power_steps=3)])
def test_one_power_iteration_serves_transport_and_budget(tmp_path, monkeypatch, kw):
    iterations = []; real = Prototypes.update; monkeypatch.setattr(Prototypes, 'update', lambda P, **k: (iterations.append(k), real(P, **k))[1])
    alone = beside(False, **kw); n = len(iterations); assert n==1+4*kw.get('power_steps', 1)
    shared = beside(True, **kw); assert len(iterations)==2*n+1 and sum(bool(k) for k in iterations)==4       # one more, for the step that does not come
    cut = beside(True, tmp_path, **kw)
    for a,s,c in zip(alone, shared, cut):
        assert all(torch.equal(x, y) and torch.equal(x, z) for x,y,z in zip(a[:-1], s, c)) and a[-1]['pulled']==s[-1]['pulled']==0 and s[-1]==c[-1]
        assert s[-1]['angle_max']==pytest.approx(a[-1]['angle_max'], rel=.2)

def test_a_pulled_expert_is_looked_at_again(monkeypatch):
    iterations = []; real = Prototypes.update; monkeypatch.setattr(Prototypes, 'update', lambda P, **k: (iterations.append(k), real(P, **k))[1])
    out = beside(True, budget=1e-3, lr=3e-2, steps=3); assert all(o[-1]['pulled']>0 and o[-1]['angle_max']<=1e-3 for o in out) and len(iterations)==1+2*3

def test_a_budget_shares_with_its_own_layers_alone():
    m,n = tiny_moe(),tiny_moe(num_hidden_layers=1); t = SteinTransport(m, on())
    with pytest.raises(ValueError, match='prototypes: they are of the layers .*layers.1.*the budget is of'): AnchorBudget(find_moe_layers(n), .1, prototypes=t.prototypes)

# ---- in trainers

pytest.importorskip('trl')
from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from diverse_rl.policy import make_tokenizer
@dataclass
class Plain(TransportConfig, TrainingArguments): "Trainer"
@dataclass
class SFT(TransportConfig, SFTConfig): "SFTTrainer"
@dataclass
class DPO(TransportConfig, DPOConfig): "DPOTrainer"
@dataclass
class GRPO(TransportConfig, GRPOConfig): "GRPOTrainer"
WORDS = [chr(97+i) for i in range(20)]
TOK = make_tokenizer(WORDS)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        x = (torch.arange(8+i%3)*(1+i%5)+i)%26+4
        return dict(input_ids=x[:8], labels=x[:8])

def settings_of(config, folder, steps=2, **kw):
    return config(str(folder), **dict(per_device_train_batch_size=4, max_steps=steps, learning_rate=5e-3, lr_scheduler_type='constant', logging_steps=1, report_to='none', save_strategy='no', use_cpu=True, bf16=False,
        disable_tqdm=True, gradient_checkpointing=False)|kw)
def make(kind, folder, model=None, **kw):
    model = model or tiny_moe(initializer_range=.1)
    text = lambda i: ' '.join(WORDS[(i+j)%20] for j in range(5))
    if kind=='plain': t = Trainer(model=model, args=settings_of(Plain, folder, **kw), train_dataset=Rows())
    if kind=='sft': t = SFTTrainer(model=model, args=settings_of(SFT, folder, **kw), train_dataset=Dataset.from_dict(dict(text=[text(i) for i in range(16)])), processing_class=TOK)
    if kind=='dpo': t = DPOTrainer(model=model, ref_model=copy.deepcopy(model), args=settings_of(DPO, folder, **kw), train_dataset=Dataset.from_dict(dict(prompt=['a b']*16, chosen=[' '+text(i) for i in range(16)], rejected=[' '+text(i+3) for i in range(16)])), processing_class=TOK)
    if kind=='grpo': t = GRPOTrainer(model=model, args=settings_of(GRPO, folder, num_generations=4, max_completion_length=4, **kw), reward_funcs=lambda completions, **c: [float(len(set(x.split()) & set('aeiou'))+len(x)/10) for x in completions],
        train_dataset=Dataset.from_dict(dict(prompt=['a b c']*16)), processing_class=TOK)
    t.remove_callback(PrinterCallback)
    return t
def weights(t): return torch.cat([p.detach().flatten() for p in t.model.parameters()])
def trained(t, **kw): t.train(**kw); return weights(t)

@pytest.mark.parametrize('kind', ['plain','sft','dpo','grpo'])
def test_trainers(kind, tmp_path):
    stock = trained(make(kind, tmp_path))
    t = make(kind, tmp_path, transport=True, gradient_accumulation_steps=2); s = add_transport(t); moved = trained(t)
    log = [h for h in t.state.log_history if 'transport/overlap' in h]
    assert [h['step'] for h in log]==[1,2] and s.steps==2 and s.skipped==0 and not torch.equal(stock, moved)
    for h in log: assert h['transport/driving_norm']>0 and h['transport/repulsive_norm']>0 and h['loss'] is not None and 0<h['transport/attracting']<1
    assert s._kept['C'][0].diagonal().sum()==pytest.approx(2, abs=1e-5)                          # top-2: every counted token has two experts
    if kind!='plain': return
    t = make(kind, tmp_path); add_transport(t); same = trained(t)
    assert torch.equal(stock, same)

def test_off_is_stock_and_keeps_nothing(tmp_path):
    stock = trained(make('plain', tmp_path, steps=5))
    off = make('plain', tmp_path, steps=5); s = add_transport(off)
    assert not s.on and s.model is None and s.prototypes is None and not any(m._forward_hooks or m._forward_pre_hooks for m in off.model.modules())
    assert torch.equal(stock, trained(off)) and len(off.callback_handler.callbacks)==len(make('plain', tmp_path).callback_handler.callbacks)
    on_ = make('plain', tmp_path, steps=5, transport=True); add_transport(on_)
    assert not torch.equal(stock, trained(on_)) and not any(m._forward_hooks or m._forward_pre_hooks for m in on_.model.modules())

def test_an_exception_leaves_no_hooks_and_training_goes_on(tmp_path):
    class Stop(TrainerCallback):
        armed = True
        def on_step_end(self, args, state, control, **kw):
            if self.armed and state.global_step==2: raise KeyboardInterrupt
    t = make('plain', tmp_path, transport=True, steps=4); s = add_transport(t); stop = Stop(); t.add_callback(stop)
    with pytest.raises(KeyboardInterrupt): t.train()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in t.model.modules()) and s.steps==2 and s._kept['C'][0].sum()>0
    stop.armed = False; t.train(); assert s.steps==6 and not any(m._forward_hooks for m in t.model.modules())

def test_other_callbacks_see_the_log(tmp_path):
    seen = []
    class See(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kw): seen.append(dict(logs))
    t = make('plain', tmp_path, transport=True, steps=4, logging_steps=2); t.add_callback(See()); add_transport(t); t.train()
    assert ['transport/driving_norm' in x for x in seen]==[True,True,False] and seen[0]['transport/overlap']==t.state.log_history[0]['transport/overlap']

def test_logged_numbers_are_means(tmp_path):
    each,pair = make('plain', tmp_path, transport=True),make('plain', tmp_path, transport=True, logging_steps=2)
    for t in (each,pair): add_transport(t); t.train()
    a = [h['transport/driving_norm'] for h in each.state.log_history[:2]]
    assert pair.state.log_history[0]['transport/driving_norm']==pytest.approx(sum(a)/2) and a[0]!=a[1]

def test_accumulated_gradients_are_transported_once(tmp_path):
    calls = []; t = make('plain', tmp_path, transport=True, steps=3, gradient_accumulation_steps=4); s = add_transport(t); plain = s.apply
    def apply(): calls.append([int(n) for n in s.coactivation.tokens]); return plain()
    s.apply = apply; t.train()
    assert calls==[[4*4*8]*2]*3

@pytest.mark.parametrize('kind', ['plain','grpo'])
def test_resumed_is_uninterrupted(kind, tmp_path):
    kw = dict(transport=True, steps=6, save_strategy='steps', save_steps=3, gradient_accumulation_steps=2); at = tmp_path/'a/checkpoint-3'
    t = make(kind, tmp_path/'a', **kw); add_transport(t); whole = trained(t)
    def resumed(folder, **more):
        t = make(kind, tmp_path/folder, model=AutoModelForCausalLM.from_pretrained(at), **kw); s = add_transport(t, **more); w = trained(t, resume_from_checkpoint=str(at))
        assert s.steps==6
        return w
    assert torch.equal(whole, resumed('a'))
    if kind!='plain': return
    assert torch.equal(whole, resumed('b', resume=at))                               # a checkpoint that lies elsewhere
    with pytest.raises(FileNotFoundError, match='resume='): resumed('c')
    t = SteinTransport(AutoModelForCausalLM.from_pretrained(at), on()); load_transport(t, at); t.coactivation.C[1].copy_(t.coactivation.C[1].roll(1, 0)); save_transport(t, at)
    assert not torch.equal(whole, resumed('a'))                                      # with another state it is not the same: the comparison can fail

def test_experts_of_other_weights_are_noticed(tmp_path):
    "Resuming in transformers 5.24 leaves fused experts as they were"
    m,t,_,_ = stepped(); save_transport(t, tmp_path); load_transport(SteinTransport(copy.deepcopy(m), on()), tmp_path)
    with pytest.raises(ValueError, match='from_pretrained'): load_transport(SteinTransport(tiny_moe(seed=3), on()), tmp_path)

def test_a_transport_of_another_model_is_refused(tmp_path):
    t = make('plain', tmp_path, transport=True); t.add_callback(transport_callback(SteinTransport(tiny_moe(), t.args)))
    with pytest.raises(ValueError, match='made for another model'): t.train()

def test_backends_that_hide_gradients_are_refused(monkeypatch):
    from types import SimpleNamespace as N
    from accelerate.state import AcceleratorState
    s = SteinTransport(tiny_moe(), on()); c = transport_callback(s)
    with pytest.raises(ValueError, match='DeepSpeed'): c.on_train_begin(N(deepspeed='x.json'), N(global_step=0), None)
    monkeypatch.setitem(AcceleratorState._shared_state, 'fsdp_plugin', N(fsdp_version=1))
    with pytest.raises(ValueError, match='fsdp_version: 2'): c.on_train_begin(N(deepspeed=None), N(global_step=0), None)

def test_nothing_is_kept_of_a_model(tmp_path):
    m = tiny_moe(); t = SteinTransport(m, on()); backward(m); t.apply(); t.remove(); ref = weakref.ref(m); del m, t; gc.collect()
    assert ref() is None

# ---- two processes

SPLIT = '''
import copy, os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from diverse_rl.experts import find_moe_layers, tiny_moe
from diverse_rl.transport import SteinTransport, TransportConfig, load_transport, save_transport
rank = int(sys.argv[1]); dist.init_process_group('gloo'); torch.set_num_threads(1)
x = torch.randint(4, 30, (6, 8), generator=torch.Generator().manual_seed(0))
def full(t): return t.full_tensor() if hasattr(t, 'full_tensor') else t
def step(model, lr=.1):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None: p.sub_(lr*p.grad); p.grad = None
def back(model, rows): model(input_ids=rows, labels=rows).loss.backward()
def compare(one, two):
    a, b = one.apply(), two.apply()
    assert a.keys()==b.keys() and all(abs(a[n]-b[n]) < 1e-4*(1+abs(a[n])) for n in a), (a, b)
    assert a['transport/mixing']>0 and a['transport/repulsive_norm']>0, a
    for l, m in zip(one.layers, two.layers):
        for n, p in l.tensors.items():
            q = m.tensors[n]; assert hasattr(q.grad, 'placements') and len(q.to_local()) < len(p)
            assert torch.allclose(p.grad, full(q.grad), atol=1e-6, rtol=1e-3), (n, (p.grad-full(q.grad)).abs().max())
def check(family, extra, **kw):
    cfg = TransportConfig(transport=True, **kw); whole = tiny_moe(family, **extra).train(); split = copy.deepcopy(whole)
    for l in split.model.layers: fully_shard(l)
    fully_shard(split); one, two = SteinTransport(whole, cfg), SteinTransport(split, cfg)
    for k in range(3):
        rows = x.roll(k, 0); back(whole, rows); back(split, rows[3*rank:3*rank+3])
        compare(one, two); step(whole); step(split)
    back(split, x); mine = two.layers[1].down.grad.to_local()
    if rank==1: mine[0] = float('nan')
    before = full(two.layers[0].down.grad).clone(); n = two.apply()
    assert n['transport/skipped']==1 and torch.equal(before, full(two.layers[0].down.grad))        # a NaN of one process stops both
    if rank==1: mine[0] = 0.; two.layers[1].tensors['gate_up_proj'].grad.to_local()[0] = float('nan')
    n = two.apply(); assert n['transport/skipped']==2 and full(two.layers[1].tensors['gate_up_proj'].grad).isfinite().flatten(1).all(1).sum()==whole.config.num_experts-1 if hasattr(whole.config, 'num_experts') else n['transport/skipped']==2
    save_transport(two, os.environ['STATE'], write=rank==0); dist.barrier()
    three = SteinTransport(split, cfg); load_transport(three, os.environ['STATE'])
    assert all(torch.equal(p, q) for p, q in zip(two.prototypes.p, three.prototypes.p)) and three.skipped==2
    dist.barrier()
check('qwen3_moe', dict(num_experts=5))
check('gpt_oss', {}, attract='similar', repel='all', repulsion_scale='layer')
dist.destroy_process_group()
'''
def test_two_processes_are_one(tmp_path):
    "FSDP2 with five experts on two processes, which splits them unevenly; then a family with biases and transposed weights"
    two_processes(SPLIT, tmp_path, PYTHONPATH=str(Path(__file__).parents[1]), STATE=str(tmp_path))
