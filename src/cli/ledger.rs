//! `hushflow ledger`: the privacy cost of each pipeline over a data set, their total, and the
//! remaining budget; and the charge of a single estimate.

use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::ledger::{
    Book, Budget, Charge, Ledger, LedgerAccount, LedgerEntry, LedgerHome, data_set_name, enter_once,
    set_budget,
};
use hushflow::mechanism::accounting::adjacency::{Adjacency, Unit};
use hushflow::mechanism::accounting::bounded_range::RhoSpending;
use hushflow::mechanism::accounting::composition::Spending;
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::mechanism::sensitivity::Neighbours;
use serde_json::{Value, json};

use super::output::{fit_columns, number, print_json, print_message, print_wrapped, table, terminal_width};
use super::{CliError, number_in, word};

/// Arguments of `hushflow ledger`.
#[derive(Debug, Args)]
#[command(after_help = "\
A pipeline gets a ledger entry when its first run into a state directory commits the first epoch. The entry pays for all \
epochs that the pipeline may ever publish there: later runs pay nothing more. A run that fails before its first commit has \
spent nothing. Pipelines over the same data share a ledger: set [ledger] directory = \"…\" and data_set = \"…\" in their \
files, or HUSHFLOW_LEDGER=DIR for all data sets. With [ledger] budget = { epsilon = 2, delta = 1e-6 }, a run that exceeds \
the budget is refused before it reads a record.

The composition covers all entries, for one unit and one kind of neighbours: those of --unit and --neighbours, else those \
of the budget, else those that fit the entries. ε, δ, ρ and μ are rounded up.")]
pub(crate) struct LedgerArguments {
    /// Directory of a ledger, or a state directory, for the ledger that pays for it
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// δ at which to report the ε of all entries together [default: that of the budget, or the
    /// largest of the entries]
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// Which streams are neighbours, that is, hard to tell apart
    #[arg(long, value_parser = word::<Neighbours>(&["replace-one", "replace-one-in-place", "zero-out"]))]
    neighbours: Option<Neighbours>,
    /// Unit of privacy: record, or a kind of entity such as user
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Set the budget: the largest ε and δ of all entries together, for this unit and these
    /// neighbours
    #[arg(long, value_name = "ε,δ", allow_hyphen_values = true, value_parser = read_budget)]
    budget: Option<(Epsilon, Delta)>,
}

fn read_budget(text: &str) -> Result<(Epsilon, Delta), String> {
    let (epsilon, delta) = text.split_once(',').ok_or("expected two numbers, such as 2,1e-6")?;
    Ok((number_in(Epsilon::new)(epsilon.trim())?, number_in(Delta::new)(delta.trim())?))
}

/// Sets the budget if one is given, then prints the ledger.
pub(crate) fn execute(arguments: &LedgerArguments) -> Result<(), CliError> {
    let mut directory = arguments.directory.clone();
    if let Some((epsilon, delta)) = arguments.budget {
        directory =
            set_budget(&directory, |ledger| Budget::new(epsilon, delta, arguments.adjacency(ledger)))?;
    }
    let book = Book::open(&directory)?;
    let adjacency = arguments.adjacency(&book.ledger);
    let account = LedgerAccount::new(book, adjacency, arguments.delta);
    let printed = if arguments.json { print_json(&json(&account)) } else { print_wrapped(&text(&account)) };
    Ok(printed?)
}

impl LedgerArguments {
    /// Returns unit and neighbours from the flags, else from the ledger.
    fn adjacency(&self, ledger: &Ledger) -> Adjacency {
        let Adjacency { unit, neighbours } = ledger.adjacency();
        let named_unit = self.unit.as_deref().map(|unit| match unit {
            "record" => Unit::Record,
            kind => Unit::Entity(kind.into()),
        });
        Adjacency { unit: named_unit.unwrap_or(unit), neighbours: self.neighbours.unwrap_or(neighbours) }
    }
}

/// Returns the public part of the ledger that pays for a state directory, without paths and
/// identities; null where there is none.
pub(super) fn public_account(directory: &Path) -> Value {
    const ACCOUNT: [&str; 6] = ["data_set", "entries", "composition", "problem", "budget", "left"];
    const ENTRY: [&str; 11] = [
        "started",
        "pipeline",
        "method",
        "unit",
        "entity",
        "within",
        "neighbours",
        "epsilon",
        "delta",
        "epochs",
        "private",
    ];
    let Ok(book) = Book::open(directory) else { return Value::Null };
    let adjacency = book.ledger.adjacency();
    let mut account = json(&LedgerAccount::new(book, adjacency, None));
    only(&mut account, &ACCOUNT);
    let entries = account["entries"].as_array_mut();
    entries.into_iter().flatten().for_each(|entry| only(entry, &ENTRY));
    account
}

