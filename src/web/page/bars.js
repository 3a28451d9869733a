// The bins of histograms in the newest epoch, as bars with their intervals.

/// Sizes of a histogram in pixels: its maximum width, the height of its bars, and the space below
/// and above them.
const BARS = { most: 760, height: 180, foot: 20, head: 6 };

function drawBars(state) {
  const line = detail.newest?.find((found) => found.key === state.key);
  const histograms = Object.entries(line?.histograms ?? {});
  $("bars-section").hidden = histograms.length === 0;
  const width = Math.min(Math.max($("bars").clientWidth, 260), BARS.most);
  $("bars").replaceChildren(...histograms.map(([column, own]) => barsOf(column, own, width)));
}

/// One histogram: a bar for each bin, and a line over its interval.
function barsOf(column, own, width) {
  const { height, foot, head } = BARS;
  const bins = own.count.length;
  const most = Math.max(...own.count_interval.map(([, upper]) => upper).filter(isNumber), ...own.count, 1e-9);
  const marks = ticks(0, most, 4);
  const left = 12 + 7.2 * Math.max(...marks.map((mark) => bound(mark).length));
  const step = (width - left - 10) / bins;
  const x = (bin) => left + bin * step;
  const y = (count) => head + height * (1 - Math.min(Math.max(count, 0) / most, 1));
  const figure = document.createElement("figure");
  const picture = shape(figure, "svg", { width, height: head + height + foot, viewBox: `0 0 ${width} ${head + height + foot}`, role: "img",
    "aria-label": `${column}: records by bin` });
  for (const mark of marks) {
    shape(picture, "path", { class: "rule", d: `M${left},${y(mark)}H${width - 10}` });
    shape(picture, "text", { class: "tick", x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, bound(mark));
  }
  const edges = own.values ? [] : own.edges.map(compact);
  const names = own.values ?? own.count.map((_, bin) => `${edges[bin]} to ${edges[bin + 1]}`);
  own.count.forEach((count, bin) => {
    const [lower, upper] = own.count_interval[bin];
    const bar = shape(picture, "g", { class: "bar", "data-value": count });
    shape(bar, "title", {}, `${names[bin]}: ${inShort(count)} (${bound(lower)} to ${bound(upper)})`);
    shape(bar, "rect", { x: x(bin) + step * 0.08, y: y(count), width: step * 0.84, height: y(0) - y(count) });
    shape(bar, "path", { d: `M${x(bin + 0.5)},${y(upper ?? most)}V${y(lower ?? 0)}` });
  });
  // Values stand under their bars, and edges under the gaps between bars.
  const labels = own.values ? own.values.map((text, bin) => ({ text, at: bin + 0.5 })) : edges.map((text, at) => ({ text, at }));
  const longest = Math.floor((width - left) / 7.2 / Math.min(labels.length, 6));
  const short = (text) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);
  const every = Math.ceil((7.2 * Math.max(...labels.map(({ text }) => short(text).length)) + 8) / step);
  labels.forEach(({ text, at }, index) => {
    if (index % every !== 0) return;
    const half = short(text).length * 3.6;
    const place = Math.min(Math.max(x(at), half), width - half);
    shape(picture, "text", { class: "tick", x: place, y: head + height + foot - 4, "text-anchor": "middle" }, short(text));
  });
  const caption = document.createElement("figcaption");
  caption.textContent = `${column}: records by bin, newest epoch. Lines: confidence intervals.`;
  figure.append(caption);
  return figure;
}

const compact = (edge) => signed(Number(edge.toPrecision(4)));

const inShort = (count) => signed(Math.round(count * 10) / 10);
