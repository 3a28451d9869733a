// One key: the trend of a series, other keys in the same chart, the other columns, and the numbers.

let detail = null;

const NO_SERIES = "of: this estimate has no such series";

/// Shows a key under a state. `of` names the series of the large chart.
async function showDetail(state, of) {
  const group = of.startsWith("correlation:") ? of : of.split(":")[0];
  const view = queryOf(state);
  const query = queryOf(state, group);
  const name = query.toString();
  if (detail?.name !== name) {
    const readings = await loadReadings(query);
    if (!readings) return;
    // The reader may have chosen another column meanwhile.
    const shown = shownSeries(current());
    if (!readings.of.includes(shown)) throw new Error(NO_SERIES);
    const isSameView = detail?.view === view.toString();
    detail = { name, view: view.toString(), readings, newest: isSameView ? detail.newest : null, cursor: null, group };
    drawDetail(state, shown);
    const since = state.to ? about.published : readings.to;
    follow(state, Math.max(since, 1), (lines) => take(lines));
    return;
  }
  loading = null;
  drawDetail(state, of);
}

let asked = false;

/// Takes in an epoch of the stream, and draws before the next picture, however many come until then.
function take(lines) {
  const state = { ...current(), key: shownKey(current()) };
  detail.newest = lines;
  about.published = Math.max(about.published, lines[0].epoch);
  const newest = detail.readings.epochs.at(-1) ?? 0;
  if (lines[0].epoch > newest && !state.to) append(detail.readings, lines, Number(state.last));
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    redraw();
  });
}

/// The state of the address if its readings are here, not still on their way.
function present() {
  const state = { ...current(), key: shownKey(current()) };
  return detail !== null && queryOf(state, detail.group).toString() === detail.name &&
    detail.readings.of.includes(shownSeries(state)) ? state : null;
}

function redraw() {
  const state = present();
  if (state !== null) drawDetail(state, shownSeries(state));
}

function drawDetail(state, of) {
  const { readings } = detail;
  const series = seriesOf(of);
  if (!readings.of.includes(of) || series === undefined) throw new Error(NO_SERIES);
  const lines = readings.keys.map((own) => lineOf(readings, own.key, of));
  const title = `${series.title}${series.name && ` of ${series.name}`}`;
  $("detail-title").textContent = about.by === null ? about.name : state.key;
  $("trend-title").textContent = title;
  drawCrumbs(state);
  drawFacts(state);
  drawLegend(state, lines);
  drawTrend(state, lines, title);
  drawColumns(state, of);
  drawBars(state);
  drawMatrix(state, of);
  drawTables(state, of);
}

function drawCrumbs(state) {
  const at = about.keys.indexOf(state.key);
  const link = (key, text, properties) => element("a", text, { href: address({ ...ELSEWHERE, key, last: state.last }), ...properties });
  // The series keeps the address from being empty, which could mean a key.
  const all = address({ ...ELSEWHERE, key: null, of: shownSeries(state) });
  const links = about.keys.length < 2 ? [] : [element("a", "All keys", { href: all })];
  if (at > 0) links.push(link(about.keys[at - 1], `← ${about.keys[at - 1]}`, { rel: "prev" }));
  if (at >= 0 && at + 1 < about.keys.length) links.push(link(about.keys[at + 1], `→ ${about.keys[at + 1]}`, { rel: "next" }));
  replace($("crumbs"), links);
}

/// Whether noise leaves something of the newest number of the chart, in words.
function clearness(state) {
  const { value, good } = lineOf(detail.readings, state.key, shownSeries(state));
  const last = value.length - 1;
  return isNumber(value[last]) ? (good[last] === 1 ? "clear" : "hidden by noise") : "no estimate";
}

function drawFacts(state) {
  const line = detail.newest?.find((found) => found.key === state.key);
  const charted = detail.readings.epochs.at(-1);
  const statistic = charted === undefined || charted === line?.epoch ? "this statistic" : `this statistic in epoch ${charted}`;
  const facts = line === undefined ? [["epoch", "–", "epoch"]] : [
    ["newest epoch", `${line.epoch} of ${about.horizon}`, "epoch", line.epoch],
    ...(about.start === null ? [] : [["from", shortStart(line.epoch), "start"]]),
    line.estimator !== undefined
      ? ["records in the window", isNumber(line.rows) ? format(line.rows, (line.rows_noise ?? 0) * about.reach) : "–", "count", line.rows]
      : [line.workload === "prefix" ? "records that counted" : "weight of records that counted",
        format(line.count, line.count_noise * about.reach), "count", line.count],
    [statistic, clearness(state), "clearness"],
    ["all statistics together", (line.quality ?? "as released").replace(/-/g, " "), "quality", line.quality ?? "good"],
    ["run", line.generation, "generation"],
    ["chain", line.chain, "chain"],
  ];
  $("facts").replaceChildren(...facts.map(([name, text, id, value]) => {
    const pair = document.createElement("div");
    const shown = element("dd", text, { id });
    shown.dataset.value = value ?? text;
    pair.append(element("dt", name), shown);
    return pair;
  }));
}

