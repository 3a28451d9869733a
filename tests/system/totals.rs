//! Totals over keys: sums of the keys' releases, with the noise of all of them.

use std::path::Path;

use crate::harness::{Lab, close, finish, hushflow, number, run, tail};

#[test]
fn a_total_is_the_sum_of_its_keys() {
    let lab = Lab::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights.toml")).expect("the example");
    let text = text.replace("data/", &format!("{}/data/", directory.display()));
    let state = lab.path("state");
    finish(&mut run(&lab.write("pipeline.toml", text), &state, 1)).succeeded();
    let lines = |more: &[&str]| {
        finish(&mut tail(&state, &[&["--view", "moments"], more].concat())).succeeded().json()
    };
    let (keys, totals) = (lines(&[]), lines(&["--total"]));
    assert_eq!((keys.len(), totals.len()), (3 * 32, 32));
    for (keys, total) in keys.chunks(3).zip(&totals) {
        assert_eq!((&total["key"], &total["epoch"]), (&"all".into(), &keys[0]["epoch"]));
        let sum = |of: &dyn Fn(&serde_json::Value) -> f64| keys.iter().map(of).sum::<f64>();
        close("count", &total["count"], sum(&|line| number(&line["count"])), 1e-12);
        for at in [0, 1] {
            close("first", &total["first"][at], sum(&|line| number(&line["first"][at])), 1e-12);
            close("second", &total["second"][0][at], sum(&|line| number(&line["second"][0][at])), 1e-12);
        }
        let root = 3_f64.sqrt();
        close("noise of the count", &total["count_noise"], root * number(&keys[0]["count_noise"]), 1e-12);
        close("noise", &total["first_noise"], root * number(&keys[0]["first_noise"]), 1e-12);
    }
    assert_eq!(lines(&["--total", "--since", "32"]).len(), 1);
    finish(&mut tail(&state, &["--total", "--key", "JFK"])).failed(2, &["--total", "--key"]);
    finish(&mut tail(&state, &["--total"])).succeeded();
}

#[test]
fn a_view_of_totals_agrees_with_tail() {
    let lab = Lab::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights.toml")).expect("the example");
    let text = text.replace("data/", &format!("{}/data/", directory.display()));
    let view = "[[views]]\nname = 'total'\nworkload = 'window:7'\nestimate = 'moments'\nkeys = 'total'\n";
    let sink = "[[sinks]]\npath = 'total.ndjson'\n";
    let text = text.replace("[[views]]", &format!("{sink}\n{view}\n[[views]]"));
    let (pipeline, state) = (lab.write("pipeline.toml", &text), lab.path("state"));
    let mut ran = hushflow(["run", "--json", "--workers", "2"]);
    let ran = finish(ran.arg(&pipeline).arg("--state").arg(&state)).succeeded().json();
    let tailed = finish(&mut tail(&state, &["--total", "--view", "moments", "--workload", "window:7"]));
    let tailed = tailed.succeeded().json();
    let written = std::fs::read_to_string(lab.path("total.ndjson")).expect("the sink");
    let sunk: Vec<serde_json::Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    for lines in [&ran, &sunk] {
        let total: Vec<_> = lines.iter().filter(|line| line["view"] == "total").collect();
        assert_eq!((lines.len(), total.len(), tailed.len()), (4 * 32, 32, 32));
        for (line, expected) in total.into_iter().zip(&tailed) {
            for field in ["key", "epoch", "count", "count_noise", "first", "first_noise", "second"] {
                assert_eq!(line[field], expected[field], "{field}");
            }
        }
    }
    let squares = text.replace("[release]", "[release]\nmethod = 'pp'");
    let refused = finish(&mut run(&lab.write("pp.toml", squares), &lab.path("pp"), 1));
    refused.failed(2, &["keys", "squares of the sums of each key"]);
}
