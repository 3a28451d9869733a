//! `hushflow mean` on real weather data with a corrupt reading.

use std::process::Output;

use serde_json::Value;

use crate::harness::hushflow;

const WEATHER: &str = "examples/data/weather_nyc2013.csv";
const COLUMNS: &str = "temp,humid,wind_speed,pressure";

/// Medians of the columns; clean means are within a few units.
const EXPECTED: [(f64, f64); 4] = [(55.3, 3.0), (62.5, 4.0), (10.2, 1.0), (1017.9, 2.0)];

fn run(line: &str) -> Output {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    hushflow(&arguments).output().unwrap()
}

fn json(line: &str) -> Value {
    let Output { status, stdout, stderr } = run(&format!("{line} --json"));
    assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn means(found: &Value) -> Vec<f64> {
    found["mean"]
        .as_array()
        .unwrap_or_else(|| panic!("{found}"))
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

#[test]
fn a_corrupt_reading_moves_no_mean() {
    for method in ["prime-ht", "gaussian", "balloon", "auto"] {
        let line = format!(
            "mean {WEATHER} --columns {COLUMNS} --method {method} --epsilon 2 --delta 1e-6 --corruption 0.01 --seed 1"
        );
        let report = json(&line);
        for (mean, (expected, off)) in means(&report).iter().zip(EXPECTED) {
            assert!((mean - expected).abs() < off, "{method}: {report}");
        }
        assert_eq!(report["private"], false);
        assert_eq!(report["rows"], 26115);
        assert!(report["spent"].as_f64().unwrap() <= 2.0);
        assert!(report["parts"].as_array().unwrap().iter().any(|part| part["step"] == "scale"));
    }
}

/// Delays have a long tail, which is clipped and removed: the mean of 10 minutes comes out below 7.
/// Temperatures have no long tail.
#[test]
fn skewed_columns_are_warned_of() {
    let warnings = |arguments: &str| {
        let report = json(&format!("mean examples/data/{arguments} --epsilon 2 --delta 1e-6 --seed 1"));
        let warnings = report["warnings"].as_array().unwrap();
        let text = warnings.iter().map(|line| line.as_str().unwrap()).collect::<Vec<_>>().join("\n");
        (means(&report)[0], text, report["clipping"][0]["bias"].as_f64())
    };
    let delays = "flights_jan2013.csv --columns dep_delay --missing skip";
    let (mean, text, bias) = warnings(&format!("{delays} --corruption 0"));
    assert!(mean < 7.0 && bias.is_some_and(|bias| bias < -0.5), "{mean} {bias:?}");
    assert!(
        text.contains("dep_delay: about") && text.contains("were clipped, which makes the mean too low"),
        "{text}"
    );
    // The mean of all rows is 10.04: the estimated clipping does not explain the difference.
    assert!(bias.is_some_and(|bias| 10.0 - mean > 1.5 * -bias) && text.contains("or more"), "{mean} {text}");
    for method in ["auto", "gaussian", "prime", "prime-ht", "filter"] {
        let (_, text, _) = warnings(&format!("{delays} --corruption 0 --method {method}"));
        assert!(
            text.contains("no released number bounds") && text.contains("public bounds"),
            "{method}: {text}"
        );
    }
    let (mean, text, _) = warnings(&format!("{delays} --corruption 0.01 --method prime"));
    assert!(mean < 3.0 && text.contains("were removed as outliers"), "{mean} {text}");
    // `auto` stops removing the tail, and turns to the method for heavy tails.
    let (mean, text, _) = warnings(&format!("{delays} --corruption 0.01"));
    assert!(mean > 5.0 && text.contains("prime-ht removes or clips"), "{mean} {text}");
    // Whether rows are skewed is unknown, so every filter has a warning that states its possible
    // effect.
    let (_, text, _) =
        warnings("weather_nyc2013.csv --columns temp,wind_speed --scale 18,6 --corruption 0.01");
    assert!(
        text.contains("0.1 standard deviations") && text.contains("(18 of temp, 6 of wind_speed)"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    // √(0.05/0.95) standard deviations; those of all rows are above the scale.
    let delays = "flights_jan2013.csv --columns dep_delay,arr_delay --missing skip";
    let (mean, text, _) = warnings(&format!("{delays} --scale 40,40 --corruption 0.05"));
    assert!(text.contains("0.23 standard deviations"), "{text}");
    assert!((4.0..6.0).contains(&mean), "{mean}");
}

/// With the same seed, the means with and without the corrupt reading differ by less than a
/// hundredth of a scale.
#[test]
fn without_the_reading_the_mean_is_the_same() {
    let text = std::fs::read_to_string(WEATHER).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let corrected = directory.path().join("corrected.csv");
    std::fs::write(&corrected, text.replace("1048.36", "10.36")).unwrap();
    let line = |path: &str| {
        format!(
            "mean {path} --columns wind_speed --scale 5 --method prime-ht --epsilon 2 --delta 1e-6 --corruption 0.01 --seed 7"
        )
    };
    let [with, without] = [WEATHER, corrected.to_str().unwrap()].map(|path| means(&json(&line(path)))[0]);
    assert!((with - without).abs() < 0.05, "{with} {without}");
}

/// Whitening costs its reported share, and the corrupt reading still does not move a mean.
#[test]
fn whitening_is_charged_and_reported() {
    let report = json(&format!(
        "mean {WEATHER} --columns {COLUMNS} --scale whiten --method prime-ht --epsilon 2 --delta 1e-6 --corruption 0.01 --seed 1"
    ));
    for (mean, (expected, off)) in means(&report).iter().zip(EXPECTED) {
        assert!((mean - expected).abs() < off, "{report}");
    }
    let parts = report["parts"].as_array().unwrap();
    assert!(
        ["scale", "directions", "directed scale"]
            .iter()
            .all(|step| parts.iter().any(|part| part["step"] == *step)),
        "{report}"
    );
}

#[test]
fn bad_use_is_refused_with_a_reason() {
    let refused = |flags: &str, code: i32, expected: &str| {
        let Output { status, stderr, .. } = run(&format!("mean {WEATHER} --columns temp {flags}"));
        let message = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{flags}: {message}");
        assert!(message.contains(expected), "{flags}: {message}");
    };
    let check = |flags: &str, expected: &str| refused(flags, 2, expected);
    check("--epsilon 1 --delta 1e-6 --corruption 0.5", "below 1/2");
    check("--epsilon 0 --delta 1e-6 --corruption 0.1", "epsilon is 0");
    check("--epsilon 1 --delta 0 --corruption 0.1", "delta is 0");
    check("--epsilon 1e-5 --delta 1e-6 --corruption 0.1", "too few");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 1,2", "2 numbers for 1 columns");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 0", "above 0");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 10 --method tukey", "needs a range");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale wide", "expected auto, whiten or numbers");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --method primer", "expected auto, prime, prime-ht");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --range 5", "--range is for tukey and resilience");
    check("--epsilon 150 --delta 1e-6 --corruption 0.1", "smaller epsilon");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale -1", "above 0");
    refused("--epsilon 1 --delta 1e-6 --corruption 0.1 --missing reject", 1, "--missing");
}

/// Constant columns, unusable rows, one row, fewer rows than columns, one column: each gives a
/// mean, or an error that names the missing requirement.
#[test]
fn bad_rows_have_a_mean_or_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.csv");
    let ask = |header: &str, row: &str, rows: usize, scale: &str| {
        std::fs::write(&file, format!("{header}\n{}", format!("{row}\n").repeat(rows))).unwrap();
        let flags = "--epsilon 1 --delta 1e-6 --corruption 0.01 --seed 1";
        run(&format!("mean {} {flags} --method prime-ht --scale {scale} --json", file.display()))
    };
    for row in ["0.5,0", "nan,", "7e300,-7e300"] {
        for scale in ["0.5", "auto"] {
            let Output { status, stdout, stderr } = ask("a,b", row, 20_000, scale);
            assert!(status.success(), "{row}: {}", String::from_utf8_lossy(&stderr));
            let found: Value = serde_json::from_slice(&stdout).unwrap();
            assert_eq!(found["rows"], 20_000, "{row}: a row that can't be used counts");
            assert!(found["mean"][0].is_number() || found["refusal"]["reason"].is_string(), "{row}: {found}");
        }
    }
    let found: Value = serde_json::from_slice(&ask("a", "0.5", 20_000, "0.5").stdout).unwrap();
    assert!((means(&found)[0] - 0.5).abs() < 0.1, "{found}");
    let wide: Vec<String> = (0..30).map(|column| format!("c{column}")).collect();
    for (header, row, rows) in
        [("a,b", "0.5,0.5".to_owned(), 1), (&wide.join(","), vec!["0.5"; 30].join(","), 5)]
    {
        let Output { status, stderr, .. } = ask(header, &row, rows, "0.5");
        let message = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && message.contains("rows are too few"), "{message}");
    }
}

