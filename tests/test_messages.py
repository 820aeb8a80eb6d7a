"""Error messages for wrong command lines, settings files and keyword arguments."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import trainer
from control.cli.parse import parse, settings_from
from control.cli.run_settings import COMMANDS, RunConfig
from fake_runs import Shown, refused
from models.settings import SettingError, names_with

BY_FLAG = {name for part in (RunConfig, *COMMANDS.values()) for name in names_with(part, "by_flag")}

# Each row: words -> message. "..." matches any text and "@" is the path of this file.
FLAGS = """
--learning_rat 1 -> --learning_rat is unknown; did you mean '--lr'?
--zzz -> --zzz is unknown; see --help
--format js -> --format is unknown; did you mean '--export agent.js'?
--gpu -> --gpu is unknown; did you mean '--accelerator gpu'?
--implementation PPO --clip 0.1 -> --clip is unknown; did you mean '--clip_range'?
--command 3 -> --command is unknown; allowed: command.return, command.horizon, command.advantage, command.rank
--implementation DDQN --preset skeleton -> --preset is a setting of ... not of DDQN
--preset skeleton -> preset is 'skeleton'; allowed for UDRL: published, ranks, obedient
train -> 'train' is not a flag; flags start with --, and --help lists them
cartpole -> 'cartpole' is not a flag; flags start with --; did you mean '--gamename cartpole'?
CartPole-v1 -> 'CartPole-v1' is not a flag; flags start with --; did you mean '--gamename CartPole-v1'?
ppo --seed 1 -> 'ppo' is not a flag; flags start with --; did you mean '--implementation PPO'?
--implementation PPO --start_form x -> --start_form is unknown; see --help
PPO --seed 1 -> 'PPO' is not a flag; flags start with --; did you mean '--implementation PPO'?
--epochs 3 -seed=3 -> epochs is '3 -seed=3'; allowed: one value
--batch_size abc -> batch_size is 'abc'; allowed: integer, at least 1, at most 1000000
--batch_size -> --batch_size needs a value; allowed: integer, at least 1, at most 1000000
--hidden_sizes 64,x -> hidden_sizes is '64,x'; allowed: list of integers, each at least 1, each at most 65536
--hidden_sizes 8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8,8
    -> hidden_sizes is [8, 8, 8...]; allowed: list of integers, each at least 1, each at most 65536, 16 of them at most
--seed 99999999999999999999 -> seed is 99999999999999999999; allowed: integer, at least 0, at most 4611686018427387904
--lr 1e400 -> lr is '1e400'; allowed: number, greater than 0
--lr 1e-320 -> lr is 1e-320; allowed: number, greater than 0, at least 1.17549435e-38 in size unless it is 0
--exp_name .. -> exp_name is '..'; allowed: the name of a folder
--exp_name a\udcff -> exp_name is 'a\\udcff'; allowed: text in UTF-8 without NUL
--algo muzero -> implementation is 'muzero'; allowed: ...
--implementation DDQN --gamename cartpole --feature_dim 9 -> --feature_dim has no effect: head is 'plain'
--implementation UDRL --gamename cartpole --hidden_sizes 16 --activation tanh
    -> --activation has no effect: hidden_sizes has one layer, which embeds the observation and has tanh
--implementation DDQN --gamename cartpole --vary lr -> --vary has no effect: vary_hp is off
--implementation DDQN --gamename cartpole --eps_fraction 0.5 --eps_decay 0.8
    -> --eps_decay has no effect: eps_fraction is given
