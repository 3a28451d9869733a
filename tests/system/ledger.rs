//! Tests the ledger through the binary: pipelines over the same data share a budget, restarts are
//! not charged, one of two runs that compete for the budget is refused, and a damaged, missing or
//! rolled back ledger stops the run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{self, Ended, Lab, Stream, close, finish, hushflow, releases, run, wait};
use serde_json::Value;

pub(crate) const STREAM: Stream = Stream { rows: 400, epochs: 4 };

/// A budget that two pipelines of (1, 1e-6) fit: together they spend (1.4547, 1e-6).
pub(crate) const BUDGET: &str =
    "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\nbudget = { epsilon = 1.5, delta = 1e-6 }\n";

/// A lab with data, and pipelines over it.
pub(crate) struct Data(pub(crate) Lab);

impl Data {
    pub(crate) fn new() -> Self {
        let lab = Lab::new();
        lab.write("data.csv", STREAM.csv());
        Data(lab)
    }

    /// A pipeline with more sections and one replacement in its text.
    pub(crate) fn pipeline(&self, name: &str, more: &str, (from, to): (&str, &str)) -> PathBuf {
        let text = STREAM.pipeline("data.csv", more).replace("name = 'stream'", &format!("name = '{name}'"));
        assert!(text.contains(from), "{from}");
        self.0.write(&format!("{name}.toml"), text.replacen(from, to, 1))
    }

    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.pipeline(name, BUDGET, ("", ""))
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Runs the pipeline with a state directory of the same name.
    pub(crate) fn run(&self, pipeline: &Path) -> Ended {
        let name = pipeline.file_stem().expect("a name").to_str().expect("UTF-8");
        finish(&mut run(pipeline, &self.state(name), 1))
    }

    pub(crate) fn ledger(&self) -> Value {
        ledger(&self.state("shared"), &[])
    }
}

/// Returns the output of `hushflow ledger --json`.
pub(crate) fn ledger(directory: &Path, arguments: &[&str]) -> Value {
    let ended = finish(command("ledger", directory).arg("--json").args(arguments)).succeeded();
    ended.json().pop().expect("one object")
}

pub(crate) fn command(name: &str, directory: &Path) -> Command {
    let mut command = hushflow([name]);
    command.arg(directory);
    command
}

pub(crate) fn entries(ledger: &Value) -> Vec<&str> {
    let entries = ledger["entries"].as_array().expect("a list");
    entries.iter().map(|entry| entry["pipeline"].as_str().expect("a name")).collect()
}

#[test]
fn pipelines_over_the_same_data_share_a_budget_and_the_third_is_refused() {
    let data = Data::new();
    data.run(&data.shared("first")).succeeded();
    data.run(&data.shared("second")).succeeded();
    let one = ledger(&data.state("first"), &[]);
    assert_eq!(entries(&one), ["first", "second"], "a state directory knows its ledger");
    close("ε of both", &one["composition"]["epsilon"], 1.454_670_66, 1e-6);
    close("μ of both", &one["composition"]["mu"], 2_f64.sqrt() / 4.224_678_9, 1e-6);
    close("ρ of both", &one["composition"]["rho"], 4.224_678_9_f64.powi(-2), 1e-6);

    // The run is refused before it opens its source, which does not exist.
    let third = data.pipeline("third", BUDGET, ("data.csv", "none.csv"));
    let ended = data.run(&third);
    let left = ended.err.split("epsilon = ").nth(1).and_then(|rest| rest.split(' ').next()).map(String::from);
    let parts = [
        "the budget of this data set is (ε, δ) = (1.5, 1e-6)",
        "2 entries have spent ε = 1.45",
        "(1, 1e-6)",
        "--budget",
    ];
    ended.failed(1, &parts);
    assert_eq!(releases(&data.state("third")).len(), 0);
    assert!(!data.state("third").join(harness::PRIVATE_LOG).exists(), "nothing was begun");
    assert_eq!(entries(&data.ledger()), ["first", "second"]);

    // The pipeline fits with the remaining ε. Afterwards the budget is used up.
    let left = left.expect("the message says what is left");
    let third = data.pipeline("third", BUDGET, ("epsilon = 1\n", &format!("epsilon = {left}\n")));
    data.run(&third).succeeded();
    data.run(&data.pipeline("fourth", BUDGET, ("epsilon = 1\n", "epsilon = 0.01\n"))).failed(1, &["is left"]);
    let ledger = data.ledger();
    assert_eq!(entries(&ledger), ["first", "second", "third"]);
    assert!(harness::number(&ledger["composition"]["epsilon"]) <= 1.5);
}

