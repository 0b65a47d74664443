"Losses on experts and routers: the formulas against slow ones, the outputs of stock layers, injected gradients, and three trainers"
import copy, math, pickle
import pytest, torch
from hypothesis import given, settings, strategies as st
from diverse_rl.routing import (RoutingConfig, orthogonality_loss, routing_diversity_loss, routing_entropies, scoring_of, squared_cosines)

def normal(*shape, seed=0, dtype=torch.float64): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)

# ---- the formulas

def slow_orthogonality(y, mask):
    "Token by token, pair by pair"
    total = count = 0.
    for t,m in zip(y.tolist(), mask):
        if not m: continue
        pairs = [(a,b) for i,a in enumerate(t) for b in t[:i]]; count += 1
        norm = lambda a: math.sqrt(sum(v*v for v in a))
        total += sum((sum(x*z for x,z in zip(a,b))/(norm(a)*norm(b)))**2 for a,b in pairs if norm(a) and norm(b))/max(len(pairs), 1)
    return total/max(count, 1)

def slow_diversity(l, lam, mask, scoring):
    "The same with lists and math.log"
    score = dict(softmax=math.exp, sigmoid=lambda v: 1/(1+math.exp(-v)))[scoring]
    H = lambda p: -sum(v*math.log(v) for v in p if v)
    ps = [[s/sum(map(score, t)) for s in map(score, t)] for t,m in zip(l.tolist(), mask) if m]
    if not ps: return 0.
    return lam*sum(map(H, ps))/len(ps)-H([sum(c)/len(ps) for c in zip(*ps)])

