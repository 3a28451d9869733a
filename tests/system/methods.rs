//! Tests `run`, `tail`, `verify` and `plan` with every method of making moments private, and
//! settings that no method accepts.

use crate::harness::{Ended, Lab, close, finish, hushflow, number, tail};
use serde_json::Value;

const METHODS: [&str; 5] = ["jme", "ime", "cs", "pp", "joint-clip"];

const ROWS: usize = 1600;

/// Two numbers, small enough that no method clips them.
fn rows() -> impl Iterator<Item = [f64; 2]> {
    (0..ROWS).map(|i| [0.5 - (i % 16) as f64 / 16.0, 0.25 + (i % 3) as f64 / 8.0])
}

/// ε is so large that the noise is small relative to the moments of many rows.
fn pipeline(method: &str, records: usize, second_moments: &str, more: &str) -> String {
    format!(
        "name = 'methods'
source.path = 'rows.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
epochs = {{ records = {records}, horizon = {} }}
privacy = {{ epsilon = 30, delta = 1e-6, clip_norm = 2, second_moments = '{second_moments}' }}
release = {{ method = '{method}', strategy = 'square-root', workload = 'prefix' }}
{more}",
        ROWS / records
    )
}

const MOMENTS: &str = "views = [{ name = 'sums', workload = 'prefix', estimate = 'moments' }]\n";

struct Ran {
    lab: Lab,
    ended: Ended,
}

impl Ran {
    fn new(text: &str) -> Self {
        let lab = Lab::new();
        let rows: String = rows().map(|[x, y]| format!("{x},{y}\n")).collect();
        lab.write("rows.csv", format!("x,y\n{rows}"));
        let pipeline = lab.write("p.toml", text);
        let ended = finish(hushflow(["run", "--json"]).arg(pipeline).arg("--state").arg(lab.path("state")));
        Self { lab, ended }
    }

    fn last(&self) -> Value {
        assert_eq!(self.ended.code, Some(0), "{}", self.ended.err);
        self.ended.json().pop().expect("a line")
    }

    fn tail(&self, arguments: &[&str]) -> Ended {
        finish(&mut tail(&self.lab.path("state"), arguments))
    }
}

/// Sums of products of the sums of `records` rows each; second moments if `records` is 1.
fn products(records: usize) -> [f64; 3] {
    let rows: Vec<_> = rows().collect();
    let sums =
        rows.chunks(records).map(|rows| rows.iter().fold([0.0; 2], |[x, y], row| [x + row[0], y + row[1]]));
    sums.fold([0.0; 3], |[xx, xy, yy], [x, y]| [xx + x * x, xy + x * y, yy + y * y])
}

/// Within eight deviations of the noise: a false alarm has probability 2·10⁻¹⁵.
#[track_caller]
fn near(what: &str, found: &Value, noise: f64, expected: f64) {
    let found = number(found);
    assert!((found - expected).abs() <= 8.0 * noise + 1e-3, "{what}: {found} ± {noise}, not {expected}");
}

#[test]
fn all_methods_release_the_same_moments_and_readers_agree() {
    for (method, records) in METHODS.map(|method| (method, 400)).into_iter().chain([("pp", 1)]) {
        for second_moments in ["full", "diagonal"] {
            let ran = Ran::new(&pipeline(method, records, second_moments, MOMENTS));
            let (last, what) = (ran.last(), format!("{method} {second_moments}"));
            near(&what, &last["count"], number(&last["count_noise"]), ROWS as f64);
            assert!(number(&last["first_noise"]) < 10.0, "{last}");
            for column in 0..2 {
                let sum = rows().map(|row| row[column]).sum();
                near(&what, &last["first"][column], number(&last["first_noise"]), sum);
            }
            let [xx, xy, yy] = products(if method == "pp" { records } else { 1 });
            let (second, noise) = (&last["second"], &last["second_noise"]);
            if second_moments == "full" {
                near(&what, &second[0][0], number(&noise[0][0]), xx);
                near(&what, &second[0][1], number(&noise[1][0]), xy);
                near(&what, &second[1][1], number(&noise[1][1]), yy);
            } else {
                near(&what, &second[0], number(&noise[0]), xx);
                near(&what, &second[1], number(&noise[1]), yy);
            }
            assert_eq!(last.get("second_moments_of").is_some(), method == "pp");
            let read = ran.tail(&["--view", "moments"]).succeeded().json();
            assert!(read.iter().zip(ran.ended.json()).all(|(read, run)| read["second"] == run["second"]));
            finish(hushflow(["verify"]).arg(ran.lab.path("state"))).succeeded();
            let again = finish(
                hushflow(["run", "--json"])
                    .arg(ran.lab.path("p.toml"))
                    .arg("--state")
                    .arg(ran.lab.path("state")),
            );
            assert!(again.succeeded().out.is_empty(), "nothing is released twice");
        }
    }
}

