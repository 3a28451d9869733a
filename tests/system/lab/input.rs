//! Tests that bad input is refused with its position and a correction, and that unusual input gives
//! the right answer.

use super::{hush, json, kept};
use crate::harness::{Lab, close, number};

/// Matrix files by name.
const FILES: [(&str, &str); 10] = [
    ("good.csv", "1,0\n1,1\n"),
    ("noncausal.csv", "1,2\n1,1\n"),
    ("ragged.csv", "1,0\n1\n"),
    ("nan.csv", "1,0\nNaN,1\n"),
    ("infinite.csv", "1,inf\n1,1\n"),
    ("text.csv", "1,0\nx,1\n"),
    ("empty.csv", ""),
    ("wide.csv", "1,0,0\n1,1,0\n"),
    ("zero.csv", "0,0\n0,0\n"),
    ("singular.csv", "1,0\n1,0\n"),
];

fn lab() -> Lab {
    let lab = Lab::new();
    FILES.iter().for_each(|(name, content)| drop(lab.write(name, content)));
    lab
}

/// Checks for exit status 2, nothing on standard output, and a message with all these parts.
#[track_caller]
fn refused(lab: &Lab, line: &str, parts: &[&str]) {
    let ended = hush(lab, line);
    assert!(ended.out.is_empty() && ended.err.starts_with("error: "), "{line}: {}{}", ended.out, ended.err);
    ended.failed(2, parts);
    assert_eq!(kept(lab), 0, "{line}: nothing was found");
}

#[test]
fn files_without_a_matrix_are_refused_with_line_and_column() {
    let lab = lab();
    let check = |name: &str, parts: &[&str]| {
        let parts: Vec<_> = [name].iter().chain(parts).copied().collect();
        refused(&lab, &format!("plan --workload matrix:{name} --strategy identity"), &parts);
        refused(&lab, &format!("plan --workload prefix --horizon 2 --strategy file:{name}"), &parts);
        refused(&lab, &format!("optimize --method coa --workload matrix:{name}"), &parts);
        refused(&lab, &format!("optimize --method blt --workload matrix:{name}"), &parts);
    };
    check("ragged.csv", &[":2: 1 numbers in a line", "expected 2"]);
    check("nan.csv", &[":2: field 1 is `NaN`", "expected a finite number"]);
    check("infinite.csv", &[":1: field 2 is `inf`", "expected a finite number"]);
    check("text.csv", &[":2: field 1 is `x`", "expected a finite number"]);
    check("empty.csv", &["the file is empty", "expected a line of comma-separated numbers"]);
    check("missing.csv", &["can't be read"]);
}

#[test]
fn matrices_that_make_no_stream_are_refused() {
    let lab = lab();
    let workload = |name: &str, parts: &[&str]| {
        refused(&lab, &format!("plan --workload matrix:{name}"), parts);
        refused(&lab, &format!("optimize --method blt --workload matrix:{name}"), parts);
    };
    workload("noncausal.csv", &["noncausal.csv", "row 1, column 2", "expected zeros above the diagonal"]);
    workload("wide.csv", &["wide.csv", "a row and a column for every epoch", "2 rows and 3 columns"]);
    // Any matrix has an optimal C, but not every one has steps.
    for matrix in ["matrix:noncausal.csv", "matrix:wide.csv", "all-range --horizon 4"] {
        json(&lab, &format!("optimize --method coa --workload {matrix}"));
        let line = format!("optimize --method coa --workload {matrix} -o best.json");
        refused(&lab, &line, &["--output", "not causal", "leave --output out"]);
    }
    refused(&lab, "optimize --method coa --workload matrix:zero.csv", &["all entries", "are zero"]);
    let strategy = |name: &str, parts: &[&str]| {
        let parts: Vec<_> = [name].iter().chain(parts).copied().collect();
        refused(&lab, &format!("plan --workload prefix --horizon 2 --strategy file:{name}"), &parts);
    };
    strategy("noncausal.csv", &["row 1, column 2", "expected zeros above the diagonal"]);
    strategy("wide.csv", &["a row and a column for every step", "2 rows and 3 columns"]);
    strategy("singular.csv", &["can't be decoded at step 2", "expected a positive number on the diagonal"]);
    strategy("zero.csv", &["can't be decoded at step 1"]);
    let short = &["good.csv", "made for 2 steps, not for 3"];
    refused(&lab, "plan --workload prefix --horizon 3 --strategy file:good.csv", short);
    let rows = &["matrix:good.csv", "fewer rows than the horizon"];
    refused(&lab, "plan --workload matrix:good.csv --horizon 3 --strategy identity", rows);
}