--ray_address auto -> --ray_address has no effect without --num_workers or --use_tune
--implementation A2C --clip_range 0.1 -> --clip_range has no effect: ppo_epochs is 1 and a batch holds all steps, ...
--eval_agent= -> --eval_agent has no effect: it is empty
--use_tune false --lr x -> lr is 'x'; allowed: number, greater than 0
--plot @ --logdir X -> --logdir has no effect with --plot
--eval_agent @ --eval_episodes 3 -> --eval_episodes has no effect with --eval_agent; did you mean '--num_eval_episodes'?
--resume exp_dir/x -> resume is 'exp_dir/x'; allowed: true or false; it goes on with the newest run of the same...
--gamename ALE/Breakout-v5 -> gamename is 'ALE/Breakout-v5': no module that was imported registers ids of ALE; give...
--gamename nosuch:Thing-v0 -> gamename is 'nosuch:Thing-v0': module nosuch cannot be imported...
--gamename /tmp/corridor.py:Thing-v0 -> ...in a folder of PYTHONPATH, corridor for corridor.py
--gamename ./corridor:Thing-v0 -> ...in a folder of PYTHONPATH, corridor for corridor.py
--gamename test_learn:Wrong-v0 -> gamename is 'test_learn:Wrong-v0'; allowed: ...test_learn:Corridor-v0...
--learn test_learn:Coridor-v0 -> learn is 'test_learn:Coridor-v0'; did you mean 'test_learn:Corridor-v0'? Allowed: ...
--learn experiments.tasks.store -> learn is 'experiments.tasks.store', a module; name one of its environments too...
--gamename . -> gamename is '.'; allowed: ...
--gamename Foo-v0 -> gamename is 'Foo-v0': no such id is registered with Gymnasium; ...--import PACKAGE...module:Foo-v0
--gamename lunarlandr -> gamename is 'lunarlandr'; did you mean 'lunarlander'? All: --help
--gamename Reach2D-v0 -> ...; did you mean 'Reacher-v5'? If it is your own: module:Reach2D-v0, which ...: --help
--config nowhere.yaml -> config is 'nowhere.yaml': no such file or folder; allowed: a file of settings, such as...
--config experiments/ddqn/search_dqn.yaml -> ...folder; did you mean 'experiments/ddqn/search_ddqn.yaml'?
--config a.yaml --config b.yaml -> --config is given twice; allowed: one file
--film cartpole-bandit --no_resume -> --no_resume has no effect with --film
--resume --use_tune -> --resume has no effect with --use_tune
--eval_agent @ --epochs 1 -> --epochs has no effect with --eval_agent: the file that is evaluated holds it
--desire_cum_rew -> desire_rtg and desire_cum_rew exclude each other: switch one of them off
--desire_rank -> desire_rank and desire_rtg exclude each other: switch desire_rtg off (--preset ranks does)
--preset ranks --no_desire_rank -> no command is on: switch on one of desire_rtg, ... desire_rank
--preset ranks --rank_min 0.96 -> rank_min is 0.96, but rank_max is 0.95; allowed: at most rank_max
--preset ranks --discount 0 -> discount is 0, but desire_rank is on; allowed: above 0
--preset ranks --quantile_levels 0.5 -> quantile_levels is 0.5; allowed: two or more, in ascending order
--preset ranks --reward_scale 1 -> --reward_scale has no effect: desire_rank is on
--preset ranks --last_few 9 -> --last_few has no effect: only a rank is commanded
--eval_rank 0.9 -> --eval_rank has no effect: desire_rank is off
--td_lambda 0.9 -> --td_lambda has no effect: desire_advantage and desire_rank are off
--gamename procmaze,grid_sise=5 -> ...: 'grid_sise' is unknown; did you mean 'grid_size'?...
--gamename FrozenLake-v1,render_mode=human -> gamename is 'FrozenLake-v1,render_mode=human': training draws nothing; ...
--gamename procmaze,grid_size=1 -> gamename is 'procmaze,grid_size=1': grid_size is 1; allowed: integer, at least 2, ...
--gamename acrobot,grid_size=4 -> gamename is 'acrobot,grid_size=4': 'grid_size' is unknown; allowed: acrobot, which...
--gamename buttongrid,grid_size=3 --num_buttons 10 -> num_buttons is 10; allowed: integer, at least 1, at most 9
--gamename procmaze,grid_size=5 --num_pipes 3 -> ... no effect with gamename procmaze; it is a parameter of panflute
--implementation ER --model simple -> --model has no effect with ER; did you mean '--implementation'?
--implementation ER --rollout_length 3 -> --rollout_length has no effect: model is 'none', so nothing is imagined
--implementation ER --exploration_strat epsilon_greedy --softmax_temp 1
    -> --softmax_temp has no effect: exploration_strat is 'epsilon_greedy'
