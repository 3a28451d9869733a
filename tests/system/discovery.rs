//! Discovered keys: which keys are shown and how they count, for any number of workers and
//! processes, after lost epochs, and under entities. Also the information that a log reveals,
//! `plan`, `tail` and refusals.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use hushflow::state::PublicReader;
use serde_json::Value;

use crate::harness::{
    Ended, Lab, PRIVATE_LOG, cut, finish, hushflow, last_frame, number, releases, run, run_as_two, sums,
    tail, wait,
};

const EPOCHS: usize = 12;
const ROWS: usize = 24_000;

/// Half of the rows have the key `often`, a quarter `second`; `late` comes in the second half.
/// Every other row has a key of its own.
fn key(index: usize) -> String {
    match index % 8 {
        0..4 => "often".into(),
        4..6 => "second".into(),
        6 if index >= ROWS / 2 => "late".into(),
        _ => format!("rare-{index}"),
    }
}

fn pipeline(lab: &Lab, rows: usize, more: &str) -> PathBuf {
    let line = |index: usize| format!("{},{}\n", (index * 37 % 200) as f64 / 100.0 - 1.0, key(index));
    lab.write("data.csv", String::from("x,page\n") + &(0..rows).map(line).collect::<String>());
    let text = format!(
        "name = 'pages'
source.path = 'data.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}]
epochs = {{ records = {}, horizon = {EPOCHS} }}
privacy = {{ epsilon = 4, delta = 1e-6 }}
key = {{ column = 'page', discover = {{ delta = 1e-9, most = 20 }} }}
{more}",
        ROWS / EPOCHS
    );
    lab.write("pages.toml", text)
}

const SEED: &str = "simulation.seed = 5\n";

fn lines(ended: Ended) -> Vec<Value> {
    ended.succeeded().json()
}

/// Returns the standard error of a command that fails.
fn refused(command: &mut Command) -> String {
    let ended = finish(command);
    assert_ne!(ended.code, Some(0), "{}", ended.out);
    ended.err
}

/// Returns the lines of a key, by epoch.
fn of_key<'a>(lines: &'a [Value], key: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["key"] == key).collect()
}

#[test]
fn frequent_keys_are_shown_with_all_their_records() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, ROWS, SEED);
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let shown = lines(finish(&mut tail(&state, &[])));
    let keys: HashSet<_> = shown.iter().map(|line| line["key"].as_str().expect("a key")).collect();
    assert_eq!(keys, HashSet::from(["often", "second", "late"]));
    for (key, records) in [("often", 12_000.0), ("second", 6000.0), ("late", 1500.0)] {
        let of_key = of_key(&shown, key);
        let last = of_key.last().expect("a line");
        assert_eq!(last["epoch"], EPOCHS);
        let (found, noise) = (number(&last["count"]), number(&last["count_noise"]));
        assert!((found - records).abs() < 6.0 * noise && noise < 200.0, "{key}: {found} ± {noise}");
        let first = number(&of_key[0]["epoch"]);
        assert!(if key == "late" { first > 6.0 } else { first < 3.0 }, "{key} from epoch {first}");
        assert_eq!(of_key.len() as f64, EPOCHS as f64 + 1.0 - first, "a line in every epoch from then on");
    }
    assert_eq!(lines(finish(&mut tail(&state, &["--key", "late"]))).len(), of_key(&shown, "late").len());
    finish(&mut tail(&state, &["--total"])).failed(2, &["--total: keys are discovered"]);
    let unknown = refused(&mut tail(&state, &["--key", "rare-7"]));
    assert!(unknown.contains("no key with this name"), "{unknown}");
    let verified = lines(finish(hushflow(["verify", "--json"]).arg(&state)));
    assert_eq!(verified[0]["ok"], true);
}