#[test]
fn a_state_directory_pays_once_and_one_that_is_made_anew_pays_anew() {
    let data = Data::new();
    let pipeline = data.pipeline("first", BUDGET, ("", ""));
    for _ in 0..3 {
        data.run(&pipeline).succeeded();
        assert_eq!(entries(&data.ledger()), ["first"]);
    }
    std::fs::remove_dir_all(data.state("first")).expect("a directory");
    data.run(&pipeline).succeeded();
    assert_eq!(entries(&data.ledger()), ["first", "first"]);
    std::fs::remove_dir_all(data.state("first")).expect("a directory");
    data.run(&pipeline).failed(1, &["the budget of this data set"]);
}

#[test]
fn without_a_section_the_ledger_is_in_the_state_directory() {
    let data = Data::new();
    data.run(&data.pipeline("alone", "", ("", ""))).succeeded();
    let report = ledger(&data.state("alone"), &["--delta", "1e-6"]);
    assert_eq!(report["directory"], data.state("alone").join("ledger").to_str().expect("UTF-8"));
    let entry = &report["entries"][0];
    for (field, expected) in
        [("unit", "record"), ("neighbours", "replace-one"), ("method", "jme"), ("pipeline", "alone")]
    {
        assert_eq!(entry[field], expected);
    }
    assert_eq!(
        (&entry["epochs"], &entry["private"], &report["budget"]),
        (&4.into(), &true.into(), &Value::Null)
    );
    // The composition of a single pipeline has the ε that the pipeline requested.
    let epsilon = harness::number(&report["composition"]["epsilon"]);
    assert!(epsilon <= 1.0 && epsilon > 1.0 - 1e-9, "{epsilon}");
    let table = finish(&mut command("ledger", &data.state("alone"))).succeeded().out;
    for part in [
        "started",
        "replace-one",
        "1 entry together, for replace-one neighbours: (ε, δ) = (1, 1e-6)",
        "no budget",
    ] {
        assert!(table.contains(part), "{part:?} in {table}");
    }
}

#[test]
fn of_two_runs_that_race_for_a_budget_one_is_refused_and_nothing_is_lost() {
    for round in 0..6 {
        let data = Data::new();
        let more = BUDGET.replace("1.5", "1.2");
        let pipelines = ["left", "right"].map(|name| data.pipeline(name, &more, ("", "")));
        let running = pipelines.map(|pipeline| {
            let name = pipeline.file_stem().expect("a name").to_owned();
            run(&pipeline, &data.state(name.to_str().expect("UTF-8")), 1).spawn().expect("the run starts")
        });
        let ended = running.map(wait);
        let mut codes: Vec<_> = ended.iter().map(|ended| ended.code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [Some(0), Some(1)], "round {round}: {ended:?}");
        assert_eq!(entries(&data.ledger()).len(), 1);
    }
}

#[test]
fn a_ledger_that_is_damaged_gone_or_rolled_back_stops_the_run_and_fails_the_check() {
    let data = Data::new();
    let (first, second) = (data.shared("first"), data.shared("second"));
    data.run(&first).succeeded();
    let file = data.state("shared").join("ledger");
    let old = std::fs::read(&file).expect("a ledger");
    data.run(&second).succeeded();
    let good = std::fs::read(&file).expect("a ledger");
    let verify = |name: &str| finish(&mut command("verify", &data.state(name)));
    let sound = verify("second").succeeded();
    assert!(sound.out.contains("ledger             entry 2 of 2"), "{}", sound.out);

    let put = |bytes: &[u8]| std::fs::write(&file, bytes).expect("the test may write");
    let stops = |parts: &[&str]| {
        data.run(&second).failed(1, parts);
        verify("second").failed(1, parts);
    };
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 4;
    put(&flipped);
    stops(&["shared/ledger: damaged at byte 16", "restore the file"]);
    data.run(&data.shared("third")).failed(1, &["damaged at byte 16"]);
    finish(&mut command("ledger", &data.state("shared"))).failed(1, &["damaged at byte 16"]);
    put(&good[..good.len() - 1]);
    stops(&["shared/ledger: damaged at byte 16"]);
    put(&[]);
    stops(&["shared/ledger: damaged at byte 0"]);
    put(&old);
    stops(&["shared: this ledger has no entry", "rolled back"]);
    data.run(&first).succeeded();
    put(&good);
    std::fs::rename(&file, data.state("aside")).expect("a file");
    stops(&["shared: this ledger has no entry"]);
    std::fs::rename(data.state("aside"), &file).expect("a file");
    std::fs::rename(data.state("shared"), data.state("elsewhere")).expect("a directory");
    stops(&["shared: this ledger has no entry"]);
    finish(&mut command("ledger", &data.state("shared"))).failed(1, &["there is no ledger here"]);

    // The ledger may move, if the pipeline file names the new path.
    let moved = BUDGET.replace("shared", "elsewhere");
    data.run(&data.pipeline("second", &moved, ("", ""))).succeeded();
    verify("second").succeeded();
}

