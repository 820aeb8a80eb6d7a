/* The greedy policy of an agent, exported by Understudy: an ES module without dependencies.

   import { act } from "./agent.js";
   const action = act(observation); // an index, or an array of numbers

An agent with a command, such as a return, counts it down: `let current = command` at the start of an episode,
`act(observation, current)`, and `current = advance(current, reward)` after each step. */

export const header = /* header */ null;
const weights = /* weights */ null;
const [start, fallPerStep, fallPerReward, low, high, center, scale] = /* command */ null;
const limit = /* limit */ null; // of normalised observations

const decode = (text) => Array.from(new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
const tensors = Object.fromEntries(Object.entries(weights).map(([name, text]) => [name, decode(text)]));
const clip = (x, smallest, largest) => Math.min(Math.max(x, smallest), largest);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const argmax = (values) => values.indexOf(Math.max(...values));
const elementwise = { tanh: Math.tanh, elu: (x) => (x > 0 ? x : Math.expm1(x)), silu: (x) => x * sigmoid(x) };
const affine = (layer, x) => {
  const weight = tensors[`${layer}.weight`];
  const rowOf = (bias, row) => x.reduce((sum, value, i) => sum + weight[row * x.length + i] * value, bias);
  return tensors[`${layer}.bias`].map(rowOf);
};
const activate = (x, name) => {
  if (typeof name === "number") return x.map((value) => (value > 0 ? value : name * value)); // a slope
  if (name in elementwise) return x.map(elementwise[name]);
  const size = Number(name.split("/")[1]); // one_hot
  return x.map((_, i) => Number(argmax(x.slice(i - (i % size), i - (i % size) + size)) === i % size));
};

/* The command at the start of an episode, with the names in `header.command`, and after a step with this reward. */
export const command = start;
export const advance = (current, reward) =>
  current.map((x, i) => clip(x - fallPerStep[i] - fallPerReward[i] * reward, low[i], high[i]));

/* Return the greedy action: an index from 0, or an array. An observation is an array, or the index of a cell. */
export function act(observation, current = command) {
  const size = tensors["layers.0.weight"].length / tensors["layers.0.bias"].length;
  const isCell = header.cells && typeof observation === "number";
  let x = isCell ? Array.from({ length: size }, (_, i) => Number(i === observation)) : Array.from(observation, Math.fround);
  if (x.length !== size || current.length !== start.length)
    throw new Error(`${x.length} numbers and ${current.length} of a command; allowed: ${size} and ${start.length}`);
  if (![...x, ...current].every(Number.isFinite)) throw new Error("a number is not finite");
  if (tensors.mean) x = x.map((value, i) => clip((value - tensors.mean[i]) * tensors.scale[i], -limit, limit));
  const goal = current.map((value, i) => (value - center[i]) * scale[i]);
  [...header.activations, 1].forEach((activation, i) => {
    if (tensors[`layers.${i}.weight`].length > x.length * tensors[`layers.${i}.bias`].length)
      x = [...x, ...goal.flatMap((part) => x.map((value) => part * value)), ...goal];
    x = activate(affine(`layers.${i}`, x), activation);
    if (tensors[`gates.${i}.bias`]) x = affine(`gates.${i}`, goal).map((gate, j) => x[j] * sigmoid(gate));
  });
  if (header.head === "argmax") return argmax(x);
  return x.map((value, i) => {
    const [lowest, highest] = [header.actions.low[i], header.actions.high[i]];
    const share = header.head === "tanh" ? Math.tanh(value) : value;
    return clip(header.head === "clip" ? value : (lowest + highest + (highest - lowest) * share) / 2, lowest, highest);
  });
}