--implementation ER --no_use_target --double_DQN -> --double_DQN has no effect: use_target is off, ...
--implementation RN --gamename cliff --agent QLearning --mode 0 --rn_output symexp
    -> --rn_output has no effect: mode is 0, the task's own reward
--implementation RN --gamename hopper --agent TD3 --mode 101 --proxy_hidden_size 5
    -> --proxy_hidden_size has no effect: mode is 101: its network is a weight for each number in info
--implementation SE --gamename cartpole --latent_size 3 -> --latent_size has no effect: learned_reset is off
--implementation RN --gamename cliff --agent QLearning --start_from cliff-additive-potential --rn_init real
    -> --rn_init has no effect: start_from says where the search starts
--implementation RN --gamename cartpole-200 --rn_evolve_scale --rn_output_scale 9 --start_from cartpole-mdp
    -> --rn_output_scale has no effect: rn_evolve_scale goes on from the factor of start_from
--implementation SimpleModel --bernoulli_logits --binary_obs no -> --bernoulli_logits has no effect: binary_obs is...
--implementation CategoricalLatent --min_std 1 -> --min_std has no effect: latent_type is 'categorical'
--implementation GaussianLatent --binary_obs --learn_obs_variance
    -> learn_obs_variance is true, but binary_obs is too, and bits have no variance; allowed: one of them
--learn -> --learn needs a value...
--learn CartPole-v1 --start_from x -> --start_from is a setting of RN, SE, not of UDRL; with --learn, it is --teacher
--learn CartPole-v1 --only exams -> only is 'exams'; did you mean 'exam'? Allowed: ...
--learn CartPole-v1 --lr 0.1 --implementation PPO -> --lr has no effect with --learn...
--implementation ER --preset procmaze_low --gamename panflute
    -> preset is 'procmaze_low', but gamename is 'panflute'; leave out one of them, or take a preset of panflute
"""
# After `--implementation SE --gamename cartpole`.
SEARCHES = """
--agent DQN -> agent is 'DQN'; did you mean 'DDQN'? Allowed: DDQN, DuelingDDQN, ...
--agent UDRL -> agent is 'UDRL'; allowed: DDQN, DuelingDDQN, ...
--preset papper -> preset is 'papper'; did you mean 'paper'? Allowed for a mdp: recipe, broad, paper, supervised...
--proxy bandit --preset paper -> preset is 'paper', which is for a mdp; did you mean '--proxy mdp'? Allowed for a...
--agent DDQN,,PPO -> agent is 'DDQN,,PPO', which has an empty name; allowed: each of DDQN, ... once
--reward_form absolute -> reward_form is 'absolute', but proxy is 'mdp'; allowed: free, or the proxy bandit
--proxy bandit --scored_by target -> scored_by is 'target', but reward_form is 'free', which has no target; allowed...
--proxy bandit --reward_form squared --second_scored_by target --objective average --test_every 50
    -> objective is 'average', but a target is scored without training; allowed: final
--strategy ars --no_mirrored -> mirrored is off, but strategy is 'ars', which compares the two of a pair; allowed...
--population 5 -> population is 5; allowed with mirrored: an even number
--epochs 5 -> --epochs has no effect with SE; did you mean '--generations'?
--strategy nes --score_transform 7 --eval_every 5
    -> score_transform is 7, ... eval_every is 5; allowed: ...an eval_every of 1, or a score_transform from 0 to 4
