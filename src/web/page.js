// Follows a view of a public log. Every event is one line of `hushflow tail --json`; taking it in costs the same however long
// the log is, and drawing costs at most one pass over SPANS points.
"use strict";

const SPANS = 2048;
const $ = (id) => document.getElementById(id);

/// The numbers of one column over time: one span for each epoch, and when there are too many, for every two, four, …
class Series {
  constructor() {
    this.fields = ["from", "to", "value", "least", "most", "lower", "upper", "good"];
    for (const field of this.fields) this[field] = new Float64Array(SPANS);
    this.clear();
  }

  clear() {
    this.length = 0;
    this.width = 1;
    this.filled = 0;
  }

  push(epoch, { value, lower, upper, good }) {
    if (this.length === 0 || this.filled === this.width) {
      if (this.length === SPANS) this.halve();
    }
    if (this.length === 0 || this.filled === this.width) {
      this.put(this.length++, epoch, epoch, value, value, value, lower, upper, good ? 1 : 0);
      this.filled = 1;
    } else {
      this.join(this.length - 1, epoch, value, value, value, lower, upper, good ? 1 : 0);
      this.filled += 1;
    }
  }

  put(at, ...numbers) {
    this.fields.forEach((field, place) => { this[field][at] = numbers[place]; });
  }

  join(at, to, value, least, most, lower, upper, good) {
    this.to[at] = to;
    if (!Number.isNaN(value)) this.value[at] = value;
    this.least[at] = least < this.least[at] || Number.isNaN(this.least[at]) ? least : this.least[at];
    this.most[at] = most > this.most[at] || Number.isNaN(this.most[at]) ? most : this.most[at];
    this.lower[at] = lower < this.lower[at] || Number.isNaN(this.lower[at]) ? lower : this.lower[at];
    this.upper[at] = upper > this.upper[at] || Number.isNaN(this.upper[at]) ? upper : this.upper[at];
    this.good[at] = Math.max(this.good[at], good);
  }

  /// Joins spans in pairs.
  halve() {
    for (let at = 0; at < SPANS / 2; at++) {
      const [one, two] = [2 * at, 2 * at + 1];
      this.put(at, ...this.fields.map((field) => this[field][one]));
      this.join(at, ...this.fields.slice(1).map((field) => this[field][two]));
    }
    this.length = SPANS / 2;
    this.width *= 2;
    this.filled = this.width;
  }

  /// From where to where most of it reaches, and all of the newest span.
  range() {
    const end = (field, share) => {
      const numbers = [];
      for (const wanted of [1, 0]) {
        for (let at = 0; at < this.length; at++) {
          if (this.good[at] >= wanted && Number.isFinite(this[field][at])) numbers.push(this[field][at]);
        }
        if (numbers.length > 0) break;
      }
      numbers.sort((a, b) => a - b);
      return numbers[Math.round(share * (numbers.length - 1))];
    };
    const last = this.length - 1;
    const finite = (numbers) => numbers.filter(Number.isFinite);
    return [
      Math.min(...finite([end("lower", 0.08), this.lower[last], this.value[last]])),
      Math.max(...finite([end("upper", 0.92), this.upper[last], this.value[last]])),
    ];
  }

  /// The span of an epoch.
  at(epoch) {
    let [low, high] = [0, this.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.to[middle] < epoch) low = middle + 1; else high = middle;
    }
    return low;
  }
}

