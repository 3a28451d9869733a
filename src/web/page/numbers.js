// Numbers, intervals and epochs in words.

/// Digits with a minus sign, which is as wide as a plus sign, in place of the hyphen. Zero has none.
const signed = (digits) => String(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−");

const bound = (value) => (value === null || !Number.isFinite(value) ? "unbounded" : signed(Number(value.toPrecision(4))));

/// `value ± reach`, both to the place of the reach's second digit.
function format(value, reach) {
  if (!(reach > 0) || !Number.isFinite(reach)) return bound(value);
  const places = Math.min(Math.max(1 - Math.floor(Math.log10(reach)), 0), 6);
  return `${signed(value.toFixed(places))} ± ${reach.toFixed(places)}`;
}

const isNumber = (value) => value !== null && value !== undefined && Number.isFinite(value);

/// The longer side of an interval; null if an end is unbounded.
const reachOf = ({ value, lower, upper }) =>
  (isNumber(value) && isNumber(lower) && isNumber(upper) ? Math.max(upper - value, value - lower) : null);

const interval = ({ lower, upper }) => (isNumber(lower) || isNumber(upper) ? `${bound(lower)} to ${bound(upper)}` : "no interval");

/// A reading in words.
const inWords = (reading) => (isNumber(reading.value) ? format(reading.value, reachOf(reading)) : "no estimate");

/// Round numbers between two others.
function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high; number++) found.push(Number((number * step).toPrecision(12)));
  return found;
}

/// The run of epochs of the same length and local time that holds an epoch.
function runOf(epoch) {
  const whole = { first: 1, start: about.start, length: about.length, offset: 0 };
  return (about.runs ?? [whole]).findLast((run) => run.first <= epoch) ?? whole;
}

/// The local time at which an epoch begins, as if it were UTC.
function localTime(epoch) {
  const { first, start, length, offset } = runOf(epoch);
  return new Date((start + length * (epoch - first)) / 1000 + offset * 1000).toISOString();
}

/// `Z` or `-05:00`.
function zone(epoch) {
  if (!about.runs) return "Z";
  const { offset } = runOf(epoch);
  const minutes = Math.abs(offset) / 60;
  const pair = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${offset < 0 ? "-" : "+"}${pair(minutes / 60)}:${pair(minutes % 60)}`;
}

/// When an epoch begins; empty where epochs are counted.
const startOf = (epoch) => (about.start === null ? "" : localTime(epoch).replace(".000Z", zone(epoch)));

/// The same, shorter.
const shortStart = (epoch) => startOf(epoch).replace("T", " ").replace("00:00:00Z", "").trim();

const when = (epoch) => (about.start === null ? "" : `, from ${shortStart(epoch)}`);

/// The label of an epoch on an axis over this many epochs.
function axisLabel(epoch, epochs) {
  if (about.start === null) return String(epoch);
  const days = (epochs * about.length) / 86_400_000_000;
  const time = localTime(epoch);
  if (days > 3) return time.slice(0, 10);
  return days > 1 ? time.slice(5, 16).replace("T", " ") : time.slice(11, days > 0.02 ? 16 : 19);
}

/// A workload in words.
function weighting(workload) {
  const [name, parameter] = workload.split(":");
  const words = { prefix: "all so far", average: "all so far, averaged",
    exponential: `the recent ones most (β = ${parameter})`, window: `the last ${parameter}`,
    "window-mean": `the last ${parameter}, averaged`, momentum: `the recent ones most, summed (β = ${parameter})`,
    adam: `the recent ones most (β = ${parameter})` };
  return words[name] ?? workload;
}

/// An estimate in words.
function estimateTitle(name) {
  const [kind, formula] = name.split(/:(.*)/s);
  const words = { gaussian: "mean and covariance", moments: "weighted sums", adam: "Adam" };
  if (kind === "pca" && formula) {
    const [number, of] = formula.split(":");
    return `${number === "1" ? "first principal component" : `first ${number} principal components`}${of ? ` of the ${of}` : ""}`;
  }
  return formula ? `regression ${formula}` : words[kind] ?? kind;
}

/// A number of seconds in words.
function span(seconds) {
  const [unit, size] = [["days", 86_400], ["h", 3600], ["min", 60], ["s", 1]].find(([, size]) => seconds >= 2 * size || size === 1);
  return `${Math.floor(seconds / size)} ${unit}`;
}

/// Names of at most `most` characters, which stay different from each other: long ones lose their
/// middle, or get a number.
function shortened(names, most) {
  const cut = (name, end) => (name.length <= most ? name : `${name.slice(0, most - 1 - end)}…${name.slice(name.length - end)}`);
  const ends = Array.from({ length: most - 2 }, (_, at) => at + 1).sort((one, other) => Math.abs(one - most / 2) - Math.abs(other - most / 2));
  for (const end of ends) {
    const short = names.map((name) => cut(name, end));
    if (new Set(short).size === names.length) return short;
  }
  return names.map((name, at) => (name.length <= most ? name : `${at + 1} ${name.slice(0, most - 4)}…`));
}

/// An element with this text and these properties.
function element(name, text, properties) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

/// Replaces the children of a place. The focus stays at the same link, or goes to the one in its
/// place if it is gone, or else to `otherwise`.
function replace(place, children, otherwise = null) {
  const links = () => [...place.querySelectorAll("a")];
  const at = links().indexOf(document.activeElement);
  const href = links()[at]?.getAttribute("href");
  place.replaceChildren(...children);
  if (at < 0) return;
  const now = links();
  const next = now.find((link) => link.getAttribute("href") === href) ?? now[Math.min(at, now.length - 1)] ?? otherwise;
  next?.focus({ preventScroll: true });
}

/// Offers these options in a list, and chooses one.
const offer = (select, options, chosen) => {
  const wanted = options.map(({ value, text, group }) => `${group ?? ""}/${value}/${text}`).join("\n");
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    const groups = new Map();
    select.replaceChildren();
    for (const { value, text, group } of options) {
      const option = new Option(text, value);
      if (!group) { select.append(option); continue; }
      if (!groups.has(group)) groups.set(group, select.appendChild(element("optgroup", null, { label: group })));
      groups.get(group).append(option);
    }
  }
  select.value = chosen;
};

/// Whether a line's quality lets its numbers be trusted.
const isGood = (quality) => [undefined, "good", "if-missing-at-random"].includes(quality);