@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 10**6))
def test_orthogonality_against_the_formula(t, k, h, seed):
    y = normal(t, k, h, seed=seed); g = torch.Generator().manual_seed(seed)
    y[torch.rand(t, k, generator=g)<.15] = 0
    mask = torch.rand(t, generator=g)<.7
    assert orthogonality_loss(y, mask).item()==pytest.approx(slow_orthogonality(y, mask), abs=1e-12)
    assert orthogonality_loss(y).item()==pytest.approx(slow_orthogonality(y, [1]*t), abs=1e-12)
    scaled = y*torch.rand(t, k, 1, generator=g, dtype=y.dtype).mul(8).sub(4).exp()
    assert torch.allclose(squared_cosines(scaled), squared_cosines(y)) and squared_cosines(y).shape==(t, k*(k-1)//2)

@given(st.integers(1, 6), st.integers(1, 7), st.floats(0, 3), st.sampled_from(['softmax','sigmoid']), st.integers(0, 10**6))
def test_diversity_against_the_formula(t, e, lam, scoring, seed):
    l = 3*normal(t, e, seed=seed); mask = torch.rand(t, generator=torch.Generator().manual_seed(seed))<.7
    v = routing_diversity_loss(l, lam, mask, scoring).item()
    assert v==pytest.approx(slow_diversity(l, lam, mask, scoring), abs=1e-12) and -math.log(e)-1e-9<=v<=lam*math.log(e)+1e-9
    assert routing_diversity_loss(l, lam, scoring=scoring).item()==pytest.approx(slow_diversity(l, lam, [1]*t, scoring), abs=1e-12)

def test_slopes_of_a_small_layer():
    "Through a layer of four gated experts and its router, in double precision"
    up,down,gate,x = (normal(*s, seed=i) for i,s in enumerate([(4,6,5),(4,5,3),(4,5),(7,5)]))
    def layer(up, down, gate):
        logits = x @ gate.T; index = logits.detach().topk(3, -1).indices; a,b = torch.einsum('tkfh,th->tkf', up[index], x).chunk(2, -1)
        return torch.einsum('tkhf,tkf->tkh', down[index], torch.nn.functional.silu(a)*b),logits
    mask = torch.tensor([1,1,0,1,1,0,1]); ps = [p.requires_grad_() for p in (up,down,gate)]
    assert torch.autograd.gradcheck(lambda *p: orthogonality_loss(layer(*p)[0], mask), ps)
    for s in ('softmax','sigmoid'): assert torch.autograd.gradcheck(lambda *p: routing_diversity_loss(layer(*p)[1], .4, mask, s), ps)

def test_edges_are_defined_with_finite_slopes():
    y = normal(4, 3, 5).requires_grad_()
    with torch.no_grad(): y[1] = 0; y[2,0] = 0; y[3] = torch.nan
    mask = torch.tensor([1,1,1,0])
    for v in (orthogonality_loss(y, mask), orthogonality_loss(y[:3,:1]), orthogonality_loss(y, torch.zeros(4)), orthogonality_loss(y[:1]), orthogonality_loss(y[:0])):
        assert torch.autograd.grad(v, y)[0].isfinite().all() and 0<=v<=1
    assert orthogonality_loss(y[:3,:1])==0==orthogonality_loss(y, torch.zeros(4))
    l = torch.tensor([[0.,1e4,-math.inf],[-1e4,0.,1e4],[math.nan]*3]).requires_grad_()
    for s in ('softmax','sigmoid'):
        for m in (torch.tensor([1,1,0]), torch.tensor([0,0,0])): assert torch.autograd.grad(routing_diversity_loss(l, 1., m, s), l)[0].isfinite().all()
    assert routing_diversity_loss(torch.zeros(1, 5), 1.).item()==pytest.approx(0, abs=1e-6)         # one token tells nothing

def test_half_precision_is_computed_in_single():
    y = normal(9, 4, 16, dtype=torch.float32); h = y.bfloat16()
    with torch.autocast('cpu', dtype=torch.bfloat16): v = orthogonality_loss(h)
    assert v.dtype==torch.float32 and torch.equal(v, orthogonality_loss(h.float())) and routing_diversity_loss(y[:,0].bfloat16(), .3).dtype==torch.float32

@given(st.integers(2, 4), st.integers(0, 10**6), st.booleans())
def test_scoring_is_read_off(k, seed, half):
    l = 2*normal(9, 6, seed=seed, dtype=torch.float32); l = l.bfloat16() if half else l
    i = torch.rand(9, 6, generator=torch.Generator().manual_seed(seed)).topk(k).indices
    top = l.gather(1, i)
    assert scoring_of(l, top.float().softmax(-1).to(l.dtype), i)=='softmax' and scoring_of(l, 2.5*top.sigmoid(), i)=='sigmoid'
    assert scoring_of(l, top[:,:1]*0+1, i[:,:1]) is None and scoring_of(l*0, top*0+.5, i) is None
    with pytest.raises(ValueError, match="neither softmax nor sigmoid"): scoring_of(l, (-3*top.float()).softmax(-1), i)

def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"outputs_TKH: got shape \(3, 4\)"): orthogonality_loss(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"mask_T: got shape \(2,\) for 3 tokens"): orthogonality_loss(torch.zeros(3, 4, 5), torch.ones(2))
    with pytest.raises(ValueError, match=r"logits_TE: got shape \(3,\)"): routing_entropies(torch.zeros(3))
    with pytest.raises(ValueError, match="scoring: got 'tanh'"): routing_entropies(torch.zeros(3, 2), scoring='tanh')
    with pytest.raises(ValueError, match=r"orthogonality_coef=-1.*at least 0"): RoutingConfig(orthogonality_coef=-1.)
    with pytest.raises(ValueError, match="routing_diversity_lam=nan"): RoutingConfig(routing_diversity_lam=math.nan)
    assert not RoutingConfig(routing_diversity_lam=2.).routing and RoutingConfig(routing_diversity_coef=.1).routing

# ---- inside transformers models

pytest.importorskip('transformers')
from diverse_rl.experts import MOE_FAMILIES, find_moe_layers, tiny_moe
from diverse_rl.routing import ExpertLosses, ExpertObserver, add_routing, expert_outputs, plane_figure, routing_callback, routing_stats

def batch(rows=3, length=7, seed=0):
    "Left-padded words"
    x = torch.randint(2, 30, (rows, length), generator=torch.Generator().manual_seed(seed)); x[0,:3] = 0
    return dict(input_ids=x, attention_mask=(x!=0).long(), labels=torch.where(x!=0, x, -100))

class Keep(ExpertObserver):
    "Keeps outputs, logits and mask with their graph, to write the losses out"
    rows = ()
    def see(self, experts, y, index, weights): self.rows = [*self.rows, (y, *self._take(experts, len(y))[1:])]; return y