#[test]
fn an_unwritable_ledger_refuses_new_runs_but_not_paid_ones() {
    let data = Data::new();
    data.run(&data.shared("first")).succeeded();
    std::fs::create_dir(data.state("shared").join("ledger.new")).expect("a directory in the way");
    data.run(&data.shared("second")).failed(1, &["shared/ledger.new: cannot"]);
    data.run(&data.shared("first")).succeeded();
    assert_eq!(entries(&data.ledger()), ["first"]);
}

#[test]
fn neighbours_are_converted_where_a_theorem_allows_and_refused_where_none_does() {
    let data = Data::new();
    let more = "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\nbudget = { epsilon = 9, delta = 1e-6, neighbours = 'replace-one' }\n";
    let with_neighbours = |name: &str, neighbours: &str| {
        data.pipeline(name, more, ("clip_norm", &format!("neighbours = '{neighbours}'\nclip_norm")))
    };
    data.run(&with_neighbours("replaced", "replace-one")).succeeded();
    data.run(&with_neighbours("blanked", "zero-out")).succeeded();
    data.run(&with_neighbours("placed", "replace-one-in-place"))
        .failed(1, &["counts were released exactly", "pipeline \"placed\""]);
    let sigma = 4.224_678_9_f64;
    let mu = |ledger: &Value| ledger["composition"]["mu"].clone();
    close("blanking twice replaces", &mu(&data.ledger()), 5_f64.sqrt() / sigma, 1e-6);
    let blanked = ledger(&data.state("shared"), &["--neighbours", "zero-out"]);
    close("replacing blanks", &mu(&blanked), 2_f64.sqrt() / sigma, 1e-6);

    // Without a budget every pipeline gets an entry, and the composition names its unit.
    let unbounded = |name: &str, neighbours: &str| {
        let words = format!("neighbours = '{neighbours}'\nclip_norm");
        data.pipeline(name, "[ledger]\ndirectory = 'open'\ndata_set = 'stream'\n", ("clip_norm", &words))
    };
    data.run(&unbounded("blanked too", "zero-out")).succeeded();
    data.run(&unbounded("placed too", "replace-one-in-place")).succeeded();
    let open = ledger(&data.state("open"), &[]);
    assert_eq!(open["composition"]["neighbours"], "replace-one-in-place");
    close("in place", &mu(&open), 5_f64.sqrt() / sigma, 1e-6);
    let moving = ledger(&data.state("open"), &["--neighbours", "replace-one"]);
    assert_eq!(moving["composition"], Value::Null);
    assert!(
        moving["problem"].as_str().is_some_and(|problem| problem.contains("counts were released exactly"))
    );
}