/// A state directory accepts only the method with which it was begun.
#[test]
fn a_state_directory_refuses_another_method() {
    let ran = Ran::new(&pipeline("jme", 400, "full", MOMENTS));
    ran.last();
    let other = ran.lab.write("p.toml", pipeline("cs", 400, "full", MOMENTS));
    finish(hushflow(["run"]).arg(other).arg("--state").arg(ran.lab.path("state"))).failed(1, &["state"]);
}

#[test]
fn squares_of_epoch_sums_are_not_passed_off_as_covariances() {
    let gaussian = "views = [{ name = 'v', workload = 'prefix', estimate = 'gaussian' }]\n";
    for (method, records, second_moments) in [("pp", 400, "full"), ("jme", 400, "none"), ("jme", 1, "none")] {
        let refused = Ran::new(&pipeline(method, records, second_moments, gaussian)).ended;
        refused.failed(2, &["p.toml:7:", "views[0].estimate", "no covariance", "estimate = \"moments\""]);
        // Without configured views there is a default one.
        let ran = Ran::new(&pipeline(method, records, second_moments, ""));
        assert!(ran.last()["covariance"].is_null() && ran.last()["first"].is_array());
        ran.tail(&["--view", "gaussian"]).failed(2, &["--view gaussian", "--view moments"]);
        let csv = finish(hushflow(["tail", "--format", "csv"]).arg(ran.lab.path("state"))).succeeded().out;
        let header = csv.lines().next().expect("a header");
        assert_eq!(header.contains("squared_sum_x_y,"), method == "pp", "{header}");
        assert!(!header.contains("second"), "{header}");
        let table = finish(hushflow(["tail"]).arg(ran.lab.path("state"))).succeeded().out;
        assert_eq!(table.contains("(Σ)² x"), method == "pp", "{table}");
        assert!(!table.contains("Σ² x"), "{table}");
    }
    // If an epoch is one record, the squares are its second moments.
    let ran = Ran::new(&pipeline("pp", 1, "full", gaussian));
    let last = ran.last();
    let mean = rows().map(|row| row[0]).sum::<f64>() / ROWS as f64;
    let variance = products(1)[0] / ROWS as f64 - mean * mean;
    near("variance", &last["covariance"][0][0], number(&last["covariance_noise"][0][0]), variance);
    assert_eq!(ran.last()["second_moments_of"], "epoch-sums");
}

#[test]
fn readers_choose_whether_to_debias_squares() {
    let raw = "views = [{ name = 'v', workload = 'prefix', estimate = 'moments', squares = 'raw' }]\n";
    let ran = Ran::new(&pipeline("pp", 400, "full", raw).replace("epsilon = 30", "epsilon = 1"));
    let (published, read) = (ran.last(), |squares: &str| {
        ran.tail(&["--squares", squares]).succeeded().json().pop().expect("a line")
    });
    assert_eq!([&published["squares"], &published["second"]], [&"kept".into(), &read("raw")["second"]]);
    let debiased = read("debiased");
    assert_eq!(debiased["squares"], "removed");
    let bias = |i: usize, j: usize| number(&published["second"][i][j]) - number(&debiased["second"][i][j]);
    assert!(bias(0, 0) > 1.0 && (bias(0, 0) / bias(1, 1) - 1.0).abs() < 1e-9 && bias(0, 1) == 0.0);
    let jme = Ran::new(&pipeline("jme", 400, "full", MOMENTS));
    jme.tail(&["--squares", "raw"]).failed(2, &["--squares", "leave it out"]);
}