def trainable(model): return [p for p in model.parameters() if p.requires_grad]
def slopes(model, loss): return [torch.zeros_like(p) if g is None else g for p,g in zip(trainable(model), torch.autograd.grad(loss, trainable(model), allow_unused=True))]
def penalty(rows, a, b, lam, scoring): return sum(a*orthogonality_loss(y, m)+b*routing_diversity_loss(l, lam, m, scoring) for y,l,m in rows)/len(rows)
def largest(a, b): return max((x-y).abs().max().item() for x,y in zip(a, b))
def injected(stock, want, got): return largest(want, stock)>1e-3 and largest(want, got)<=1e-3*largest(want, stock)     # the error is small beside what the penalty adds
def close(a, b, tol=1e-5): return max((x-y).abs().max() for x,y in zip(a, b))<=tol*max(x.abs().max() for x in a)

@pytest.mark.parametrize('family', MOE_FAMILIES)
@pytest.mark.parametrize('base', ['grouped_mm','batched_mm'])
def test_families_are_the_stock_bit_for_bit_and_get_the_written_out_gradient(family, base):
    more = dict(num_key_value_heads=2) if family=='deepseek_v3' else {}                               # its attention has one key for each query
    model = tiny_moe(family, num_experts_per_tok=3, **more).train(); model.set_experts_implementation(base); x = batch()
    plain = model(**x); stock = slopes(model, plain.loss)
    with Keep(model) as k:
        out = model(**x); assert torch.equal(out.logits, plain.logits) and close(stock, slopes(model, model(**x).loss), 1e-5)
        k.rows = (); loss = model(**x).loss; p = penalty(k.rows, .7, .3, .5, 'sigmoid' if family=='deepseek_v3' else 'softmax')
    want = slopes(model, loss+p)
    with ExpertLosses(model, orthogonality_coef=.7, routing_diversity_coef=.3, routing_diversity_lam=.5) as l:
        out = model(**x); assert torch.equal(out.logits, plain.logits)
        got = slopes(model, out.loss); logged = l.loss()
    assert injected(stock, want, got)
    assert logged.total==pytest.approx(p.item(), abs=1e-5) and logged.passes==1 and logged.total==pytest.approx(.7*logged.orthogonality+.3*logged.diversity)
    assert torch.equal(model(**x).logits, plain.logits) and {l.experts.config._experts_implementation for l in find_moe_layers(model)}=={base}

def test_eager_agrees_up_to_the_order_of_adding():
    x = batch()
    for k,tol in ((2, 0.), (4, 1e-6)):
        model = tiny_moe('qwen3_moe', num_experts_per_tok=k); model.set_experts_implementation('eager'); plain = model(**x).logits
        with ExpertObserver(model): assert (model(**x).logits-plain).abs().max()<=tol*plain.abs().max()
        a = expert_outputs(model, x)[0].outputs_TKH; model.set_experts_implementation('grouped_mm')
        assert torch.allclose(a, expert_outputs(model, x)[0].outputs_TKH, atol=1e-6)

def test_outputs_are_the_experts_own():
    model = tiny_moe('gpt_oss'); l = find_moe_layers(model)[0]; kept = {}
    with torch.no_grad():
        for n,p in l.tensors.items(): p.add_(.1*normal(*p.shape, dtype=torch.float32))          # biases that matter
    h = l.experts.register_forward_pre_hook(lambda m, a: kept.update(x=a[0])); s = expert_outputs(model, batch())[0]; h.remove()
    e = l.experts
    for t,k in ((4,0), (10,1)):
        i = s.index_TK[t,k]; want = e._apply_gate(kept['x'][t] @ e.gate_up_proj[i]+e.gate_up_proj_bias[i]) @ e.down_proj[i]+e.down_proj_bias[i]
        assert torch.allclose(s.outputs_TKH[t,k], want, atol=1e-5)
    assert s.mask_T.tolist()==batch()['attention_mask'].flatten().tolist() and s.logits_TE.shape==(21,6) and s.weights_TK.shape==(21,2)

def test_padding_does_not_count():
    model = tiny_moe('qwen3_moe').train(); x = batch(); full,cut = x,{k:v[1:] for k,v in x.items()}
    lone = {k:v[:1,3:] for k,v in x.items()}
    part = lambda x: [orthogonality_loss(p.outputs_TKH, p.mask_T).item() for p in expert_outputs(model, x)]
    n = torch.tensor([4., 14.]); mixed = (n[0]*torch.tensor(part(lone))+n[1]*torch.tensor(part(cut)))/18
    assert torch.allclose(mixed, torch.tensor(part(full)), atol=1e-5) and not torch.allclose(mixed, torch.tensor([orthogonality_loss(p.outputs_TKH) for p in expert_outputs(model, full)]), atol=1e-4)

