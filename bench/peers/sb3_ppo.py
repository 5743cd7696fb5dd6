# SPDX-License-Identifier: Apache-2.0
"""The same darkroom, learned by stable-baselines3's PPO, to time against.

One goal, on one thread, and nothing is recorded but the returns. Prints one JSON
line: the environments' steps, the seconds that they and learning took (no
start-up), those of the processor, and the mean return of the episodes of each update. With --history it
learns nothing, and prints the returns of that file's first task.
"""

import argparse
import json
import time

SIZE, HORIZON = 9, 20
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--goal", type=int, default=0, help="row * 9 + column")
    parser.add_argument("--updates", type=int, default=13)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--steps_per_update", type=int, default=80)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--history", help="HDF5")
    return parser.parse_args()


def returns(rewards, steps_per_update):
    """Mean returns of an update's episodes, of rewards [steps, streams]."""
    episodes = steps_per_update / HORIZON
    sums = rewards.reshape(-1, steps_per_update, rewards.shape[1]).sum(1)
    return [float(mean) / episodes for mean in sums.mean(1)]


def of_history(args):
    import h5py
    with h5py.File(args.history) as file:
        return {"returns": returns(file["0/rewards"][:], args.steps_per_update)}


def learn(args):
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Darkroom(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, SIZE - 1, (2,), np.int32)
        action_space = gymnasium.spaces.Discrete(len(MOVES))

        def reset(self, *, seed=None, options=None):
            self.at, self.steps = (SIZE // 2, SIZE // 2), 0
            return np.array(self.at, np.int32), {}

        def step(self, action):
            row, column = (min(max(x + d, 0), SIZE - 1)
                           for x, d in zip(self.at, MOVES[action]))
            self.at = (row, column)
            self.steps += 1
            return (np.array(self.at, np.int32),
                    float(self.at == divmod(args.goal, SIZE)),
                    self.steps == HORIZON, False, {})

    class Returns(BaseCallback):
        means = []

        def _on_step(self):
            return True

        def _on_rollout_end(self):
            rewards = self.model.rollout_buffer.rewards
            self.means += returns(rewards, args.steps_per_update)

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", DummyVecEnv([Darkroom] * args.streams),
                n_steps=args.steps_per_update, batch_size=40, n_epochs=20,
                learning_rate=3e-4, seed=args.seed + args.goal, device="cpu")
    steps = args.updates * args.streams * args.steps_per_update
    callback = Returns()
    start, cpu_start = time.perf_counter(), time.process_time()
    model.learn(steps, callback=callback)
    return {"steps": steps, "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "returns": callback.means}


if __name__ == "__main__":
    arguments = parse()
    print(json.dumps(of_history(arguments) if arguments.history
                     else learn(arguments)))