#[test]
fn unknown_settings_of_a_method_are_reported_with_line_and_column() {
    let check = |old: &str, new: &str, parts: &[&str]| {
        let text = pipeline("ime", 400, "full", MOMENTS);
        assert!(text.contains(old), "{old}");
        Ran::new(&text.replacen(old, new, 1)).ended.failed(2, parts);
    };
    check("'ime'", "'post'", &["p.toml:6:", "release.method: found \"post\", expected \"jme\" or \"ime\""]);
    for share in ["0", "1", "-0.5", "nan"] {
        let method = format!("'ime', first_moment_share = {share}");
        check("'ime'", &method, &["p.toml:6:", "release.first_moment_share: found"]);
    }
    let share = "'cs', first_moment_share = 0.5";
    check("'ime'", share, &["p.toml:6:", "release.first_moment_share", "method = \"ime\"", "leave it out"]);
    check(
        "clip_norm = 2",
        "second_moment_weight = 1",
        &["p.toml:5:", "privacy.second_moment_weight", "leave it out"],
    );
    check(
        "'full'",
        "'none'",
        &["p.toml:5:", "privacy.second_moments", "every method but jme needs second moments"],
    );
    let squares = "estimate = 'moments', squares = 'raw'";
    check("estimate = 'moments'", squares, &["p.toml:7:", "views[0].squares", "only method = \"pp\""]);
    let squares = "estimate = 'moments', squares = 'biased'";
    check(
        "estimate = 'moments'",
        squares,
        &["p.toml:7:", "found \"biased\", expected \"debiased\" or \"raw\""],
    );
}

#[test]
fn plan_prints_the_cost_of_each_method() {
    let plan = |more: &str| {
        let line = format!("plan -w prefix -n 16 -s identity -d 3 --json {more}");
        finish(&mut hushflow(line.split_whitespace())).succeeded().json().remove(0)
    };
    // For noise multiplier 1: 2ζ for first moments, times the factor that the method loses.
    for (method, first, second) in [
        ("jme", 2.0, Some(8f64.sqrt())),
        ("ime", 8f64.sqrt(), Some(2.0)),
        ("cs", 6f64.sqrt(), Some(12f64.sqrt())),
        ("pp", 2.0, None),
        ("joint-clip", 2.0, Some(8f64.sqrt())),
    ] {
        let found = plan(&format!("--method {method}"));
        close(method, &found["first_noise"]["first"], first, 1e-6);
        match second {
            Some(second) => close(method, &found["first_noise"]["second"], second, 1e-6),
            None => assert!(found["first_noise"]["second"].is_null() && found["lambda"].is_null()),
        }
        let free = ["jme", "pp", "joint-clip"].contains(&method);
        assert_eq!([&found["second_moment_free"], &found["count_free"]], [free, true], "{method}");
        let text =
            finish(&mut hushflow(["plan", "-w", "prefix", "-n", "16", "-s", "identity", "--method", method]));
        let text = text.succeeded().out;
        assert_eq!(text.contains("Second moments are not released"), method == "pp", "{text}");
    }
    let none = plan("--moments none");
    assert!(none["lambda"].is_null() && number(&none["joint_sensitivity"]) < 2.0 + 1e-9);
    let refused = |line: &str, parts: &[&str]| {
        finish(&mut hushflow(line.split_whitespace())).failed(2, parts);
    };
    refused("plan -w prefix -n 16 --method best", &["--method", "joint-clip"]);
    refused(
        "plan -w prefix -n 16 -s identity --method cs --moments none",
        &["the method cs makes second moments private, but none are wanted"],
    );
}