/// Removes all fields except those with these names.
fn only(object: &mut Value, names: &[&str]) {
    if let Value::Object(fields) = object {
        fields.retain(|name, _| names.contains(&name.as_str()));
    }
}

fn json(account: &LedgerAccount) -> Value {
    let Ledger { data_set, budget, entries } = &account.book.ledger;
    let gaussian = |number: f64| Some(number).filter(|_| !account.adds_guarantees());
    let composition = account.composition.as_ref().ok().map(|(spent, epsilon)| {
        json!({
            "unit": word_of(&account.adjacency.unit),
            "entity": account.adjacency.unit.entity(),
            "neighbours": account.adjacency.neighbours,
            "epsilon": epsilon.map(|computed| computed.epsilon),
            "delta": account.delta.value(),
            "accountant": epsilon.map(|computed| computed.accountant.to_string()),
            "numerical_error": epsilon.map(|computed| computed.numerical_error),
            "rho": gaussian(spent.rho()),
            "mu": gaussian(spent.mu()),
            "total_variation": gaussian(spent.total_variation()),
        })
    });
    json!({
        "directory": account.book.path,
        "data_set": data_set,
        "entries": entries.iter().map(line).collect::<Vec<_>>(),
        "composition": composition,
        "problem": account.problem(),
        "budget": budget.as_ref().map(limit),
        "left": budget.as_ref().map(|_| json!({ "epsilon": account.left(), "delta": account.left_delta() })),
    })
}

fn text(account: &LedgerAccount) -> String {
    let Ledger { data_set, budget, entries } = &account.book.ledger;
    let titles =
        ["started", "pipeline", "method", "unit", "neighbours", "ε", "δ", "ρ", "μ", "epochs", "private"];
    let titles = titles.map(String::from).to_vec();
    let mut rows: Vec<_> = [titles].into_iter().chain(entries.iter().map(row)).collect();
    let narrowed = fit_columns(&mut rows, terminal_width(), &["μ", "ρ", "unit", "neighbours", "method"]);
    let mut text = data_set.as_ref().map_or_else(String::new, |name| format!("data set: {name}\n\n"));
    text += &table(&rows);
    if !narrowed.is_empty() {
        text += &format!("A wider terminal also shows {}; --json prints all.\n", narrowed.join(", "));
    }
    text += &format!("\n{} together, for {}: ", count(entries.len()), account.adjacency);
    text += &match (&account.composition, account.epsilon()) {
        (Ok((spent, _)), Some(found)) => format!(
            "(ε, δ) = ({}, {}){}{}\n",
            number(found.epsilon),
            number(account.delta.value()),
            match found.numerical_error {
                0.0 => String::new(),
                error => format!(
                    " (by {}, for entries that no release decided; numerical error at most {})",
                    found.accountant,
                    number(error)
                ),
            },
            match account.adds_guarantees() {
                true => "; the budget adds up ε and δ, since the first entry draws batches at random".into(),
                false => format!(", ρ = {}, μ = {}", number(spent.rho()), number(spent.mu())),
            }
        ),
        _ => format!("NO GUARANTEE: {}\n", account.problem().unwrap_or_default()),
    };
    let sampled = entries.iter().filter(|entry| entry.charge.sampled.is_some()).count();
    if sampled > 0 {
        text += &format!("{} {SECRET_BATCHES}\n", count(sampled));
    }
    text + &match (budget, account.left()) {
        (None, _) => "no budget\n".into(),
        (Some(budget), Some(left)) => {
            let delta = account.left_delta().unwrap_or_default();
            format!("budget: {budget}; left for one more pipeline: ({left}, {delta:e})\n")
        }
        (Some(budget), None) => format!("budget: {budget}; nothing is left\n"),
    }
}

/// What the ε of random batches relies on, after the number of entries.
const SECRET_BATCHES: &str = "with batches drawn at random: ε holds only while the batches are secret, for those who can't time the steps";

fn count(entries: usize) -> String {
    if entries == 1 { "1 entry".into() } else { format!("{entries} entries") }
}

/// Returns ρ and μ of one entry; `None` where the noise was drawn from a seed.
fn spent(charge: &Charge) -> Option<Spending> {
    charge.spending().ok().filter(|_| charge.private)
}