/// Keys that were not shown are neither in the public files nor on standard error.
#[test]
fn keys_that_are_not_shown_stay_private() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, ROWS, SEED);
    let state = lab.path("state");
    let ended = finish(run(&pipeline, &state, 2).args(["--log", "debug"])).succeeded();
    let public = std::fs::read(state.join("public.log")).expect("a public log");
    let hides = |bytes: &[u8]| !bytes.windows(4).any(|window| window == b"rare");
    assert!(hides(&public) && hides(ended.err.as_bytes()) && hides(ended.out.as_bytes()));
    let width = releases(&state).iter().map(|frame| frame.values.len()).min().expect("a release");
    assert_eq!(width, 20 * 3, "all slots in every epoch");
}

fn two_processes(pipeline: &Path, state: &Path) {
    let [mut first, mut second] = run_as_two(pipeline, state, 2);
    let second = second.spawn().expect("the second process starts");
    finish(&mut first).succeeded();
    wait(second).succeeded();
}

#[test]
fn workers_processes_and_lost_epochs_change_nothing() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, ROWS, SEED);
    let values = |state: &Path| releases(state).into_iter().map(|frame| frame.values).collect::<Vec<_>>();
    let whole = lab.path("whole");
    finish(&mut run(&pipeline, &whole, 1)).succeeded();
    let expected = values(&whole);
    assert_eq!(expected.len(), EPOCHS);
    for workers in [2, 3] {
        let state = lab.path(&format!("{workers} workers"));
        finish(&mut run(&pipeline, &state, workers)).succeeded();
        assert!(values(&state) == expected, "{workers} workers");
    }
    let state = lab.path("two processes");
    two_processes(&pipeline, &state);
    assert!(values(&state) == expected, "two processes");
    // Loses one epoch, two, … up to all but one: cuts before and after keys were found.
    for lost in 1..EPOCHS {
        let state = lab.path(&format!("{lost} lost"));
        finish(&mut run(&pipeline, &state, 1)).succeeded();
        let exact = sums(&state);
        for _ in 0..lost {
            for log in [PRIVATE_LOG, "public.log"].map(|log| state.join(log)) {
                cut(&log, last_frame(&log).start);
            }
        }
        assert_eq!(releases(&state).len(), EPOCHS - lost);
        finish(&mut run(&pipeline, &state, 1 + lost % 2)).succeeded();
        assert!(values(&state) == expected && sums(&state) == exact, "{lost} epochs lost");
    }
}

#[test]
fn a_run_that_resumes_in_a_longer_file_keeps_its_slots() {
    let lab = Lab::new();
    let state = lab.path("state");
    // The noise is from the operating system, so the second run must read stored secrets.
    let half = pipeline(&lab, ROWS / 2, "");
    finish(&mut run(&half, &state, 1)).succeeded();
    let begun = releases(&state);
    assert_eq!(begun.len(), EPOCHS / 2);
    let whole = pipeline(&lab, ROWS, "");
    finish(&mut run(&whole, &state, 1)).succeeded();
    let shown = lines(finish(&mut tail(&state, &[])));
    assert!(releases(&state).starts_with(&begun));
    for (key, records) in [("often", 12_000.0), ("second", 6000.0), ("late", 1500.0)] {
        let last = *of_key(&shown, key).last().expect("a line");
        let (found, noise) = (number(&last["count"]), number(&last["count_noise"]));
        assert!((found - records).abs() < 6.0 * noise, "{key}: {found} ± {noise}");
    }
    let reader = PublicReader::open(&state).expect("a log");
    assert!(reader.header().private);
}

/// A user of each row. One user has all rows of the key `hoard`, a quarter of the rows that are
/// `rare` in other tests.
fn user(place: usize) -> String {
    if place % 8 == 7 { "hoarder".into() } else { format!("u{}", place * 7919 % 9001) }
}

const ENTITY: &str = "entity = { column = 'user', participations = 12 }\n";

/// The same pages, with protected users.
fn entity_pipeline(lab: &Lab, more: &str) -> PathBuf {
    let path = pipeline(lab, 0, more);
    let key = |place| if place % 8 == 7 { "hoard".into() } else { key(place) };
    let value = |place: usize| (place * 37 % 200) as f64 / 100.0 - 1.0;
    let line = |place| format!("{},{},{}\n", value(place), key(place), user(place));
    lab.write("data.csv", String::from("x,page,user\n") + &(0..ROWS).map(line).collect::<String>());
    let text = std::fs::read_to_string(&path).expect("the file");
    lab.write("users.toml", text.replace("privacy = {", "privacy = { unit = 'entity',"))
}

