// Readings from the server, and the stream of epochs that follows them.

/// Most epochs of a chart that grows; then every second one is dropped.
const MOST_EPOCHS = 1000;

/// The request of a state: the view, keys, series and epochs.
function queryOf(state, of) {
  const query = new URLSearchParams();
  if (state.estimate) query.set("estimate", state.estimate);
  if (state.workload) query.set("workload", state.workload);
  for (const key of state.key === null ? [] : [state.key, ...state.vs]) query.append("key", key);
  if (of) query.set("of", of);
  // The server knows more keys than it lists.
  if (of && state.key === null && state.q && !about.all_keys_listed) query.set("q", state.q);
  for (const name of ["from", "to", "last"]) if (of && state[name]) query.set(name, state[name]);
  return query;
}

/// Returns a JSON document, or throws what the server says.
async function load(path, query) {
  const answer = await fetch(`${path}?${query}`);
  const text = await answer.text();
  if (!answer.ok) throw new Error(answer.status === 503 ? "the server is busy: try again" : text.trim());
  return JSON.parse(text);
}

/// Loads the readings that a query asks for. Returns null if they are being loaded already, or if
/// others are asked for meanwhile.
async function loadReadings(query) {
  const name = query.toString();
  if (loading === name) return null;
  leave();
  status("waiting", "reading");
  loading = name;
  const readings = await load("readings", query);
  if (loading !== name) return null;
  loading = null;
  return readings;
}

/// One series of one key, as a chart draws it: `good` where noise does not hide it.
function lineOf(readings, key, of) {
  const [own, at] = [readings.keys.find((found) => found.key === key), readings.of.indexOf(of)];
  const { value, lower, upper } = own.series[at];
  const width = boundsOf(key, of);
  const good = value.map((number, at) => (isClear(number, lower[at], upper[at], width) ? 1 : 0));
  return { key, epochs: readings.epochs, value, lower, upper, good };
}

/// Groups whose numbers are in the unit of a column.
const IN_UNITS = ["mean", "sd"];

/// The width of a column's bounds for a key; null for a series without bounds.
function boundsOf(key, of) {
  const [group, name] = of.split(/:(.*)/s);
  const column = IN_UNITS.includes(group) ? about.columns.find((known) => known.name === name) : undefined;
  if (column === undefined) return null;
  const [lower, upper] = column.bounds?.[key] ?? [column.lower, column.upper];
  return upper - lower;
}

/// Whether noise leaves something of a number: its interval is shorter than a quarter of the
/// column's bounds, or without bounds it does not contain 0.
function isClear(value, lower, upper, width) {
  if (!isNumber(value)) return false;
  const [from, to] = [lower ?? -Infinity, upper ?? Infinity];
  return width === null ? from > 0 || to < 0 : to - from < width / 4;
}

/// The rule of `isClear` for a series in words.
const faintness = (of) => (boundsOf(null, of) === null
  ? "Pale: the interval contains 0, so noise may be all there is."
  : "Pale: the interval is longer than a quarter of the column’s bounds.");

/// The reading of a line at an index, the newest if there is none.
function readingAt(line, at = line.value.length - 1) {
  return { value: line.value[at] ?? null, lower: line.lower[at] ?? null, upper: line.upper[at] ?? null };
}

/// The number at a place of a line: a list of names and positions.
const lookUp = (line, place) => place.reduce((found, step) => found?.[step], line) ?? null;

/// The series of a name, `GROUP:SERIES`: its titles and where it is in a line.
function seriesOf(of) {
  const [group, name] = of.split(/:(.*)/s);
  if (group === "correlation") {
    const columns = about.columns.map((column) => column.name);
    const [i, j] = pairs(columns).find(([i, j]) => `${columns[i]}~${columns[j]}` === name) ?? [0, 0];
    return { title: "Correlation", name: name.replace("~", " and "), value: ["correlation", i, j], interval: ["correlation_interval", i, j] };
  }
  const found = about.plot.groups.find((known) => known.name === group);
  const series = found?.series.find((known) => known.name === name);
  return series && { ...series, title: found.title, name: group === "records" ? "" : name };
}

/// All pairs of different positions, the smaller first.
const pairs = (list) => list.flatMap((_, i) => list.slice(i + 1).map((_, j) => [i, i + 1 + j]));

/// What a line of the stream says of a series.
function readingOf(line, series) {
  const value = lookUp(line, series.value);
  if (series.noise !== undefined) {
    const far = lookUp(line, series.noise) * about.reach;
    return { value, lower: value === null ? null : value - far, upper: value === null ? null : value + far };
  }
  const [lower, upper] = lookUp(line, series.interval) ?? [null, null];
  return { value, lower, upper };
}

