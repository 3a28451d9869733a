//! Tests rows that lack some of their columns, and bounds by key: compares runs of the real binary
//! with plain sums.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::harness::{Ended, Lab, Random, finish, hushflow, number, run, tail};
use crate::parquet;

const ROWS: usize = 4000;

/// Rows of three columns. About a third of the values are missing, more often the larger they are.
fn rows() -> Vec<[Option<f64>; 3]> {
    let mut random = Random(26);
    let mut unit = move || random.below(1001) as f64 / 1000.0;
    let row = |_| {
        let common = unit();
        [(0.0, 10.0), (-5.0, 5.0), (100.0, 200.0)].map(|(lower, upper)| {
            let share = 0.6 * common + 0.4 * unit();
            let value = lower + (upper - lower) * share;
            (unit() > 0.7 * share).then(|| (value * 1000.0).round() / 1000.0)
        })
    };
    (0..ROWS).map(row).collect()
}

fn csv(rows: &[[Option<f64>; 3]]) -> String {
    let mut text = String::from("id,x,y,z\n");
    for (id, row) in rows.iter().enumerate() {
        let absent = ["", "NA", "NaN"][id % 3];
        let values = row.map(|value| value.map_or(absent.to_owned(), |value| value.to_string()));
        let _ = writeln!(text, "{},{}", id % 700, values.join(","));
    }
    text
}

fn ndjson(rows: &[[Option<f64>; 3]]) -> String {
    let mut text = String::new();
    for (id, row) in rows.iter().enumerate() {
        let mut object = serde_json::Map::from_iter([("id".into(), (id % 700).to_string().into())]);
        for (name, value) in ["x", "y", "z"].into_iter().zip(row) {
            // A field that is absent, and one that is null.
            if value.is_some() || id % 2 == 0 {
                object.insert(name.into(), Value::from(*value));
            }
        }
        let _ = writeln!(text, "{}", Value::Object(object));
    }
    text
}

/// ε is so large that the noise is small relative to the moments of many rows.
fn pipeline(path: &str, more: &str) -> String {
    format!(
        "name = 'rows'
source = {{ path = '{path}', missing = 'by-column' }}
columns = [
    {{ name = 'x', lower = 0, upper = 10 }}, {{ name = 'y', lower = -5, upper = 5 }},
    {{ name = 'z', lower = 100, upper = 200 }},
]
epochs = {{ records = {}, horizon = 4 }}
privacy = {{ epsilon = 30, delta = 1e-6 }}
views = [{{ name = 'all', workload = 'prefix' }}]
{more}",
        ROWS / 4
    )
}

fn run_json(lab: &Lab, name: &str, text: &str) -> Ended {
    let pipeline = lab.write(&format!("{name}.toml"), text);
    finish(hushflow(["run", "--json"]).arg(pipeline).arg("--state").arg(lab.path(name)))
}

/// Mean of x·y about the means, over the rows that have both; the mean of x; the number of rows.
fn of_rows(rows: &[[Option<f64>; 3]], i: usize, j: usize) -> (f64, f64, f64) {
    let pairs: Vec<_> = rows.iter().filter_map(|row| Some((row[i]?, row[j]?))).collect();
    let count = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let covariance = pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum::<f64>() / count;
    (count, x, covariance)
}

/// Allows eight deviations of the noise: a false alarm has probability 2·10⁻¹⁵.
#[track_caller]
fn near(what: &str, found: &Value, noise: &Value, expected: f64) {
    let (found, noise) = (number(found), number(noise));
    assert!((found - expected).abs() <= 8.0 * noise + 1e-3, "{what}: {found} ± {noise}, not {expected}");
}