/// A refusal that follows from released numbers, here a centre whose ball is beyond floating point,
/// is charged like an answer. One that public numbers decide is free.
#[test]
fn an_estimate_that_fails_after_its_releases_is_charged() {
    let directory = tempfile::tempdir().unwrap();
    let (file, ledger) = (directory.path().join("far.csv"), directory.path().join("ledger"));
    std::fs::write(&file, format!("a\n{}", "1.7e308\n".repeat(20_000))).unwrap();
    let ask = |flags: &str| {
        let flags = format!("{flags} --epsilon 1 --delta 1e-6 --corruption 0.01 --method prime-ht");
        run(&format!("mean {} {flags} --ledger {} --data-set far", file.display(), ledger.display()))
    };
    assert_eq!(ask("--scale 0").status.code(), Some(2));
    assert!(!ledger.exists());
    let failed = ask("--scale 1e307");
    assert!(
        !failed.status.success() && failed.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&failed.stderr)
    );
    let report = json(&format!("ledger {} --delta 1e-6", ledger.display()));
    assert_eq!(report["entries"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn a_ledger_is_charged_before_the_estimate_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let line = format!(
        "mean {WEATHER} --columns temp --scale 18 --epsilon 1 --delta 1e-6 --corruption 0.01 --data-set weather --ledger {}",
        ledger.display()
    );
    let skipping = run(&format!("{line} --missing skip"));
    let message = String::from_utf8_lossy(&skipping.stderr);
    assert!(skipping.status.code() == Some(2) && message.contains("skip leaves rows out"), "{message}");
    means(&json(&line));
    means(&json(&line));
    let report = json(&format!("ledger {} --delta 1e-6", ledger.display()));
    assert_eq!(report["entries"].as_array().unwrap().len(), 2, "{report}");
}