@pytest.mark.parametrize('reentrant', [False,True])
def test_checkpointing_gives_the_same_gradient_and_counts_once(reentrant):
    def run(on):
        model = tiny_moe('qwen3_moe', num_hidden_layers=3).train()
        if on: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=reentrant)); model.enable_input_require_grads()
        with ExpertLosses(model, orthogonality_coef=1., routing_diversity_coef=.5) as l:
            for i in range(2): model(**batch(seed=i)).loss.backward()
            return [p.grad for p in trainable(model)],l.loss()
    (a,la),(b,lb) = run(False),run(True)
    assert close(a, b) and la.passes==lb.passes==2 and la.total==pytest.approx(lb.total, abs=1e-6)

def test_two_passes_before_one_backward_keep_their_masks():
    model = tiny_moe('qwen3_moe').train(); one,two = batch(seed=1),{**batch(seed=2)}; two['attention_mask'] = torch.ones_like(two['attention_mask'])
    with ExpertLosses(model, orthogonality_coef=1.):
        apart = [a+b for a,b in zip(slopes(model, model(**one).loss), slopes(model, model(**two).loss))]
        together = slopes(model, model(**one).loss+model(**two).loss)
        model.gradient_checkpointing_enable(); again = slopes_by_backward(model, lambda: model(**one).loss+model(**two).loss)
    assert close(apart, together) and close(apart, again)
def slopes_by_backward(model, loss):
    model.zero_grad(); loss().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable(model)]

def test_accumulated_halves_are_the_whole():
    model = tiny_moe('qwen3_moe').train(); x = {k:v[1:].repeat(2, 1)[:4] for k,v in batch(5).items()}; halves = [{k:v[i:i+2] for k,v in x.items()} for i in (0,2)]
    with ExpertLosses(model, orthogonality_coef=1.) as l:
        whole = slopes(model, 0*model(**x).loss); l.scale = .5
        parts = [slopes(model, 0*model(**h).loss) for h in halves]
    assert close(whole, [a+b for a,b in zip(*parts)]) and max(g.abs().max() for g in whole)>1e-3

def test_silent_without_training_or_gradients():
    model = tiny_moe('qwen3_moe').train(); x = batch()
    with ExpertLosses(model, orthogonality_coef=1.) as l:
        with torch.no_grad(): model(**x)
        model.generate(input_ids=x['input_ids'], max_new_tokens=2, do_sample=False)
        a = slopes(model.eval(), model(**x).loss); assert l.loss().passes==0 and math.isnan(l.loss().orthogonality)
        seen = []; l.see = lambda e, y, *_: seen.append(e) or y
        model(**x); assert not seen                                                             # the outputs are not even taken apart
        model.train()(**x); assert len(seen)==2
    assert close(a, slopes(model.eval(), model(**x).loss), 0.)

@pytest.mark.parametrize('base', ['grouped_mm','batched_mm'])
def test_autocast(base):
    model = tiny_moe('qwen3_moe').train(); model.set_experts_implementation(base); x = batch()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        plain = model(**x)
        with ExpertLosses(model, orthogonality_coef=1., routing_diversity_coef=1.) as l: out = model(**x)
    g = slopes(model, out.loss)
    assert torch.equal(plain.logits, out.logits) and l.loss().passes==1 and all(v.isfinite().all() for v in g) and largest(g, slopes(model, plain.loss))>1e-3

def test_models_in_bf16():
    model = tiny_moe('mixtral', intermediate_size=24).to(torch.bfloat16).train(); x = batch(); plain = model(**x)
    with ExpertLosses(model, orthogonality_coef=1., routing_diversity_coef=1.) as l:
        out = model(**x); out.loss.backward()
        assert torch.equal(plain.logits, out.logits) and 0<l.loss().orthogonality<1

def test_frozen_experts_and_peft():
    peft = pytest.importorskip('peft'); x = batch()
    model = peft.get_peft_model(tiny_moe('qwen3_moe'), peft.LoraConfig(r=2, target_modules=['q_proj','v_proj'], init_lora_weights=False)).train()
    plain = model(**x)
    with Keep(model) as k: out = model(**x); want = slopes(model, out.loss+penalty(k.rows, 1., 1., 1., 'softmax'))
    assert torch.equal(out.logits, plain.logits) and all(m is not None for *_,m in k.rows)
    with ExpertLosses(model, orthogonality_coef=1., routing_diversity_coef=1., routing_diversity_lam=1.) as l: got = slopes(model, model(**x).loss)
    assert injected(slopes(model, plain.loss), want, got) and l.loss().passes==1
    assert model.get_base_model().config._experts_implementation=='grouped_mm'

