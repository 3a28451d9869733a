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

/// Words that the parameters with a choice may have.
const WORDS = { sort: ["name", "level", "change", "signal"], order: ["down", "up"], scale: ["own", "whole"], open: ["newest", "history"] };

/// Values of an address that can't be shown, and what is shown instead.
function faultsOf(hash) {
  const faults = [];
  const add = (name, why) => { if (!faults.some((known) => known.name === name)) faults.push({ name, why }); };
  const isCount = (text) => /^[0-9]+$/.test(text) && Number(text) >= 1;
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (value === "") continue;
    if (!NAMES.includes(name)) add(name, `This page knows no “${name}”: that part of the address is left out.`);
    else if (WORDS[name] && !WORDS[name].includes(value)) {
      add(name, `There is no ${name} “${value}”, only ${WORDS[name].join(", ")}: the default is shown.`);
    } else if (["from", "to", "last"].includes(name) && !isCount(value)) {
      add(name, `${name} is “${value}”, not a whole number from 1 on: the default is shown.`);
    } else if (name === "from" && Number(value) > Math.max(about.published, newest?.epoch ?? 0, 1)) {
      add(name, `Epoch ${value} is not published yet: the chart begins where it does without it.`);
    }
  }
  return faults;
}

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
