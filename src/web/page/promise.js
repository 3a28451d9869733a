// The guarantee, the budget and the ledger.

function buildPromise() {
  document.title = `${about.name} – hushflow`;
  $("name").textContent = about.name;
  if (!about.private) {
    $("warning").textContent = "Not private: the noise of these releases was drawn from a seed, so they protect nobody.";
    $("warning").hidden = false;
  }
  $("plain").textContent = about.promise;
  $("guarantee").textContent = about.guarantee;
  const { epsilon, delta, neighbours, protects } = about;
  const limits = protects.unit === "entity"
    ? { "an entity": protects.column, "epochs of one, at most": protects.participations,
      "epochs apart, at least": protects.min_separation, "records in each, at most": protects.records_per_epoch }
    : {};
  const bounds = about.columns.map(({ name, lower, upper, bounds = {} }) => {
    const own = Object.entries(bounds).map(([key, [from, to]]) => `${key} ${signed(from)} to ${signed(to)}`);
    return `${name} ${signed(lower)} to ${signed(upper)}${own.length > 0 ? ` (${own.join(", ")})` : ""}`;
  }).join(", ");
  const facts = { ε: epsilon, δ: delta, unit: protects.unit, ...limits, neighbours, method: about.method, strategy: about.strategy,
    "noise multiplier": bound(about.noise_multiplier), epochs: about.horizon, covariance: about.projection, bounds };
  $("parameters").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  buildBudget();
}

/// What is spent and left, as a bar and in words.
function buildBudget() {
  const account = about.ledger;
  const sum = account?.composition;
  const spent = sum?.epsilon ?? about.epsilon;
  const budget = account?.budget ?? null;
  const words = $("budget").appendChild(document.createElement("p"));
  if (account?.problem) {
    words.textContent = account.problem;
  } else if (!account) {
    words.textContent = `Spent: ε = ${bound(spent)}, δ = ${sum?.delta ?? about.delta}, for all ${about.horizon} epochs. Other releases of the data and a budget, if there is one, stand in the ledger, which this page can't read.`;
  } else if (budget === null) {
    words.textContent = `Spent: ε = ${bound(spent)}, δ = ${sum?.delta ?? about.delta}, for all ${about.horizon} epochs. No budget is set.`;
  } else {
    const left = account.left?.epsilon ?? 0;
    words.textContent = `Spent: ε = ${bound(spent)} of a budget of ${budget.epsilon}; a further release may spend ${bound(left)} (δ = ${budget.delta}). Releases together cost less than their sum.`;
    const bar = element("meter", null, { min: 0, max: budget.epsilon, value: Math.min(spent, budget.epsilon) });
    bar.setAttribute("aria-label", "Budget spent");
    $("budget").append(bar);
  }
  if (!account) return;
  $("ledger-section").hidden = false;
  $("together").textContent =
    (account.problem ?? `${account.entries.length} ${account.entries.length === 1 ? "entry" : "entries"} together: (ε, δ) = (${bound(sum?.epsilon ?? null)}, ${sum?.delta}) for ${sum?.neighbours} neighbours.`) +
    (budget === null ? " There is no budget." : ` Budget: (${budget.epsilon}, ${budget.delta}); ε left: ${bound(account.left?.epsilon ?? 0)}.`);
  const titles = ["pipeline", "started", "method", "unit", "neighbours", "epsilon", "delta", "epochs", "private"];
  fill($("ledger-section"), [titles, ...account.entries.map((entry) => titles.map((title) => entry[title] ?? null))]);
  $("ledger-section").querySelector("table").id = "ledger";
}