/// The records of each key that count: the first of each user in each epoch.
fn counted() -> HashMap<String, f64> {
    let mut seen = HashSet::new();
    let mut counted = HashMap::new();
    let rows = (0..ROWS).filter(|&place| seen.insert((place * EPOCHS / ROWS, user(place))));
    rows.for_each(|place| *counted.entry(key(place)).or_default() += 1.0);
    counted
}

#[test]
fn keys_of_enough_entities_are_shown_and_those_of_one_are_not() {
    let lab = Lab::new();
    let pipeline = entity_pipeline(&lab, &format!("{ENTITY}{SEED}"));
    let (whole, counted) = (lab.path("whole"), counted());
    finish(&mut run(&pipeline, &whole, 1)).succeeded();
    let shown = lines(finish(&mut tail(&whole, &[])));
    let keys: HashSet<_> = shown.iter().map(|line| line["key"].as_str().expect("a key")).collect();
    assert_eq!(keys, HashSet::from(["often", "second", "late"]), "hoard is of one user");
    for key in keys {
        let last = *of_key(&shown, key).last().expect("a line");
        let (found, noise) = (number(&last["count"]), number(&last["count_noise"]));
        assert!((found - counted[key]).abs() < 6.0 * noise && noise < 1000.0, "{key}: {found} ± {noise}");
    }
    let public = std::fs::read(whole.join("public.log")).expect("a public log");
    assert!(!public.windows(5).any(|window| window == b"hoard"));
    let values = |state: &Path| releases(state).into_iter().map(|frame| frame.values).collect::<Vec<_>>();
    let expected = values(&whole);
    let state = lab.path("two processes");
    two_processes(&pipeline, &state);
    assert!(values(&state) == expected, "two processes");
    for lost in [1, 7, EPOCHS - 1] {
        let state = lab.path(&format!("{lost} lost"));
        finish(&mut run(&pipeline, &state, 2)).succeeded();
        for _ in 0..lost {
            for log in [PRIVATE_LOG, "public.log"].map(|log| state.join(log)) {
                cut(&log, last_frame(&log).start);
            }
        }
        finish(&mut run(&pipeline, &state, 1 + lost % 2)).succeeded();
        assert!(values(&state) == expected, "{lost} epochs lost");
    }
}

#[test]
fn plans_and_checks_count_the_entities() {
    let lab = Lab::new();
    let pipeline = entity_pipeline(&lab, ENTITY);
    let plan = lines(finish(hushflow(["plan", "--strategy", "square-root", "--json"]).arg(&pipeline)));
    let discovery = &plan[0]["discovery"];
    assert!(discovery["counted"] == "entities" && discovery["keys_of_one"] == 12, "{discovery}");
    let last = &discovery["last_epoch"];
    // at_least and 6.86 deviations: the quantile of 10⁻⁹/(2·12·12).
    let expected = 1.0 + 6.86 * number(&last["deviation"]);
    assert!((number(&last["threshold"]) / expected - 1.0).abs() < 0.01, "{discovery}");
    let text = finish(hushflow(["plan"]).arg(&pipeline)).succeeded().out;
    assert!(text.contains("different entities") && text.contains("at most 12 keys"), "{text}");
    let check = lines(finish(hushflow(["check", "--json"]).arg(&pipeline)));
    let discovered = &check[0]["discovered"];
    assert_eq!(discovered["counted"], "entities");
    let frequent = discovered["frequent"].as_array().expect("a list");
    // All users but the hoarder have rows of the key, in some epoch as their first.
    assert!(frequent[0]["key"] == "often" && number(&frequent[0]["count"]) <= 9001.0, "{discovered}");
    assert!((number(&discovered["expected"]) - 3.0).abs() < 1e-3, "{discovered}");
}

