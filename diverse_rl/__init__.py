"""Reinforcement learning for language models that keeps more than one answer alive

`import diverse_rl` needs torch and numpy only; the trainer, the recipes and the figures import what they need when asked for."""
__version__ = "0.1.0"
from .answers import parse_answers, multi_answer_prompt, format_answers
from .simplex import simplex_nodes
from .sets import set_reward, set_values, exact_set_reward
from .advantages import group_advantage, ADVANTAGES
from .credit import answer_credit
from .metrics import pass_at_k, best_at_k, expected_best_at_k
from .reward import SetReward
__all__ = ['parse_answers','multi_answer_prompt','format_answers','simplex_nodes','set_reward','set_values','exact_set_reward','group_advantage','ADVANTAGES','answer_credit','pass_at_k','best_at_k','expected_best_at_k','SetReward']