/// A column's chart, with its caption and what is read off it.
class Chart {
  constructor(title, index) {
    this.title = title;
    this.series = new Series();
    this.cursor = null;
    this.shown = true;
    const figure = document.createElement("figure");
    figure.innerHTML = '<figcaption><strong></strong><span class="now"></span></figcaption>' +
      '<canvas role="img" tabindex="0"></canvas><output aria-live="polite"></output>';
    figure.dataset.column = title;
    figure.querySelector("strong").textContent = title;
    this.now = figure.querySelector(".now");
    this.canvas = figure.querySelector("canvas");
    this.readout = figure.querySelector("output");
    this.readout.id = `readout-${index}`;
    this.canvas.setAttribute("aria-describedby", this.readout.id);
    this.figure = figure;
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("blur", () => this.moveTo(null));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  point(x) {
    const { left, right } = this.box ?? { left: 0, right: 1 };
    const { from, to } = this.ends();
    this.moveTo(Math.round(from + ((x - left) / (right - left)) * (to - from)));
  }

  press(event) {
    const { series } = this;
    if (series.length === 0) return;
    const step = event.shiftKey ? 10 : 1;
    const at = this.cursor === null ? series.length - 1 : series.at(this.cursor);
    const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: series.length - 1 };
    if (event.key === "Escape") this.moveTo(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.moveTo(series.to[Math.min(Math.max(moves[event.key], 0), series.length - 1)]);
  }

  moveTo(epoch) {
    this.cursor = epoch;
    this.read();
    ask();
  }

  read() {
    const { series } = this;
    if (this.cursor === null || series.length === 0) { this.readout.textContent = ""; return; }
    const at = series.at(this.cursor);
    const epochs = series.from[at] === series.to[at] ? `epoch ${series.to[at]}` : `epochs ${series.from[at]} to ${series.to[at]}`;
    const value = series.value[at];
    this.readout.textContent = Number.isNaN(value)
      ? `${epochs}: no estimate`
      : `${epochs}${when(series.to[at])}: ${format(value, reach(value, series.lower[at], series.upper[at]))}, ` +
        `interval ${bound(series.lower[at])} to ${bound(series.upper[at])}`;
  }

  ends() {
    const { series } = this;
    const from = series.length === 0 ? 1 : series.from[0];
    const to = series.length === 0 ? 2 : series.to[series.length - 1];
    return { from, to: Math.max(to, from + 1) };
  }

  draw(colours) {
    const { canvas, series } = this;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (series.length === 0) return;
    let [low, high] = series.range();
    if (!Number.isFinite(low) || !Number.isFinite(high)) return;
    const margin = (high - low) * 0.12 || 1;
    [low, high] = [low - margin, high + margin];
    pen.font = "12px system-ui, sans-serif";
    const marks = ticks(low, high, 7);
    const left = Math.max(...marks.map((mark) => pen.measureText(bound(mark)).width)) + 14;
    const box = { left, right: width - 8, top: 8, bottom: height - 24 };
    this.box = box;
    const { from, to } = this.ends();
    const x = (epoch) => box.left + ((epoch - from) / (to - from)) * (box.right - box.left);
    const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const mark of marks) {
      pen.strokeStyle = colours.rule;
      pen.beginPath(); pen.moveTo(box.left, y(mark)); pen.lineTo(box.right, y(mark)); pen.stroke();
      pen.fillStyle = colours.muted;
      pen.fillText(bound(mark), box.left - 6, y(mark));
    }
    pen.textBaseline = "alphabetic";
    const dates = ticks(from, to, Math.max(2, Math.floor((box.right - box.left) / 110))).filter(Number.isInteger);
    for (const epoch of dates) {
      const text = axis(epoch, to - from);
      const half = pen.measureText(text).width / 2;
      pen.textAlign = "left";
      pen.fillText(text, Math.min(Math.max(x(epoch) - half, box.left), box.right - 2 * half), height - 6);
    }
    pen.save();
    pen.beginPath(); pen.rect(box.left, box.top, box.right - box.left, box.bottom - box.top); pen.clip();
    this.band(pen, colours, x, y, low, high);
    if (this.cursor !== null) {
      const at = series.at(this.cursor);
      pen.strokeStyle = colours.muted;
      pen.beginPath(); pen.moveTo(x(series.to[at]), box.top); pen.lineTo(x(series.to[at]), box.bottom); pen.stroke();
    }
    pen.restore();
  }