function drawLegend(state, lines) {
  $("compared").hidden = about.keys.length < 2;
  replace($("legend"), lines.map((line, index) => {
    const item = element("li", null, { className: `s${index}` });
    item.dataset.key = line.key;
    item.append(swatch(index), line.key);
    if (index > 0) {
      const rest = state.vs.filter((key) => key !== line.key);
      item.append(" ", element("a", "×", { href: address({ vs: rest }), ariaLabel: `Remove ${line.key}` }));
    }
    return item;
  }), $("other"));
  const isFull = lines.length >= about.most_compared;
  if (isFull && $("comparing").contains(document.activeElement)) $("legend").querySelector("li:last-child a").focus();
  $("comparing").hidden = isFull;
  if ($("names").children.length !== about.keys.length) $("names").replaceChildren(...about.keys.map((key) => element("option", null, { value: key })));
}

function drawTrend(state, lines, title) {
  const { readings } = detail;
  const place = $("trend");
  const range = domain(lines, state.scale === "whole");
  const [from, to] = [readings.epochs[0] ?? 1, readings.epochs.at(-1) ?? 1];
  if (document.activeElement !== $("from")) $("from").value = state.from ?? from;
  if (document.activeElement !== $("to")) $("to").value = state.to ?? to;
  for (const id of ["from", "to"]) $(id).max = Math.max(about.published, 1);
  // A button that is disabled would lose the focus.
  $("unzoom").ariaDisabled = String(!state.from && !state.to && !state.last);
  if (range === null) {
    place.replaceChildren(element("p", readings.epochs.length === 0 ? "No epoch has been published yet." : "No estimate in these epochs.", { className: "empty" }));
    place.setAttribute("aria-label", title);
    for (const name of ["aria-valuemin", "aria-valuemax", "aria-valuenow"]) place.setAttribute(name, 0);
    $("trend-hint").textContent = "";
    detail.chart = null;
    read(lines);
    return;
  }
  const width = Math.max(place.clientWidth, 260);
  const height = Math.min(Math.max(Math.round(width * 0.36), 220), 400);
  detail.chart = { ...trend(lines, { width, height, from, to, range, cursor: detail.cursor }), from, to };
  place.replaceChildren(detail.chart.picture);
  place.setAttribute("aria-label", `${title}, ${lines.map((line) => line.key).join(", ")}, by epoch`);
  place.setAttribute("aria-valuemin", from);
  place.setAttribute("aria-valuemax", to);
  const { above, below, of } = outside(lines, range);
  place.dataset.above = above;
  place.dataset.below = below;
  const marks = above + below === 0 ? "" : ` ${above + below} of ${of} values lie outside the chart, marked by triangles at its edge (${above} above, ${below} below).`;
  const step = readings.step > 1 ? ` One epoch in ${readings.step} is drawn: zoom in for all.` : "";
  $("trend-hint").textContent = `Band: ${about.level * 100} % confidence interval for ${about.plot.band}. ${faintness(shownSeries(state))}${marks}${step} ` +
    "Arrow keys read epochs, dragging zooms.";
  read(lines);
}

/// Writes what the cursor is at.
function read(lines) {
  const { readings, cursor } = detail;
  const at = cursor === null ? readings.epochs.length - 1 : readings.epochs.indexOf(cursor);
  const epoch = readings.epochs[at];
  if (epoch === undefined) { $("readout").textContent = ""; return; }
  const texts = lines.map((line) => {
    const reading = readingAt(line, at);
    const text = isNumber(reading.value) ? `${inWords(reading)} (${interval(reading)})` : "no estimate";
    return lines.length > 1 ? `${line.key} ${text}` : text;
  });
  const text = `Epoch ${epoch}${when(epoch)}: ${texts.join("; ")}`;
  $("readout").textContent = text;
  $("trend").setAttribute("aria-valuenow", epoch);
  $("trend").setAttribute("aria-valuetext", text);
}

