//! Tests `hushflow audit`: its output for an honest mechanism, and its exit codes.
//!
//! At the confidence used here, an honest mechanism fails in one run of 10⁹.

use crate::harness::{Ended, Lab, finish, hushflow, number};

const PIPELINE: &str = "name = 'audited'
source.path = 'data.csv'
columns = [{ name = 'x', lower = -1, upper = 1 }, { name = 'y', lower = -1, upper = 1 }]
epochs = { records = 5, horizon = 4 }
privacy = { epsilon = 20, delta = 1e-6 }
release.strategy = 'square-root'
";

fn audit(lab: &Lab, pipeline: &str, arguments: &[&str]) -> Ended {
    let pipeline = lab.write("p.toml", pipeline);
    finish(hushflow(["audit", "--confidence", "0.999999999"]).arg(pipeline).args(arguments))
}

#[test]
fn an_honest_mechanism_comes_near_its_claim_and_never_exceeds_it() {
    let lab = Lab::new();
    let report = &audit(&lab, PIPELINE, &["--runs", "60000", "--json"]).succeeded().json()[0];
    assert_eq!(report["ok"], true, "{report}");
    assert!(number(&report["share"]) > 0.9 && number(&report["share"]) <= 1.0, "{report}");
    let (mu, claimed) = (number(&report["mu"]), number(&report["epsilon"]));
    let canaries = report["canaries"].as_array().unwrap();
    let names: Vec<_> = canaries.iter().map(|canary| canary["canary"].as_str().unwrap()).collect();
    assert_eq!(names, ["opposite", "second-moments", "outlier", "another-epoch"], "there is one key only");
    for canary in canaries {
        assert!(number(&canary["distance"]) <= mu && number(&canary["mu"]) <= mu, "{canary}");
        assert!(number(&canary["epsilon"]) <= claimed, "{canary}");
        assert!(number(&canary["epsilon_of_any"]) <= claimed, "{canary}");
        assert!(number(&canary["trials"]) >= 60_000.0, "{canary}");
        assert_eq!(canary["violations"], serde_json::json!([]), "{canary}");
    }
}

#[test]
fn people_get_a_table_and_a_verdict() {
    let lab = Lab::new();
    let shown =
        audit(&lab, PIPELINE, &["--runs", "1000", "--epochs", "3", "--participation", "2x2"]).succeeded();
    for part in
        ["replace-one neighbours, 2x2", "over 3 of 4 epochs", "distance", "opposite", "No canary exceeds"]
    {
        assert!(shown.out.contains(part), "{}", shown.out);
    }
    assert_eq!(shown.err, "", "no progress where there is no terminal");
}

#[test]
fn mistakes_are_explained() {
    let lab = Lab::new();
    audit(&lab, "nonsense", &[]).failed(2, &["p.toml"]);
    for (arguments, part) in [
        (["--runs", "99"], "99"),
        (["--epochs", "0"], "0"),
        (["--participation", "2"], "2x100"),
        (["--epochs", "5000"], "5000"),
    ] {
        audit(&lab, PIPELINE, &arguments).failed(2, &[part]);
    }
    let pipeline = lab.path("p.toml");
    finish(hushflow(["audit", "--confidence", "1"]).arg(pipeline)).failed(2, &["at least 0.5 and below 1"]);
}