  band(pen, colours, x, y, low, high) {
    const { series } = this;
    const last = series.length - 1;
    pen.fillStyle = colours.band;
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    const finite = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);
    let start = 0;
    while (start <= last) {
      while (start <= last && Number.isNaN(series.value[start])) start++;
      let end = start;
      while (end <= last && !Number.isNaN(series.value[end])) end++;
      if (start >= end) break;
      pen.beginPath();
      for (let at = start; at < end; at++) pen.lineTo(x(series.to[at]), y(finite(series.upper[at], high + (high - low))));
      for (let at = end - 1; at >= start; at--) pen.lineTo(x(series.to[at]), y(finite(series.lower[at], low - (high - low))));
      pen.closePath(); pen.fill();
      pen.beginPath();
      for (let at = start; at < end; at++) {
        pen.lineTo(x(series.to[at]), y(series.least[at]));
        if (series.most[at] > series.least[at]) pen.lineTo(x(series.to[at]), y(series.most[at]));
      }
      pen.lineTo(x(series.to[end - 1]), y(series.value[end - 1]));
      pen.stroke();
      pen.fillStyle = colours.line;
      pen.beginPath(); pen.arc(x(series.to[end - 1]), y(series.value[end - 1]), 2.5, 0, 7); pen.fill();
      pen.fillStyle = colours.band;
      start = end;
    }
  }
}

/// Round numbers between two others.
function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high; number++) found.push(Number((number * step).toPrecision(12)));
  return found;
}

const bound = (value) => (value === null || !Number.isFinite(value) ? "unbounded" : String(Number(value.toPrecision(4))));

/// `value ± reach`, both to the place of the reach's second digit.
function format(value, reach) {
  if (!(reach > 0) || !Number.isFinite(reach)) return bound(value);
  const places = Math.min(Math.max(1 - Math.floor(Math.log10(reach)), 0), 6);
  return `${value.toFixed(places)} ± ${reach.toFixed(places)}`;
}

const reach = (value, lower, upper) => Math.max(upper - value, value - lower);

/// When an epoch begins.
function run(epoch) {
  const whole = { first: 1, start: about.start, length: about.length, offset: 0 };
  return (about.runs ?? [whole]).findLast((run) => run.first <= epoch) ?? whole;
}

/// The local time at which it begins, as if it were UTC.
function time(epoch) {
  const { first, start, length, offset } = run(epoch);
  return new Date((start + length * (epoch - first)) / 1000 + offset * 1000).toISOString();
}

