//! Fixtures: a log of estimates and a ledger. The tests read and continue them, so that a change of
//! format is detected.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::harness::{Lab, close, finish, hushflow, run, tail};
use serde_json::{Value, json};

const PUBLIC: &[u8] = include_bytes!("../fixtures/estimates/public.log");

const STATE: [(&str, &[u8]); 3] = [
    ("enrolment", include_bytes!("../fixtures/estimates/enrolment")),
    ("private-000001.log", include_bytes!("../fixtures/estimates/private-000001.log")),
    ("public.log", PUBLIC),
];

/// The pipeline whose first thousand rows made the fixture.
const PIPELINE: &str = "name = 'golden estimates'
source.path = 'rows.csv'
columns = [{ name = 'a', lower = -1, upper = 1 }, { name = 'b', lower = -1, upper = 1 }]
key = { column = 'site', values = ['north', 'south'] }
epochs = { records = 400, horizon = 4 }
privacy = { neighbours = 'replace-one-in-place', epsilon = 4, delta = 1e-6 }
release = { method = 'pace', centre = 0.1 }
simulation.seed = 8
";

/// Creates a directory of these files, with the permissions that a run sets.
fn directory(path: &Path, files: &[(&str, &[u8])]) {
    DirBuilder::new().mode(0o700).create(path).unwrap();
    for (name, bytes) in files {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(name));
        file.unwrap().write_all(bytes).unwrap();
    }
}

/// The first rows of the fixture's stream.
fn rows(count: usize) -> String {
    let mut text = String::from("site,a,b\n");
    for index in 0..count {
        let a = (index * 37 % 101) as f64 / 50.0 - 1.0;
        let b = 0.8 * a + 0.2 * ((index * 61 % 97) as f64 / 50.0 - 1.0);
        writeln!(text, "{},{a:.4},{b:.4}", ["north", "south"][index % 2]).unwrap();
    }
    text
}

#[test]
fn a_log_of_estimates_is_read_and_continued() {
    let lab = Lab::new();
    let state = lab.path("state");
    directory(&state, &STATE);
    directory(&state.join("ledger"), &[("ledger", include_bytes!("../fixtures/estimates/ledger"))]);
    let lines = || finish(&mut tail(&state, &[])).succeeded().json();
    let found = lines();
    let rows_of_windows: Vec<Value> =
        found.iter().map(|line| json!([line["epoch"], line["key"], line["rows"]])).collect();
    let window = |epoch: u64, rows: f64| ["north", "south"].map(|key| json!([epoch, key, rows]));
    assert_eq!(rows_of_windows, [window(1, 200.0), window(2, 200.0), window(3, 100.0)].concat());
    let first = &found[0];
    assert_eq!((&first["chain"], &first["estimator"]), (&json!("6bfd2170f57ed56b"), &json!("pace")));
    assert_eq!(first["mean"], json!([-0.03281436046792474, 0.02923812768748424]));
    assert_eq!(first["covariance"][0], json!([0.3549584921512877, 0.25929968149501914]));
    assert_eq!((&first["rounds"], &first["measured"]), (&json!(2), &json!([["a", "b"]])));
    assert_eq!(first["clip_norm"], json!(2f64.sqrt()));
    finish(&mut hushflow(["verify".as_ref(), state.as_os_str()])).succeeded();
    let ledger =
        finish(hushflow(["ledger".as_ref(), state.as_os_str()]).arg("--json")).succeeded().json().remove(0);
    let entry = &ledger["entries"][0];
    assert_eq!((&entry["pipeline"], &entry["epochs"]), (&json!("golden estimates"), &json!(4)));
    assert_eq!(entry["noise_multiplier"], 1.193518587158014);

    // A new run appends to the log and does not change its earlier bytes.
    lab.write("rows.csv", rows(1600));
    finish(&mut run(&lab.write("golden.toml", PIPELINE), &state, 1)).succeeded();
    let longer = std::fs::read(state.join("public.log")).unwrap();
    assert!(longer.len() > PUBLIC.len() && longer.starts_with(PUBLIC));
    let after = lines();
    assert_eq!(after[..6], found[..]);
    assert_eq!((after.len(), &after[7]["epoch"], &after[7]["rows"]), (8, &json!(4), &json!(300.0)));
    finish(&mut hushflow(["verify".as_ref(), state.as_os_str()])).succeeded();
}

/// The ledger holds a pipeline that protects records, one that protects entities nested in others,
/// a covariance with selections, and a budget.
#[test]
fn a_ledger_is_read_and_extended() {
    let lab = Lab::new();
    let ledger = lab.path("ledger");
    directory(&ledger, &[("ledger", include_bytes!("../fixtures/ledger/ledger"))]);
    let account = || {
        finish(hushflow(["ledger".as_ref(), ledger.as_os_str()]).arg("--json")).succeeded().json().remove(0)
    };
    let report = account();
    let field = |name: &str| [0, 1, 2].map(|index| report["entries"][index][name].clone());
    assert_eq!(report["data_set"], "golden");
    assert_eq!(field("pipeline"), ["golden records", "golden users", "covariance"].map(Value::from));
    assert_eq!(field("method"), ["jme", "jme", "pace"].map(Value::from));
    assert_eq!(field("entity"), [Value::Null, json!("user"), Value::Null]);
    assert_eq!(field("within"), [json!([]), json!(["household"]), json!([])]);
    assert_eq!(field("identity")[0], "84820d974b0f613470350cf007dc8299");
    let sigma = 8.057_618_480_733_527_f64;
    assert_eq!(field("noise_multiplier"), [sigma, sigma, 6.455_567_486_484_489].map(Value::from));
    assert_eq!(report["budget"]["epsilon"], 3.0);
    // In units of one record in place: one step, two steps, and the ρ of noise and selections.
    let squared = 5.0 / sigma.powi(2) + 0.01 * (1.3 + 0.35 * std::f64::consts::PI);
    close("μ of all", &report["composition"]["mu"], squared.sqrt(), 1e-6);

    let file = lab.write("rows.csv", rows(1000));
    let covariance = |rho: &str| {
        let mut command = hushflow(["covariance".as_ref(), file.as_os_str()]);
        finish(
            command.args(["--columns", "a,b", "--rho", rho, "--data-set", "golden", "--ledger"]).arg(&ledger),
        )
    };
    covariance("0.01").succeeded();
    assert_eq!(account()["entries"].as_array().unwrap()[..3], report["entries"].as_array().unwrap()[..]);
    covariance("9").failed(1, &["4 entries have spent", "is left"]);
}