#[test]
fn damaged_strategy_files_are_refused() {
    let lab = Lab::new();
    json(&lab, "optimize --method coa --workload prefix --horizon 8 -o best.json");
    super::forget(&lab.path(super::KEPT));
    let text = std::fs::read_to_string(lab.path("best.json")).expect("a strategy file");
    let check = |content: &[u8], part: &str| {
        lab.write("damaged.json", content);
        let line = "plan --workload prefix --horizon 8 --strategy file:damaged.json";
        refused(&lab, line, &["damaged.json", part, "`hushflow optimize -o FILE`"]);
    };
    let (other, checksum) = ("\"workload\":\"average\"", "the checksum is wrong");
    check(text.replace("\"workload\":\"prefix\"", other).as_bytes(), checksum);
    let entry = text.find("\"dense\":\"").expect("a dense strategy") + 20;
    let letter = if &text[entry..=entry] == "A" { "B" } else { "A" };
    check([&text[..entry], letter, &text[entry + 1..]].concat().as_bytes(), checksum);
    check(&text.as_bytes()[..text.len() / 2], "not a strategy file");
    check(text.replace("strategy 1", "strategy 9").as_bytes(), "strategy 9");
    check(b"", "not a strategy file");
    check(b"[1, 2]", "not a strategy file");
    let line = "plan --workload prefix --horizon 9 --strategy file:best.json";
    refused(&lab, line, &["best.json", "made for 8 steps, not for 9"]);
    let missing = "plan --workload prefix --horizon 8 --strategy file:missing.json";
    refused(&lab, missing, &["missing.json", "can't be read"]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let lab = Lab::new();
    let check = |line: &str, parts: &[&str]| refused(&lab, line, parts);
    for method in ["coa", "multi-epoch", "blt"] {
        let line = format!("optimize --method {method} --workload prefix");
        check(&line, &["--horizon is missing", "--horizon 512"]);
        check(&format!("{line} --horizon 0"), &["--horizon", "0 is not in 1..="]);
        check(&format!("{line} --horizon 9 --participation 20"), &["--participation", "`20x100`"]);
    }
    check("plan --workload prefix --horizon 0 --strategy blt:2", &["--horizon", "0 is not in 1..="]);
    for workload in ["exponential", "momentum", "adam"] {
        for decay in ["0", "1", "-0.5", "1.5", "NaN", ""] {
            for command in ["plan", "optimize --method coa"] {
                let line = format!("{command} --workload {workload}:{decay} --horizon 9");
                check(&line, &["the decay of a workload is", "above 0 and below 1"]);
            }
        }
    }
    for strategy in ["blt:0", "blt:9", "blt:", "power-law:0", "banded-optimal:0"] {
        let line = format!("plan --workload average --horizon 9 --strategy {strategy}");
        check(&line, &["--strategy", strategy, "needs a number of", "from 1 to"]);
    }
    check("optimize --method blt --workload prefix --horizon 9 --buffers 0", &["--buffers", "1..=8"]);
    check("optimize --method blt --workload prefix --horizon 9 --buffers 9", &["--buffers", "1..=8"]);
    check("optimize --method coa --workload prefix --horizon 9 --gap 0", &["--gap", "between 0 and 1"]);
    check("optimize --method coa --workload prefix --horizon 5000", &["--horizon is 5000", "at most 4096"]);
    check("plan --workload prefix --horizon 9 --stamps 0", &["--stamps", "0 is not in 1.."]);
    check("plan --workload prefix --horizon 9 --stamps 10", &["10 copies", "9 steps", "at most one copy"]);
}

#[test]
fn participations_that_cannot_be_are_refused() {
    let lab = Lab::new();
    for command in ["plan", "optimize --method multi-epoch", "optimize --method blt"] {
        let check = |participation: &str, part: &str| {
            let line = format!("{command} --workload prefix --horizon 9 --participation {participation}");
            refused(&lab, &line, &["--participation", part, "`20x100`"]);
        };
        check("0x5", "the count of the participation `0x5`");
        check("5x0", "the gap of the participation `5x0`");
        check("x", "the count of the participation `x`");
        check("twice", "unknown participation `twice`");
    }
    let optimize = |method: &str, participation: &str, parts: &[&str]| {
        let purpose = format!("--workload prefix --horizon 10 --participation {participation}");
        refused(&lab, &format!("optimize --method {method} {purpose}"), parts);
    };
    optimize("coa", "2x5", &["coa is for single participation", "--method multi-epoch"]);
    // The optimum for equal distances has a larger sensitivity under other distances.
    optimize("multi-epoch", "4x3+", &["exactly 3 steps apart", "--participation 4x3"]);
}

#[test]
fn one_step_is_answered_by_every_strategy() {
    let lab = lab();
    let roots = ["square-root", "banded-square-root:4", "banded-inverse-square-root:4", "matrix-square-root"];
    let normalized = roots.map(|root| format!("normalized-{root}"));
    let others = "identity blt:1 blt:8 tree honaker tree-optimal-decoder fft fft-optimal-decoder banded-optimal:4 \
                  banded-toeplitz-optimal:4 optimal coa auto";
    let strategies = roots.into_iter().chain(normalized.iter().map(String::as_str)).chain(others.split(' '));
    for strategy in strategies {
        for (workload, loss) in [("prefix", 1.0), ("window:5", 0.04), ("matrix:good.csv", 1.0)] {
            let line = format!("plan --workload {workload} --horizon 1 --strategy {strategy}");
            close(&line, &json(&lab, &line)["loss"], loss, 1e-11);
        }
    }
    for method in ["coa", "multi-epoch", "blt --buffers 8"] {
        let line = format!("optimize --method {method} --workload adam:0.9 --horizon 1");
        close(&line, &json(&lab, &line)["objective"], 1.0, 1e-11);
    }
}

#[test]
fn more_participations_than_fit_count_as_those_that_fit() {
    let lab = Lab::new();
    let loss = |line: &str| number(&json(&lab, line)["loss"]);
    for strategy in ["square-root", "blt:2", "optimal", "tree-optimal-decoder"] {
        // A window longer than the stream is a running sum over its length.
        let window = loss(&format!("plan --workload window:100 --horizon 12 --strategy {strategy}"));
        let prefix = loss(&format!("plan --workload prefix --horizon 12 --strategy {strategy}"));
        assert!((window * 1e4 / prefix - 1.0).abs() < 1e-6, "{strategy}: {window} against {prefix}");
        let loss_of = |participation: &str| {
            let purpose = format!("--workload prefix --horizon 12 --participation {participation}");
            loss(&format!("plan {purpose} --strategy {strategy}"))
        };
        let same =
            |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-9, "{strategy}: {one}, {other}");
        same(loss_of("20x4"), loss_of("3x4"));
        same(loss_of("20x100"), loss_of("1"));
        same(loss_of("12x1"), loss_of("every-step"));
        assert!(loss_of("3x4+") >= loss_of("3x4") * (1.0 - 1e-12), "{strategy}");
    }
}