/// `Z` or `-05:00`.
function zone(epoch) {
  if (!about.runs) return "Z";
  const { offset } = run(epoch);
  const minutes = Math.abs(offset) / 60;
  const pair = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${offset < 0 ? "-" : "+"}${pair(minutes / 60)}:${pair(minutes % 60)}`;
}

const when = (epoch) =>
  (about.start === null ? "" : `, from ${time(epoch).replace(".000Z", zone(epoch)).replace("T", " ")}`);

function axis(epoch, epochs) {
  if (about.start === null) return String(epoch);
  const days = (epochs * about.length) / 86_400_000_000;
  return days > 3 ? time(epoch).slice(0, 10) : time(epoch).slice(11, days > 0.02 ? 16 : 19);
}

let about = null;
let charts = [];
let latest = null;
let stream = null;
let asked = false;

/// Draws once before the next picture, however many events come until then.
function ask() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; show(); });
}

function show() {
  const style = getComputedStyle(document.body);
  const colours = {};
  probe.style.color = "";
  for (const name of ["line", "band", "muted", "rule"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  for (const chart of charts) if (chart.shown) chart.draw(colours, style);
  if (latest === null) return;
  const line = latest;
  $("epoch").textContent = `${line.epoch} of ${about.horizon}`;
  $("epoch").dataset.epoch = line.epoch;
  $("epoch").title = when(line.epoch).replace(", ", "");
  $("count").textContent = format(line.count, line.count_noise * about.reach);
  $("count").dataset.value = line.count;
  $("quality").textContent = (line.quality ?? "as released").replace(/-/g, " ");
  $("quality").dataset.quality = line.quality ?? "good";
  $("generation").textContent = line.generation;
  $("chain").textContent = line.chain;
  charts.forEach((chart, place) => tell(chart, numbers(line, place)));
  matrix(line);
}

function tell(chart, { value, lower, upper }) {
  const { figure, now, canvas } = chart;
  Object.assign(figure.dataset, { value: Number.isNaN(value) ? "" : value, lower: lower ?? "", upper: upper ?? "" });
  const text = Number.isNaN(value) ? "no estimate yet" : format(value, reach(value, lower, upper));
  if (now.textContent !== text) {
    now.textContent = text;
    canvas.setAttribute("aria-label", `${chart.title} over the epochs, now ${text}. Arrow keys read earlier epochs.`);
  }
  chart.read();
}

/// The number at a place of a line: a list of names and positions.
const lookUp = (line, place) => place.reduce((found, step) => found?.[step], line) ?? null;

/// What a line says of a series.
function numbers(line, place) {
  const good = line.quality === undefined || line.quality === "good";
  const series = about.plot.series[place];
  const value = lookUp(line, series.value) ?? NaN;
  if (series.noise !== undefined) {
    const far = lookUp(line, series.noise) * about.reach;
    return { value, lower: value - far, upper: value + far, good };
  }
  const [lower, upper] = lookUp(line, series.interval) ?? [null, null];
  return { value, lower: lower ?? -Infinity, upper: upper ?? Infinity, good };
}

/// The covariance matrix as a table whose cells are as coloured as columns go together.
function matrix(line) {
  if (!about.plot.matrix) return;
  const scale = document.querySelector("input[name=scale]:checked").value;
  const [values, intervals] = [line[scale], line[`${scale}_interval`]];
  const { cells } = matrix;
  for (let i = 0; i < cells.length; i++) {
    for (let j = 0; j < cells.length; j++) {
      const cell = cells[i][j];
      const [value, interval] = [values?.[i]?.[j] ?? null, intervals?.[i]?.[j] ?? null];
      const together = line.covariance === null ? 0
        : line.covariance[i][j] / Math.sqrt(line.covariance[i][i] * line.covariance[j][j]);
      const share = value === null || !Number.isFinite(together) ? 0 : Math.min(Math.abs(together), 1);
      cell.style.background = `color-mix(in srgb, var(--${together < 0 ? "cool" : "warm"}) ${Math.round(share * 55)}%, var(--page))`;
      cell.dataset.value = value ?? "";
      cell.dataset.covariance = line.covariance?.[i]?.[j] ?? "";
      const about = interval === null ? "" : `${bound(interval[0])} to ${bound(interval[1])}`;
      cell.firstChild.data = value === null ? "–" : bound(value);
      cell.lastChild.textContent = cells.length > 8 ? "" : about;
      cell.title = about;
    }
  }
}

function build() {
  document.title = `${about.name} – hushflow`;
  $("name").textContent = about.name;
  if (!about.private) {
    $("warning").textContent = "Not private: the noise of these releases was drawn from a seed, so they protect nobody.";
    $("warning").hidden = false;
  }
  $("means-title").textContent = about.plot.title;
  $("band").textContent = `Band: ${about.level * 100} % confidence interval for ${about.plot.band}.`;
  $("matrix-section").hidden = !about.plot.matrix;
  charts = about.plot.series.map(({ name }, place) => new Chart(name, place));
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) charts.find((chart) => chart.canvas === target).shown = isIntersecting;
    ask();
  });
  for (const chart of charts) { $("charts").append(chart.figure); watch.observe(chart.canvas); }
  buildMatrix();
  buildGuarantee();
  buildControls();
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function buildMatrix() {
  const names = about.columns.map((column) => column.name);
  const head = $("matrix").createTHead().insertRow();
  head.append(document.createElement("td"), ...names.map((name) => Object.assign(element("th", name), { scope: "col" })));
  head.firstChild.style.background = "none";
  const body = $("matrix").createTBody();
  $("matrix").classList.toggle("dense", names.length > 8);
  matrix.cells = names.map((name) => {
    const row = body.insertRow();
    row.append(Object.assign(element("th", name), { scope: "row" }));
    return names.map(() => {
      const cell = row.insertCell();
      cell.append(document.createTextNode("–"), document.createElement("small"));
      return cell;
    });
  });
  for (const button of document.querySelectorAll("input[name=scale]")) button.addEventListener("change", ask);
}

function buildGuarantee() {
  const { epsilon, delta, neighbours, protects } = about;
  $("guarantee").textContent = about.guarantee;
  const limits = protects.unit === "entity"
    ? { "an entity": protects.column, "epochs of one, at most": protects.participations,
      "epochs apart, at least": protects.min_separation, "records in each, at most": protects.records_per_epoch }
    : {};
  const bounds = about.columns.map(({ name, lower, upper, bounds = {} }) => {
    const own = Object.entries(bounds).map(([key, [from, to]]) => `${key} ${from} to ${to}`);
    return `${name} ${lower} to ${upper}${own.length > 0 ? ` (${own.join(", ")})` : ""}`;
  }).join(", ");
  const facts = { ε: epsilon, δ: delta, unit: protects.unit, ...limits, neighbours, method: about.method, strategy: about.strategy,
    "noise multiplier": bound(about.noise_multiplier), epochs: about.horizon, bounds, covariance: about.projection };
  for (const [name, value] of Object.entries(facts)) {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    $("parameters").append(pair);
  }
  const account = about.ledger;
  if (account === null) return;
  $("ledger-section").hidden = false;
  const sum = account.composition;
  $("together").textContent =
    (account.problem ?? `${account.entries.length} together: (ε, δ) = (${bound(sum?.epsilon)}, ${sum?.delta}) for ${sum?.neighbours} neighbours.`) +
    (account.budget === null ? " There is no budget." : ` Budget: (${account.budget.epsilon}, ${account.budget.delta}); ε left: ${bound(account.left?.epsilon ?? 0)}.`);
  const titles = ["started", "pipeline", "method", "unit", "neighbours", "epsilon", "delta", "epochs", "private"];
  $("ledger").createTHead().insertRow().append(...titles.map((title) => Object.assign(element("th", title), { scope: "col" })));
  const body = $("ledger").createTBody();
  for (const entry of account.entries) body.insertRow().append(...titles.map((title) => element("td", String(entry[title] ?? "–"))));
}

function buildControls() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const named = about.number_of_keys > about.keys.length;
  $("key-label").hidden = named || about.by === null;
  $("key-name-label").hidden = !named;
  $("key").append(...about.keys.map((key) => new Option(key, key)));
  const key = wanted.get("key") ?? about.view.key;
  if (about.keys.includes(key)) $("key").value = key;
  $("key-name").value = key;
  $("workload").append(...about.workloads.map((workload) => new Option(weighting(workload), workload)));
  const workload = wanted.get("workload") ?? about.view.workload;
  $("workload").value = about.workloads.includes(workload) ? workload : about.view.workload;
  for (const input of ["key", "key-name", "workload"]) $(input).addEventListener("change", connect);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

/// A workload in words.
function weighting(workload) {
  const [name, parameter] = workload.split(":");
  const words = { prefix: "all so far", average: "all so far, averaged",
    exponential: `the recent ones most (exponential, β = ${parameter})`, window: `the last ${parameter} (window)`,
    "window-mean": `the last ${parameter}, averaged` };
  return words[name] ?? workload;
}

/// The view that the controls name.
function chosen() {
  const workload = $("workload").value;
  $("count-title").textContent = workload === "prefix" ? "records that counted" : "weight of records that counted";
  const key = $("key-name-label").hidden ? $("key").value : $("key-name").value;
  return new URLSearchParams({ key, workload });
}

function status(state, text) {
  $("status").dataset.state = state;
  if ($("status").textContent !== text) $("status").textContent = text;
}

function connect() {
  const view = chosen();
  history.replaceState(null, "", `#${view}`);
  stream?.close();
  for (const chart of charts) chart.series.clear();
  latest = null;
  status("waiting", "waiting for an epoch");
  const source = new EventSource(`events?${view}`);
  stream = source;
  source.onopen = () => { if (latest !== null) status("live", "live"); };
  source.onmessage = ({ data }) => {
    const line = JSON.parse(data);
    latest = line;
    charts.forEach((chart, place) => chart.series.push(line.epoch, numbers(line, place)));
    status("live", "live");
    document.body.dataset.events = Number(document.body.dataset.events ?? 0) + 1;
    ask();
  };
  source.addEventListener("end", () => { source.close(); status("ended", "the last epoch has been published"); });
  source.addEventListener("fault", ({ data }) => { source.close(); status("lost", data); });
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      status("lost", "no such key or view, or the server is busy");
    } else {
      status("lost", "connection lost, trying again");
    }
  };
}

const probe = document.createElement("span");
probe.hidden = true;

async function begin() {
  document.body.append(probe);
  about = await (await fetch("about")).json();
  build();
  connect();
  window.addEventListener("resize", ask);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
}

begin().catch(() => status("lost", "the server can't be reached"));