def test_lora_on_the_fused_weights():
    peft = pytest.importorskip('peft'); x = batch()
    model = peft.get_peft_model(tiny_moe('qwen3_moe'), peft.LoraConfig(r=2, target_modules=[], target_parameters=['mlp.experts.gate_up_proj','mlp.experts.down_proj'], init_lora_weights=False)).train()
    plain = model(**x)
    with ExpertLosses(model, orthogonality_coef=1.): out = model(**x); g = slopes(model, out.loss)
    assert torch.equal(plain.logits, out.logits) and largest(g, slopes(model, plain.loss))>1e-3

def test_closing_copies_and_saving(tmp_path):
    model = tiny_moe('qwen3_moe'); x = batch(); plain = model(**x).logits; before = [dict(m.__dict__) for m in (find_moe_layers(model)[0].router,)][0]['_forward_hooks'].copy()
    losses = ExpertLosses(model.train(), orthogonality_coef=1.); model.save_pretrained(tmp_path); twin = copy.deepcopy(model)
    with pytest.raises(ValueError, match='attached already'): ExpertLosses(model, orthogonality_coef=1.)
    stats = routing_stats(model, dict(input_ids=x['input_ids'])); slopes(model, model(**x).loss); assert losses.loss().passes==1    # measuring while attached
    losses.close(); losses.close()
    assert model.config._experts_implementation=='grouped_mm' and find_moe_layers(model)[0].router._forward_hooks==before and stats==routing_stats(model, dict(input_ids=x['input_ids']))
    assert torch.equal(twin(**x).logits, plain) and find_moe_layers(twin)[0].experts._watch is None
    loaded = type(model).from_pretrained(tmp_path); assert loaded.config._experts_implementation=='grouped_mm' and 'diverse_rl' not in (tmp_path/'config.json').read_text()

def test_what_cannot_be_watched_is_refused_and_nothing_changed():
    model = tiny_moe('qwen3_moe'); layer = find_moe_layers(model)[1]; c = model.config
    def refused(match, **kw):
        with pytest.raises(ValueError, match=match): ExpertLosses(model, **dict(orthogonality_coef=1.)|kw)
        assert not any(getattr(l.experts, '_watch', None) for l in find_moe_layers(model))
    refused('there is nothing to attach', orthogonality_coef=0.); refused("scoring: got 'x'", scoring='x'); refused('layers: got none', layers=[])
    refused('does not belong to this model', layers=find_moe_layers(tiny_moe('qwen3_moe')))
    layer.experts._is_expert_parallel = True; refused(r'layers.1.mlp.experts .*expert parallelism'); layer.experts._is_expert_parallel = False
    c._experts_implementation = 'sonicmoe'; refused("'sonicmoe'.*choose one of grouped_mm, batched_mm, eager"); c._experts_implementation = 'grouped_mm'
    with pytest.raises(ValueError, match='Linear has no mixture-of-experts layer'): ExpertLosses(torch.nn.Linear(2, 3), orthogonality_coef=1.)

def test_a_router_without_logits():
    model = tiny_moe('qwen3_moe').train(); l = find_moe_layers(model)[0]
    h = l.router.register_forward_hook(lambda m, a, out: (out[0][:,:2], *out[1:]))
    with ExpertLosses(model, routing_diversity_coef=1.), pytest.raises(ValueError, match='returns no logits of 6 experts; set routing_diversity_coef=0'): model(**batch())
    with ExpertLosses(model, orthogonality_coef=1.) as s: model(**batch()).loss.backward(); assert s.loss().passes==1

