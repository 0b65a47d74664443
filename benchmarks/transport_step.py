"""What prototypes and Stein transport of a step cost beside its backward pass: `python benchmarks/transport_step.py [REPEATS]`

A Qwen3-MoE of two layers, hidden 512, 20 experts of inner width 512, two per token, 4096 tokens, one thread. After each backward pass the whole of
`SteinTransport.apply` is timed (co-activation, power iteration, check for gradients that are not finite, attraction, repulsion, numbers for the log), with half
of the pairs attracting, and the counting of co-activations on the routers' outputs, which happens in the forward pass. Prototypes are timed alone as well.
The floor is reading the gradients of the experts once. Processor time, the fastest of the repeats of each: what moves much memory suffers most from a busy machine."""
import os, sys, time
from pathlib import Path
for k,v in dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', HF_HUB_OFFLINE='1').items(): os.environ.setdefault(k, v)
import numpy as np
import torch
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
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

def seconds(repeats):
    "Seconds (R,5): backward, transport, counting, prototypes, floor"
    from diverse_rl.transport import SteinTransport, TransportConfig
    model = policy(); t = SteinTransport(model, TransportConfig(transport=True)); out = []
    tokens = torch.randint(0, 512, (ROWS,LENGTH), generator=torch.Generator().manual_seed(0)); count = one_layer_of_counting(t)
    for r in range(repeats+1):
        model.zero_grad(); loss = model(input_ids=tokens, labels=tokens).loss
        backward = clock(loss.backward); grads = [p.grad for l in t.layers for p in l.tensors.values()]
        floor = min(clock(lambda: [g.sum() for g in grads]) for _ in range(2)); proto = clock(t.prototypes.update)
        numbers = [None]; moved = clock(lambda: numbers.__setitem__(0, t.apply()))
        assert numbers[0]['transport/mixing']>.05 and numbers[0]['transport/repulsive_norm']>0, numbers
        out.append([backward, moved, clock(count), proto, floor])
    return np.array(out[1:])                                  # the first warms up, and starts the prototypes at random

def rows(repeats=7):
    s = seconds(repeats).min(0); share = s[1:]/s[0]; what = f'backward of the same step, {EXPERTS} experts, hidden {HIDDEN}, {ROWS*LENGTH} tokens, top-2, {LAYERS} layers'
    return [dict(name='transport_step', value=share[0]+share[1], unit='ratio', against=f'{what}, target <= 0.05'),
        dict(name='transport_prototypes', value=share[2], unit='ratio', against=f'{what}: power iteration alone'),
        dict(name='transport_counting', value=share[1], unit='ratio', against=f'{what}: counting co-activations alone'),
        dict(name='transport_floor', value=share[3], unit='ratio', against=f'{what}: reading the expert gradients once')]

if __name__=='__main__':
    from run import table
    torch.set_num_threads(1); print(table(rows(int(sys.argv[1]) if len(sys.argv)>1 else 7)))
