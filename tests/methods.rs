//! Every method of making moments private, through the program: what is run, tailed, verified and planned; and settings
//! that no method has.

mod harness;

use harness::{Ended, Lab, close, finish, hushflow, number, tail};
use serde_json::Value;

const METHODS: [&str; 5] = ["jme", "ime", "cs", "pp", "joint-clip"];

/// Sixteen rows of two numbers, short enough that no method clips them.
const ROWS: [[f64; 2]; 16] = {
    let mut rows = [[0.0; 2]; 16];
    let mut i = 0;
    while i < 16 {
        rows[i] = [0.5 - i as f64 / 16.0, 0.25 + (i % 3) as f64 / 8.0];
        i += 1;
    }
    rows
};

/// With so large an ε that the noise is small beside the moments.
fn pipeline(method: &str, records: usize, second_moments: &str, more: &str) -> String {
    format!(
        "name = 'methods'
source.path = 'rows.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
epochs = {{ records = {records}, horizon = {} }}
privacy = {{ epsilon = 1e6, delta = 1e-6, clip_norm = 2, second_moments = '{second_moments}' }}
release = {{ method = '{method}', strategy = 'square-root', workload = 'prefix' }}
{more}",
        16 / records
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
        let rows: String = ROWS.iter().map(|[x, y]| format!("{x},{y}\n")).collect();
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

/// Sums of products of the sums of `records` rows each: with one, second moments.
fn products(records: usize) -> [f64; 3] {
    let sums =
        ROWS.chunks(records).map(|rows| rows.iter().fold([0.0; 2], |[x, y], row| [x + row[0], y + row[1]]));
    sums.fold([0.0; 3], |[xx, xy, yy], [x, y]| [xx + x * x, xy + x * y, yy + y * y])
}

/// Within eight deviations of the noise: a false alarm has probability 2·10⁻¹⁵.
#[track_caller]
fn near(what: &str, found: &Value, noise: f64, expected: f64) {
    let found = number(found);
    assert!((found - expected).abs() <= 8.0 * noise + 1e-5, "{what}: {found} ± {noise}, not {expected}");
    assert!(noise < 0.5, "{what}: ± {noise} shows nothing");
}

#[test]
fn all_release_the_same_moments_and_readers_agree() {
    for (method, records) in METHODS.map(|method| (method, 4)).into_iter().chain([("pp", 1)]) {
        for second_moments in ["full", "diagonal"] {
            let ran = Ran::new(&pipeline(method, records, second_moments, MOMENTS));
            let (last, what) = (ran.last(), format!("{method} {second_moments}"));
            near(&what, &last["count"], number(&last["count_noise"]), 16.0);
            for column in 0..2 {
                let sum = ROWS.iter().map(|row| row[column]).sum();
                near(&what, &last["first"][column], number(&last["first_noise"]), sum);
            }
            let [xx, xy, yy] = products(if method == "pp" { records } else { 1 });
            let (second, noise) = (&last["second"], &last["second_noise"]);
            if second_moments == "full" {
                let entries = [(&second[0][0], &noise[0][0], xx), (&second[0][1], &noise[1][0], xy)];
                entries.map(|(second, noise, expected)| near(&what, second, number(noise), expected));
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

/// A state directory goes on with the method that it was begun with.
#[test]
fn another_method_is_another_release() {
    let ran = Ran::new(&pipeline("jme", 4, "full", MOMENTS));
    ran.last();
    let other = ran.lab.write("p.toml", pipeline("cs", 4, "full", MOMENTS));
    finish(hushflow(["run"]).arg(other).arg("--state").arg(ran.lab.path("state"))).failed(1, &["state"]);
}

#[test]
fn squares_of_epoch_sums_are_not_passed_off_as_covariances() {
    let gaussian = "views = [{ name = 'v', workload = 'prefix', estimate = 'gaussian' }]\n";
    for (method, records, second_moments) in [("pp", 4, "full"), ("jme", 4, "none"), ("jme", 1, "none")] {
        let refused = Ran::new(&pipeline(method, records, second_moments, gaussian)).ended;
        refused.failed(2, &["p.toml:7:", "views[0].estimate", "no covariance", "estimate = \"moments\""]);
        // Without views there is one that can be had.
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
    // Where an epoch is one record they are its second moments.
    let ran = Ran::new(&pipeline("pp", 1, "full", gaussian));
    let covariance = &ran.last()["covariance"];
    let mean = ROWS.iter().map(|row| row[0]).sum::<f64>() / 16.0;
    close("covariance", &covariance[0][0], products(1)[0] / 16.0 - mean * mean, 0.1);
    assert_eq!(ran.last()["second_moments_of"], "epoch-sums");
}

#[test]
fn the_bias_of_squares_is_the_readers_choice() {
    let raw = "views = [{ name = 'v', workload = 'prefix', estimate = 'moments', squares = 'raw' }]\n";
    let ran = Ran::new(&pipeline("pp", 4, "full", raw).replace("1e6", "1"));
    let (kept, read) = (ran.last(), |squares: &str| {
        ran.tail(&["--squares", squares]).succeeded().json().pop().expect("a line")
    });
    assert_eq!([&kept["squares"], &kept["second"]], [&"kept".into(), &read("raw")["second"]]);
    let debiased = read("debiased");
    assert_eq!(debiased["squares"], "removed");
    let bias = |i: usize, j: usize| number(&kept["second"][i][j]) - number(&debiased["second"][i][j]);
    assert!(bias(0, 0) > 1.0 && (bias(0, 0) / bias(1, 1) - 1.0).abs() < 1e-9 && bias(0, 1) == 0.0);
    let jme = Ran::new(&pipeline("jme", 4, "full", MOMENTS));
    jme.tail(&["--squares", "raw"]).failed(2, &["--squares", "leave it out"]);
}

#[test]
fn settings_that_no_method_has_are_told_with_their_place() {
    let check = |old: &str, new: &str, parts: &[&str]| {
        let text = pipeline("ime", 4, "full", MOMENTS);
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
        &["p.toml:5:", "privacy.second_moments", "method = \"ime\" is about second moments"],
    );
    let squares = "estimate = 'moments', squares = 'raw'";
    check("estimate = 'moments'", squares, &["p.toml:7:", "views[0].squares", "method = \"pp\" alone"]);
    let squares = "estimate = 'moments', squares = 'biased'";
    check(
        "estimate = 'moments'",
        squares,
        &["p.toml:7:", "found \"biased\", expected \"debiased\" or \"raw\""],
    );
}

#[test]
fn plan_tells_what_each_method_costs() {
    let plan = |more: &str| {
        let line = format!("plan -w prefix -n 16 -s identity -d 3 --json {more}");
        finish(&mut hushflow(line.split_whitespace())).succeeded().json().remove(0)
    };
    // For noise multiplier 1: 2ζ for first moments, times what the method wastes.
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
        assert_eq!(text.contains("squares the sums of epochs"), method == "pp", "{text}");
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
