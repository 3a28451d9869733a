// Shows what the address says, and takes the reader's choices into the address.

/// The key of a state; null for all keys.
function shownKey(state) {
  if (state.key !== null) return state.key;
  if (about.keys.length === 1) return about.keys[0];
  // An address without anything opens what the server was started with.
  return location.hash.length > 1 ? null : about.view.key;
}

/// The series of a state: its own, or the first of the estimate.
function shownSeries(state) {
  const first = about.plot.groups[0];
  const of = state.of ?? `${first.name}:${first.series[0].name}`;
  if (of.includes(":")) return of;
  const group = about.plot.groups.find((found) => found.name === of) ?? first;
  return `${group.name}:${group.series[0].name}`;
}

/// Most principal components that are on offer.
const MOST_COMPONENTS = 3;

/// Numbers of epochs that can be shown.
const SPANS = [7, 30, 90, 365];

/// How often the server is asked for a log that is not there yet, in milliseconds.
const AWAIT = 1000;

/// The key that was last shown, or null for all keys.
let shownFor;

/// The readings that are on their way.
let loading = null;

/// Brings the page to the state of its address. `isStep` if a reader went there within the page,
/// not by Back, for which the browser restores where the page was scrolled to.
async function show(isStep = false) {
  if (correct()) return;
  const wanted = location.hash;
  try {
    const state = current();
    const estimate = new URLSearchParams();
    for (const name of ["estimate", "workload"]) if (state[name]) estimate.set(name, state[name]);
    if (about.of !== estimate.toString()) await learn(estimate);
    if (location.hash !== wanted) return;
    const [key, of] = [shownKey(state), shownSeries(state)];
    const strangers = about.all_keys_listed ? state.vs.filter((name) => !about.keys.includes(name)) : [];
    if (strangers.length > 0) { goWithout(strangers, `There is no key ${strangers.join(", ")} to compare with.`); return; }
    const group = state.of?.includes(":") ? undefined : state.of;
    if (group && !about.plot.groups.some((known) => known.name === group)) throw new Error(`of: this estimate has no series “${group}”`);
    if (key === null && detail !== null) { leave(); detail = null; }
    drawControls(state, key, of);
    $("overview").hidden = key !== null;
    $("detail").hidden = key === null;
    complain(excuse);
    document.title = `${key !== null && about.by !== null ? `${key}, ` : ""}${about.name} – hushflow`;
    await (key === null ? showOverview(state, of) : showDetail({ ...state, key }, of));
    // What follows may not be shown either: until then, all reasons are kept.
    if (location.hash === wanted) excuse = null;
    if (location.hash === wanted && shownFor !== undefined && shownFor !== key) {
      const title = key === null ? $("overview-title") : $("detail-title");
      title.focus({ preventScroll: true });
      if (isStep) scrollToTop(title);
    }
    shownFor = key;
  } catch (error) {
    if (location.hash !== wanted) return;
    const { vs } = current();
    if (vs.length > 0 && about !== null) { loading = null; goWithout(vs, `${error.message}: nothing is compared.`); return; }
    const near = about === null ? null : nearest(current(), error.message);
    if (near !== null) { loading = null; excuse = [excuse, near.why].filter(Boolean).join(" "); go(near.changes, true); return; }
    leave();
    [overview, detail, loading] = [null, null, null];
    $("overview").hidden = true;
    $("detail").hidden = true;
    status("lost", "no numbers");
    complain(error instanceof TypeError && !navigator.onLine ? "the server can't be reached" : error.message);
    // A way back, in the order that is the usual one.
    if (about?.keys.length > 1) $("message").append(" ", element("a", "Show all keys", { href: "#order=down" }));
  }
}

/// Returns the changes of a state that leave out what can't be shown, and the reason. Null if the
/// reason is another one.
function nearest(state, why) {
  const [, name, rest] = /^(key|of|workload|estimate|from|to|last): (.*)/s.exec(why) ?? [];
  if (name === undefined || state[name] === null) return null;
  const reason = `${name} is “${state[name]}”, which can't be shown (${rest})`;
  if (name === "key") {
    const known = about.keys.find((key) => key.toLowerCase() === state.key.toLowerCase()) ?? null;
    // The order keeps the address from being empty, which could mean a key.
    const shown = known === null ? "all keys are shown" : `${known} is shown`;
    return { changes: { ...ELSEWHERE, key: known, order: state.order ?? "down" }, why: `There is no key “${state.key}”: ${shown}.` };
  }
  // Another estimate has other series and workloads.
  const others = name === "estimate" ? { of: null, workload: null } : {};
  return { changes: { ...others, [name]: null }, why: `${reason}: the default is shown.` };
}

/// Scrolls to the top of the page, or to a title if little of what follows it would be visible.
function scrollToTop(title) {
  const top = title.getBoundingClientRect().top + scrollY;
  scrollTo(0, top < innerHeight / 3 ? 0 : top - 8);
}

/// What to complain of once the page is drawn.
let excuse = null;

/// Replaces an address with values that can't be shown, and says so. Returns whether it had any.
function correct() {
  const faults = faultsOf(location.hash);
  if (faults.length === 0) return false;
  excuse = [excuse, ...faults.map(({ why }) => why)].filter(Boolean).join(" ");
  const changes = Object.fromEntries(faults.filter(({ name }) => NAMES.includes(name)).map(({ name }) => [name, LISTS.includes(name) ? [] : null]));
  history.replaceState(null, "", address(changes));
  show();
  return true;
}