def test_a_step_on_each_loss_lowers_it_alone():
    def after(**kw):
        model = tiny_moe('mixtral', num_local_experts=5).train(); x = batch(6); opt = torch.optim.SGD(model.parameters(), lr=.3)
        a = routing_stats(model, x|dict(labels=None))
        with ExpertLosses(model, **kw):
            for _ in range(6): opt.zero_grad(); (0*model(**x).loss).backward(); opt.step()
        return a,routing_stats(model, x|dict(labels=None))
    a,b = after(orthogonality_coef=1.); assert b.overlap<.8*a.overlap
    a,b = after(routing_diversity_coef=1., routing_diversity_lam=1.); assert b.entropy_of_mean-b.mean_entropy>a.entropy_of_mean-a.mean_entropy+.05
    a,b = after(routing_diversity_coef=1., routing_diversity_lam=0.); assert b.entropy_of_mean>a.entropy_of_mean

# ---- trainers

from transformers import Trainer, TrainerCallback, TrainingArguments
from datasets import Dataset
from dataclasses import dataclass
@dataclass
class Arguments(RoutingConfig, TrainingArguments): "Switches and stock arguments"
COMMON = dict(report_to='none', logging_steps=1, save_strategy='no', use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, learning_rate=1e-2)

def trained(tmp, cls=Arguments, attach=True, steps=5, accumulate=1, rows=40, **kw):
    "A stock Trainer after a few steps"
    x = batch(rows, seed=3)['input_ids'][1:].tolist(); data = Dataset.from_dict(dict(input_ids=x, labels=x))
    t = Trainer(model=tiny_moe('qwen3_moe'), args=cls(str(tmp), per_device_train_batch_size=4, gradient_accumulation_steps=accumulate, max_steps=steps, **COMMON|kw), train_dataset=data)
    if attach: add_routing(t)
    t.train(); return t
def same(a, b): return all(torch.equal(p, q) for p,q in zip(a.model.parameters(), b.model.parameters()))

def test_off_is_stock_bit_for_bit(tmp_path):
    plain,off,on = trained(tmp_path, TrainingArguments, False),trained(tmp_path),trained(tmp_path, orthogonality_coef=1e-3)
    assert same(plain, off) and not same(plain, on) and not any('routing' in k for h in off.state.log_history for k in h)

def test_trainer_logs_and_detaches(tmp_path):
    later = []
    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kw): later.append(dict(logs))
    t = trained(tmp_path, steps=2, orthogonality_coef=.1, routing_diversity_coef=.1, routing_diversity_lam=.5, bf16=True, gradient_checkpointing=True)
    rows = [h for h in t.state.log_history if 'loss' in h]; assert len(rows)==2
    for h in rows: assert 0<h['routing/orthogonality']<=1 and h['routing/diversity']==pytest.approx(.5*h['routing/mean_entropy']-h['routing/entropy_of_mean'])
    assert t.model.config._experts_implementation=='grouped_mm' and not t.model.model.layers[0].mlp.gate._forward_hooks
    t.callback_handler.callbacks.insert(1, Reporter()); t.args.max_steps = 1; t.train(); assert any('routing/diversity' in l for l in later)

def test_an_exception_detaches(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kw): raise KeyboardInterrupt
    x = batch(8, seed=3)['input_ids'].tolist(); t = Trainer(model=tiny_moe('qwen3_moe'), args=Arguments(str(tmp_path), per_device_train_batch_size=4, max_steps=2, orthogonality_coef=.1, **COMMON), train_dataset=Dataset.from_dict(dict(input_ids=x, labels=x)), callbacks=[Stop()])
    add_routing(t)
    with pytest.raises(KeyboardInterrupt): t.train()
    assert t.model.config._experts_implementation=='grouped_mm' and not any(m._forward_hooks or m._forward_pre_hooks or getattr(m, '_watch', None) for m in t.model.modules())
    ExpertLosses(t.model, orthogonality_coef=1.).close()                    # nobody else is attached

def test_a_pickled_model_is_not_watched():
    model = tiny_moe('qwen3_moe').train(); x = batch(); plain = model(**x).logits
    with ExpertLosses(model, orthogonality_coef=1., routing_diversity_coef=1.) as losses:
        twin = pickle.loads(pickle.dumps(model)); out = twin(**x); out.loss.backward(); assert losses.loss().passes==0 and torch.equal(out.logits, plain)
        model(**x).loss.backward(); assert losses.loss().passes==1

