"""What prototypes, Stein transport and the budgets of a step cost beside its backward pass: `python benchmarks/transport_step.py [REPEATS]`

A Qwen3-MoE of two layers, hidden 512, 20 experts of inner width 512, two per token, 4096 tokens, one thread. After each backward pass the whole of
`SteinTransport.apply` is timed (co-activation, power iteration, check for gradients that are not finite, attraction, repulsion, numbers for the log), with half
of the pairs attracting, and the counting of co-activations on the routers' outputs, which happens in the forward pass. Then AdamW takes a step (learning rate 1e-5)
and both budgets are timed: `AnchorBudget.project` against the anchor of the first step (budget .1 rad), with the power iteration that the next transport then takes, and the five sums of the behaviour budget over 8 x 512 log-probabilities (`free`; `exact` is a forward pass more).
The spectrum of the output projections is set to one like that of trained ones, first singular value 1, second .65: random matrices have no gap, and without one a budget has to look at every expert closely in
every step. Both cases are rows, and so are a step in which every expert is pulled back, and a sync, which comes once per batch of rollouts.
The floor is reading the gradients of the experts once. Processor time, the fastest of the repeats of each: what moves much memory suffers most from a busy machine."""
import os, sys, time
from pathlib import Path
for k,v in dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', HF_HUB_OFFLINE='1').items(): os.environ.setdefault(k, v)
import numpy as np
import torch
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
HIDDEN,INNER,EXPERTS,LAYERS,ROWS,LENGTH = 512,512,20,2,8,512

def clock(f):
    "Processor seconds of one call"
    s = time.process_time(); f()
    return time.process_time()-s

def policy():
    from diverse_rl.experts import tiny_moe
    return tiny_moe('qwen3_moe', vocab_size=512, hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=EXPERTS, num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        max_position_embeddings=LENGTH, initializer_range=.02).train()

def one_layer_of_counting(transport):
    "Counting the routers' choices of one step, as the hooks do"
    from diverse_rl.experts import token_pairs
    x = torch.randint(0, EXPERTS, (ROWS*LENGTH, 2), generator=torch.Generator().manual_seed(0))
    return lambda: [token_pairs(x, EXPERTS) for _ in transport.layers]

def gapped(layers, ratio=.65):
    "Output projections with the spectrum of trained ones, at their old size"
    from power_iteration import trained_like
    for k,l in enumerate(layers):
        w = trained_like(ratio, k, shape=(EXPERTS,HIDDEN,INNER)); l.down_EHF.data.copy_(w*(l.down.detach().norm()/w.norm()))

def beyond(budget):
    "Seconds of the anchor budget when the last step has turned every expert by some .3 rad"
    for k,(l,a) in enumerate(zip(budget.layers, budget.principals)):
        w = l.down_EHF.data; p = a.p_EH.to(w); q = torch.nn.functional.normalize(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)), dim=-1)
        w += .3*q[:,:,None]*(w.mT @ p[...,None])[:,None,:,0]
    numbers = [None]; s = clock(lambda: numbers.__setitem__(0, budget.project())); assert numbers[0]['pulled']==1 and numbers[0]['angle_max']<=.1, numbers
    return s

def seconds(repeats):
    "Seconds (R,7): backward, transport, counting, prototypes, floor, anchor budget, behaviour budget; seconds of a sync, and of a step in which every expert is pulled"
    from diverse_rl.transport import SteinTransport, TransportConfig
    from diverse_rl.experts import Prototypes
    from diverse_rl.trust import AnchorBudget, drift_of, drift_sums
    model = policy(); t = SteinTransport(model, TransportConfig(transport=True)); out = []; gapped(t.layers)
    tokens = torch.randint(0, 512, (ROWS,LENGTH), generator=torch.Generator().manual_seed(0)); count = one_layer_of_counting(t)
    budget = AnchorBudget(t.layers, .1, prototypes=t.prototypes); budget.sync(); apart = Prototypes(t.layers); sync = clock(budget.sync)
    opt = torch.optim.AdamW([l.down for l in t.layers], lr=1e-5); logps = -torch.rand(ROWS, LENGTH); old = logps+.01*torch.randn(ROWS, LENGTH)
    for r in range(repeats+1):
        model.zero_grad(); loss = model(input_ids=tokens, labels=tokens).loss
        backward = clock(loss.backward); grads = [p.grad for l in t.layers for p in l.tensors.values()]
        floor = min(clock(lambda: [g.sum() for g in grads]) for _ in range(2)); proto = clock(apart.update)
        numbers = [None]; moved = clock(lambda: numbers.__setitem__(0, t.apply()))
        assert numbers[0]['transport/mixing']>.05 and numbers[0]['transport/repulsive_norm']>0, numbers
        opt.step(); anchored = clock(lambda: numbers.__setitem__(0, budget.project())); assert numbers[0]['pulled']==0<numbers[0]['angle_max']<=.1, numbers
        drift = clock(lambda: drift_of(drift_sums(logps, old, torch.ones(ROWS, LENGTH))))
        out.append([backward, moved, clock(count), proto, floor, anchored, drift])
    return np.array(out[1:]), sync, beyond(budget)            # the first warms up, and starts the prototypes at random

def no_gap():
    "Seconds of the anchor budget where the weights are random"
    from diverse_rl.experts import find_moe_layers
    from diverse_rl.trust import AnchorBudget
    model = policy(); b = AnchorBudget(find_moe_layers(model), .1); b.sync(); g = torch.Generator().manual_seed(0)
    for l in b.layers: l.down.data.add_(1e-5*torch.randn(l.down.shape, generator=g).sign())
    return clock(b.project)

def rows(repeats=7):
    every,sync,pulled = seconds(repeats); s = every.min(0); share = s[1:]/s[0]; total = share[0]+share[1]+share[4]+share[5]; what = f'backward of the same step, {EXPERTS} experts, hidden {HIDDEN}, {ROWS*LENGTH} tokens, top-2, {LAYERS} layers, second singular value .65 of the first'
    return [dict(name='transport_step', value=total, unit='ratio', against=f'{what}; prototypes, transport and both budgets, target <= 0.05{", missed" if total>.05 else ""}'),
        dict(name='transport_without_budgets', value=share[0]+share[1], unit='ratio', against=f'{what}: prototypes, transport and counting'),
        dict(name='transport_prototypes', value=share[2], unit='ratio', against=f'{what}: power iteration alone'),
        dict(name='transport_counting', value=share[1], unit='ratio', against=f'{what}: counting co-activations alone'),
        dict(name='transport_anchor', value=share[4], unit='ratio', against=f'{what}: anchor budget alone, nobody beyond it'),
        dict(name='transport_anchor_all_pulled', value=pulled/s[0], unit='ratio', against=f'{what}: anchor budget alone, every expert beyond it'),
        dict(name='transport_anchor_no_gap', value=no_gap()/s[0], unit='ratio', against=f'{what}: anchor budget alone, but with random output projections, which have no gap'),
        dict(name='transport_anchor_sync', value=sync/s[0], unit='ratio', against=f'{what}: a sync of the anchor, once per batch of rollouts'),
        dict(name='transport_behaviour', value=share[5], unit='ratio', against=f'{what}: behaviour budget (free) alone'),
        dict(name='transport_floor', value=share[3], unit='ratio', against=f'{what}: reading the expert gradients once')]

if __name__=='__main__':
    from run import table
    torch.set_num_threads(1); print(table(rows(int(sys.argv[1]) if len(sys.argv)>1 else 7)))