/// Shows the chart without keys of the address that it can't be compared with.
function goWithout(names, why) {
  excuse = why;
  go({ vs: current().vs.filter((name) => !names.includes(name)) }, true);
}

/// Asks the server about an estimate.
async function learn(query) {
  about = { ...(await load("about", query)), of: query.toString() };
}

function drawControls(state, key, of) {
  const series = about.plot.groups.flatMap((group) => group.series.map(({ name }) => ({
    value: `${group.name}:${name}`, text: group.name === "records" ? "records" : name, group: group.title })));
  const names = about.columns.map((column) => column.name);
  // More pairs than a list can hold are chosen in the matrix.
  const listed = about.plot.matrix && names.length <= 20 ? pairs(names).map(([i, j]) => pairSeries(i, j)) : [];
  if (of.startsWith("correlation:") && !listed.includes(of)) listed.push(of);
  const paired = listed.map((value) => ({ value, text: seriesOf(value).name, group: "Correlation" }));
  offer($("of"), [...series, ...paired], of);
  offer($("workload"), about.workloads.map((value) => ({ value, text: weighting(value) })), state.workload ?? about.workloads[0]);
  const estimate = state.estimate ?? about.view.estimate;
  const estimates = about.estimates.map(({ name }) => ({ value: name, text: estimateTitle(name) }));
  if (!about.estimates.some(({ name }) => name === estimate)) estimates.push({ value: estimate, text: estimateTitle(estimate) });
  if (about.formula !== null && names.length > 1) estimates.push({ value: "+", text: "regression of …" });
  const most = about.components === null ? 0 : Math.min(names.length, MOST_COMPONENTS);
  for (let number = 1; number <= most; number++) {
    const value = `${about.components}:${number}`;
    if (!estimates.some((known) => known.value === value)) estimates.push({ value, text: estimateTitle(value) });
  }
  offer($("estimate"), estimates, estimate);
  $("formula").hidden = !estimate.startsWith(`${about.formula}:`);
  drawFormula(estimate, names);
  const spans = SPANS.filter((span) => span < about.horizon);
  if (state.last && !spans.includes(Number(state.last))) spans.push(Number(state.last));
  const shown = [{ value: "", text: "all" }, ...spans.map((span) => ({ value: String(span), text: `the last ${span}` }))];
  if (state.from || state.to) shown.push({ value: "zoom", text: `${state.from ?? 1} to ${state.to ?? "now"}` });
  offer($("shown"), shown, state.from || state.to ? "zoom" : state.last ?? "");
  const scales = key === null ? [["", "the same for all"], ["own", "each its own"]] : [["", "most values"], ["whole", "all values"]];
  const chosen = scales.some(([value]) => value === state.scale) ? state.scale : "";
  offer($("scale"), scales.map(([value, text]) => ({ value, text })), chosen);
}

/// The target and the columns of a regression.
function drawFormula(estimate, names) {
  if ($("regressors").children.length !== names.length) {
    $("target").append(...names.map((name) => new Option(name, name)));
    $("regressors").append(...names.map((name) => {
      const label = document.createElement("label");
      label.append(element("input", null, { type: "checkbox", value: name }), ` ${name}`);
      return label;
    }));
  }
  if (!estimate.startsWith(`${about.formula}:`)) return;
  const [, formula] = estimate.split(/:(.*)/s);
  const [target, on] = formula.split("~");
  $("target").value = target;
  for (const box of $("regressors").querySelectorAll("input")) box.checked = on.split("+").includes(box.value);
}

function buildControls() {
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("of").addEventListener("change", () => go({ of: $("of").value }));
  $("workload").addEventListener("change", () => go({ workload: $("workload").value }));
  $("estimate").addEventListener("change", () => {
    if ($("estimate").value === "+") { $("formula").hidden = false; $("target").focus(); return; }
    // Another estimate has other series and may have workloads of its own.
    go({ estimate: $("estimate").value, of: null, workload: null });
  });
  $("regress").addEventListener("click", () => {
    const target = $("target").value;
    const on = [...$("regressors").querySelectorAll("input:checked")].map((box) => box.value).filter((name) => name !== target);
    if (on.length === 0) { complain("choose at least one column that explains"); return; }
    go({ estimate: `${about.formula}:${target}~${on.join("+")}`, of: null, workload: null });
  });
  $("shown").addEventListener("change", () => go({ last: $("shown").value, from: null, to: null }));
  $("scale").addEventListener("change", () => go({ scale: $("scale").value }));
}

/// Waits until there is a log, and says so meanwhile.
async function released() {
  for (;;) {
    try {
      const { epoch } = await load("newest", "");
      $("awaited").hidden = epoch !== null;
      if (epoch !== null) { await learn(new URLSearchParams()); return; }
      status("waiting", "no release yet");
    } catch {
      status("lost", "the server can't be reached, trying again");
    }
    await new Promise((done) => setTimeout(done, AWAIT));
  }
}

async function begin() {
  await released();
  for (const id of ["promise", "controls", "details"]) $(id).hidden = false;
  buildPromise();
  buildControls();
  buildOverview();
  buildDetail();
  buildTables();
  buildDownloads();
  watch();
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link === null || event.button > 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const target = document.getElementById(link.hash.slice(1));
    if (target !== null) { target.focus(); target.scrollIntoView(); } else { visit(link.hash || "#"); }
  });
  // Back and pasted addresses.
  addEventListener("popstate", () => show());
  addEventListener("resize", () => { if (detail !== null) redraw(); });
  await show();
}

begin();
