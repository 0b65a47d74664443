"""Step time and memory of GRPO with the exploration term against GRPO without it: `python benchmarks/exploration_step.py`

Time: one run of one trainer on the small maze policy; steps come in pairs with the same prompts and the same forced completions, one with the term
(k3 in the loss, snapshot held) and one with `exploration_coef` at 0. The floor is one forward pass without gradient over the batch, measured between
the steps. Seconds are processor time with one thread; a ratio is taken inside each pair and the median reported.
Memory: a LoRA policy of 22 million parameters, peak resident memory over what was there after the imports, with and without the term, each in a process of its own."""
import os, resource, subprocess, sys, tempfile, time, warnings
from pathlib import Path
for k,v in dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', HF_HUB_OFFLINE='1', TOKENIZERS_PARALLELISM='false').items(): os.environ.setdefault(k, v)
import numpy as np
import torch
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from step_time import B, G, SKIP, force, writing

def trainer_of(model, tok, rows, folder, batch, g, length, steps, **kw):
    "A `DiverseGRPOTrainer` on `rows` of prompts, paid by the length of what it writes"
    from datasets import Dataset
    from transformers import PrinterCallback
    from diverse_rl.trainer import DiverseGRPOConfig, DiverseGRPOTrainer
    peft = kw.pop('peft_config', None)
    args = DiverseGRPOConfig(folder, per_device_train_batch_size=batch, num_generations=g, max_completion_length=length, max_steps=steps, learning_rate=1e-6,
        lr_scheduler_type='constant', beta=0., shuffle_dataset=False, report_to='none', logging_steps=1, save_strategy='no', use_cpu=True, bf16=False, disable_tqdm=True,
        dataloader_pin_memory=False, gradient_checkpointing=False, **kw)
    t = DiverseGRPOTrainer(model=model, reward_funcs=lambda completion_ids, **_: [len(c)/100 for c in completion_ids], args=args, train_dataset=Dataset.from_dict(dict(prompt=rows)), processing_class=tok, peft_config=peft)
    t.remove_callback(PrinterCallback)
    return t

def steps(pairs, folder):
    "Processor seconds (S,) of the steps, which of them had the term, and the seconds of the forward passes between them"
    from transformers import TrainerCallback
    from diverse_rl.policy import PolicyConfig, make_mazes_for, make_policy, make_tokenizer, maze_question, policy_vocab
    from diverse_rl.recipes import TaskConfig
    rng,n = np.random.default_rng(0),SKIP+pairs
    mazes = make_mazes_for(TaskConfig(items=[1,2], slack=1), B*n, seed=7); tok = make_tokenizer(policy_vocab(5)); model = make_policy(PolicyConfig(), tok)
    ids = [[tok(x).input_ids+[tok.eos_token_id] for x in writing(z, G, rng)] for z in mazes]
    order = [i*B+b for i in range(n) for _ in range(2) for b in range(B)]
    t = trainer_of(model, tok, [maze_question(mazes[i], 3) for i in order], folder, B*G, G, max(len(x) for r in ids for x in r), 2*n, exploration='cover', exploration_coef=.1, snapshot_every=0)
    force(model, lambda: [x for i in order[t.state.global_step*B:(t.state.global_step+1)*B] for x in ids[i]], tok.eos_token_id)
    seen,floor,on = [],[],lambda s: (s%2==0)==(s//2%2==0)
    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kw):
            args.exploration_coef = .1 if on(state.global_step) else 0.; seen.append([time.process_time()])
        def on_step_end(self, args, state, control, **kw): seen[-1].append(time.process_time())
    previous = t._previous
    def forward_alone(ids, mask, width):
        "The floor: the same batch once more, with the policy's own weights and nothing exchanged"
        s = time.process_time()
        with torch.no_grad(): t._get_per_token_logps_and_entropies(t.model, ids, mask, width, batch_size=B*G)
        floor.append(time.process_time()-s)
        return previous(ids, mask, width)
    t._previous = forward_alone; t.add_callback(Clock()); t.train()
    seconds,term = np.diff(np.array(seen), axis=1)[:,0],np.array([on(s) for s in range(2*n)])
    seconds[term] -= floor                                   # the floor's own pass is no part of the step
    return seconds, term, np.array(floor)

def memory_process(term):
    "Peak resident bytes over those after the imports, of two steps of a LoRA policy"
    from peft import LoraConfig
    from diverse_rl.policy import PolicyConfig, make_policy, make_tokenizer
    import diverse_rl.trainer, datasets
    now = lambda: int(Path('/proc/self/statm').read_text().split()[1])*resource.getpagesize()
    tok = make_tokenizer([f'w{i}' for i in range(2000)]); base = now()
    model = make_policy(PolicyConfig(hidden=512, layers=6, heads=8, kv_heads=4, mlp=1536), tok)
    with tempfile.TemporaryDirectory() as folder:
        t = trainer_of(model, tok, ['w1 w2 w3']*64, folder, 16, 8, 48, 2, peft_config=LoraConfig(r=8, target_modules=['q_proj','v_proj'], task_type='CAUSAL_LM'), exploration_coef=.1 if term else 0., snapshot_every=2)
        t.train()
    print('@peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024-base)

def peak(term):
    r = subprocess.run([sys.executable, __file__, '--memory', str(int(term))], stdout=subprocess.PIPE, text=True, check=True)
    return int(r.stdout.rsplit('@peak', 1)[1])

def rows(pairs=14):
    warnings.filterwarnings('ignore', category=FutureWarning)
    with tempfile.TemporaryDirectory() as folder: s,on,floor = steps(pairs, folder)
    s,on = s.reshape(-1,2)[SKIP:],on.reshape(-1,2)[SKIP:]
    ratio = np.median(s[on]/s[~on]); base = np.median(s[~on]); what = f'the same step without the term, B={B} G={G} M=3'
    with_term,without = (min(peak(x) for _ in range(2)) for x in (True, False))
    return [dict(name='exploration_step', value=ratio, unit='ratio', against=f'{what}, target <= 1.25'),
        dict(name='exploration_step_floor', value=1+np.median(floor[SKIP:])/base, unit='ratio', against=f'{what}, plus one forward pass without gradient'),
        dict(name='exploration_adapter_memory', value=with_term/without, unit='ratio', against='peak memory over the imports of LoRA GRPO without the term, 22 M parameters, target <= 1.1')]

if __name__=='__main__':
    if sys.argv[1:2]==['--memory']: memory_process(bool(int(sys.argv[2])))
    else:
        from run import table
        torch.set_num_threads(1); print(table(rows(int(sys.argv[1]) if len(sys.argv)>1 else 14)))