/// Returns the ρ that was requested, or the one implied by μ.
fn rho(charge: &Charge) -> Option<f64> {
    spent(charge).map(|spent| charge.rho.map_or(spent.rho(), RhoSpending::rho))
}

/// Returns `record` or `entity`.
fn word_of(unit: &Unit) -> &'static str {
    if unit.entity().is_some() { "entity" } else { "record" }
}

fn limit(budget: &Budget) -> Value {
    let Adjacency { unit, neighbours } = budget.adjacency();
    json!({
        "epsilon": budget.epsilon(),
        "delta": budget.delta(),
        "unit": word_of(&unit),
        "entity": unit.entity(),
        "neighbours": neighbours,
    })
}

fn line(entry: &LedgerEntry) -> Value {
    let LedgerEntry { identity, started, charge } = entry;
    let spent = spent(charge);
    json!({
        "identity": identity,
        "started": started,
        "pipeline": charge.pipeline,
        "method": charge.method,
        "unit": word_of(&charge.unit),
        "entity": charge.unit.entity(),
        "within": charge.within,
        "neighbours": charge.neighbours,
        "private": charge.private,
        "epsilon": charge.epsilon,
        "delta": charge.delta,
        "rho": rho(charge),
        "mu": spent.map(Spending::mu),
        "noise_multiplier": charge.noise_multiplier,
        "total_variation": charge.total_variation,
        "epochs": charge.epochs,
        "sampled": charge.sampled,
    })
}

fn row(entry: &LedgerEntry) -> Vec<String> {
    let LedgerEntry { started, charge, .. } = entry;
    let spent = spent(charge);
    let guarantee = |value: Option<f64>| value.map_or("-".into(), number);
    vec![
        started.clone(),
        charge.pipeline.clone(),
        charge.method.clone(),
        charge.unit.to_string(),
        charge.neighbours.to_string(),
        guarantee(spent.map(|_| charge.epsilon)),
        guarantee(spent.map(|_| charge.delta)),
        guarantee(rho(charge)),
        guarantee(spent.map(Spending::mu)),
        charge.epochs.to_string(),
        if charge.private { "yes" } else { "NO" }.into(),
    ]
}

/// Arguments that select the ledger of an estimate.
#[derive(Debug, Args)]
pub(crate) struct ChargeArguments {
    /// Charge the ledger in this directory before printing [default: the ledger of --data-set in
    /// the directory named by HUSHFLOW_LEDGER or the user's configuration]
    #[arg(long, value_name = "DIR", requires = "data_set")]
    ledger: Option<PathBuf>,
    /// Name of the data set in ledgers, such as flights
    #[arg(long, value_name = "NAME", value_parser = data_set_name)]
    data_set: Option<String>,
}

impl ChargeArguments {
    /// Returns the directory of the ledger, or prints a note where there is none. Call it before
    /// the data are read.
    ///
    /// A charge covers neighbours that replace any row by any other. If rows with missing values
    /// are left out, the output depends on the exact number of complete rows, which distinguishes
    /// neighbours: this is refused, and `instead` names the option that keeps all rows.
    pub(crate) fn ledger(&self, skips: bool, instead: &str) -> Result<Option<PathBuf>, CliError> {
        let ledger = self.found()?;
        match ledger {
            Some(ledger) if skips => Err(CliError::usage(format!(
                "--missing skip leaves rows out and so reveals the exact number of complete rows, which a charge to the ledger in {} \
                 does not cover: use --missing {instead}, which counts all rows",
                ledger.display()
            ))),
            ledger => Ok(ledger),
        }
    }

    fn found(&self) -> Result<Option<PathBuf>, CliError> {
        if self.ledger.is_some() {
            return Ok(self.ledger.clone());
        }
        if let Some(home) = LedgerHome::find()? {
            return Ok(Some(home.of_data(self.data_set.as_deref())?));
        }
        print_uncounted_note("--ledger DIR");
        Ok(None)
    }

    /// Charges the estimate to the ledger, if there is one.
    pub(crate) fn enter(&self, ledger: Option<&PathBuf>, charge: Charge) -> Result<(), CliError> {
        ledger.map_or(Ok(()), |ledger| Ok(enter_once(ledger, charge, self.data_set.clone())?))
    }
}

/// Prints a note that no ledger counts this release; `how` is the option that names a ledger for
/// this command.
pub(crate) fn print_uncounted_note(how: &str) {
    print_message(&format!(
        "note: no ledger counts this together with other releases of the same data: name one with {how}, or for all runs with \
         HUSHFLOW_LEDGER=DIR or ledger = \"DIR\" in ~/.config/hushflow/config.toml"
    ));
}