--second_steps 9 -> --second_steps has no effect: second_phase is null, so there is none
--proxy bandit --table_size 9 -> --table_size has no effect: first_states is 'latent'
--test_limit_first 9 -> test_limit_first is 9, but test_limit is None; allowed: a test_limit to grow to, or null
--test_limit 9 --test_limit_first 5 --test_limit_grows 7 7 -> test_limit_grows is 7 7; allowed: two generations, the...
--test_limit 9 --test_limit_first 5 --inner_rule tests -> test_limit_first is 5, ... whole episodes; allowed...
--agent PPO --update_epoch 3 -> --update_epoch is unknown; did you mean '--ppo_epochs'?
--target_return 9 --solved_reward 400 -> target_return is 9.0, but solved_reward is 400.0; give one
"""
# The command notices these after parsing, when it reads files and builds environments. RUN and UDRL are the folders of
# finished runs of DDQN and UDRL on CartPole.
COMMANDS = """
--implementation RN --gamename cliff --mode aditive -> mode is 'aditive'; did you mean 'additive'? Allowed: icm...
--gamma 0.9 --discount 0.9 -> gamma and discount are one setting; give discount
--learning_rate 1 --learn_rate 1 -> learning_rate and learn_rate are one setting; give lr
--implementation DDQN --hidden_size 4 --hidden_sizes 4 -> hidden_sizes and hidden_size are one setting...
--learn cartpole --gamename acrobot -> gamename and learn are one setting; give learn
--implementation DDQN --vary_hp --hidden_sizes 4,5 -> hidden_sizes is [4, 5], but vary_hp draws width or depth...
--eval_agent cartpole-bandit --hidden_size 4 -> ...hidden_size does not say all of hidden_sizes...
--implementation CPG --max_episodes null -> max_episodes and total_steps are null; allowed: an end of the...
--implementation TD3 --gamename pendulum --noise_type ornstein-uhlenbeck --test_noise
    -> test_noise is on, but noise_type is 'ornstein-uhlenbeck'; allowed...
--implementation TD3 --gamename pendulum --noise_type ornstein-uhlenbeck --action_std 0
    -> --noise_type has no effect: action_std is 0
--implementation DDQN --gamename cartpole --intrinsic icm --compiled --epochs 1
    -> compiled is true, but DDQN with these settings has no machine code; allowed: false
--implementation SimpleModel --gamename cartpole --binary_obs --total_steps 20
    -> binary_obs is True, but observations of this game are numbers; allowed: false, or null
--implementation GaussianLatent --gamename procmaze --learn_obs_variance --total_steps 20
    -> learn_obs_variance is True, but observations are bits; allowed: with binary_obs false
--implementation SE --gamename cartpole --preset supervised --agent PPO -> ...keeps no transitions...
--implementation RN --gamename cartpole --preset teacher -> ...start_from is null...
--implementation RN --gamename cartpole --mode 5 --start_from test_teachers:balance -> ...mode is 5...
--learn ALE/Pong-v5x -> ...ALE/Pong-v5x...
--learn cartpole --teacher test_teachers:nobody -> ...module:function...
--learn cartpole --implementation SE -> implementation is 'SE', which learns a proxy; allowed...
--implementation SE --gamename acrobot --proxy bandit --preset clone --start_from RUN
    -> start_from is ..., an agent on cartpole; allowed: one on acrobot
