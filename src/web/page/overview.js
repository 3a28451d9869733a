// The overview: a card for every key, with one series of it.

let overview = null;

/// Pause in writing after which the server is asked, in milliseconds.
const PAUSE = 250;

/// Shows all keys under a state.
async function showOverview(state, of) {
  const query = queryOf({ ...state, key: null }, of);
  const name = query.toString();
  if (overview?.name !== name) {
    const readings = await loadReadings(query);
    if (!readings) return;
    overview = { name, query, readings };
  }
  loading = null;
  drawOverview(current(), of);
  stateOverview();
}

/// Says whether more epochs will be shown.
function stateOverview() {
  const { readings } = overview;
  const isEmpty = readings.epochs.length === 0 && readings.keys.length > 0;
  if (readings.to >= about.horizon) ended();
  else if (readings.to >= Number(overview.query.get("to") ?? Infinity)) status("ended", `up to epoch ${readings.to}, as chosen`);
  else status(isEmpty ? "waiting" : "live", isEmpty ? "waiting for an epoch" : "live");
}

let isCatchingUp = false;

/// Reads the overview again if the log has grown since.
async function catchUp() {
  if (overview === null || detail !== null || isCatchingUp || loading !== null) return;
  const { name, query, readings } = overview;
  if (newest.epoch <= readings.to) { if (stated.state === "lost") stateOverview(); return; }
  isCatchingUp = true;
  try {
    const later = await load("readings", query);
    if (overview?.name !== name || detail !== null) return;
    overview = { name, query, readings: later };
    drawOverview(current(), later.of[0]);
    stateOverview();
  } catch {
    if (overview?.name === name) status("lost", "connection lost, trying again");
  } finally {
    isCatchingUp = false;
  }
}

/// An epoch with its begin.
const named = (epoch) => (about.start === null ? String(epoch) : `${epoch} (from ${shortStart(epoch)})`);

/// What the keys are sorted by. Change is from the first epoch shown that has a good value.
function rank(line) {
  const now = readingAt(line);
  const first = line.good.indexOf(1);
  const before = first < 0 ? null : readingAt(line, first);
  const change = before && isNumber(now.value) && first < line.value.length - 1 ? now.value - before.value : null;
  // Two intervals that do not meet.
  const isApart = change !== null && (now.lower ?? -Infinity) > (before.upper ?? Infinity) ? true
    : change !== null && (now.upper ?? Infinity) < (before.lower ?? -Infinity);
  const reach = reachOf(now);
  return { now, level: now.value, change, isApart, signal: reach > 0 ? Math.abs(now.value) / reach : null };
}

function drawOverview(state, of) {
  const { readings } = overview;
  const series = seriesOf(of);
  const lines = readings.keys.map((own) => lineOf(readings, own.key, of));
  const all = lines.map((line) => ({ line, ...rank(line) }));
  const sort = state.sort ?? "name";
  const sign = state.order === "up" ? 1 : -1;
  if (sort !== "name") {
    // Keys without a number come last in either order.
    const place = (found) => found[sort] ?? Infinity * sign;
    all.sort((one, other) => (place(one) === place(other) ? 0 : sign * (place(one) - place(other))));
  } else if (state.order === "up") {
    all.reverse();
  }
  const wanted = (state.q ?? "").toLowerCase();
  const found = all.filter(({ line }) => line.key.toLowerCase().includes(wanted));
  overview.shown = found.map(({ line }) => line.key);
  // The total is of another size than its parts, so it does not set their scale.
  const parts = lines.filter((line) => line.key !== about.total || lines.length === 1);
  const isCommon = state.scale !== "own";
  const common = isCommon ? domain(parts.map(newestPart), false) : null;
  const labels = shortened(found.map(({ line }) => line.key), CARD);
  const cards = found.map(({ line, change, isApart }, at) => card({
    href: address({ ...ELSEWHERE, key: line.key, of, last: state.last }),
    name: line.key,
    label: labels[at],
    line,
    frame: { from: readings.from, to: readings.to, range: isCommon ? common : domain([line], false) },
    note: noteOf(line, change, isApart),
  }));
  replace($("cards"), cards);
  $("sort").value = sort;
  $("order").value = state.order ?? "down";
  if (document.activeElement !== $("search")) $("search").value = state.q ?? "";
  $("overview-title").textContent = `${series.title}${series.name && ` of ${series.name}`}`;
  const span = readings.epochs.length === 0 ? "" : `Epochs ${named(readings.from)} to ${named(readings.to)}.`;
  const scale = isCommon && common ? ` All charts span ${bound(common[0])} to ${bound(common[1])}.` : " Each chart has a scale of its own.";
  const missing = about.all_keys_listed ? "" : state.q
    ? ` Of ${about.number_of_keys} keys, the first ${about.keys.length} with this text are shown.`
    : ` These are the first of ${about.number_of_keys} keys: search for a part of the name of another.`;
  const isTotal = ({ line }) => line.key === about.total;
  const [shown, known] = [found, all].map((list) => list.filter((one) => !isTotal(one)).length);
  const number = `${shown === known ? "" : `${shown} of `}${known} ${known === 1 ? "key" : "keys"}`;
  $("found").textContent = `${number}${found.some(isTotal) ? " and their total" : ""}`;
  $("overview-hint").textContent = `${span}${scale}${missing} Band: ${about.level * 100} % confidence interval for ${about.plot.band}. ${faintness(of)}` +
    " Under each chart: the change since the first epoch shown that is not pale, with ▲ or ▼ where the two intervals do not meet." +
    (sort === "signal" ? " Signal over noise: the number divided by the half-width of its interval." : "");
}

/// A line without its noise-dominated beginning, for a common scale.
function newestPart(line) {
  const from = Math.floor(line.value.length / 4);
  const of = (list) => list.slice(from);
  return { ...line, epochs: of(line.epochs), value: of(line.value), lower: of(line.lower), upper: of(line.upper), good: of(line.good) };
}

function noteOf(line, change, isApart) {
  const sign = change > 0 ? "+" : "−";
  const words = change === null ? "" : `${isApart ? (change > 0 ? "▲ " : "▼ ") : ""}${sign}${bound(Math.abs(change))}`;
  return [words, line.good.at(-1) === 1 ? "" : "noisy"].filter(Boolean).join(", ");
}

function buildOverview() {
  let asking = null;
  $("search").addEventListener("input", () => {
    clearTimeout(asking);
    const search = () => go({ q: $("search").value }, true);
    // The server searches keys that are not listed: it is asked once the reader pauses.
    if (about.all_keys_listed) search(); else asking = setTimeout(search, PAUSE);
  });
  $("finding").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("search").value;
    const matches = [...$("cards").children].map((item) => item.dataset.name);
    if (matches.length === 1) go({ ...ELSEWHERE, key: matches[0] });
    else if (matches.length === 0 && !about.all_keys_listed) go({ ...ELSEWHERE, key: name });
  });
  $("sort").addEventListener("change", () => go({ sort: $("sort").value === "name" ? null : $("sort").value }));
  $("order").addEventListener("change", () => go({ order: $("order").value === "down" ? null : "up" }));
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !$("overview").hidden) { event.preventDefault(); $("search").focus(); }
  });
}