def test_a_short_last_step_counts_fully(tmp_path):
    scales = []
    class Spy(TrainerCallback):
        def on_substep_end(self, args, state, control, **kw): scales.append(cb.losses.scale)
        def on_step_end(self, args, state, control, **kw): scales.append(cb.losses.scale)
    x = batch(21, seed=3)['input_ids'][1:].tolist()                                              # 20 rows: batches of 4, three to a step
    t = Trainer(model=tiny_moe('qwen3_moe'), args=Arguments(str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=1, orthogonality_coef=1., **COMMON), train_dataset=Dataset.from_dict(dict(input_ids=x, labels=x)), callbacks=[Spy()])
    cb = add_routing(t); t.train(); assert scales==pytest.approx([1/3]*3+[1/2]*2)

def test_fp16_is_refused(tmp_path):
    cb = routing_callback(RoutingConfig(orthogonality_coef=1.)); args = Arguments(str(tmp_path), **COMMON); args.fp16 = True
    with pytest.raises(ValueError, match='use bf16=True'): cb.on_train_begin(args, None, None, model=tiny_moe('qwen3_moe'))

def test_a_configuration_without_switches(tmp_path):
    with pytest.raises(TypeError, match=r"TrainingArguments has no orthogonality_coef; .*class Config\(RoutingConfig, TrainingArguments\)"): routing_callback(TrainingArguments(str(tmp_path), **COMMON))

def test_sft(tmp_path):
    trl = pytest.importorskip('trl'); from diverse_rl.policy import make_tokenizer
    tok = make_tokenizer(list('abcdefgh')); data = Dataset.from_dict(dict(text=['a b c d e','b c d','h g f e d c','a c e g']*4))
    @dataclass
    class Config(RoutingConfig, trl.SFTConfig): "Both"
    t = trl.SFTTrainer(model=tiny_moe('qwen3_moe', vocab_size=len(tok)), args=Config(str(tmp_path), per_device_train_batch_size=4, max_steps=2, bf16=False, orthogonality_coef=.2, routing_diversity_coef=.2, **COMMON), train_dataset=data, processing_class=tok)
    add_routing(t); t.train(); rows = [h for h in t.state.log_history if 'loss' in h]
    assert len(rows)==2 and all(0<h['routing/orthogonality']<=1 and h['routing/diversity']<0 for h in rows) and t.model.config._experts_implementation=='grouped_mm'

def test_grpo(tmp_path):
    trl = pytest.importorskip('trl'); from diverse_rl.policy import make_tokenizer
    tok = make_tokenizer(list('abcdefgh'))
    @dataclass
    class Config(RoutingConfig, trl.GRPOConfig): "Both"
    def run(attach=True, **kw):
        t = trl.GRPOTrainer(model=tiny_moe('qwen3_moe', vocab_size=len(tok)), reward_funcs=lambda completions, **_: [float(c.count('a')) for c in completions], processing_class=tok,
            args=Config(str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_completion_length=3, max_steps=2, bf16=False, beta=0., **COMMON|kw), train_dataset=Dataset.from_dict(dict(prompt=['a b','c d e']*4)))
        if attach: add_routing(t)
        t.train(); return t,[h for h in t.state.log_history if 'loss' in h]
    (plain,_),(off,_),(on,rows) = run(False),run(),run(orthogonality_coef=.2, routing_diversity_coef=.2)
    assert same(plain, off) and not same(plain, on) and len(rows)==2 and all(0<h['routing/orthogonality']<=1 and h['routing/diversity']<0 for h in rows)

def test_values_are_averaged_over_processes(monkeypatch):
    model = tiny_moe('qwen3_moe').train(); losses = ExpertLosses(model, orthogonality_coef=1.); rows = []
    for i in range(2): model(**batch(seed=i)).loss.backward(); rows.append(losses._sums); losses._sums = None
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True); monkeypatch.setattr(torch.distributed, 'all_reduce', lambda x: x.add_(rows[1]))
    want = (rows[0][0]+rows[1][0]).item()/4; losses._sums = rows[0].clone(); got = losses.loss()
    assert got.passes==2 and got.orthogonality==pytest.approx(want) and abs(rows[0][0]-rows[1][0])>1e-6
    nothing = losses.loss(); assert nothing.passes==1 and nothing.orthogonality==pytest.approx(rows[1][0].item()/2)       # a process that had no pass takes part

def test_figure():
    from diverse_rl.routing import RoutingStats
    f = plane_figure(dict(a=[RoutingStats(.5, 1., 1.), RoutingStats(.2, 1.5, .5)]), every=5)
    assert [list(t.x) for t in f.data]==[[0,5],[1.,.5]] and [round(v, 3) for v in f.data[1].y]==[1.,1.5]