#[test]
fn each_column_and_pair_uses_the_rows_that_have_it() {
    let (lab, rows) = (Lab::new(), rows());
    lab.write("rows.csv", csv(&rows));
    let last = run_json(&lab, "state", &pipeline("rows.csv", "")).succeeded().json().pop().expect("a line");
    for (i, one) in ["x", "y", "z"].into_iter().enumerate() {
        let (count, mean, variance) = of_rows(&rows, i, i);
        near(one, &last["column_count"][one], &last["column_count_noise"][one], count);
        near(one, &last["mean"][one], &last["mean_noise"][one], mean);
        near(one, &last["covariance"][i][i], &last["covariance_noise"][i][i], variance);
        for j in (0..3).filter(|&j| j != i) {
            let (count, _, covariance) = of_rows(&rows, i, j);
            near(one, &last["pair_count"][i][j], &last["pair_count_noise"][i][j], count);
            near(one, &last["covariance"][i][j], &last["covariance_noise"][i][j], covariance);
            // Large values are missing more often, so the bounds for any missing values are needed.
            let both: Vec<_> = rows.iter().filter(|row| row[i].and(row[j]).is_some()).copied().collect();
            let correlation = covariance / (of_rows(&both, i, i).2 * of_rows(&both, j, j).2).sqrt();
            let ends = last["correlation_interval"][i][j].as_array().expect("an interval");
            let (lower, upper) = (number(&ends[0]), number(&ends[1]));
            assert!(lower <= correlation && correlation <= upper, "{correlation}: {last}");
        }
    }
    assert_eq!(last["missing_at_random"], false);
    assert_eq!(last["count_interval"].as_array().map(Vec::len), Some(2), "{last}");
    // No regression line is computed from the rows with both columns, and the assumption that it
    // needs is wrong here.
    for (more, quality) in [(&[][..], "different-rows"), (&["--missing-at-random"], "not-missing-at-random")]
    {
        let arguments = [&["--regress", "y~x"], more].concat();
        let line = finish(&mut tail(&lab.path("state"), &arguments)).succeeded().json();
        let line = line.last().expect("a line");
        assert_eq!(line["quality"], quality, "{line}");
        assert!(line["coefficients"]["x"].is_null(), "{line}");
        let mut table = hushflow(["tail", "--format", "table"]);
        let table = finish(table.arg(lab.path("state")).args(&arguments)).succeeded().out;
        assert!(table.contains("no estimate"), "{table}");
    }
    let moments = finish(&mut tail(&lab.path("state"), &["--view", "moments"])).succeeded().json();
    let moments = moments.last().expect("a line");
    near("count", &moments["column_count"][2], &moments["column_count_noise"], of_rows(&rows, 2, 2).0);
    near("pair", &moments["pair_count"][0][2], &moments["pair_count_noise"], of_rows(&rows, 0, 2).0);
    for arguments in
        [&["--format", "csv"][..], &["--format", "table"], &["--view", "moments", "--format", "csv"]]
    {
        let text = finish(hushflow(["tail"]).arg(lab.path("state")).args(arguments)).succeeded().out;
        let widths: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with('±'))
            .map(|line| line.matches(',').count())
            .collect();
        assert!(arguments.contains(&"table") || widths.iter().all(|width| *width == widths[0]), "{text}");
    }
    finish(hushflow(["verify"]).arg(lab.path("state"))).succeeded();
}

