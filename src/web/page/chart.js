// Charts in SVG: lines with confidence bands. Colours are classes of the style sheet.

/// Makes an SVG element in a parent.
function shape(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

/// From where to where lines reach. Unless `whole`, one in twenty good values may lie outside at
/// each end; charts mark those. The newest reading is always within.
function domain(lines, whole) {
  const [low, high] = [[], []];
  for (const { value, lower, upper, good } of lines) {
    const hasGood = good.includes(1);
    value.forEach((number, at) => {
      const isNewest = at === value.length - 1;
      if (!isNumber(number) || (!whole && hasGood && good[at] !== 1 && !isNewest)) return;
      low.push({ end: isNumber(lower[at]) ? lower[at] : number, isNewest });
      high.push({ end: isNumber(upper[at]) ? upper[at] : number, isNewest });
    });
  }
  if (low.length === 0) return null;
  const end = (ends, sign) => {
    const sorted = ends.map((found) => sign * found.end).sort((one, other) => one - other);
    const newest = ends.filter((found) => found.isNewest).map((found) => sign * found.end);
    const share = whole ? 1 : 0.95;
    return sign * Math.max(sorted[Math.round(share * (sorted.length - 1))], ...newest);
  };
  const [from, to] = [end(low, -1), end(high, 1)];
  const margin = (to - from) * 0.05 || Math.abs(to) * 0.05 || 1;
  return [from - margin, to + margin];
}

/// How many values lie above and below a range.
function outside(lines, [low, high]) {
  const values = lines.flatMap(({ value }) => value.filter(isNumber));
  return { above: values.filter((value) => value > high).length, below: values.filter((value) => value < low).length, of: values.length };
}

/// Stretches of a list in which `is` holds, as [first, last].
function stretches(length, is) {
  const found = [];
  for (let at = 0; at < length; at++) {
    if (!is(at)) continue;
    if (at > 0 && is(at - 1)) found[found.length - 1][1] = at; else found.push([at, at]);
  }
  return found;
}

/// Draws lines with their bands into a box of this size, the first line on top.
function drawLines(parent, lines, { width, height, from, to, range: [low, high], size }) {
  // A nested picture cuts what leaves it.
  const [left, top] = [Number(parent.dataset.left ?? 0), Number(parent.dataset.top ?? 0)];
  const box = shape(parent, "svg", { width, height, x: left, y: top });
  const x = (epoch) => Number((to === from ? width / 2 : ((epoch - from) / (to - from)) * width).toFixed(2));
  const y = (value) => {
    const place = height - ((value - low) / (high - low)) * height;
    return Number(Math.min(Math.max(place, -height), 2 * height).toFixed(2));
  };
  const each = lines.map((line, index) => ({ ...line, index })).reverse();
  for (const { index, epochs, value, lower, upper } of each) {
    const points = (list, otherwise) => (at) => `${x(epochs[at])},${y(isNumber(list[at]) ? list[at] : otherwise)}`;
    const [above, below] = [points(upper, high + (high - low)), points(lower, low - (high - low))];
    for (const [first, last] of stretches(value.length, (at) => isNumber(value[at]))) {
      if (first === last) { shape(box, "path", { class: `whisker s${index}`, d: `M${above(first)}L${below(first)}` }); continue; }
      const all = Array.from({ length: last - first + 1 }, (_, at) => first + at);
      const edge = [...all.map(above), ...all.reverse().map(below)];
      shape(box, "path", { class: `band s${index}`, d: `M${edge.join("L")}Z` });
    }
  }
  for (const { index, epochs, value, good } of each) {
    const point = (at) => `${x(epochs[at])},${y(value[at])}`;
    for (const isGood of [0, 1]) {
      // A line begins at the point before, so that the parts join.
      const is = (at) => isNumber(value[at]) && good[at] === isGood;
      for (const [first, last] of stretches(value.length, is)) {
        const begin = first > 0 && isNumber(value[first - 1]) ? first - 1 : first;
        const all = Array.from({ length: last - begin + 1 }, (_, at) => point(begin + at));
        const isLone = begin === last && !isNumber(value[last + 1]);
        const kind = `line s${index}${isGood ? "" : " faint"}${isLone ? " lone" : ""}`;
        shape(box, "path", { class: kind, d: all.length === 1 ? `M${all[0]}h.01` : `M${all.join("L")}` });
      }
    }
    const newest = value.length - 1;
    // Beside the box, which would cut it in half.
    if (isNumber(value[newest])) shape(parent, "circle", { class: `dot s${index}`, cx: left + x(epochs[newest]), cy: top + y(value[newest]), r: size * 0.55 });
    markOutside(box, { index, epochs, value }, { x, low, high, height, size });
  }
  return { x, y };
}

/// Triangles at the edge for values outside.
function markOutside(box, { index, epochs, value }, { x, low, high, height, size }) {
  const drawn = { above: -Infinity, below: -Infinity };
  value.forEach((number, at) => {
    if (!isNumber(number) || (number >= low && number <= high)) return;
    const side = number > high ? "above" : "below";
    if (x(epochs[at]) - drawn[side] < size) return;
    drawn[side] = x(epochs[at]);
    const [tip, base] = side === "above" ? [0, size] : [height, height - size];
    const middle = drawn[side];
    shape(box, "path", { class: `mark s${index}`, "data-side": side, d: `M${middle - size / 2},${base}L${middle + size / 2},${base}L${middle},${tip}Z` });
  });
}

/// A piece of the line of a key, for a legend.
function swatch(index) {
  const picture = shape(null, "svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" });
  shape(picture, "path", { class: `line s${index}`, d: "M1,4H23" });
  return picture;
}