--implementation DDQN --gamename pendulum -> ..., whose actions are continuous; DDQN takes ...; try PPO or SAC
--implementation SAC --gamename MountainCar-v0 -> gamename is 'mountaincar' (MountainCar-v0), whose actions are...
--implementation QLearning --gamename cartpole -> gamename is 'cartpole' (CartPole-v1), whose observations are...
--record_episodes 2 -> --record_episodes has no effect without --record or --film
--implementation DDQN --gamename cartpole --command.return 3 -> command.return has no effect: DDQN here follows ...
--film -> --film needs a value...
--film untrained real -> film is 'untrained real'; allowed: a run, checkpoint or proxy, and beside it untrained or...
--film cartpole-bandid -> film is 'cartpole-bandid': no such file or folder; did you mean 'cartpole-bandit'?...
--film cartpole-bandit acrobot-bandit -> film shows cartpole, acrobot; allowed: one environment...
--film cartpole-bandit --film_out a.gif -> film_out is 'a.gif'; allowed: a file ending in .mp4...
--film cartpole-bandit --agent TD3 -> gamename is 'cartpole' (CartPole-v1), whose actions are discrete; TD3 takes...
--film RUN real -> film: 'real' goes with a proxy, and ...
--report @,@ -> report is '@,@': no such file or folder; separate paths by spaces: @ @
--report . -> report is '.', which holds no metrics.csv; allowed: run folders, or any folder above them
--report RUN --report_out page.pdf -> report_out is 'page.pdf'; allowed: a folder, or a file ending in .html
--eval_agent RUN --evaluation sampled -> ...has no effect...DDQN...
--eval_agent RUN --command.return 3 -> ...has no effect: DDQN...
--eval_agent UDRL --last_few 1 -> --last_few has no effect with --eval_agent of a checkpoint, which holds its agent
--eval_agent UDRL --no_sch 1 -> --no_sch is unknown; see --help
--eval_agent UDRL --gamename acrobot -> gamename is 'acrobot', whose obs_shape is (6,); allowed with a checkpoint of...
--eval_agent UDRL --half_length 1 --obedience -> --obedience has no effect with gamename cartpole,half_length=1.0...
--eval_agent cartpole-bandit --half_length 1 -> --half_length has no effect with --eval_agent of a proxy
--eval_agent cartpole-bandit --no_record -> --no_record has no effect with --eval_agent of a proxy
--eval_agent cartpole-bandit --implementation A2C -> --implementation has no effect with --eval_agent of a proxy
--eval_agent cartpole-mdp --agent QLearning -> gamename is 'cartpole' (CartPole-v1), whose observations are...
--eval_agent cartpole-bandit --buffer_size 10 -> batch_size is 32, but buffer_size is 10...
--eval_agent cartpole-bandit --DDQN_lr 1 -> --DDQN_lr is unknown; did you mean '--lr'?
--eval_agent cartpole-bandit --agent DDQN,PPO --num_agents 1 -> num_agents is 1; allowed with DDQN,PPO: at least 2
--use_tune --gamename cartpole --tune_objective score -> ...UDRL trains agents, whose trials are judged by their...
--use_tune --resume here -> resume is 'here', which has no search.yaml; allowed with --use_tune: the folder of...
--use_tune --implementation SE --gamename cartpole --proxy bandit --tune_algorithm pbt
    -> tune_algorithm is 'pbt', but trials of SE are whole searches; allowed: asha,...
--use_tune --implementation SE --gamename cartpole --proxy bandit --tune_objective steps
    -> tune_objective is 'steps', but total_steps is null; allowed: score, or a value of total_steps
--use_tune --tune_algorithm pbt --no_checkpoint -> --no_checkpoint and --tune_algorithm pbt exclude each other: ...
"""
# After `--implementation CPG --gamename cartpole`.
POLICIES = """
--implementation AAC --shared_trunk --value_steps 3 -> value_steps is 3, but shared_trunk is on, ...
--value_lr 0.1 -> --value_lr has no effect: baseline is 'batch_mean', so there is no value network
--implementation AAC --shared_trunk --value_hidden_sizes 3 -> --value_hidden_sizes has no effect: shared_trunk ...
"""
# After `--implementation SE --gamename cartpole`, found after parsing.
SEARCHED = """
--gamename pendulum --agent DDQN -> gamename is 'pendulum' (Pendulum-v1), whose actions are continuous; DDQN takes...
--gamename pendulum --proxy bandit --preset two_stage --table_episodes 9
    -> --table_episodes has no effect on pendulum: all that it can show is known, and in the table