#[test]
fn a_stated_threshold_is_used_or_refused() {
    let lab = Lab::new();
    let pipeline = entity_pipeline(&lab, ENTITY);
    let valid = std::fs::read_to_string(&pipeline).expect("the file");
    let stating = |threshold: u64| {
        let discover = format!("discover = {{ threshold = {threshold},");
        lab.write("stated.toml", valid.replace("discover = {", &discover))
    };
    let plan = ["plan", "--strategy", "square-root", "--json"];
    let stated = lines(finish(hushflow(plan).arg(stating(5000))));
    assert_eq!(stated[0]["discovery"]["last_epoch"]["threshold"], 5000.0);
    for command in [&plan[..], &["run", "--state", "never"]] {
        let found = refused(hushflow(command.iter().copied()).arg(stating(100)));
        assert!(found.contains("state a threshold of at least"), "{found}");
    }
}

#[test]
fn a_plan_states_the_thresholds() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, 10, "");
    let plan = lines(finish(hushflow(["plan", "--strategy", "square-root", "--json"]).arg(&pipeline)));
    let discovery = &plan[0]["discovery"];
    let (first, last) = (&discovery["first_epoch"], &discovery["last_epoch"]);
    for test in [first, last] {
        // at_least and 6.39 deviations: the quantile of 10⁻⁹/12.
        let expected = 1.0 + 6.39 * number(&test["deviation"]);
        assert!((number(&test["threshold"]) / expected - 1.0).abs() < 0.01, "{discovery}");
    }
    let text = finish(hushflow(["plan"]).arg(&pipeline)).succeeded().out;
    assert!(text.contains("Keys are discovered"), "{text}");
}

#[test]
fn a_check_expects_the_keys_that_a_run_shows() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, ROWS, SEED);
    let check = lines(finish(hushflow(["check", "--json"]).arg(&pipeline)));
    let discovered = &check[0]["discovered"];
    assert_eq!(discovered["keys"], 4503, "{discovered}");
    assert_eq!(discovered["epoch"], EPOCHS);
    // The three frequent keys are far above the threshold, and all others far below.
    let (expected, threshold) = (number(&discovered["expected"]), number(&discovered["threshold"]));
    assert!((expected - 3.0).abs() < 1e-3 && (10.0..1000.0).contains(&threshold), "{discovered}");
    let frequent = discovered["frequent"].as_array().expect("a list");
    assert_eq!(frequent[2], serde_json::json!({"key": "late", "count": 1500}));
    let text = finish(hushflow(["check"]).arg(&pipeline)).succeeded().out;
    assert!(text.contains("about 3 of 4,503 keys by the end of epoch 12"), "{text}");
}

#[test]
fn files_that_cannot_be_meant_are_refused() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, 10, "");
    let valid = std::fs::read_to_string(&pipeline).expect("the file");
    for (from, to, message) in [
        ("delta = 1e-9,", "", "the field delta is missing"),
        ("delta = 1e-9", "delta = 1e-7", "(1 + e^ε) times it"),
        ("most = 20", "most = 0", "key.discover.most"),
        ("discover = {", "values = ['a'], discover = {", "leave out the list"),
        ("delta = 1e-6", "delta = 1e-6, neighbours = 'replace-one-in-place'", "nothing to discover"),
        ("upper = 1 }", "upper = 1, bounds = { a = [0, 1] } }", "nobody can state bounds"),
        (
            "key = {",
            "entity = { column = 'u', participations = 1, sent_limit = 2 }\nkey = {",
            "no proof covers the number of sent records",
        ),
    ] {
        assert!(valid.contains(from), "{from}");
        let changed = lab.write("changed.toml", valid.replace(from, to));
        let found = refused(hushflow(["plan"]).arg(&changed));
        assert!(found.contains(message), "{to}: {found}");
    }
    let audited = refused(hushflow(["audit"]).arg(&pipeline));
    assert!(audited.contains("no audit covers the discovery"), "{audited}");
}
