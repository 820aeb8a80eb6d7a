/* Controls and pictures of docs/live.md. learning.js learns, and `understudyWeights` are the shipped networks. */
"use strict";

const understudy = createUnderstudy(understudyWeights);
const { TASKS } = understudy;
const element = (name) => document.getElementById(`live-${name}`);
const say = (name, text) => (element(name).textContent = text);
const listen = (name, event, listener) => element(name).addEventListener(event, listener);
const describe = (canvas, text) => canvas.setAttribute("aria-label", text);
const number = (value) => value.toFixed(1);
const rate = () => 10 ** Number(element("rate").value);
const updates = () => Number(element("updates").value);
const [CURVE_POINTS, SEARCH_SECONDS] = [20, 300];

const choices = []; // of the menu of tasks: {task, bandit}
let session = 0; // a training ends when the reader starts another one
let paused = false;
let [pairs, searches] = [0, 0]; // trained pairs of agents, and searches; their seeds are 1, 2, ...
let curve = { lines: [], last: 1 }; // lines of points [updates, return], and the number of updates
let searchCurve = []; // points [generation, return]

// Pictures

/* Clear a canvas and make it sharp. Return its context, in CSS pixels, and its size. */
function cleared(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

/* The colours of the theme, as they are now. */
function themeColors() {
  const style = getComputedStyle(document.body);
  const color = (name) => style.getPropertyValue(`--color-${name}`) || "gray";
  return {
    text: color("foreground-primary"), faint: color("foreground-muted"),
    learned: color("brand-primary"), real: color("foreground-secondary"),
  };
}

const hill = (x) => 0.45 * Math.sin(3 * x) + 0.55;
const DOT = [0.001, 0]; // browsers draw no line without a length
const HILL = Array.from({ length: 61 }, (_, i) => [-1.2 + 0.03 * i, hill(-1.2 + 0.03 * i)]);

/* Each task's world in metres [left, right, bottom, top], lines in it: a colour, a width and points; and a speed. */
const PICTURES = {
  CartPole: {
    world: [-2.6, 2.6, -0.5, 1.5],
    stepsPerSecond: 50,
    lines: ([position, , angle]) => [
      ["faint", 0.03, [-2.4, 0.1], [-2.4, 0], [2.4, 0], [2.4, 0.1]],
      ["text", 0.2, [position - 0.2, 0], [position + 0.2, 0]],
      ["agent", 0.1, [position, 0.1], [position + Math.sin(angle), 0.1 + Math.cos(angle)]],
    ],
  },
  Acrobot: {
    world: [-2.2, 2.2, -2.2, 2.2],
    stepsPerSecond: 15,
    lines([first, second]) {
      const [x, y] = [Math.sin(first), -Math.cos(first)];
      const tip = [x + Math.sin(first + second), y - Math.cos(first + second)];
      return [["faint", 0.03, [-2.2, 1], [2.2, 1]], ["agent", 0.14, [0, 0], [x, y], tip], ["text", 0.2, [0, 0], DOT]];
    },
  },
  Pendulum: {
    world: [-1.3, 1.3, -1.3, 1.3],
    stepsPerSecond: 20,
    lines: ([angle]) => [
      ["faint", 0.02, [0, 0], [0, 1.2]],
      ["agent", 0.14, [0, 0], [-Math.sin(angle), Math.cos(angle)]],
      ["text", 0.1, [0, 0], DOT],
    ],
  },
  MountainCar: {
    world: [-1.3, 0.7, 0, 1.3],
    stepsPerSecond: 30,
    lines: ([position]) => [
      ["text", 0.012, ...HILL],
      ["faint", 0.02, [0.5, hill(0.5)], [0.5, hill(0.5) + 0.2], [0.42, hill(0.5) + 0.16]],
      ["agent", 0.1, [position - 0.03, hill(position) + 0.06], [position + 0.03, hill(position) + 0.06]],
    ],
  },
};

function drawState(canvas, { world: [left, right, bottom, top], lines }, state, agentColor) {
  const { context, width, height } = cleared(canvas);
  const colors = themeColors();
  const scale = Math.min(width / (right - left), height / (top - bottom));
  context.translate(width / 2, height / 2);
  context.scale(scale, -scale);
  context.translate(-(left + right) / 2, -(bottom + top) / 2);
  context.lineCap = "round";
  for (const [color, lineWidth, ...points] of lines(state)) {
    Object.assign(context, { lineWidth, strokeStyle: colors[color] || colors[agentColor] });
    context.beginPath();
    for (const point of points) context.lineTo(...point);
    context.stroke();
  }
}

/* Draw curves of points [x, return], with x from 0 to `last`; the second one is dashed. */
function drawChart(name, curves, last, unit, [worst, best]) {
  const { context, width, height } = cleared(element(name));
  const colors = themeColors();
  const x = (value) => 50 + ((width - 60) * value) / last;
  const y = (value) => 12 + ((height - 44) * (best - Math.max(value, worst))) / (best - worst);
  Object.assign(context, {
    font: "13px sans-serif", textAlign: "right", lineWidth: 0.5, fillStyle: colors.text, strokeStyle: colors.faint,
  });
  for (const level of [worst, (worst + best) / 2, best]) {
    context.fillText(level, 44, y(level) + 4);
    context.strokeRect(x(0), y(level), width - 60, 0);
  }
  context.fillText(`${last} ${unit}`, width - 10, height - 6);
  context.lineWidth = 3;
  curves.forEach((points, i) => {
    context.strokeStyle = i ? colors.real : colors.learned;
    context.setLineDash(i ? [6, 5] : []);
    context.beginPath();
    for (const [step, score] of points) {
      context.lineTo(x(step) - 2, y(score)); // so that a single point is visible, too
      context.lineTo(x(step) + 2, y(score));
    }
    context.stroke();
  });
}

/* An agent that plays the real task, episode after episode. `name` says what it trained on: learned or real. */
class Player {
  constructor(name) {
    this.name = name;
  }

  /* Show a task, and its first state if there is no agent. */
  show(task, agent) {
    Object.assign(this, { task, agent, picture: PICTURES[task.title] });
    this.random = new understudy.RandomStream(pairs);
    this.environment = new understudy.RealEnvironment(task);
    this.begin();
  }

  begin() {
    this.environment.reset(this.random);
    [this.return, this.seconds] = [0, 0]; // `seconds` are still to be played
    this.environment.done = false;
    this.draw();
  }

  /* Play for some seconds. The end of an episode stays for one second. */
  advance(seconds) {
    this.seconds += seconds;
    if (this.environment.done && this.seconds > 1) this.begin();
    for (; !this.environment.done && this.seconds > 0; this.seconds -= 1 / this.picture.stepsPerSecond) {
      this.return += this.environment.step(this.agent.act(this.environment.obs));
    }
    this.draw();
  }

  draw() {
    drawState(element(this.name), this.picture, this.environment.state, this.name);
    const result = this.agent ? `return ${Math.round(this.return)}` : "no agent yet";
    say(`${this.name}-caption`, `Trained on the ${this.name} ${this.task.title}:\n${result}`);
  }
}

const players = [new Player("learned"), new Player("real")];

const selection = () => choices[element("task").selectedIndex];

function addChoice(title, task, bandit) {
  choices.push({ task, bandit });
  element("task").add(new Option(title));
}

function drawCharts() {
  drawChart("curve", curve.lines, curve.last, "updates", selection().task.returns);
  const generations = searchCurve.length ? searchCurve.at(-1)[0] : 5;
  drawChart("search", [searchCurve], generations, "generations", TASKS.cartpole.returns);
}

function drawAll() {
  for (const player of players) player.draw();
  drawCharts();
}

// Training

function showTask() {
  session += 1;
  curve = { lines: [], last: updates() };
  for (const player of players) player.show(selection().task, null);
  describe(element("curve"), "No agent yet");
  say("status", "No agent is trained yet.");
  drawCharts();
}

/* Train two agents with the same seed, settings and number of updates, on the learned task and on the real one. */
async function trainPair() {
  const current = ++session;
  const { task, bandit } = selection();
  const seed = ++pairs;
  const trainings = [bandit, new understudy.RealEnvironment(task)].map((environment) => {
    const agent = new understudy.Agent(task, seed, rate());
    return { agent, steps: understudy.train(agent, environment, updates()), seconds: 0 };
  });
  players.forEach((player, i) => player.show(task, trainings[i].agent));
  const { lines, last } = (curve = { lines: trainings.map(() => []), last: updates() });
  say("status", "Training…");
  for (let point = 0; point <= CURVE_POINTS; point++) {
    trainings.forEach((training, i) => {
      const start = performance.now();
      while (training.agent.updates < (last * point) / CURVE_POINTS) training.steps.next();
      training.seconds += (performance.now() - start) / 1000;
      const episodes = point === CURVE_POINTS ? 10 : 4;
      lines[i].push([training.agent.updates, understudy.evaluate(training.agent, episodes, seed + point)]);
    });
    drawCharts();
    await new Promise(requestAnimationFrame);
    if (session !== current) return;
  }
  const [seconds, realSeconds] = trainings.map((training) => training.seconds.toFixed(2));
  const [result, realResult] = lines.map((points) => number(points.at(-1)[1]));
  say(
    "status",
    `Trained in ${seconds} s on the learned ${task.title}, in ${realSeconds} s on the real one. ` +
      `Mean return of ten real episodes: ${result} and ${realResult}. (Seed ${seed})`,
  );
  const scores = (points) => points.filter((_, i) => i % 5 === 0).map((point) => number(point[1])).join(", ");
  describe(
    element("curve"),
    `Mean returns at the start and after each quarter of the training. Trained on the learned task: ` +
      `${scores(lines[0])}; on the real one: ${scores(lines[1])}`,
  );
}

// Evolution

let search = null; // its workers, timer, start, and best bandit so far

/* Evolve a bandit, with agents that train in workers: one for each processor core but this page's. */
async function runSearch() {
  const seed = ++searches;
  setSearching(true);
  // From file:// a worker may load no file, so it gets the text of the program.
  const source =
    `const understudy = (${createUnderstudy})(${JSON.stringify(understudyWeights)});` +
    "onmessage = (event) => postMessage(understudy.trainedReturn(...event.data));";
  const url = URL.createObjectURL(new Blob([source]));
  const cores = Math.min(Math.max((navigator.hardwareConcurrency || 2) - 1, 1), 8);
  const workers = Array.from({ length: cores }, () => new Worker(url));
  const timer = setTimeout(endSearch, SEARCH_SECONDS * 1000, "Time is up");
  const current = (search = { workers, timer, start: performance.now(), best: -Infinity, vector: null });
  searchCurve = [];
  say("search-status", `First the best of 32 random networks is chosen, then it evolves. (Seed ${seed})`);
  describe(element("search"), "No score yet");
  drawCharts();
  const steps = understudy.evolve(seed);
  for (let step = steps.next(); !step.done; ) {
    showProgress(step.value);
    const returns = await resultsOf(step.value.jobs, workers);
    if (search !== current) return;
    step = steps.next(returns);
  }
  endSearch("Solved");
}

/* Return the results of jobs, which the workers share. */
function resultsOf(jobs, workers) {
  const results = [];
  let [started, finished] = [0, 0];
  return new Promise((resolve) => {
    const startJob = (worker) => {
      const job = started++;
      if (job >= jobs.length) return;
      worker.onerror = () => endSearch("This browser cannot run the search");
      worker.onmessage = (event) => {
        results[job] = event.data;
        if (++finished === jobs.length) resolve(results);
        startJob(worker);
      };
      worker.postMessage(jobs[job]);
    };
    workers.forEach(startJob);
    if (!jobs.length) resolve(results);
  });
}

const secondsOfSearch = () => Math.round((performance.now() - search.start) / 1000);

function showProgress({ phase, generation, score, vector }) {
  say("progress-text", `${phase}, ${secondsOfSearch()} of at most ${SEARCH_SECONDS} s`);
  if (!vector) return;
  if (score >= search.best) Object.assign(search, { best: score, vector });
  searchCurve.push([generation, score]);
  const scores = searchCurve.map((point) => `generation ${point[0]}: ${number(point[1])}`);
  describe(element("search"), scores.join(", "));
  const kept = score < search.best ? ` A noisy step made it worse; the best, ${number(search.best)}, is kept.` : "";
  say("search-status", `Generation ${generation}: 16 new agents reach ${number(score)} on average.${kept}`);
  drawCharts();
}

/* End the search, and put its best bandit into the menu of tasks. */
function endSearch(reason) {
  if (!search) return;
  for (const worker of search.workers) worker.terminate();
  clearTimeout(search.timer);
  element("progress").value = SEARCH_SECONDS;
  let text = `${reason} after ${secondsOfSearch()} s.`;
  if (search.vector) {
    const title = `CartPole, evolved here (${number(search.best)})`;
    addChoice(title, TASKS.cartpole, understudy.banditOf(search.vector));
    text += ` 16 new agents reached ${number(search.best)} on average. The menu of tasks has "${title}" now.`;
  }
  say("progress-text", reason);
  search = null;
  setSearching(false);
  say("search-status", text);
}

const setSearching = (now) => ([element("evolve").disabled, element("stop").disabled] = [now, !now]);

// Controls

function showSettings() {
  const text = rate().toPrecision(2);
  say("rate-value", text);
  element("rate").setAttribute("aria-valuetext", text);
  say("updates-value", updates());
  drawCharts();
}

function pause(value) {
  paused = value;
  say("pause", paused ? "Play" : "Pause");
}

let lastTime = 0;
function animate(time) {
  const seconds = Math.min((time - lastTime) / 1000, 0.1);
  lastTime = time;
  for (const player of players) if (player.agent && !paused) player.advance(seconds);
  if (search) element("progress").value = secondsOfSearch();
  requestAnimationFrame(animate);
}

function start() {
  for (const task of Object.values(TASKS)) addChoice(task.title, task, new understudy.Bandit(task));
  listen("task", "change", showTask);
  listen("rate", "input", showSettings);
  listen("updates", "input", showSettings);
  listen("train", "click", trainPair);
  listen("pause", "click", () => pause(!paused));
  listen("evolve", "click", runSearch);
  listen("stop", "click", () => endSearch("Stopped"));
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  new MutationObserver(drawAll).observe(document.body, { attributeFilter: ["data-theme"] });
  showTask();
  showSettings();
  pause(matchMedia("(prefers-reduced-motion: reduce)").matches);
  requestAnimationFrame(animate);
}

if (typeof document === "undefined") module.exports = understudy; // in Node, for tests/test_live.py
else start();