--num_seeds 2 -> num_seeds is 2; allowed with SE: 1 (see bash_train.sh)
--accelerator gpu -> accelerator is 'gpu' (cuda); allowed for SE: cpu
--proxy bandit --first_states table -> first_states is 'table', but nothing is known of how far the observations of...
--preset broad --agent DDQN -> agent is 'DDQN'; allowed with preset broad: PPO, PPO,DDQN
--agent DDQN,PPO --batch_size 200 --buffer_size 100 -> batch_size is 200, but buffer_size is 100...
--preset supervised --start_from cartpole-mdp -> --start_from has no effect: preset is 'supervised', which searches...
--preset supervised --raw_done -> raw_done is on, but preset is 'supervised'...
--preset supervised --total_steps 1000 -> ...did you mean '--fit_updates'?...
--preset supervised --proxy bandit -> ...did you mean '--proxy mdp'?...
--proxy bandit --preset distilled --reward_form free -> ...but reward_form is 'free', which has no target...
--proxy bandit --preset distilled --first_states latent -> first_states is 'latent', but pairs is ...
--proxy mdp --pairs 4 -> pairs is 4, but proxy is 'mdp'; allowed: null, or the proxy bandit
--proxy bandit --preset clone -> preset is 'clone', but start_from is null...
--proxy bandit --preset clone --start_from test_teachers:balance --first_states latent -> ...first_states table...
--proxy bandit --preset clone --start_from test_teachers:balance --reward_form free
    -> reward_form is 'free', but clone_of is 'actions'; allowed: absolute, squared, exponential...