/// Values are missing at random: the correlation and the regression line agree with those of all
/// rows.
#[test]
fn values_missing_at_random_give_correlations_and_lines() {
    let (lab, mut random) = (Lab::new(), Random(27));
    let mut unit = move || random.below(1001) as f64 / 1000.0;
    let complete: Vec<[Option<f64>; 3]> = (0..ROWS)
        .map(|_| {
            let common = unit();
            [(0.0, 10.0), (-5.0, 5.0), (100.0, 200.0)]
                .map(|(lower, upper)| Some(lower + (upper - lower) * (0.6 * common + 0.4 * unit())))
        })
        .collect();
    let lacking: Vec<_> =
        complete.iter().map(|row| row.map(|value| value.filter(|_| unit() < 0.7))).collect();
    lab.write("rows.csv", csv(&lacking));
    let view = "views = [{ name = 'all', workload = 'prefix', missing_at_random = true }]";
    let text = pipeline("rows.csv", "").replace("views = [{ name = 'all', workload = 'prefix' }]", view);
    let last = run_json(&lab, "state", &text).succeeded().json().pop().expect("a line");
    assert_eq!(last["missing_at_random"], true);
    let correlation =
        of_rows(&lacking, 0, 1).2 / (of_rows(&lacking, 0, 0).2 * of_rows(&lacking, 1, 1).2).sqrt();
    let ends = |line: &Value| {
        let ends = &line["correlation_interval"][0][1];
        (number(&ends[0]), number(&ends[1]))
    };
    let (lower, upper) = ends(&last);
    let wide = 4.0 * (upper - lower);
    assert!(wide < 1.0 && lower - wide <= correlation && correlation <= upper + wide, "{last}");
    let plain = finish(&mut tail(&lab.path("state"), &[])).succeeded().json();
    let (least, most) = ends(plain.last().expect("a line"));
    assert!(least < lower && upper < most, "{least} {most}: {last}");
    let line = finish(&mut tail(&lab.path("state"), &["--regress", "y~x", "--missing-at-random"]));
    let line = line.succeeded().json().pop().expect("a line");
    assert_eq!(line["quality"], "if-missing-at-random", "{line}");
    let slope = of_rows(&lacking, 0, 1).2 / of_rows(&lacking, 0, 0).2;
    near("slope", &line["coefficients"]["x"], &line["coefficients_noise"]["x"], slope);
    // With complete rows, no assumption is needed.
    let skip = text.replace("'by-column'", "'skip'");
    run_json(&lab, "skip", &skip).failed(2, &["views[0].missing_at_random", "leave it out"]);
    let skip = pipeline("rows.csv", "").replace("'by-column'", "'skip'");
    run_json(&lab, "complete", &skip).succeeded();
    finish(&mut tail(&lab.path("complete"), &["--missing-at-random"])).failed(2, &["leave it out"]);
}

/// Only rows with values at the bounds have both columns. The quotient of covariance and deviations
/// is then 2.4, which is not a possible correlation.
#[test]
fn a_quotient_beyond_one_is_no_correlation() {
    let lab = Lab::new();
    let row = |at: usize| match (at % 4, at % 8) {
        (0, 0) => [Some(0.0), Some(-5.0), None],
        (0, _) => [Some(10.0), Some(5.0), None],
        (1, _) => [Some(5.0), None, Some(150.0)],
        _ => [None, Some(0.0), Some(150.0)],
    };
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    lab.write("rows.csv", csv(&rows));
    let last = run_json(&lab, "state", &pipeline("rows.csv", "")).succeeded().json().pop().expect("a line");
    assert_eq!(last["correlation_quality"][0][1], "beyond-one", "{last}");
    assert_eq!(
        (&last["correlation"][0][1], &last["correlation_interval"][0][1]),
        (&Value::Null, &json!([-1.0, 1.0]))
    );
    assert_eq!(last["correlation_quality"][0][0], "good", "{last}");
    let table = finish(hushflow(["tail"]).arg(lab.path("state"))).succeeded().out;
    assert!(table.contains("beyond ±1"), "{table}");
}

/// The same rows as CSV and as Parquet, whose columns have nulls, give the same sums.
#[test]
fn nulls_of_parquet_are_missing_values() {
    let (lab, rows) = (Lab::new(), rows());
    lab.write("rows.csv", csv(&rows));
    parquet::write_optional(&lab.path("rows.parquet"), &["x", "y", "z"], &rows);
    for missing in ["by-column", "skip"] {
        let values = ["rows.csv", "rows.parquet"].map(|path| {
            let text = pipeline(path, "[simulation]\nseed = 6\n").replace("by-column", missing);
            let state = format!("{missing}-{path}");
            run_json(&lab, &state, &text).succeeded();
            let lines = finish(&mut tail(&lab.path(&state), &["--view", "moments"])).succeeded().json();
            assert!(!lines.is_empty());
            lines.iter().map(|line| [&line["count"], &line["first"]].map(Value::clone)).collect::<Vec<_>>()
        });
        assert_eq!(values[0], values[1], "{missing}");
    }
}

