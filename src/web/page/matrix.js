// The correlations of columns as a table of colours, and the exact numbers as tables.

let focused = [0, 1];

/// Maximum number of characters in a header of the matrix; they also fit on a phone.
const HEADER = 12;

function drawMatrix(state, of) {
  const line = detail.newest?.find((found) => found.key === state.key);
  const names = about.columns.map((column) => column.name);
  const isShown = about.plot.matrix && names.length > 1 && Array.isArray(line?.correlation);
  $("matrix-section").hidden = !isShown;
  if (!isShown) return;
  if ($("matrix").rows.length !== names.length + 1) buildMatrix(names);
  const isAnyKnown = pairs(names).some(([i, j]) => isKnown(correlationOf(line, i, j)));
  $("matrix").hidden = !isAnyKnown;
  $("matrix-hint").textContent = !isAnyKnown ? "Noise hides the correlations of all pairs in the newest epoch." : `Newest epoch. Warm: the columns rise together; cool: one falls as the other rises. ` +
    "Hatched: the interval contains 0, so noise may be all there is. Arrow keys read the cells, Enter draws the trend of a pair.";
  for (let i = 0; i < names.length; i++) {
    for (let j = 0; j < names.length; j++) {
      const cell = $("matrix").rows[i + 1].cells[j + 1];
      const reading = correlationOf(line, i, j);
      const { value, interval } = reading;
      const isDominated = i !== j && (!isNumber(value) || interval === null || (interval[0] <= 0 && interval[1] >= 0));
      const share = i === j || !isKnown(reading) ? 0 : Math.min(Math.abs(value), 1);
      cell.style.backgroundColor = `color-mix(in srgb, var(--${value < 0 ? "cool" : "warm"}) ${Math.round(share * 50)}%, var(--page))`;
      cell.classList.toggle("hatched", isDominated);
      cell.firstChild.textContent = i === j ? "" : isKnown(reading) ? signed(value.toFixed(2)) : "–";
      cell.dataset.value = value ?? "";
      cell.dataset.covariance = line.covariance?.[i]?.[j] ?? "";
      cell.title = pairInWords(line, i, j);
      const isPair = i !== j && of === pairSeries(i, j);
      if (isPair) cell.setAttribute("aria-selected", "true"); else cell.removeAttribute("aria-selected");
    }
  }
  fitMatrix();
}

const correlationOf = (line, i, j) => ({ value: line.correlation?.[i]?.[j] ?? null, interval: line.correlation_interval?.[i]?.[j] ?? null });

/// Whether noise leaves anything of a correlation.
const isKnown = ({ value, interval }) => isNumber(value) && !(interval?.[0] === -1 && interval[1] === 1);

function pairSeries(i, j) {
  const [one, other] = [Math.min(i, j), Math.max(i, j)].map((at) => about.columns[at].name);
  return `correlation:${one}~${other}`;
}

function pairInWords(line, i, j) {
  const names = [about.columns[i].name, about.columns[j].name];
  if (i === j) return names[0];
  const { value, interval } = correlationOf(line, i, j);
  const known = isNumber(value) ? `correlation ${signed(value.toFixed(3))}, interval ${bound(interval?.[0] ?? null)} to ${bound(interval?.[1] ?? null)}` : "a variance does not stand out of the noise";
  return `${names.join(" and ")}: ${known}`;
}

/// Numbers are shown where cells have room for them; otherwise screen readers alone get them.
function fitMatrix() {
  const cell = $("matrix").querySelector("tbody td");
  if (cell !== null) $("matrix").classList.toggle("narrow", cell.clientWidth < 36);
}