"""
# After `--implementation RN --gamename emptyroom33 --agent QLearning`.
REWARDS = """
--mode 3 -> ...mode is 3, which needs numbers in the info of each step...
--gamename cartpole -> ...whose observations are no cells; QLearning takes one-hot observations...
--start_from cartpole-mdp -> start_from is 'cartpole-mdp', mdp of cartpole; allowed: reward of emptyroom33...
--start_from @ -> start_from is '@', neither a proxy nor a policy: checkpoint...
--rn_input_center 1,2 -> rn_input_center is [1.0, 2.0]; allowed here: 9 numbers, or none
--rn_init hand -> rn_init is 'hand', but for emptyroom33 no potential is made by hand...
"""
MAZE = "preset is 'procmaze_low', but gamename is 'panflute'; leave out one of them, or take a preset of panflute"
# Content of the settings file (JSON if it begins with a bracket), words after --config, message; "@" is the file.
FILES = [
    ("learning_rat: 1", "", "@: learning_rat is unknown; did you mean 'lr'?"),
    ("epochs: 5", "--epochs 0", "epochs is 0; allowed: integer, at least 1; or null"),
    ("lr: -1", "", "@: lr is -1.0; allowed: number, greater than 0"),
    ("lr: [1, 2]", "", "@: lr is '1 2'; allowed: one value"),
    ("config: other.yaml", "", "@: config is no setting; allowed only as the flag --config"),
    ("command: 3", "", "@: command is '3'; allowed: a mapping of return, horizon, advantage, rank"),
    ("command: {speed: 1}", "",
     "@: command.speed is unknown; allowed: command.return, command.horizon, command.advantage, command.rank"),
    ("agent: {lr: 0.1}", "", "@: agent is a mapping; settings are flat, one 'name: value' a line"),
    ('exp_name: "a\\0b"', "", "@: exp_name is 'a\\x00b'; allowed: text in UTF-8 without NUL"),
    ("import: os", "", "@: import is no setting; allowed only as the flag --import"),
    *((f"{name}: x", "", f"@: {name} is 'x'; a file may not choose what is written or joined: give it as --{name}")
      for name in sorted(BY_FLAG)),
    ("output_dir: x", "", "@: logdir is 'x'; a file may not choose what is written or joined: give it as --logdir"),
    ("gamename: antigravity:CartPole-v1", "", "@: gamename is 'antigravity:CartPole-v1': module antigravity is not "
     "imported; give --import antigravity"),
    ("a: &a [x, x]\n" + "\n".join(f"{x}: &{x} [*{y}, *{y}]" for y, x in itertools.pairwise("abcdefghijklm")), "",
     "@: *a is an alias; write the value itself"),
    ("gamma: " + 3000 * "[" + 3000 * "]", "", "@: nested too deep"),
    ("#" * 100_001, "", "config is '@': too large; allowed: at most 100 kB"),
    ("a: b: c", "", "config is '@': not valid YAML, line 1: mapping values are not allowed here"),
    ("? [a]\n: b", "", "config is '@': not valid YAML, line 1: found unhashable key"),
    ('{"gamma": 0.9,\n "lr": 0.9,\n}', "", "config is '@': not valid JSON, line 3: ... "),
    ('{"gamma": 0.9, "gamma": 0.8}', "", "@: gamma is given twice"),
    ('{"epochs": null}', "", "@: epochs and total_steps are null; allowed: an end of the training, one of them"),
    ("implementation: ER", "--implementation SimpleModel",
     "implementation is 'SimpleModel', but @ holds the values of 'ER'; leave out --implementation or --config"),
    ("implementation: ER\npreset: shipped", "--preset procmaze_low",
     "preset is 'procmaze_low', but @ holds the values of 'shipped'; leave out --preset or --config"),
    ("implementation: ER\npreset: procmaze_low", "--gamename panflute", MAZE),
    ("implementation: ER\ngamename: panflute\npreset: procmaze_low", "", "@: " + MAZE),
    ("gamename: procmaze\ngrid_size: 1", "--gamename panflute", "@: grid_size has no effect with gamename panflute; "
     "it is a parameter of procmaze, opengrid, buttongrid"),
]  # fmt: skip
PYTHON: list[tuple[dict[str, Any], str]] = [
    ({"learning_rat": 1}, "learning_rat is unknown; did you mean 'lr'?"),
    ({"lr": None}, "lr is None; allowed: number, greater than 0"),
    ({"exp_name": None}, "exp_name is None; allowed: text, at most 100 bytes, not empty"),
    ({"epochs": True}, "epochs is True; allowed: integer, at least 1; or null"),
    ({"grid_size": 3}, "grid_size has no effect with gamename lunarlander; it is a parameter of procmaze, ... "),
    ({"tau": 0.1}, "tau is a setting of DDQN, DuelingDDQN, ... SE, not of UDRL"),
    ({"reload": "nowhere.ckpt"}, "reload is 'nowhere.ckpt': no such file or folder"),
    ({"seed": 10**5000}, "seed is a number of thousands of digits; allowed: integer, at least 0, at most 46116..."),
    ({"lr": True}, "lr is True; allowed: number, greater than 0"),
    ({"hidden_sizes": [64, 2.5]}, "hidden_sizes is [64, 2.5]; allowed: list of integers, each at least 1, ..."),
    ({"rb_size": 0}, "rb_size is 0; allowed: integer, at least 1"),
    ({"epochs": 1e3}, "epochs is 1000.0; did you mean 1000? Allowed: integer, at least 1; or null"),
]


def rows(table: str, prefix: str = "") -> list[tuple[str, str]]:
    parts = (row.partition(" -> ") for row in table.replace("\n    ->", " ->").strip().split("\n"))
    return [(prefix + words, line) for words, _, line in parts]


def check(message: object, line: str) -> None:
    """``line`` matches the message, with any text in place of its dots."""
    assert re.fullmatch(".*".join(re.escape(part.strip()) for part in line.split("...")), str(message)), message


@pytest.mark.parametrize(("words", "line"), rows(FLAGS) + rows(SEARCHES, "--implementation SE --gamename cartpole "))
def test_parse_error_message(words: str, line: str) -> None:
    with pytest.raises(SettingError) as error:
        parse(words.replace("@", __file__).split())
    check(error.value, line)


@pytest.mark.parametrize(
    ("words", "line"),
    rows(COMMANDS)
    + rows(POLICIES, "--implementation CPG --gamename cartpole ")
    + rows(SEARCHED, "--implementation SE --gamename cartpole ")
    + rows(REWARDS, "--implementation RN --gamename emptyroom33 --agent QLearning "),
)
def test_command_error_message(
    words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, finished: Any
) -> None:
    """The command prints one line and leaves no file or folder."""
    monkeypatch.chdir(tmp_path)
    runs = {"RUN": "DDQN", "UDRL": "UDRL"} if "RUN" in words or "--eval_agent UDRL" in words else {}
    folders = {word: str(finished(implementation=name)[0]) for word, name in runs.items()}
    argv = [folders.get(word, word) for word in words.replace("@", __file__).split()]
    error = refused(trainer.main, argv, "", capsys, run_started="supervised" in argv)
    check(error.removeprefix("error: ").removesuffix("\n"), line.replace("@", __file__))
    assert not [*tmp_path.rglob("*")]


def test_a_name_too_long_for_a_file_is_an_unknown_environment() -> None:
    with pytest.raises(SettingError, match="^gamename is 'aaa.*; allowed: "):
        parse(["--gamename", "a" * 5000])


@pytest.mark.parametrize(("text", "words", "line"), FILES, ids=lambda part: part[:40])
def test_settings_file_error_message(tmp_path: Path, text: str, words: str, line: str) -> None:
    file = tmp_path / ("settings.json" if text[0] in "[{" else "settings.yaml")
    file.write_text(text)
    with pytest.raises(SettingError) as error:
        parse(["--config", str(file), *words.split()])
    check(error.value, line.replace("@", str(file)))


def test_unreadable_file_error_message(tmp_path: Path) -> None:
    file, link = tmp_path / "weights.ckpt", tmp_path / "link"
    file.write_bytes(b"\x80\x02\xff\x00")
    link.symlink_to("nowhere")
    for words, line in [(f"--config {file}", f"config is '{file}': not a text file"),
                        (f"--config {tmp_path}", f"config is '{tmp_path}': Is a directory"),
                        *((f"--{name} {link}", f"{name} is '{link}': a symbolic link to 'nowhere', where nothing is")
                          for name in ("config", "eval_agent", "reload", "plot"))]:  # fmt: skip
        with pytest.raises(SettingError) as error:
            parse(words.split())
        check(error.value, line)


@pytest.mark.parametrize(("values", "line"), PYTHON)
def test_keyword_error_message(values: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingError) as error:
        settings_from(**values)
    check(error.value, line)


SEVERAL = [
    ("", "--lr -1 --seed x --nosuch 3 --epochs 5",
     ["lr is -1.0; ...greater than 0", "seed is 'x'; allowed: integer, ...", "--nosuch is unknown; see --help"]),
    ("lr: -1\nepochs: 0\nlearning_rat: 2", "--epochs 3 --num_seeds 0",
     ["@: lr is -1.0; allowed: number, greater than 0", "@: learning_rat is unknown; did you mean 'lr'?",
      "num_seeds is 0; allowed: integer, at least 1, at most 4096"]),
    ("", "--gamename procmaze --grid_size 1 --no_record 3 --command.return x",
     ["grid_size is 1; ...", "no_record is '3'; allowed: true or false", "command.return is 'x'; ..."]),
    ("", "--film cartpole-bandit --lr 1 --epochs 3", ["--lr has no effect with --film", "--epochs has no ..."]),
    ("", "--plot @ --logdir X --seed 3", ["--logdir has no effect with --plot", "--seed has no effect with --plot"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "lines"), SEVERAL, ids=[words for _, words, _ in SEVERAL])
def test_several_errors_are_printed_together(
    tmp_path: Path, text: str, words: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    config = f"--config {file}" if text else ""
    assert trainer.main(f"{words} {config}".replace("@", str(file)).split()) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(lines)
    for line, expected in zip(errors, lines, strict=True):
        check(line, f"error: {expected}".replace("@", str(file)))


def test_only_the_first_twenty_errors_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the command look for similar names for the others, which would take long for thousands of them."""
    compared: list[str] = []
    monkeypatch.setattr(
        "control.cli.options.unknown_error", lambda name, *args: compared.append(name) or SettingError(name)
    )
    file = tmp_path / "settings.yaml"
    file.write_text("".join(f"nosuch{number}: 1\n" for number in range(5000)))
    assert trainer.main(["--config", str(file)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(compared) == 20 and errors[-1].endswith("nosuch19 (and 4980 settings more)")