/// Adds the lines of an epoch to readings, and keeps them short.
function append(readings, lines, last) {
  readings.epochs.push(lines[0].epoch);
  readings.to = lines[0].epoch;
  for (const own of readings.keys) {
    const line = lines.find((found) => found.key === own.key);
    own.quality = line?.quality ?? "good";
    own.good.push(isGood(own.quality) ? 1 : 0);
    readings.of.forEach((of, at) => {
      const reading = line ? readingOf(line, seriesOf(of)) : {};
      for (const end of ["value", "lower", "upper"]) own.series[at][end].push(reading[end] ?? null);
    });
  }
  const newest = readings.to;
  if (last) thin(readings, (epoch) => epoch > newest - last);
  if (readings.epochs.length > MOST_EPOCHS) thin(readings, (epoch, at) => (readings.epochs.length - 1 - at) % 2 === 0);
}

/// Keeps the epochs that `keep` accepts.
function thin(readings, keep) {
  const kept = readings.epochs.map(keep);
  if (kept.every(Boolean)) return;
  const of = (list) => list.filter((_, at) => kept[at]);
  for (const own of readings.keys) {
    own.good = of(own.good);
    for (const series of own.series) for (const end of ["value", "lower", "upper"]) series[end] = of(series[end]);
  }
  readings.epochs = of(readings.epochs);
  readings.from = readings.epochs[0];
}

let stream = null;

function leave() {
  stream?.close();
  stream = null;
}

/// Follows the keys of a state from an epoch on.
function follow(state, since, take) {
  const query = queryOf(state);
  query.set("since", since);
  const source = new EventSource(`events?${query}`);
  stream = source;
  source.onmessage = ({ data }) => {
    const lines = data.split("\n").map((line) => JSON.parse(line));
    note(lines[0].epoch);
    status("live", "live");
    document.body.dataset.events = Number(document.body.dataset.events ?? 0) + 1;
    take(lines);
  };
  source.onopen = () => status(detail?.newest ? "live" : "waiting", detail?.newest ? "live" : "waiting for an epoch");
  source.addEventListener("end", () => { source.close(); ended(); });
  source.addEventListener("fault", ({ data }) => { source.close(); status("lost", data); });
  source.onerror = () => {
    const isClosed = source.readyState === EventSource.CLOSED;
    status("lost", isClosed ? "no such view, or the server is busy" : "connection lost, trying again");
  };
}

const ended = () => status("ended", "complete: the last epoch has been published");

/// How often the server is asked for the newest epoch, in milliseconds.
const WATCH = 500;

/// Seconds after which the newest epoch is not called live, but up to date.
const LIVE = 60;

/// The newest epoch, when it came by the clock of this machine, and how many seconds after it the
/// next one is late. Null before the server has said.
let newest = null;

let stated = { state: "waiting", text: "waiting" };

function status(state, text) {
  stated = { state, text };
  drawStatus();
}

/// The last epoch that is shown; null before any.
function shownEpoch() {
  if (detail !== null) return detail.newest?.[0].epoch ?? null;
  return overview === null || overview.query.has("to") ? null : overview.readings.to;
}

/// Shows the state of the connection, and the age of the newest epoch and of the one that is shown.
function drawStatus() {
  const age = isNumber(newest?.at) ? Math.max((Date.now() - newest.at) / 1000, 0) : null;
  const shown = shownEpoch();
  const isLive = stated.state === "live";
  const isLate = isLive && isNumber(newest?.due) && age !== null && age > newest.due;
  const isBehind = shown !== null && isNumber(newest?.epoch) && shown < newest.epoch;
  const isOld = isLive && age !== null && age > LIVE;
  const { state, text } = isLate ? { state: "late", text: "late" } : isLive && isBehind ? { state: "behind", text: "catching up" }
    : isOld ? { state: "live", text: "up to date" } : stated;
  $("status").dataset.state = state;
  // Screen readers read each change.
  if ($("status").textContent !== text) $("status").textContent = text;
  const due = isLate ? `, and the next was due after ${span(newest.due)} at most` : "";
  const behind = isBehind && stated.state !== "waiting" ? `epoch ${shown} is shown; ` : "";
  $("age").textContent = age === null ? "" : `${behind}newest epoch ${newest.epoch}, published ${span(age)} ago${due}`;
}

/// Notes an epoch that has just come.
function note(epoch) {
  if (epoch > (newest?.epoch ?? Infinity)) { newest = { ...newest, epoch, at: Date.now() }; drawStatus(); }
}

async function learnNewest() {
  try {
    const { epoch, age, due } = await load("newest", "");
    newest = { epoch, due, at: age === null ? null : Date.now() - 1000 * age };
    drawStatus();
    catchUp();
  } catch {
    // The stream of a key says it itself.
    if (overview !== null && detail === null) status("lost", "connection lost, trying again");
  }
}

function watch() {
  learnNewest();
  setInterval(() => {
    if (document.visibilityState === "visible" && stated.state !== "ended") learnNewest(); else drawStatus();
  }, WATCH);
  document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") learnNewest(); });
}

function complain(text) {
  $("message").hidden = text === null;
  if (text !== null) $("message").textContent = text;
}
