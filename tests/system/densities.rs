//! Queries of a released density on the command line: synthetic records, scores of held-out rows,
//! divergences from a known truth. Each answer is compared with a computation from `tail --json`.

use std::path::{Path, PathBuf};

use crate::estimates::{flights, last};
use crate::harness::{Lab, finish, hushflow, tail};
use nalgebra::{DMatrix, DVector};
use serde_json::{Value, json};

const COLUMNS: [&str; 2] = ["dep_delay", "arr_delay"];

/// Reads mean and covariance from a line.
fn density(line: &Value) -> (DVector<f64>, DMatrix<f64>) {
    let number = |value: &Value| value.as_f64().expect("a number");
    let mean = COLUMNS.map(|column| number(&line["mean"][column]));
    let covariance = DMatrix::from_fn(2, 2, |i, j| number(&line["covariance"][i][j]));
    (DVector::from_row_slice(&mean), covariance)
}

fn score(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or_else(|| panic!("a number {name} in {line}"))
}

fn flights_of(csv: &str, key: &str) -> Vec<[f64; 2]> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let index = |name| header.iter().position(|column| *column == name).expect("a column");
    let (origin, columns) = (index("origin"), COLUMNS.map(index));
    let rows = lines.filter(|fields| fields[origin] == key);
    rows.filter_map(|fields| Some([fields[columns[0]].parse().ok()?, fields[columns[1]].parse().ok()?]))
        .collect()
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv")
}

/// Means and covariances of 20,000 records lie within six standard errors of the density's.
#[test]
fn samples_come_from_the_newest_density() {
    let lab = Lab::new();
    let state = flights(&lab);
    let (mean, covariance) = density(&last(&state, &[]));
    let sample = |arguments: &[&str]| {
        finish(hushflow(["tail", "--sample", "20000"]).arg(&state).args(arguments)).succeeded().out
    };
    let drawn = sample(&["--key", "JFK", "--seed", "5"]);
    assert!(drawn.starts_with("origin,dep_delay,arr_delay\nJFK,"), "{}", &drawn[..60]);
    assert_eq!(drawn, sample(&["--key", "JFK", "--seed", "5"]));
    assert_ne!(drawn, sample(&["--key", "JFK", "--seed", "6"]));
    assert_ne!(sample(&["--key", "JFK"]), sample(&["--key", "JFK"]), "of the system's entropy");
    let rows = flights_of(&drawn, "JFK");
    assert_eq!(rows.len(), 20_000);
    let size = rows.len() as f64;
    let average = |value: &dyn Fn(&[f64; 2]) -> f64| rows.iter().map(value).sum::<f64>() / size;
    for i in 0..2 {
        let away = average(&|row| row[i]) - mean[i];
        assert!(away.abs() < 6.0 * (covariance[(i, i)] / size).sqrt(), "{i}: {away}");
        for j in 0..=i {
            let product = average(&|row| (row[i] - mean[i]) * (row[j] - mean[j]));
            let spread = (covariance[(i, i)] * covariance[(j, j)] + covariance[(i, j)].powi(2)) / size;
            assert!((product - covariance[(i, j)]).abs() < 6.0 * spread.sqrt(), "{i} {j}: {product}");
        }
    }
    let all = finish(&mut tail(&state, &["--sample", "2"])).succeeded().json();
    let keys: Vec<_> = all.iter().map(|line| line["origin"].as_str().expect("a key")).collect();
    assert_eq!(keys, ["EWR", "EWR", "JFK", "JFK", "LGA", "LGA"]);
    assert!(all.iter().all(|line| line["arr_delay"].is_f64()));
}