function buildMatrix(names) {
  const table = $("matrix");
  table.replaceChildren();
  table.style.maxWidth = `${8 + 3.4 * names.length}rem`;
  const head = table.createTHead().insertRow();
  head.insertCell();
  const short = shortened(names, HEADER);
  const header = (at, scope) => {
    const cell = element("th", null, { scope, title: names[at] });
    cell.append(element("span", short[at], { ariaHidden: "true" }), element("span", names[at], { className: "unseen" }));
    return cell;
  };
  head.append(...names.map((_, at) => header(at, "col")));
  const body = table.createTBody();
  names.forEach((_, i) => {
    const row = body.insertRow();
    row.append(header(i, "row"));
    names.forEach((_, j) => {
      const cell = row.insertCell();
      cell.append(element("span"));
      cell.tabIndex = i === focused[0] && j === focused[1] ? 0 : -1;
      cell.setAttribute("role", "gridcell");
      cell.dataset.at = `${i},${j}`;
    });
  });
}

function drawTables(state, of) {
  for (const id of ["newest", "history"]) $(id).open = state.open.includes(id);
  if ($("newest").open) fill($("newest"), newestRows(state));
  if ($("history").open) fill($("history"), historyRows(of));
}

const fill = (place, [titles, ...rows]) => {
  const table = element("table");
  table.createTHead().insertRow().append(...titles.map((title) => element("th", title, { scope: "col" })));
  const body = table.createTBody();
  for (const row of rows) {
    const made = body.insertRow();
    row.forEach((value, at) => made.append(at === 0 ? element("th", String(value), { scope: "row" }) : element("td", value === null ? "–" : String(value))));
  }
  place.querySelector("table").replaceWith(table);
};

/// All numbers of the newest epoch of the shown keys, in full precision.
function newestRows(state) {
  const rows = [["number", "key", "value", "lower", "upper"]];
  const names = about.columns.map((column) => column.name);
  const listed = about.plot.groups.flatMap((group) => group.series.map((series) => `${group.name}:${series.name}`));
  const paired = about.plot.matrix ? pairs(names).map(([i, j]) => pairSeries(i, j)) : [];
  for (const of of [...listed, ...paired]) {
    const series = seriesOf(of);
    for (const line of detail.newest ?? []) {
      const { value, lower, upper } = readingOf(line, series);
      rows.push([`${series.title}${series.name && ` of ${series.name}`}`, line.key, value, lower, upper]);
    }
  }
  return rows;
}

/// The numbers of the chart, an epoch a row.
function historyRows(of) {
  const { readings } = detail;
  const rows = [["epoch", ...(about.start === null ? [] : ["from"]), "key", "value", "lower", "upper", "quality"]];
  const lines = readings.keys.map((own) => lineOf(readings, own.key, of));
  readings.epochs.forEach((epoch, at) => {
    for (const line of lines) {
      const { value, lower, upper } = readingAt(line, at);
      rows.push([epoch, ...(about.start === null ? [] : [startOf(epoch)]), line.key, value, lower, upper, line.good[at] ? "good" : "not good"]);
    }
  });
  return rows;
}

function buildTables() {
  const table = $("matrix");
  const at = (event) => event.target.closest("td")?.dataset.at?.split(",").map(Number);
  const tell = ([i, j]) => {
    const line = detail.newest?.find((found) => found.key === shownKey(current()));
    $("pair").textContent = line ? pairInWords(line, i, j) : "";
  };
  const choose = ([i, j]) => { if (i !== j) go({ of: pairSeries(i, j) }); };
  table.addEventListener("focusin", (event) => { if (at(event)) tell(at(event)); });
  table.addEventListener("pointerover", (event) => { if (at(event)) tell(at(event)); });
  table.addEventListener("click", (event) => { if (at(event)) choose(at(event)); });
  table.addEventListener("keydown", (event) => {
    const [i, j] = at(event) ?? focused;
    const last = about.columns.length - 1;
    const moves = { ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1], ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], Home: [i, 0], End: [i, last] };
    if (event.key === "Enter") choose([i, j]);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const cell = (place) => table.rows[place[0] + 1].cells[place[1] + 1];
    cell([i, j]).tabIndex = -1;
    focused = moves[event.key].map((place) => Math.min(Math.max(place, 0), last));
    cell(focused).tabIndex = 0;
    cell(focused).focus();
  });
}