#[test]
fn seeded_noise_is_entered_as_such_and_breaks_the_composition() {
    let data = Data::new();
    let open = "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n";
    data.run(&data.pipeline("real", open, ("", ""))).succeeded();
    data.run(&data.pipeline("seeded", &format!("{open}[simulation]\nseed = 1\n"), ("", ""))).succeeded();
    let ledger = data.ledger();
    assert_eq!(
        (&ledger["entries"][1]["private"], &ledger["entries"][1]["mu"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(ledger["composition"], Value::Null);
    let table = finish(&mut command("ledger", &data.state("shared"))).succeeded().out;
    assert!(table.contains("NO GUARANTEE") && table.contains("\"seeded\""), "{table}");
    data.run(&data.shared("budgeted")).failed(1, &["pipeline \"seeded\" is drawn from a seed"]);
}

#[test]
fn a_budget_is_changed_for_all_or_not_at_all() {
    let data = Data::new();
    data.run(&data.shared("first")).succeeded();
    let more = BUDGET.replace("1.5", "3");
    let second = data.pipeline("second", &more, ("", ""));
    data.run(&second).failed(1, &["other pipelines rely on it", "(ε, δ) = (3, 1e-6)", "--budget"]);
    let changed = ledger(&data.state("shared"), &["--budget", "3,1e-6"]);
    assert_eq!(changed["budget"]["epsilon"], 3.0);
    data.run(&second).succeeded();
    let left = harness::number(&data.ledger()["left"]["epsilon"]);
    assert!((2.0..3.0).contains(&left), "{left}");
    let table = finish(&mut command("ledger", &data.state("shared"))).succeeded().out;
    assert!(
        table.contains("budget: (ε, δ) = (3, 1e-6)") && table.contains(&format!("({left}, 1e-6)")),
        "{table}"
    );
    finish(command("ledger", &data.state("shared")).args(["--budget", "3"])).failed(2, &["2,1e-6"]);
}

#[test]
fn a_later_budget_binds_runs_that_have_paid() {
    let data = Data::new();
    data.run(&data.pipeline("first", "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n", ("", "")))
        .succeeded();
    let tight = BUDGET.replace("1.5", "0.5");
    let parts = ["(0.5, 1e-6)", "1 with this pipeline, spend (1.000000, 1e-6)"];
    data.run(&data.pipeline("first", &tight, ("", ""))).failed(1, &parts);
    assert_eq!(data.ledger()["budget"], Value::Null);
    data.run(&data.shared("first")).succeeded();
    assert_eq!(data.ledger()["budget"]["epsilon"], 1.5, "others are bound by it");
    ledger(&data.state("shared"), &["--budget", "0.5,1e-6"]);
    data.run(&data.shared("first")).failed(1, &parts);
}

#[test]
fn ledger_and_anchor_may_not_lie_in_the_state_directory() {
    let data = Data::new();
    let ledger = data.pipeline("first", "[ledger]\ndirectory = 'first'\ndata_set = 'stream'\n", ("", ""));
    data.run(&ledger).failed(1, &["first: the ledger lies in the state directory"]);
    data.run(&data.pipeline("first", "", ("", ""))).succeeded();
    for anchor in ["first", "first/ledger", "first/../first"] {
        let words = format!("[state]\nanchor = '{anchor}'");
        let anchored = data.pipeline("first", "", ("[state]", &words));
        data.run(&anchored).failed(1, &[anchor, "the anchor lies in the state directory"]);
    }
}

#[test]
fn mistakes_in_the_section_are_reported_with_line_and_column() {
    let data = Data::new();
    let check = |more: &str, parts: &[&str]| {
        data.run(&data.pipeline("wrong", more, ("", ""))).failed(2, parts);
    };
    check("[ledger]\n", &["ledger: the section is empty"]);
    check("[ledger]\ndirectory = 'x'\ndata_set = 'a/b'\n", &["ledger.data_set", "a name of letters"]);
    check(
        "[ledger]\ndirectory = 'x'\n",
        &["ledger: directory names a shared ledger", "add data_set = \"flights\""],
    );
    let kind = "[entity]\ncolumn = 'user'\nkind = 'record'\nparticipations = 2\n";
    check(kind, &["found \"record\" as a kind of entity", "kind = \"user\""]);
    check(&kind.replace("kind = 'record'", "within = ['record']"), &["found \"record\" as a kind of entity"]);
    let of_whom = "[ledger]\nbudget = { epsilon = 1, delta = 1e-6, unit = 'entity' }\n";
    check(of_whom, &["ledger.budget", "entity = \"user\""]);
    check("[ledger]\ndirectories = 'x'\n", &["ledger.directories", "did you mean directory?"]);
    check("[ledger]\nbudget = { epsilon = 1 }\n", &["ledger.budget: the field delta is missing"]);
    check("[ledger]\nbudget = { epsilon = 0, delta = 1e-6 }\n", &["ledger.budget.epsilon"]);
    check("[ledger]\nbudget = { epsilon = 1, delta = 1.5 }\n", &["ledger.budget.delta"]);
    let unknown = "[ledger]\nbudget = { epsilon = 1, delta = 1e-6, neighbours = 'all' }\n";
    check(unknown, &["ledger.budget.neighbours", "replace-one-in-place"]);
}

#[test]
fn parameters_other_than_the_paid_ones_are_reported() {
    let data = Data::new();
    let pipeline = data.shared("first");
    data.run(&pipeline).succeeded();
    data.run(&data.shared("second")).succeeded();
    // Mixed directories: the enrolment of one pipeline in the state of another.
    let second = data.pipeline("second", BUDGET, ("epsilon = 1\n", "epsilon = 0.1\n"));
    std::fs::remove_dir_all(data.state("second")).expect("a directory");
    data.run(&second).succeeded();
    let enrolment = |name: &str| data.state(name).join("enrolment");
    std::fs::copy(enrolment("second"), enrolment("first")).expect("the test may write");
    let parts = ["shared: entry", "is for other public parameters"];
    data.run(&pipeline).failed(1, &parts);
    finish(&mut command("verify", &data.state("first"))).failed(1, &parts);
    std::fs::remove_file(enrolment("first")).expect("a file");
    finish(&mut command("verify", &data.state("first")))
        .failed(1, &["no ledger has an entry for this state directory"]);
}