#[test]
fn held_out_rows_score_the_density_of_their_key() {
    let lab = Lab::new();
    let state = flights(&lab);
    let (path, text) = (example(), std::fs::read_to_string(example()).expect("the example"));
    let scored = |arguments: &[&str]| {
        let mut command = tail(&state, arguments);
        finish(command.arg("--held-out").arg(&path)).succeeded().json()
    };
    let (mean, covariance) = density(&last(&state, &[]));
    let (inverse, rows) = (covariance.clone().try_inverse().expect("a density"), flights_of(&text, "JFK"));
    let constant = (covariance * std::f64::consts::TAU).determinant().ln();
    let log_density = |row: &[f64; 2]| {
        let away = DVector::from_row_slice(row) - &mean;
        -(constant + (&inverse * &away).dot(&away)) / 2.0
    };
    let expected = rows.iter().map(log_density).sum::<f64>() / rows.len() as f64;
    let lines = scored(&["--key", "JFK"]);
    let newest = lines.last().expect("a month has a last day");
    assert_eq!(newest["held_out_rows"], rows.len());
    let found = score(newest, "mean_log_likelihood");
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
    assert!(lines[0]["mean_log_likelihood"].as_f64().is_none_or(|first| first < found), "a day is noise");

    let all = scored(&["--total", "--since", "32"]);
    let of_keys = scored(&["--since", "32"]);
    let rows_of =
        |lines: &[Value]| lines.iter().map(|line| line["held_out_rows"].as_u64()).sum::<Option<u64>>();
    assert_eq!((all.len(), of_keys.len(), rows_of(&all)), (1, 3, rows_of(&of_keys)));
    let mut table = hushflow(["tail", "--key", "JFK", "--since", "32", "--held-out"]);
    let table = finish(table.arg(&path).arg(&state)).succeeded().out;
    assert!(table.contains("mean log likelihood") && table.lines().count() == 2, "{table}");
    let mut csv = hushflow(["tail", "--format", "csv", "--held-out"]);
    let csv = finish(csv.arg(&path).arg(&state)).succeeded().out;
    assert!(
        csv.starts_with("epoch,key,count,quality,held_out_rows,mean_log_likelihood,divergence,"),
        "{csv}"
    );
    assert!(csv.lines().all(|line| line.split(',').count() == 8), "{csv}");
}

#[test]
fn each_row_has_a_distance_and_its_probability() {
    let lab = Lab::new();
    let state = flights(&lab);
    let rows = "origin,dep_delay,arr_delay\nJFK,14,5\nLGA,0,0\nJFK,150,20\nJFK,,3\n";
    let path = lab.write("rows.csv", rows).display().to_string();
    let of_rows = ["--held-out", &path, "--each-row", "--last", "1"];
    let lines = finish(&mut tail(&state, &[&of_rows[..], &["--key", "JFK"]].concat())).succeeded().json();
    let numbers: Vec<_> = lines.iter().map(|line| line["row"].as_u64()).collect();
    assert_eq!(numbers, [Some(1), Some(3), Some(4)]);
    let (mean, covariance) = density(&last(&state, &[]));
    let inverse = covariance.try_inverse().expect("a density");
    for (line, row) in lines.iter().zip([[14.0, 5.0], [150.0, 20.0]]) {
        let away = DVector::from_row_slice(&row) - &mean;
        let square = (&inverse * &away).dot(&away);
        assert!((score(line, "distance") / square.sqrt() - 1.0).abs() < 1e-9, "{line}");
        // For two columns the tail of χ² is e^(−x/2).
        assert!((score(line, "p_value") / (-square / 2.0).exp() - 1.0).abs() < 1e-6, "{line}");
    }
    assert!(score(&lines[0], "p_value") > 0.01 && score(&lines[1], "p_value") < 1e-6, "{lines:?}");
    assert!(lines[2]["distance"].is_null() && lines[2]["log_density"].is_null());
    let csv = finish(hushflow(["tail", "--format", "csv"]).args(of_rows).arg(&state)).succeeded().out;
    assert!(csv.starts_with("epoch,key,quality,row,log_density,distance,p_value\n"), "{csv}");
    assert_eq!(csv.lines().count(), 5);
    finish(hushflow(["tail", "--each-row"]).arg(&state)).failed(2, &["--held-out"]);
}