/// A chart without axes, for a card.
function spark(line, { from, to, range }) {
  const [width, height] = [176, 52];
  const picture = shape(null, "svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (range !== null) drawLines(picture, [line], { width, height, from, to, range, size: 5 });
  return picture;
}

/// A chart with axes. Returns the picture, and where its epochs are.
function trend(lines, { width, height, from, to, range, cursor }) {
  const picture = shape(null, "svg", { class: "trend", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const marks = ticks(range[0], range[1], 6);
  const left = 12 + 7.2 * Math.max(...marks.map((mark) => bound(mark).length), 1);
  const box = { left, right: width - 10, top: 8, bottom: height - 26 };
  const inner = { width: box.right - box.left, height: box.bottom - box.top };
  for (const mark of marks) {
    const y = box.bottom - ((mark - range[0]) / (range[1] - range[0])) * inner.height;
    shape(picture, "path", { class: "rule", d: `M${box.left},${y}H${box.right}` });
    shape(picture, "text", { class: "tick", x: box.left - 6, y: y + 4, "text-anchor": "end" }, bound(mark));
  }
  const most = Math.max(2, Math.floor(inner.width / 60));
  let end = -Infinity;
  for (const epoch of ticks(from, Math.max(to, from + 1), most).filter((epoch) => Number.isInteger(epoch) && epoch <= to)) {
    const x = box.left + (to === from ? inner.width / 2 : ((epoch - from) / (to - from)) * inner.width);
    const text = axisLabel(epoch, to - from);
    const half = text.length * 3.4;
    const middle = Math.min(Math.max(x, box.left + half), box.right - half);
    if (middle - half < end) continue;
    end = middle + half + 8;
    shape(picture, "text", { class: "tick", x: middle, y: height - 7, "text-anchor": "middle" }, text);
  }
  picture.dataset.left = box.left;
  picture.dataset.top = box.top;
  const { x } = drawLines(picture, lines, { ...inner, from, to, range, size: 8 });
  if (cursor !== null) shape(picture, "path", { class: "cursor", d: `M${box.left + x(cursor)},${box.top}V${box.bottom}` });
  const epochAt = (place) => from + ((place - box.left) / inner.width) * (to - from);
  return { picture, box, epochAt };
}

/// Characters of a name for which a card has room.
const CARD = 26;

/// A card: a link with a name, a number, a small chart and a note.
function card({ href, name, label = name, line, frame, note, isChosen }) {
  const item = document.createElement("li");
  const link = item.appendChild(element("a", null, label === name ? { href } : { href, title: name }));
  const now = readingAt(line);
  Object.assign(item.dataset, { name, value: now.value ?? "", lower: now.lower ?? "", upper: now.upper ?? "" });
  if (isChosen) link.setAttribute("aria-current", "true");
  link.append(element("strong", label), " ", element("span", inWords(now), { className: "now" }), spark(line, frame));
  const missed = frame.range === null ? null : outside([line], frame.range);
  const marks = missed && missed.above + missed.below > 0 ? `, ${missed.above + missed.below} outside` : "";
  link.append(" ", element("small", `${note ?? ""}${marks}`.replace(/^, /, "")));
  return item;
}
