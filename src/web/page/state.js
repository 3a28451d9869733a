// The state of the page is its address behind the #, so that Back and pasted links restore it.
"use strict";

const $ = (id) => document.getElementById(id);

/// What the log promises and what can be chosen, from the server.
let about = null;

/// Parameters that may be repeated; all others have one value or none.
const LISTS = ["vs", "open"];
const NAMES = ["key", "of", "workload", "estimate", "from", "to", "last", "scale", "sort", "order", "q", ...LISTS];

/// Returns the state that an address names: a text or null for each name, and arrays for lists.
function stateOf(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const name of NAMES) state[name] = LISTS.includes(name) ? found.getAll(name) : found.get(name) || null;
  // Epochs in either order.
  if (state.from && state.to && Number(state.from) > Number(state.to)) [state.from, state.to] = [state.to, state.from];
  return state;
}

const current = () => stateOf(location.hash);

/// Returns the address of the current state with these changes.
function address(changes) {
  const state = { ...current(), ...changes };
  const query = new URLSearchParams();
  for (const name of NAMES) {
    for (const value of LISTS.includes(name) ? state[name] : [state[name]]) {
      if (value !== null && value !== "") query.append(name, value);
    }
  }
  return `#${query}`;
}

/// Goes to the current state with these changes: a new step of Back, unless it replaces the last.
function go(changes, replace = false) {
  visit(address(changes), replace);
}

function visit(to, replace = false) {
  if (to === location.hash || (to === "#" && location.hash === "")) return;
  if (replace) history.replaceState(null, "", to); else history.pushState(null, "", to);
  show(true);
}

/// Changes of the state when a reader leaves the keys of a chart.
const ELSEWHERE = { vs: [], from: null, to: null, q: null, open: [] };