/// The divergence of a density from itself is 0, and from the same one moved by c it is cᵀΣ⁻¹c/2,
/// in both directions.
#[test]
fn divergences_are_from_the_density_in_the_file() {
    let lab = Lab::new();
    let state = flights(&lab);
    let line = last(&state, &[]);
    let divergences = |truth: &Value| {
        let path = lab.write("truth.json", truth.to_string());
        let mut command = tail(&state, &["--key", "JFK", "--since", "32"]);
        let found = finish(command.arg("--truth").arg(path)).succeeded().json().remove(0);
        ["divergence", "reverse_divergence"].map(|name| score(&found, name))
    };
    assert!(divergences(&line).iter().all(|found| found.abs() < 1e-9));
    let (mean, covariance) = density(&line);
    let away = DVector::from_row_slice(&[3.0, -5.0]);
    let moved = mean + &away;
    let truth =
        json!({"mean": {"arr_delay": moved[1], "dep_delay": moved[0]}, "covariance": line["covariance"]});
    let expected = (covariance.clone().try_inverse().expect("a density") * &away).dot(&away) / 2.0;
    assert!(divergences(&truth).iter().all(|found| (found / expected - 1.0).abs() < 1e-9));
    let wider = json!({"mean": line["mean"], "covariance": [
        [4.0 * covariance[(0, 0)], 4.0 * covariance[(0, 1)]],
        [4.0 * covariance[(1, 0)], 4.0 * covariance[(1, 1)]]
    ]});
    // Half of (trace 2·s) − 2 − 2 ln s, for s = 4 and s = ¼.
    let [from_wide, from_narrow] = divergences(&wider);
    assert!((from_wide - (3.0 - 4_f64.ln())).abs() < 1e-9, "{from_wide}");
    assert!((from_narrow - (4_f64.ln() - 0.75)).abs() < 1e-9, "{from_narrow}");
}

#[test]
fn impossible_requests_for_densities_are_refused() {
    let lab = Lab::new();
    let state = flights(&lab);
    let refused = |arguments: &[&str], code, part: &str| {
        finish(hushflow(["tail"]).arg(&state).args(arguments)).failed(code, &[part]);
    };
    let write = |name: &str, text: &str| lab.write(name, text).display().to_string();
    refused(&["--sample", "3", "--view", "moments"], 2, "use --view gaussian");
    refused(&["--sample", "3", "--follow"], 2, "cannot be used with");
    refused(&["--seed", "3"], 2, "--sample");
    refused(
        &["--sample", "3", "--covariance", "raw", "--workload", "window:1", "--key", "JFK"],
        1,
        "no sample of JFK",
    );
    refused(&["--held-out", "nowhere.csv"], 1, "nowhere.csv");
    refused(&["--held-out", &write("a.csv", "origin,dep_delay\nJFK,3\n")], 1, "arr_delay");
    refused(&["--held-out", &write("b.csv", "dep_delay,arr_delay\n3,4\n")], 1, "origin");
    let good = "{\"mean\": {\"dep_delay\": 1, \"arr_delay\": 2}, \"covariance\": [[1, 0], [0, 1]]}";
    let check = |text: &str, part: &str| {
        refused(&["--key", "JFK", "--truth", &write("truth.json", text)], 2, part);
    };
    refused(&["--truth", &write("truth.json", good)], 2, "choose one --key, or --total");
    check("[]", "expected one JSON object such as");
    check(&good.replace("arr_delay", "delay"), "no number for the column \"arr_delay\"");
    check(&good.replace("[[1, 0], ", "[[1], "), "2 rows of 2 numbers");
    check(&good.replace("[[1, 0]", "[[1, 0.5]"), "not symmetric");
    check(&good.replace("[[1, 0]", "[[-1, 0]"), "not positive definite");
    refused(&["--key", "JFK", "--truth", "nowhere.json"], 2, "nowhere.json");
}