function drawColumns(state, of) {
  const { readings } = detail;
  $("others").hidden = readings.of.length < 2;
  if (readings.of.length < 2) return;
  $("others-title").textContent = `${seriesOf(of).title}: all ${readings.of.length}, each on a scale of its own`;
  const labels = shortened(readings.of.map((other) => seriesOf(other).name), CARD);
  replace($("columns"), readings.of.map((other, at) => {
    const line = lineOf(readings, state.key, other);
    const frame = { from: readings.from, to: readings.to, range: domain([line], state.scale === "whole") };
    return card({ href: address({ of: other }), name: seriesOf(other).name, label: labels[at], line, frame, isChosen: other === of });
  }));
}

/// Moves the cursor to an epoch of the chart.
function point(epoch) {
  const state = present();
  if (state === null) return;
  const { readings } = detail;
  const near = (one, other) => (Math.abs(one - epoch) <= Math.abs(other - epoch) ? one : other);
  detail.cursor = epoch === null || readings.epochs.length === 0 ? null : readings.epochs.reduce(near);
  const of = shownSeries(state);
  const lines = readings.keys.map((own) => lineOf(readings, own.key, of));
  drawTrend(state, lines, $("trend-title").textContent);
}

/// Adds a key to the chart, if there is one of this name.
async function compare(text) {
  if (text === "") return;
  const state = current();
  const name = about.keys.find((key) => key === text) ?? about.keys.find((key) => key.toLowerCase() === text.toLowerCase()) ?? text;
  if (name === shownKey(state) || state.vs.includes(name)) { refuse(`${name} is in the chart.`); return; }
  if (!about.keys.includes(name)) {
    // The server knows more keys than it lists.
    const query = new URLSearchParams({ key: name, of: "records", last: 1 });
    const isKnown = !about.all_keys_listed && await load("readings", query).then(() => true, () => false);
    if (!isKnown) { refuse(`There is no key “${text}”.`); return; }
  }
  refuse("");
  $("other").value = "";
  go({ vs: [...current().vs, name] });
}

/// Says why a key can't be compared with.
function refuse(why) {
  $("refused").textContent = why;
  $("other").ariaInvalid = String(why !== "");
}

function buildDetail() {
  const place = $("trend");
  let begun = null;
  const epochAt = (event) => detail.chart.epochAt(event.clientX - place.getBoundingClientRect().left);
  place.addEventListener("pointerdown", (event) => { if (detail?.chart && event.pointerType === "mouse") begun = epochAt(event); });
  place.addEventListener("pointermove", (event) => { if (detail?.chart) point(epochAt(event)); });
  place.addEventListener("pointerup", (event) => {
    if (begun === null || !detail?.chart) return;
    const ends = [begun, epochAt(event)].map((epoch) => Math.round(Math.min(Math.max(epoch, detail.chart.from), detail.chart.to)));
    begun = null;
    if (Math.abs(ends[1] - ends[0]) >= 2) go({ from: String(Math.min(...ends)), to: String(Math.max(...ends)), last: null });
  });
  place.addEventListener("pointerleave", () => { begun = null; if (detail?.chart) point(null); });
  place.addEventListener("keydown", (event) => {
    if (!detail?.chart) return;
    const { epochs } = detail.readings;
    const at = detail.cursor === null ? epochs.length - 1 : epochs.indexOf(detail.cursor);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: epochs.length - 1 };
    if (event.key === "Escape") point(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    point(epochs[Math.min(Math.max(moves[event.key], 0), epochs.length - 1)]);
  });
  $("zoom").addEventListener("submit", (event) => {
    event.preventDefault();
    go({ from: $("from").value || null, to: $("to").value || null, last: null });
  });
  $("unzoom").addEventListener("click", () => go({ from: null, to: null, last: null }));
  $("comparing").addEventListener("submit", (event) => {
    event.preventDefault();
    compare($("other").value.trim());
  });
  $("other").addEventListener("input", () => refuse(""));
  for (const id of ["newest", "history"]) {
    $(id).addEventListener("toggle", () => {
      const open = current().open.filter((name) => name !== id);
      go({ open: $(id).open ? [...open, id] : open }, true);
    });
  }
  new ResizeObserver(() => { if (detail?.chart && !$("detail").hidden) point(detail.cursor); }).observe(place);
}