#[test]
fn formats_workers_and_entities_agree_on_missing_values() {
    let (lab, rows) = (Lab::new(), rows());
    lab.write("rows.csv", csv(&rows));
    lab.write("rows.ndjson", ndjson(&rows));
    let entity = "[entity]\ncolumn = 'id'\nparticipations = 2\nrecords_per_epoch = 2\nseveral = 'average'\n";
    for (name, more) in [("records", ""), ("entities", entity)] {
        let more = format!("{more}[simulation]\nseed = 5\n");
        let unit = if name == "entities" { "delta = 1e-6, unit = 'entity'" } else { "delta = 1e-6" };
        let releases = [("rows.csv", "1"), ("rows.ndjson", "2")].map(|(path, workers)| {
            let pipeline = pipeline(path, &more).replace("delta = 1e-6", unit);
            let pipeline = lab.write(&format!("{name}-{path}.toml"), pipeline);
            let state = lab.path(&format!("{name}-{path}"));
            let workers = workers.parse().expect("a number");
            finish(&mut run(&pipeline, &state, workers)).succeeded();
            finish(&mut tail(&state, &["--view", "moments"])).succeeded().json()
        });
        let values = releases.map(|lines| lines.iter().map(|line| line["first"].clone()).collect::<Vec<_>>());
        assert_eq!(values[0], values[1], "{name}");
    }
}

#[test]
fn estimators_of_complete_rows_are_refused() {
    let lab = Lab::new();
    lab.write("rows.csv", "x,y,z\n1,2,3\n");
    let refused =
        |more: &str, parts: &[&str]| run_json(&lab, "refused", &pipeline("rows.csv", more)).failed(2, parts);
    for method in ["pp", "joint-clip", "gaussian", "ssp"] {
        let part = "source.missing: this method needs complete rows";
        let more = match method {
            "gaussian" => "release = { method = 'gaussian', corruption = 0.01, scale = [1, 1, 1] }".into(),
            method => format!("release.method = '{method}'"),
        };
        refused(&more, &[part, "choose \"skip\""]);
    }
    let one = "name = 'n'\nsource = { path = 'rows.csv', missing = 'by-column' }
columns = [{ name = 'x', lower = 0, upper = 1 }]\nepochs = { records = 1, horizon = 1 }
privacy = { epsilon = 1, delta = 1e-6 }";
    run_json(&lab, "one", one).failed(2, &["source.missing: there is one column"]);
}

fn by_key(more: &str) -> String {
    format!(
        "name = 'kinds'
source.path = 'kinds.csv'
key = {{ column = 'kind', values = ['a', 'b', 'c'] }}
epochs = {{ records = 900, horizon = 2 }}
privacy = {{ epsilon = 30, delta = 1e-6 }}
{more}
[[columns]]
name = 'value'
lower = 0
upper = 1000
[columns.bounds]
a = [0, 10]
b = [-300, -100]
"
    )
}

