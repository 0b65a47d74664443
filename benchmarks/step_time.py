"""Step time of TRL's GRPOTrainer with `SetReward` on mazes against the same step with a constant reward: `python benchmarks/step_time.py`

The policy has the default size, random weights; B=16 prompts, G=8 rollouts, M=3 answers. Both kinds of step belong to one run of an
unpatched trainer. Every batch is used in six steps, three of each kind in turn (constant, set, set, constant, constant, set, and the
other way round for the next batch), with the same prompts and the same completions: random legal walks in the answer format, which
`generate` writes token by token through the model, with the choice of each token forced. So generation, loss, backward and optimiser
are the same work in both, and the difference is parsing, scoring, paying and logging. Seconds are processor time of this process with
one thread. Two equal steps differ by up to a tenth, far more than the reward costs, and a disturbance only ever adds: so a batch counts
with the fastest of its three steps of a kind, and the ratio is that of their sums over batches. The wall clock's stands beside it, and
so does `step_time_reward_share`: the reward call alone, of a step."""
import os, sys, tempfile, time, warnings
from pathlib import Path
for k,v in dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', HF_HUB_OFFLINE='1', TOKENIZERS_PARALLELISM='false').items(): os.environ.setdefault(k, v)
import numpy as np
import torch
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from diverse_rl.answers import format_answers
from diverse_rl.maze import to_json
from diverse_rl.policy import PolicyConfig, answer_words, make_mazes_for, make_policy, make_tokenizer, maze_question, policy_vocab, teacher_walks
from diverse_rl.recipes import TaskConfig
from diverse_rl.reward import SetReward
from diverse_rl.run import MazeScorer, route_key

B,G,M,SKIP = 16,8,3,1      # the first batch is not counted: it loads code and grows buffers
KINDS = 'cssccs'            # of the six steps of a batch: c for constant, s for set reward; the other way round for every second batch

def writing(maze, count, rng):
    "`count` rollouts of M random walks each"
    walks = [answer_words(maze, w) for w in teacher_walks(maze, count*M, rng)]
    return [format_answers(walks[i*M:(i+1)*M]) for i in range(count)]

class Forced:
    "A logits processor under which `generate` writes given token ids, row by row, and then ends"
    def __init__(self, rows, prompt, end): self.rows,self.prompt,self.end = rows,prompt,end
    def __call__(self, ids, scores):
        t = ids.shape[1]-self.prompt
        want = torch.tensor([r[t] if t<len(r) else self.end for r in self.rows])[:,None]
        return torch.full_like(scores, -torch.inf).scatter_(1, want, 0.)

def force(model, rows_of, end):
    "Make `model.generate` write what `rows_of()` says"
    from transformers import LogitsProcessorList
    free = model.generate
    def generate(input_ids, **kw): return free(input_ids=input_ids, logits_processor=LogitsProcessorList([Forced(rows_of(), input_ids.shape[1], end)]), **kw)
    model.generate = generate

class Alternating:
    "The reward function: constant or set reward, by step"
    __name__ = 'alternating'
    def __init__(self, set_reward): self.set_reward,self.texts,self.share = set_reward,[],[]
    def kind(self, step): return 'constant' if (KINDS[step%len(KINDS)]=='c')==(step//len(KINDS)%2==0) else 'set'
    def __call__(self, completions, trainer_state, **kw):
        step = trainer_state.global_step; self.texts.append(completions)
        if self.kind(step)=='constant': return [.5]*len(completions)
        t = time.process_time(); r = self.set_reward(completions=completions, trainer_state=trainer_state, **kw)
        self.share.append(time.process_time()-t); return r

def clock(trainer):
    "Record processor and wall seconds of every optimiser step, from its generation to its end, logging included"
    from transformers import TrainerCallback
    seen = []
    class Clock(TrainerCallback):
        def on_step_begin(self, *a, **k): seen.append([time.process_time(), time.perf_counter()])
        def on_train_end(self, *a, **k): self.on_step_begin()
    trainer.add_callback(Clock()); return seen

def run(batches, folder):
    "Seconds (S, 2) of the S steps of one run, and its reward function"
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer
    rng,task,steps = np.random.default_rng(0),TaskConfig(items=[1,2], slack=1),len(KINDS)*(SKIP+batches)
    mazes = make_mazes_for(task, B*(SKIP+batches), seed=7)
    written = [writing(z, G, rng) for z in mazes]
    tok = make_tokenizer(policy_vocab(task.n)); model = make_policy(PolicyConfig(), tok)
    order = [i*B+b for i in range(SKIP+batches) for _ in KINDS for b in range(B)]     # every block of B prompts six times
    ids = {maze_question(z, M):[tok(c).input_ids+[tok.eos_token_id] for c in w] for z,w in zip(mazes, written)}
    data = Dataset.from_dict(dict(prompt=[maze_question(mazes[i], M) for i in order], maze=[to_json(mazes[i]) for i in order]))
    reward = Alternating(SetReward(MazeScorer(), M, key=route_key, k=128, d=4))
    args = GRPOConfig(folder, per_device_train_batch_size=B*G, num_generations=G, max_completion_length=max(len(x) for w in ids.values() for x in w), max_steps=steps,
        learning_rate=1e-6, lr_scheduler_type='constant', beta=0., shuffle_dataset=False, report_to='none', logging_steps=1, save_strategy='no', use_cpu=True, bf16=False,
        disable_tqdm=True, dataloader_pin_memory=False, gradient_checkpointing=False)
    t = GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=data, processing_class=tok); t.remove_callback(PrinterCallback)
    now = lambda: [x for i in order[t.state.global_step*B:(t.state.global_step+1)*B] for x in ids[maze_question(mazes[i], M)]]
    force(model, now, tok.eos_token_id); seen = clock(t); t.train()
    check(reward, written, steps)
    return np.diff(np.array(seen), axis=0), reward

def check(reward, written, steps):
    "All steps of a batch must have seen the same completions, those that were to be written"
    texts = [x for w in written for x in w]
    for s in range(steps):
        i = s//len(KINDS)
        if [' '.join(x.split()) for x in texts[i*B*G:(i+1)*B*G]]!=reward.texts[s]: raise AssertionError(f'step {s} did not see the {B*G} completions of batch {i}')

def rows(batches=8):
    warnings.filterwarnings('ignore', category=FutureWarning)
    with tempfile.TemporaryDirectory() as folder: seconds,reward = run(batches, folder)
    kinds = np.array([reward.kind(s) for s in range(len(seconds))])
    fastest = lambda kind: seconds[kinds==kind].reshape(SKIP+batches, -1, 2)[SKIP:].min(1)                # (batches, 2): processor, wall
    with_set,without = fastest('set'),fastest('constant')
    ratio,base = with_set.sum(0)/without.sum(0),without[:,0].mean()
    share = np.reshape(reward.share, (SKIP+batches, -1))[SKIP:].min(1).mean()/base
    what = f'the same TRL step with a constant reward, B={B} G={G} M={M}'
    return [dict(name='step_time', value=ratio[0], unit='ratio', against=f'{what}, target <= 1.03'),
        dict(name='step_time_wall', value=ratio[1], unit='ratio', against=f'{what}, by the wall clock of a machine that may be busy'),
        dict(name='step_time_reward_share', value=share, unit='fraction', against=f'{what}: the reward call alone'),
        dict(name='step_seconds', value=base, unit='s', against='itself: processor time of a step with a constant reward')]

if __name__=='__main__':
    from run import table
    torch.set_num_threads(1); print(table(rows(int(sys.argv[1]) if len(sys.argv)>1 else 8)))
