/* Tasks, learned bandits, agents and evolution for docs/live.md, without anything of the page. They are inside one
function, because its text can start a Web Worker where a page may read no files (file://). */
"use strict";

/* `weights` are those of the shipped files: {title: {activation, tensors: {"reward.0.weight": base64 of float32}}}. */
function createUnderstudy(weights) {
  /* Repeatable random numbers (mulberry32). */
  class RandomStream {
    constructor(seed) {
      this.state = Math.imul(seed + 1, 0x9e3779b1) >>> 0;
    }

    uniform(low = 0, high = 1) {
      this.state = (this.state + 0x6d2b79f5) >>> 0;
      let bits = Math.imul(this.state ^ (this.state >>> 15), this.state | 1);
      bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
      return low + ((high - low) * ((bits ^ (bits >>> 14)) >>> 0)) / 4294967296;
    }

    below(count) {
      return Math.floor(count * this.uniform());
    }

    normal() {
      return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
    }
  }

  const clip = (value, low, high) => Math.min(Math.max(value, low), high);
  const wrapAngle = (angle) => angle - 2 * Math.PI * Math.floor((angle + Math.PI) / (2 * Math.PI));
  const arrayOf = (length, valueAt) => {
    const array = new Float64Array(length); // Float64Array.from is many times slower
    for (let i = 0; i < length; i++) array[i] = valueAt(i);
    return array;
  };
  const sumOf = (values) => values.reduce((total, value) => total + value, 0);
  const average = (values) => sumOf(values) / values.length;

  /* The real tasks, with Gymnasium's equations: `step` changes a state and returns the reward. Agents choose an index
  of `actions`, and see observations times `scale`. `sample` draws from all states, for bandits of such states. */
  const TASKS = {
    cartpole: {
      title: "CartPole",
      timeLimit: 500,
      returns: [0, 500],
      actions: [-1, 1],
      scale: [1, 1, 1, 1],
      initial: (random) => [0, 0, 0, 0].map(() => random.uniform(-0.05, 0.05)),
      observe: (state) => state,
      terminated: (state) => Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > (12 * 2 * Math.PI) / 360,
      step(state, direction) {
        const [position, speed, angle, angularSpeed] = state;
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        const push = (10 * direction + 0.05 * angularSpeed * angularSpeed * sin) / 1.1;
        const angularAcceleration = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos * cos) / 1.1));
        state[0] = position + 0.02 * speed;
        state[1] = speed + 0.02 * (push - (0.05 * angularAcceleration * cos) / 1.1);
        state[2] = angle + 0.02 * angularSpeed;
        state[3] = angularSpeed + 0.02 * angularAcceleration;
        return 1;
      },
    },

    acrobot: {
      title: "Acrobot",
      timeLimit: 500,
      returns: [-500, 0],
      actions: [-1, 0, 1],
      scale: [1, 1, 1, 1, 1, 1],
      initial: (random) => [0, 0, 0, 0].map(() => random.uniform(-0.1, 0.1)),
      observe: ([first, second, speed1, speed2]) => [
        Math.cos(first), Math.sin(first), Math.cos(second), Math.sin(second), speed1, speed2,
      ],
      terminated: ([first, second]) => -Math.cos(first) - Math.cos(first + second) > 1,
      step(state, torque) {
        const rates = ([first, second, speed1, speed2]) => {
          const [d1, d2] = [3.5 + Math.cos(second), 1.25 + 0.5 * Math.cos(second)];
          const halfSin = 0.5 * Math.sin(second);
          const phi2 = 4.9 * Math.sin(first + second);
          const phi1 = 14.7 * Math.sin(first) + phi2 - halfSin * speed2 * (speed2 + 2 * speed1);
          const rate2 = (torque + (d2 / d1) * phi1 - halfSin * speed1 * speed1 - phi2) / (1.25 - (d2 * d2) / d1);
          return [speed1, speed2, -(d2 * rate2 + phi1) / d1, rate2];
        };
        const moved = (slope, seconds) => state.map((value, i) => value + seconds * slope[i]);
        const k1 = rates(state);
        const k2 = rates(moved(k1, 0.1));
        const k3 = rates(moved(k2, 0.1));
        const k4 = rates(moved(k3, 0.2));
        const next = moved(k1.map((rate, i) => (rate + 2 * k2[i] + 2 * k3[i] + k4[i]) / 6), 0.2);
        state[0] = wrapAngle(next[0]);
        state[1] = wrapAngle(next[1]);
        state[2] = clip(next[2], -4 * Math.PI, 4 * Math.PI);
        state[3] = clip(next[3], -9 * Math.PI, 9 * Math.PI);
        return this.terminated(state) ? 0 : -1;
      },
    },

    pendulum: {
      title: "Pendulum",
      timeLimit: 200,
      returns: [-1600, 0],
      actions: [-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2], // torques
      scale: [1.4, 1.4, 0.22],
      initial: (random) => [random.uniform(-Math.PI, Math.PI), random.uniform(-1, 1)],
      sample: (random) => [random.uniform(-Math.PI, Math.PI), random.uniform(-8, 8)],
      observe: ([angle, speed]) => [Math.cos(angle), Math.sin(angle), speed],
      terminated: () => false,
      step(state, torque) {
        const [angle, speed] = [wrapAngle(state[0]), state[1]];
        state[1] = clip(speed + (15 * Math.sin(state[0]) + 3 * torque) * 0.05, -8, 8);
        state[0] += state[1] * 0.05;
        return -(angle * angle + 0.1 * speed * speed + 0.001 * torque * torque);
      },
    },

    mountaincar: {
      title: "MountainCar",
      timeLimit: 200,
      returns: [-200, -80],
      actions: [-1, 0, 1],
      scale: [2, 25],
      initial: (random) => [random.uniform(-0.6, -0.4), 0],
      sample: (random) => [random.uniform(-1.2, 0.6), random.uniform(-0.07, 0.07)],
      observe: (state) => state,
      terminated: ([position, speed]) => position >= 0.5 && speed >= 0,
      step(state, push) {
        const speed = clip(state[1] + 0.001 * push - 0.0025 * Math.cos(3 * state[0]), -0.07, 0.07);
        state[0] = clip(state[0] + speed, -1.2, 0.6);
        state[1] = state[0] === -1.2 && speed < 0 ? 0 : speed;
        return -1;
      },
    },
  };

  class RealEnvironment {
    constructor(task) {
      this.task = task;
    }

    reset(random) {
      this.state = this.task.initial(random);
      this.steps = 0;
      this.obs = this.task.observe(this.state);
    }

    step(action) {
      const reward = this.task.step(this.state, this.task.actions[action]);
      this.steps += 1;
      this.obs = this.task.observe(this.state);
      this.terminated = this.task.terminated(this.state);
      this.done = this.terminated || this.steps >= this.task.timeLimit;
      return reward;
    }
  }

  /* A network with one hidden layer. */
  class Network {
    constructor(weight1, bias1, weight2, bias2, activation = "relu") {
      Object.assign(this, { weight1, bias1, weight2, bias2, tanh: activation === "tanh" });
      this.hidden = new Float64Array(bias1.length);
    }

    runHidden(inputs) {
      const { weight1, bias1, hidden, tanh } = this;
      for (let h = 0, w = 0; h < hidden.length; h++) {
        let sum = bias1[h];
        for (let i = 0; i < inputs.length; i++, w++) sum += weight1[w] * inputs[i];
        hidden[h] = tanh ? Math.tanh(sum) : sum > 0 ? sum : 0;
      }
    }

    /* Return an output for the latest inputs of `runHidden`. */
    output(index) {
      const { weight2, hidden } = this;
      let sum = this.bias2[index];
      for (let h = 0, w = index * hidden.length; h < hidden.length; h++, w++) sum += weight2[w] * hidden[h];
      return sum;
    }

    bestOutput() {
      let [best, highest] = [0, this.output(0)];
      for (let index = 1; index < this.bias2.length; index++) {
        const value = this.output(index);
        if (value > highest) [best, highest] = [index, value];
      }
      return best;
    }
  }

  /* The shipped files with their tensors as numbers. */
  const decode = (base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return Float64Array.from(new Float32Array(bytes.buffer));
  };
  const mapValues = (object, change) =>
    Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
  const files = mapValues(weights, (file) => ({ ...file, tensors: mapValues(file.tensors, decode) }));

  /* A learned bandit, whose episodes have one step. Either two networks give the first state and the reward, or the
  reward is minus the distance to the action of a target network. */
  class Bandit {
    constructor(task, tensors = files[task.title].tensors) {
      this.task = task;
      this.terminated = this.done = true;
      const { activation } = files[task.title];
      const network = (name) =>
        new Network(
          ...["0.weight", "0.bias", "1.weight", "1.bias"].map((part) => tensors[`${name}.${part}`]), activation,
        );
      if (task.sample) {
        this.target = network("target");
        [this.center, this.spread] = [tensors["target.center"], tensors["target.spread"]];
      } else {
        [this.initial, this.reward] = [network("initial"), network("reward")];
      }
    }

    reset(random) {
      if (this.target) {
        this.obs = this.task.observe(this.task.sample(random));
      } else {
        const noise = arrayOf(this.task.scale.length, () => random.normal());
        this.initial.runHidden(noise);
        this.obs = noise.map((_, i) => this.initial.output(i));
      }
    }

    step(action) {
      const { actions } = this.task;
      if (!this.target) {
        const inputs = new Float64Array(actions.length + this.obs.length);
        inputs[action] = 1;
        inputs.set(this.obs, actions.length);
        this.reward.runHidden(inputs);
        return this.reward.output(0);
      }
      this.target.runHidden(arrayOf(this.obs.length, (i) => (this.obs[i] - this.center[i]) / this.spread[i]));
      if (this.target.bias2.length > 1) return action === this.target.bestOutput() ? 0 : -2 / actions.length;
      return -Math.abs(actions[action] / actions.at(-1) - clip(this.target.output(0), -1, 1));
    }
  }

  /* Settings of all agents: the project's for bandits. */
  const AGENT = {
    hiddenSize: 64, batchSize: 32, discount: 0.99, tau: 0.01, bufferSize: 2000, fill: 300, stepsPerUpdate: 10,
    epsilonFraction: 0.5, minEpsilon: 0.01,
  };

  /* A double DQN. */
  class Agent {
    constructor(task, seed, learningRate) {
      const [inputs, hidden, outputs] = [task.scale.length, AGENT.hiddenSize, task.actions.length];
      this.task = task;
      this.learningRate = learningRate;
      this.random = new RandomStream(seed);
      this.parameters = arrayOf((inputs + 1 + outputs) * hidden + outputs, (i) => {
        const bound = 1 / Math.sqrt(i < (inputs + 1) * hidden ? inputs : hidden);
        return this.random.uniform(-bound, bound);
      });
      this.targetParameters = this.parameters.slice();
      const zeros = () => new Float64Array(this.parameters.length);
      [this.gradient, this.firstMoment, this.secondMoment] = [zeros(), zeros(), zeros()];
      const network = (flat) => {
        const ends = [inputs * hidden, (inputs + 1) * hidden, (inputs + 1 + outputs) * hidden, flat.length];
        return new Network(...ends.map((end, i) => flat.subarray(i ? ends[i - 1] : 0, end)));
      };
      this.network = network(this.parameters);
      this.targetNetwork = network(this.targetParameters);
      this.gradientNetwork = network(this.gradient);
      this.updates = 0;
      this.buffer = [];
    }

    scaled(obs) {
      return arrayOf(obs.length, (i) => this.task.scale[i] * obs[i]);
    }

    greedyAction(inputs) {
      this.network.runHidden(inputs);
      return this.network.bestOutput();
    }

    act(obs) {
      return this.greedyAction(this.scaled(obs));
    }

    targetQ({ reward, nextInputs }) {
      if (nextInputs === null) return reward; // the episode terminated
      const nextAction = this.greedyAction(nextInputs);
      this.targetNetwork.runHidden(nextInputs);
      return reward + AGENT.discount * this.targetNetwork.output(nextAction);
    }

    /* Make a step of Adam on the mean squared error of a minibatch, and a soft target update. */
    update() {
      const { network, gradient, parameters, targetParameters, firstMoment, secondMoment } = this;
      const { hidden } = network;
      const { weight1, bias1, weight2, bias2 } = this.gradientNetwork;
      gradient.fill(0);
      for (let row = 0; row < AGENT.batchSize; row++) {
        const transition = this.buffer[this.random.below(this.buffer.length)];
        const { inputs, action } = transition;
        const targetQ = this.targetQ(transition);
        network.runHidden(inputs);
        const error = (2 / AGENT.batchSize) * (network.output(action) - targetQ);
        bias2[action] += error;
        for (let h = 0, a = action * hidden.length; h < hidden.length; h++, a++) {
          if (hidden[h] === 0) continue;
          weight2[a] += error * hidden[h];
          const hiddenError = error * network.weight2[a];
          bias1[h] += hiddenError;
          for (let i = 0, w = h * inputs.length; i < inputs.length; i++, w++) weight1[w] += hiddenError * inputs[i];
        }
      }
      this.updates += 1;
      const stepSize = this.learningRate / (1 - 0.9 ** this.updates);
      const correction = 1 / (1 - 0.999 ** this.updates);
      for (let i = 0; i < parameters.length; i++) {
        firstMoment[i] += 0.1 * (gradient[i] - firstMoment[i]);
        secondMoment[i] += 0.001 * (gradient[i] * gradient[i] - secondMoment[i]);
        parameters[i] -= (stepSize * firstMoment[i]) / (Math.sqrt(secondMoment[i] * correction) + 1e-8);
        targetParameters[i] += AGENT.tau * (parameters[i] - targetParameters[i]);
      }
    }
  }

  /* Train an agent, with an update after every ten steps. Yields after each update. */
  function* train(agent, environment, updates) {
    const { random, buffer } = agent;
    const steps = AGENT.fill + AGENT.stepsPerUpdate * updates;
    environment.reset(random);
    let inputs = agent.scaled(environment.obs);
    for (let step = 1; step <= steps; step++) {
      const epsilon = Math.max(AGENT.minEpsilon, 1 - step / (AGENT.epsilonFraction * steps));
      const explores = random.uniform() < epsilon;
      const action = explores ? random.below(agent.task.actions.length) : agent.greedyAction(inputs);
      const reward = environment.step(action);
      const nextInputs = environment.terminated ? null : agent.scaled(environment.obs);
      buffer[(step - 1) % AGENT.bufferSize] = { inputs, action, reward, nextInputs };
      if (environment.done) environment.reset(random);
      inputs = environment.done ? agent.scaled(environment.obs) : nextInputs;
      if (step > AGENT.fill && step % AGENT.stepsPerUpdate === 0) {
        agent.update();
        yield agent.updates;
      }
    }
  }

  /* Return a new agent after all of its training. */
  function trainedAgent(environment, seed, updates, learningRate) {
    const agent = new Agent(environment.task, seed, learningRate);
    for (const _ of train(agent, environment, updates));
    return agent;
  }

  /* Return the mean return of greedy episodes on the real task. */
  function evaluate(agent, episodes, seed) {
    const environment = new RealEnvironment(agent.task);
    const random = new RandomStream(seed);
    let total = 0;
    for (let episode = 0; episode < episodes; episode++) {
      environment.reset(random);
      do total += environment.step(agent.act(environment.obs));
      while (!environment.done);
    }
    return total / episodes;
  }

  /* Settings of a search by an evolution strategy (SNES) with mirrored pairs, and noise that is not adapted. Half
  of the project's pairs and twice its noise are each as good and cheaper (docs/synthetic_environments.md). */
  const SEARCH = {
    draws: 32, drawMembers: 16, pairs: 16, noiseStd: 0.1, updates: 270, learningRate: 1e-3, testEpisodes: 8,
    testEvery: 5, testAgents: 16, testUpdates: 1000, solved: 475,
  };

  /* Return a CartPole bandit with the parameters `vector`. */
  function banditOf(vector) {
    let start = 0;
    const part = (tensor) => vector.subarray(start, (start += tensor.length));
    return new Bandit(TASKS.cartpole, mapValues(files.CartPole.tensors, part));
  }

  /* Return parameters of a new bandit: weights are normal with variance 1 / inputs, biases are 0. */
  function drawVector(random) {
    const { tensors } = files.CartPole;
    const draws = Object.entries(tensors).flatMap(([name, tensor]) => {
      const biasName = name.replace("weight", "bias");
      const deviation = name === biasName ? 0 : Math.sqrt(tensors[biasName].length / tensor.length);
      return Array.from(tensor, () => deviation * random.normal());
    });
    return Float64Array.from(draws);
  }

  /* Return the real return of a new agent that trains on a bandit. */
  function trainedReturn(vector, seed, updates, learningRate) {
    return evaluate(trainedAgent(banditOf(vector), seed, updates, learningRate), SEARCH.testEpisodes, seed + 1);
  }

  /* Return a utility for each fitness, large for good ranks, with the sum 0. Equal members share theirs. */
  function utilitiesOf(fitness) {
    const byRank = fitness.map((_, rank) => Math.max(0, Math.log(fitness.length / 2 + 1) - Math.log(rank + 1)));
    const sorted = [...fitness].sort((a, b) => b - a);
    return fitness.map((value) => {
      const first = sorted.indexOf(value);
      return average(byRank.slice(first, sorted.lastIndexOf(value) + 1)) / sumOf(byRank) - 1 / fitness.length;
    });
  }

  /* Evolve a CartPole bandit from nothing, until new agents solve the real task. Yields `jobs`, each with arguments of
  `trainedReturn`, whose results the caller sends back. After a test of the present bandit it yields the score, and
  the bandit's vector. */
  function* evolve(seed) {
    const random = new RandomStream(seed);
    const noiseLike = (vector) => vector.map(() => random.normal());
    const moved = (vector, noise, factor) => vector.map((value, i) => value + factor * SEARCH.noiseStd * noise[i]);
    const jobOf = (vector, updates) => [vector, random.below(2 ** 31), updates, SEARCH.learningRate];
    const testOf = (vector, numAgents) => Array.from({ length: numAgents }, () => jobOf(vector, SEARCH.testUpdates));

    // Many random bandits teach nothing, and no search improves them, so it starts from the best of several.
    let [vector, best] = [null, -Infinity];
    for (let draw = 1; draw <= SEARCH.draws; draw++) {
      const candidate = drawVector(random);
      const jobs = Array.from({ length: SEARCH.drawMembers }, () =>
        jobOf(moved(candidate, noiseLike(candidate), 1), SEARCH.updates),
      );
      const score = average(yield { phase: `Trying random network ${draw} of ${SEARCH.draws}`, jobs });
      if (score > best) [vector, best] = [candidate, score];
    }

    for (let generation = 1; ; generation++) {
      // All agents of a generation have the same seed and learning rate, so chance affects all members equally.
      const agentSeed = random.below(2 ** 31);
      const learningRate = SEARCH.learningRate * 3 ** random.uniform(-1, 1);
      const noise = Array.from({ length: SEARCH.pairs }, () => noiseLike(vector));
      const members = noise.flatMap((row) => [moved(vector, row, 1), moved(vector, row, -1)]);
      const jobs = members.map((member) => [member, agentSeed, SEARCH.updates, learningRate]);
      const utilities = utilitiesOf(yield { phase: `Generation ${generation}: testing 32 variants`, jobs });
      noise.forEach((row, pair) => {
        vector = moved(vector, row, utilities[2 * pair] - utilities[2 * pair + 1]);
      });
      if (generation % SEARCH.testEvery !== 0) continue;
      const phase = "Testing the present network with 16 new agents";
      const score = average(yield { phase, jobs: testOf(vector, SEARCH.testAgents) });
      yield { phase, generation, score, vector, jobs: [] };
      if (score < SEARCH.solved) continue;
      const repetitions = testOf(vector, 2 * SEARCH.testAgents);
      const returns = yield { phase: "Repeating the test with 32 new agents", jobs: repetitions };
      if (average(returns) >= SEARCH.solved) return;
    }
  }

  return {
    TASKS, RandomStream, RealEnvironment, Bandit, files, banditOf, Agent, train, trainedAgent, evaluate, trainedReturn,
    utilitiesOf, evolve,
  };
}