#[test]
fn keys_with_bounds_of_their_own_are_reported_in_their_own_units() {
    let lab = Lab::new();
    let mut text = String::from("kind,value\n");
    for at in 0..600 {
        let share = f64::from(at % 100) / 100.0;
        let _ = writeln!(text, "a,{}\nb,{}\nc,{}", 2.0 + 6.0 * share, -200.0 + 150.0 * share, 1000.0 * share);
    }
    lab.write("kinds.csv", text);
    let lines = run_json(&lab, "state", &by_key("views = [{ name = 'all', workload = 'prefix' }]"))
        .succeeded()
        .json();
    // Two in three values of b lie between the bounds; the others count as −100.
    let clipped = (0..100).map(|at| (-200.0 + 1.5 * f64::from(at)).min(-100.0)).sum::<f64>() / 100.0;
    for (line, (key, mean)) in lines[3..].iter().zip([("a", 2.0 + 6.0 * 0.495), ("b", clipped), ("c", 495.0)])
    {
        assert_eq!(line["key"], key);
        near(key, &line["mean"]["value"], &line["mean_noise"]["value"], mean);
    }
    // The noise is in proportion to the width of the bounds.
    let noise = |line: &Value| number(&line["mean_noise"]["value"]);
    assert!(noise(&lines[3]) < 0.02 * noise(&lines[5]), "{lines:?}");
    finish(&mut tail(&lab.path("state"), &["--total"])).failed(2, &["bounds of their own"]);
    let total = "views = [{ name = 'all', workload = 'prefix', keys = 'total' }]";
    run_json(&lab, "total", &by_key(total)).failed(2, &["views[0].keys: keys have bounds of their own"]);
    let unknown = by_key("").replace("b = [", "bb = [");
    run_json(&lab, "unknown", &unknown)
        .failed(2, &["columns[0].bounds: there is no key \"bb\"", "expected one of a, b, c"]);
    let ends = by_key("").replace("[0, 10]", "[10, 0]");
    run_json(&lab, "ends", &ends)
        .failed(2, &["columns[0].bounds.a: found [10, 0], expected a lower and an upper bound"]);
    // Without bounds for other keys, each key has its own.
    let ends = "lower = 0\nupper = 1000\n";
    run_json(&lab, "lacking", &by_key("").replace(ends, ""))
        .failed(2, &["columns[0].bounds: the key \"c\" has no bounds", "add for example c = [0, 60]"]);
    run_json(&lab, "half", &by_key("").replace("lower = 0\n", "")).failed(2, &["the field lower is missing"]);
    let every = by_key("").replace(ends, "") + "c = [0, 1000]\n";
    let own = run_json(&lab, "every", &every).succeeded().json();
    near("c", &own[5]["mean"]["value"], &own[5]["mean_noise"]["value"], 495.0);
    let keyless = by_key("").replace("key = {", "# key = {");
    run_json(&lab, "keyless", &keyless).failed(2, &["columns[0].bounds: there is no [key]"]);
}

/// The forecast for a share of missing values is the half-width that a run publishes, except for
/// the noise of its counts (0.1 % here).
#[test]
fn plan_forecasts_the_intervals_of_columns_that_lack_values() {
    let lab = Lab::new();
    let value = |row: usize, missing: bool| match missing {
        true => String::new(),
        false => (if (row / 16).is_multiple_of(2) { 0.25 } else { 0.75 }).to_string(),
    };
    let rows: String =
        (0..8000).map(|row| format!("{},{}\n", value(row, row % 4 == 0), value(row, row % 16 > 4))).collect();
    lab.write("data.csv", format!("x,y\n{rows}"));
    let text = "name = 'n'
        source = { path = 'data.csv', missing = 'by-column' }
        columns = [{ name = 'x', lower = 0, upper = 1 }, { name = 'y', lower = 0, upper = 1 }]
        epochs = { records = 2000, horizon = 4 }
        privacy = { epsilon = 30, delta = 1e-6 }
        simulation = { seed = 7 }";
    let line = run_json(&lab, "state", text).succeeded().json().pop().expect("four epochs");
    let plan = |more: &[&str]| {
        let file = lab.path("state.toml");
        finish(hushflow(["plan", "--json", "--records-per-epoch", "2000"]).arg(file).args(more))
    };
    // 3/4 of the rows have x, and 5/16 have y.
    let planned = plan(&["--missing-share", "x=0.25", "--missing-share", "y=0.6875"]).succeeded().json();
    for column in 0..2 {
        let ends = [0, 1].map(|end| number(&line["mean_interval"][["x", "y"][column]][end]));
        let forecast = &planned[0]["of_file"]["columns"][column];
        let (found, expected) = ((ends[1] - ends[0]) / 2.0, number(&forecast["mean"]["last_epoch"]));
        assert!((found / expected - 1.0).abs() < 0.02, "{column}: {found} and {expected}");
        assert_eq!(forecast["missing_share"], [0.25, 0.6875][column]);
    }
    let supposed =
        finish(hushflow(["plan", "--records-per-epoch", "9"]).arg(lab.path("state.toml"))).succeeded();
    assert!(supposed.out.contains("supposes that no value is missing"), "{}", supposed.out);
    plan(&["--missing-share", "z=0.1"]).failed(2, &["no column \"z\""]);
    plan(&["--missing-share", "x=1"]).failed(2, &["from 0 and below 1"]);
    lab.write("state.toml", text.replace("by-column", "skip"));
    plan(&["--missing-share", "x=0.1"]).failed(2, &["--records-per-epoch"]);
}
