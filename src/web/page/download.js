// Downloads what is shown, in its order: numbers as CSV, Parquet and JSON, charts as SVG and PNG.

/// Attributes that a picture takes along, because a file has no style sheet.
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "font-family", "font-size", "font-weight"];

function save(name, blob) {
  const link = element("a", null, { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const quoted = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/// Places of the page that have downloads: their labels, and the keys and series that they show.
const PLACES = {
  overview: { label: "Download these keys:", of: () => ({ readings: overview.readings, keys: overview.shown, series: overview.readings.of }) },
  trend: { label: "Download this chart:", of: () => ({ ...inDetail(), series: [shownSeries(current())] }) },
  columns: { label: "Download all of these:", of: () => ({ ...inDetail(), keys: [shownKey(current())], series: detail.readings.of }) },
};

const inDetail = () => ({ readings: detail.readings, keys: detail.readings.keys.map(({ key }) => key) });

/// What a place shows as rows, in full precision. `clear` is the page's word for each number.
function rowsOf({ readings, keys, series }) {
  return keys.flatMap((key) => series.flatMap((of) => {
    const [group, name] = of.split(/:(.*)/s);
    const { value, lower, upper, good } = lineOf(readings, key, of);
    return readings.epochs.map((epoch, at) => ({ epoch, start: startOf(epoch), key, statistic: group, of: name,
      value: value[at], lower: lower[at], upper: upper[at], clear: good[at] === 1 }));
  }));
}

function csvOf(shown) {
  const titles = ["epoch", "start", "key", "statistic", "of", "value", "lower", "upper", "clear"];
  return [titles, ...rowsOf(shown).map((row) => titles.map((title) => row[title]))].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

/// What the rows are and what protects them. Of more epochs than are drawn, one in `step` is there.
function metadataOf({ readings }) {
  const { name, epsilon, delta, neighbours, guarantee, level } = about;
  const state = current();
  const view = { estimate: state.estimate ?? about.view.estimate, workload: state.workload ?? about.workloads[0] };
  const clear = `false where a chart is pale. ${faintness(shownSeries(state))}`;
  return { name, private: about.private, epsilon, delta, neighbours, guarantee, level, ...view, step: readings.step, clear };
}

const jsonOf = (shown) => JSON.stringify({ ...metadataOf(shown), rows: rowsOf(shown) }, null, 1);

/// A copy of a picture with its styles.
function styled(picture) {
  const copy = picture.cloneNode(true);
  const [from, to] = [picture, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((original, at) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) if (original.tagName !== "svg") to[at].setAttribute(name, style.getPropertyValue(name));
    to[at].removeAttribute("class");
  });
  return copy;
}

/// Pixels of a letter of the sheets' small text, at most on average.
const LETTER = 6.4;

/// Letters of a name that a sheet always shows.
const LEAST_NAME = 8;

/// Places names with their lines side by side, in rows of a width.
function legendOf(names, width) {
  let [x, row] = [12, 0];
  const items = names.map(({ name, picture }) => {
    const own = 30 + name.length * LETTER + 16;
    if (x > 12 && x + own > width) [x, row] = [12, row + 1];
    const item = { name, picture, x, y: row * 18 };
    x += own;
    return item;
  });
  return { items, height: names.length === 0 ? 0 : (row + 1) * 18 };
}

/// Pictures with titles in rows, under a title and a legend and over the guarantee, as one file.
function sheet(title, pictures, { columns, width, height, names = [] }) {
  const style = getComputedStyle(document.body);
  const ink = { fill: style.color, "font-family": "system-ui, sans-serif" };
  const rows = Math.ceil(pictures.length / columns);
  const cell = { width: width + 12, height: height + 26 };
  const promise = about.private ? `(ε, δ) = (${about.epsilon}, ${about.delta}), ${about.neighbours} neighbours` : "not private: seeded noise";
  const workload = current().workload ?? about.workloads[0];
  const counted = workload ? `epochs counted: ${weighting(workload)}; ` : "";
  const foot = `${about.name}; ${counted}band: ${about.level * 100} % confidence interval; ${promise}`;
  const wide = Math.max(columns * cell.width + 12, 24 + foot.length * LETTER, 24 + title.length * 9);
  const legend = legendOf(names, wide);
  const size = { width: Math.ceil(wide), height: rows * cell.height + 74 + legend.height };
  const root = shape(null, "svg", { xmlns: "http://www.w3.org/2000/svg", ...size, viewBox: `0 0 ${size.width} ${size.height}` });
  shape(root, "rect", { ...size, fill: style.backgroundColor });
  shape(root, "text", { x: 12, y: 26, "font-size": 16, "font-weight": 600, ...ink }, title);
  // Names leave room for the numbers behind them.
  const room = Math.floor(width / LETTER) - Math.max(0, ...pictures.map(({ text }) => text.length + 1));
  const labels = shortened(pictures.map(({ name }) => name), Math.max(room, LEAST_NAME));
  pictures.forEach(({ picture, text }, at) => {
    const place = { x: 12 + (at % columns) * cell.width, y: 40 + legend.height + Math.floor(at / columns) * cell.height };
    shape(root, "text", { ...place, y: place.y + 12, "font-size": 11, ...ink }, `${labels[at]} ${text}`);
    const copy = styled(picture);
    for (const [key, value] of Object.entries({ ...place, y: place.y + 18, width, height })) copy.setAttribute(key, value);
    root.append(copy);
  });
  for (const { name, picture, x, y } of legend.items) {
    const copy = styled(picture);
    for (const [key, value] of Object.entries({ x, y: y + 40, width: 24, height: 8 })) copy.setAttribute(key, value);
    root.append(copy);
    shape(root, "text", { x: x + 30, y: y + 48, "font-size": 11, ...ink }, name);
  }
  shape(root, "text", { x: 12, y: size.height - 14, "font-size": 11, ...ink }, foot);
  return { text: new XMLSerializer().serializeToString(root), ...size };
}

function pictureOf(place) {
  if (place === "trend") {
    const picture = detail.chart?.picture;
    if (!picture) return null;
    const { width, height } = picture.viewBox.baseVal;
    const names = [...$("legend").children].map((item) => ({ name: item.dataset.key, picture: item.querySelector("svg") }));
    return sheet($("trend-title").textContent, [{ name: "", picture, text: "" }], { columns: 1, width, height, names });
  }
  const [list, title] = place === "columns" ? ["columns", `${$("detail-title").textContent}: ${$("others-title").textContent}`]
    : ["cards", $("overview-title").textContent];
  const cards = [...$(list).children].map((item) => ({
    name: item.dataset.name, picture: item.querySelector("svg"), text: item.querySelector(".now").textContent }));
  return sheet(title, cards, { columns: Math.min(cards.length, 6) || 1, width: 190, height: 52 });
}

/// Draws a picture into pixels, two for each of its own, or fewer where it is very large.
function pixels({ text, width, height }) {
  const scale = Math.min(2, 8000 / Math.max(width, height));
  return new Promise((done, fail) => {
    const image = new Image();
    image.onload = () => {
      const canvas = element("canvas", null, { width: Math.round(width * scale), height: Math.round(height * scale) });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("no picture"))), "image/png");
    };
    image.onerror = () => fail(new Error("the browser can't draw the picture"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
}

/// The file of a place of the page in a format.
async function fileOf(place, kind) {
  const shown = PLACES[place].of();
  if (kind === "csv") return new Blob([csvOf(shown)], { type: "text/csv" });
  if (kind === "parquet") return parquetOf(shown);
  if (kind === "json") return new Blob([jsonOf(shown)], { type: "application/json" });
  const picture = pictureOf(place);
  if (picture === null) throw new Error("there is no chart yet");
  return kind === "svg" ? new Blob([picture.text], { type: "image/svg+xml" }) : pixels(picture);
}

/// The name of a file without its extension: what is shown.
function fileName(place) {
  const state = current();
  const { readings, series } = PLACES[place].of();
  const keys = place !== "overview" ? shownKey(state) : state.q ? `keys-with-${state.q}` : "all-keys";
  const of = place === "columns" ? series[0].split(":")[0] : shownSeries(state);
  const parts = [about.name, keys, of, ...(readings.step > 1 ? [`1-epoch-in-${readings.step}`] : [])];
  return parts.join("-").replace(/[^\p{L}\p{N}._-]+/gu, "_");
}

function buildDownloads() {
  for (const list of document.querySelectorAll(".downloads")) {
    const place = list.dataset.of;
    list.append(element("span", PLACES[place].label));
    for (const kind of ["csv", "parquet", "json", "svg", "png"]) {
      const button = element("button", kind === "parquet" ? "Parquet" : kind.toUpperCase(), { type: "button" });
      button.addEventListener("click", async () => {
        try { save(`${fileName(place)}.${kind}`, await fileOf(place, kind)); complain(null); } catch (error) { complain(error.message); }
      });
      list.append(" ", button);
    }
  }
}
