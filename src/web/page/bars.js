// The bins of histograms in the newest epoch, as bars with their intervals.

const BARS = { width: 640, height: 180, foot: 18 };

function drawBars(state) {
  const line = detail.newest?.find((found) => found.key === state.key);
  const histograms = Object.entries(line?.histograms ?? {});
  $("bars-section").hidden = histograms.length === 0;
  $("bars").replaceChildren(...histograms.map(([column, own]) => barsOf(column, own)));
}

/// One histogram: a bar for each bin, and a line over its interval.
function barsOf(column, own) {
  const { width, height, foot } = BARS;
  const names = own.values ?? own.count.map((_, bin) => `${compact(own.edges[bin])} to ${compact(own.edges[bin + 1])}`);
  const most = Math.max(...own.count_interval.map(([, upper]) => upper).filter(isNumber), 1e-9);
  const y = (count) => height - (Math.max(count, 0) / most) * (height - 4);
  const step = width / own.count.length;
  const figure = document.createElement("figure");
  const picture = shape(figure, "svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": `${column}: records by bin` });
  own.count.forEach((count, bin) => {
    const [lower, upper] = own.count_interval[bin];
    const bar = shape(picture, "g", { class: "bar", "data-value": count });
    shape(bar, "title", {}, `${names[bin]}: ${inShort(count)} (${bound(lower)} to ${bound(upper)})`);
    shape(bar, "rect", { x: bin * step + step * 0.08, y: y(count), width: step * 0.84, height: height - y(count) });
    shape(bar, "line", { x1: (bin + 0.5) * step, x2: (bin + 0.5) * step, y1: y(upper), y2: y(lower) });
  });
  const every = Math.ceil(own.count.length / 8);
  names.forEach((name, bin) => {
    if (bin % every === 0) shape(picture, "text", { x: (bin + 0.5) * step, y: height + foot - 4, "text-anchor": "middle" }, name);
  });
  const caption = document.createElement("figcaption");
  caption.textContent = `${column}: records by bin, newest epoch. Lines: confidence intervals.`;
  figure.append(caption);
  return figure;
}

const compact = (edge) => String(Number(edge.toPrecision(6)));

const inShort = (count) => String(Math.round(count * 10) / 10);
