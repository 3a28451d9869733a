//! Histograms and quantiles: against exact counts in every form, with texts, missing values, keys
//! and entities, and invalid requests.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Lab, finish, hushflow, number, tail};

const ROWS: usize = 6000;

/// The number x, a quarter of it outside of −2 to 2, and a text, in row `index`.
fn row(index: usize) -> (f64, &'static str) {
    let x = (index * 37 % 400) as f64 / 66.5 - 3.0;
    (x, ["card", "cash", "card", "", "voucher"][index % 5])
}

/// 10 epochs of 600 rows with x, a text, an entity and a key.
fn pipeline(lab: &Lab, more: &str) -> PathBuf {
    let line = |index: usize| {
        let (x, text) = row(index);
        format!("{x},{text},u{},{}\n", index % 2000, ["a", "b"][index % 2])
    };
    lab.write("data.csv", String::from("x,pay,user,key\n") + &(0..ROWS).map(line).collect::<String>());
    let text = format!(
        "name = 'histograms'
source.path = 'data.csv'
columns = [{{ name = 'x', lower = -2, upper = 2 }}]
epochs = {{ records = 600, horizon = 10 }}
simulation.seed = 3
{more}"
    );
    lab.write("histograms.toml", text)
}

const HISTOGRAMS: &str =
    "[[histograms]]\ncolumn = 'x'\nbins = 8\n[[histograms]]\ncolumn = 'pay'\nvalues = ['card', 'cash']\n";
const PRIVACY: &str = "privacy = { epsilon = 30, delta = 1e-6 }\n";
const VIEWS: &str = "[[views]]\nname = 'bins'\nworkload = 'prefix'\nestimate = 'histogram'
[[views]]\nname = 'middle'\nworkload = 'prefix'\nestimate = 'quantiles'\nquantiles = [0.5, 0.9]\ncolumn = 'x'
[[sinks]]\npath = 'lines.ndjson'\n";

/// Exact counts of the bins of x.
fn exact(rows: impl Iterator<Item = f64>) -> [f64; 8] {
    let mut bins = [0.0; 8];
    rows.for_each(|x| bins[((x.clamp(-2.0, 1.999) + 2.0) / 0.5) as usize] += 1.0);
    bins
}

fn last(state: &Path, arguments: &[&str]) -> Value {
    finish(&mut tail(state, arguments)).succeeded().json().pop().expect("a last epoch")
}

#[track_caller]
fn near(what: &str, found: &Value, expected: f64, most: f64) {
    let found = number(found);
    assert!((found - expected).abs() <= most, "{what}: {found}, not {expected} ± {most}");
}

#[track_caller]
fn check_counts(found: &Value, exact: &[f64]) {
    let list = |field: &str| found[field].as_array().expect("a list").clone();
    let (counts, noises, intervals) = (list("count"), list("count_noise"), list("count_interval"));
    assert_eq!(counts.len(), exact.len());
    for (bin, exact) in exact.iter().enumerate() {
        let noise = number(&noises[bin]);
        assert!(noise > 0.0 && noise < 20.0, "{noise}");
        near("a bin", &counts[bin], *exact, 6.0 * noise);
        assert!(number(&intervals[bin][0]) <= number(&counts[bin]).max(0.0), "{found}");
    }
}

#[test]
fn bins_and_quantiles_are_right_in_every_form() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, &format!("{PRIVACY}{HISTOGRAMS}{VIEWS}"));
    let state = lab.path("state");
    let run = finish(hushflow(["run", "--json"]).arg(&pipeline).arg("--state").arg(&state)).succeeded();
    assert_eq!(std::fs::read_to_string(lab.path("lines.ndjson")).expect("a sink"), run.out);
    let lines = run.json();
    let [bins, middle] = [&lines[lines.len() - 2], &lines[lines.len() - 1]];
    let all = exact((0..ROWS).map(|index| row(index).0));
    check_counts(&bins["histograms"]["x"], &all);
    // A missing or unlisted text falls into no bin, and its row counts.
    check_counts(&bins["histograms"]["pay"], &[2400.0, 1200.0]);
    near("count", &bins["count"], ROWS as f64, 6.0 * number(&bins["count_noise"]));
    assert_eq!(bins["histograms"]["pay"]["values"], json!(["card", "cash"]));
    assert_eq!(bins["histograms"]["x"]["edges"][1], json!(-1.5));
    near("share", &bins["histograms"]["pay"]["share"][0], 2.0 / 3.0, 0.01);
    let distribution = &bins["histograms"]["x"]["distribution"];
    let band = &bins["histograms"]["x"]["distribution_band"];
    let mut below = 0.0;
    for (edge, bin) in all.iter().enumerate() {
        below += bin / ROWS as f64;
        near("distribution", &distribution[edge], below, 0.01);
        assert!(number(&band[edge][0]) <= below + 1e-9 && number(&band[edge][1]) >= below - 1e-9, "{band}");
    }
    let mut values: Vec<f64> = (0..ROWS).map(|index| row(index).0.clamp(-2.0, 2.0)).collect();
    values.sort_by(f64::total_cmp);
    for (index, q) in [(0, 0.5), (1, 0.9)] {
        let found = &middle["quantiles"]["x"][index];
        let truth = values[(q * ROWS as f64) as usize];
        assert_eq!(found["q"], json!(q));
        assert!(number(&found["interval"][0]) <= truth && truth <= number(&found["interval"][1]), "{found}");
        assert!((number(&found["value"]) - truth).abs() < 0.5, "{found}");
    }

    let csv =
        finish(hushflow(["tail", "--view", "histogram", "--format", "csv"]).arg(&state)).succeeded().out;
    let header = "epoch,start,key,view,count,count_noise,bin_count_x_-2..-1.5,bin_count_noise_x_-2..-1.5,";
    assert!(csv.starts_with(header), "{csv}");
    assert_eq!(last(&state, &["--view", "histogram"])["histograms"], bins["histograms"]);
    let (name, of_name) = bins["histograms"].as_object().and_then(|all| all.iter().next()).expect("one");
    let one = &last(&state, &["--view", "histogram", "--column", name])["histograms"];
    assert!(one.as_object().is_some_and(|shown| shown.len() == 1) && one[name] == *of_name, "{one}");
    let quantiles = last(&state, &["--quantiles", "0.5,0.9"]);
    assert_eq!(quantiles["quantiles"], middle["quantiles"]);
    let table = finish(hushflow(["tail", "--quantiles", "0.5"]).arg(&state)).succeeded().out;
    assert!(table.contains("median x") && table.contains("edges of bins"), "{table}");
    let table = finish(hushflow(["tail", "--view", "histogram"]).arg(&state)).succeeded().out;
    assert!(table.contains("pay card") && table.contains("x -2..-1.5"), "{table}");

    let refused = |arguments: &[&str]| finish(hushflow(["tail"]).arg(&state).args(arguments));
    refused(&["--quantiles", "1.5"]).failed(2, &["found", "above 0 and below 1"]);
    refused(&["--quantiles", "half"]).failed(2, &["expected numbers between 0 and 1"]);
    // Another number of bins changes the parameters of the log.
    let text = std::fs::read_to_string(&pipeline).expect("the pipeline").replace("bins = 8", "bins = 9");
    let changed = lab.write("changed.toml", text);
    let again = finish(hushflow(["run"]).arg(changed).arg("--state").arg(&state));
    assert!(again.code != Some(0) && again.err.contains("parameters"), "{}", again.err);
}

#[test]
fn histograms_are_forecast_and_need_what_they_show() {
    let lab = Lab::new();
    let best = |more: &str| {
        let plan =
            hushflow(["plan", "--json", "--strategy", "square-root"]).arg(pipeline(&lab, more)).output();
        serde_json::from_slice::<Value>(&plan.expect("hushflow runs").stdout).expect("JSON")
    };
    let [with, without] = [format!("{PRIVACY}{HISTOGRAMS}"), PRIVACY.into()].map(|more| best(&more));
    let growth = number(&with["histogram_growth"]);
    assert!((growth - 1.25_f64.sqrt()).abs() < 1e-3, "{growth}");
    assert_eq!(without["histogram_growth"], Value::Null);
    let rise = number(&with["last_noise"]["first"]) / number(&without["last_noise"]["first"]);
    assert!((rise - growth).abs() < 1e-3, "{rise}");
    let text =
        finish(hushflow(["plan"]).arg(pipeline(&lab, &format!("{PRIVACY}{HISTOGRAMS}")))).succeeded().out;
    assert!(text.contains("raise the noise of the moments by 11.8 %"), "{text}");
    let one = hushflow(["plan", "--strategy", "square-root"])
        .arg(pipeline(&lab, &format!("{PRIVACY}{HISTOGRAMS}")))
        .output();
    let text = String::from_utf8(one.expect("hushflow runs").stdout).expect("text");
    // Lines are wrapped.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("each bin of the histograms is known to ± ") && text.contains("moments by 11.8 %"),
        "{text}"
    );

    let check = |more: &str, parts: &[&str]| {
        finish(hushflow(["check"]).arg(pipeline(&lab, more))).failed(2, parts);
    };
    let view = VIEWS.replace("column = 'x'", "column = 'pay'");
    check(&format!("{PRIVACY}{HISTOGRAMS}{view}"), &["no such histogram", "expected one of x"]);
    check(&format!("{PRIVACY}{VIEWS}"), &["histograms are released", "add one of [[histograms]]"]);
    check(&format!("{PRIVACY}[[histograms]]\ncolumn = 'x'\nedges = [1, 2]\n"), &["three ascending"]);
    check(&format!("{PRIVACY}[[histograms]]\ncolumn = 'pay'\nbins = 3\n"), &["give the edges"]);
}

/// Values that no row has, or edges for a text, leave a histogram empty.
#[test]
fn empty_histograms_are_noticed() {
    let lab = Lab::new();
    let pipeline = |more: &str| pipeline(&lab, &format!("{PRIVACY}{more}"));
    let check = |more: &str| finish(hushflow(["check"]).arg(pipeline(more)));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let good = check(HISTOGRAMS).succeeded().out;
    assert!(
        words(&good).contains("\"pay\" fall into no bin of its histogram, as they are not listed")
            && words(&good).contains("of the rows lack a value of \"pay\""),
        "{good}"
    );
    assert!(!good.contains("PROBLEM"), "{good}");
    for (bins, hint) in [("values = ['Card', 'Cash']", "to the letter"), ("edges = [0, 1, 2]", "for texts")] {
        let bins = format!("[[histograms]]\ncolumn = 'pay'\n{bins}\n");
        let found = check(&bins);
        assert_eq!(found.code, Some(4), "{}{}", found.out, found.err);
        assert!(words(&found.out).contains("nearly all values of \"pay\" fall into no bin"), "{}", found.out);
        assert!(words(&found.out).contains(hint), "{}", found.out);
        // A run stops for this only with `preflight = 'stop'`.
        let text = std::fs::read_to_string(pipeline(&bins)).expect("the pipeline");
        let text =
            text.replace("source.path = 'data.csv'", "source = { path = 'data.csv', preflight = 'stop' }");
        let run =
            finish(hushflow(["run"]).arg(lab.write("stop.toml", text)).arg("--state").arg(lab.path("stop")));
        assert!(
            run.code != Some(0) && words(&run.err).contains("nearly all values of \"pay\" fall into no bin"),
            "{}",
            run.err
        );
    }
}

/// A column that few rows have is not a mistake; a column that no row has is one.
#[test]
fn sparse_columns_of_histograms_are_judged_by_their_values() {
    let lab = Lab::new();
    let rows = |value: &dyn Fn(usize) -> &'static str| {
        (0..3000).map(|at| format!("{},{}\n", at % 7, value(at))).collect::<String>()
    };
    let check = |name: &str, rows: String| {
        lab.write(&format!("{name}.csv"), format!("x,note\n{rows}"));
        let text = format!(
            "name = '{name}'\nsource = {{ path = '{name}.csv', preflight = 'stop' }}
columns = [{{ name = 'x', lower = 0, upper = 7 }}]
epochs = {{ records = 300, horizon = 10 }}\n{PRIVACY}
[[histograms]]\ncolumn = 'note'\nvalues = ['good', 'bad']\n"
        );
        let pipeline = lab.write(&format!("{name}.toml"), text);
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (checked, ran) = (
            finish(hushflow(["check"]).arg(&pipeline)),
            finish(hushflow(["run", "--quiet"]).arg(&pipeline).arg("--state").arg(lab.path(name))),
        );
        (checked.code, words(checked.out), ran.code)
    };
    let (code, out, ran) = check("sparse", rows(&|at| if at % 100 == 99 { "good" } else { "" }));
    assert_eq!((code, ran), (Some(0), Some(0)), "{out}");
    assert!(out.contains("99.0 % of the rows lack a value of \"note\""), "{out}");
    let (code, out, ran) = check("none", rows(&|_| ""));
    assert_eq!((code, ran), (Some(4), Some(1)), "{out}");
    assert!(out.contains("no row has a value of the column \"note\" of a histogram"), "{out}");
}

/// All intervals of a line share the level: those of counts, shares, the band, and of the count.
#[test]
fn joint_intervals_divide_the_level() {
    let lab = Lab::new();
    let state = lab.path("state");
    let histogram = "[[histograms]]\ncolumn = 'x'\nbins = 8\n";
    let pipeline = pipeline(&lab, &format!("{PRIVACY}{histogram}"));
    finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
    // 2·8 + 1 + 1 statements at 90 %.
    let each = (1.0 - 0.1 / 18.0_f64).to_string();
    let joint = last(&state, &["--view", "histogram", "--level", "0.9", "--joint"]);
    let apart = last(&state, &["--view", "histogram", "--level", &each]);
    for field in ["count_interval", "share_interval", "distribution_band"] {
        let ends = |line: &Value| {
            let ends = line["histograms"]["x"][field].as_array().expect("intervals");
            ends.iter().flat_map(|pair| [number(&pair[0]), number(&pair[1])]).collect::<Vec<_>>()
        };
        for (joint, apart) in ends(&joint).into_iter().zip(ends(&apart)) {
            assert!((joint - apart).abs() <= 1e-9 * apart.abs(), "{field}: {joint}, not {apart}");
        }
    }
    near("count", &joint["count_interval"][0], number(&apart["count_interval"][0]), 1e-6);
}

/// Groups of bins are counted too, and agree with the bins.
#[test]
fn a_tree_of_bins_lowers_the_noise_of_distributions() {
    let lab = Lab::new();
    let [flat, tree] = ["", "branching = 8\n"].map(|branching| {
        let text = format!("{PRIVACY}[[histograms]]\ncolumn = 'x'\nbins = 256\n{branching}");
        let (pipeline, state) = (pipeline(&lab, &text), lab.path(&format!("state{}", branching.len())));
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
        last(&state, &["--view", "histogram"])["histograms"]["x"].clone()
    });
    let mut fine = [0.0; 256];
    (0..ROWS).for_each(|index| fine[((row(index).0.clamp(-2.0, 1.9999) + 2.0) * 64.0) as usize] += 1.0);
    check_counts(&flat, &fine);
    check_counts(&tree, &fine);
    let width = |found: &Value| {
        let band = found["distribution_band"].as_array().expect("a band");
        band.iter().map(|ends| number(&ends[1]) - number(&ends[0])).sum::<f64>()
    };
    // docs/estimates.md: 0.44 for three levels of 256 bins.
    assert!(width(&tree) < 0.6 * width(&flat), "{} {}", width(&tree), width(&flat));
}

/// A row without x counts only for its text.
#[test]
fn a_row_counts_in_the_bins_of_what_it_has() {
    let lab = Lab::new();
    let line = |index: usize| {
        format!("{},{},t{}\n", if index.is_multiple_of(4) { "" } else { "0.3" }, 0.1, index % 2)
    };
    lab.write("data.csv", String::from("x,y,text\n") + &(0..4000).map(line).collect::<String>());
    for (missing, expected, all) in
        [("skip", [0.0, 3000.0], [1000.0, 2000.0]), ("by-column", [0.0, 3000.0], [2000.0, 2000.0])]
    {
        let text = format!(
            "name = 'missing'\nsource = {{ path = 'data.csv', missing = '{missing}' }}
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
epochs = {{ records = 4000, horizon = 1 }}\nsimulation.seed = 3\n{PRIVACY}
[[histograms]]\ncolumn = 'x'\nedges = [-1, 0, 1]\n[[histograms]]\ncolumn = 'text'\nvalues = ['t0', 't1']\n"
        );
        let (pipeline, state) = (lab.write("missing.toml", text), lab.path(missing));
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
        let line = last(&state, &["--view", "histogram"]);
        check_counts(&line["histograms"]["x"], &expected);
        check_counts(&line["histograms"]["text"], &all);
    }
}

/// With keys that have bounds of their own, bins split the bounds of each. An entity counts with
/// its first record, or with the mean of its records.
#[test]
fn keys_and_entities_have_bins_too() {
    let lab = Lab::new();
    let keyed = format!(
        "{PRIVACY}key = {{ column = 'key', values = ['a', 'b'] }}\n[[histograms]]\ncolumn = 'x'\nbins = 2\n"
    );
    let bounds = "columns = [{ name = 'x', bounds = { a = [-2, 2], b = [0, 3] } }]";
    let old = pipeline(&lab, &keyed);
    let text = std::fs::read_to_string(old).expect("the pipeline");
    let text = text.replace("columns = [{ name = 'x', lower = -2, upper = 2 }]", bounds);
    let state = lab.path("keys");
    let keyed = lab.write("keyed.toml", text);
    finish(hushflow(["run"]).arg(keyed).arg("--state").arg(&state)).succeeded();
    let lines = finish(&mut tail(&state, &["--view", "histogram"])).succeeded().json();
    for (index, edges) in [(0, [-2.0, 0.0, 2.0]), (1, [0.0, 1.5, 3.0])] {
        let found = &lines[lines.len() - 2 + index]["histograms"]["x"];
        assert_eq!(found["edges"], json!(edges));
        let own = (0..ROWS).filter(|row| row % 2 == index).map(|index| row(index).0);
        let upper = own.filter(|x| *x >= edges[1]).count() as f64;
        check_counts(found, &[3000.0 - upper, upper]);
    }
    for (several, x) in [("keep", -3.0), ("average", 0.0)] {
        // Each entity sends −3 and then 3 in the same epoch.
        let line = |index: usize| format!("{},u{}\n", [-3.0, 3.0][index % 2], index / 2);
        lab.write("pairs.csv", String::from("x,user\n") + &(0..4000).map(line).collect::<String>());
        let text = format!(
            "name = 'entities'\nsource.path = 'pairs.csv'\ncolumns = [{{ name = 'x', lower = -3, upper = 3 }}]
epochs = {{ records = 4000, horizon = 1 }}\nsimulation.seed = 3
privacy = {{ epsilon = 30, delta = 1e-6, unit = 'entity', histogram_weight = 0.2 }}
entity = {{ column = 'user', participations = 1, several = '{several}' }}
[[histograms]]\ncolumn = 'x'\nedges = [-3, -1, 1, 3]\n"
        );
        let (pipeline, state) = (lab.write("entities.toml", text), lab.path(several));
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
        let line = last(&state, &["--view", "histogram"]);
        let mut expected = [0.0; 3];
        expected[((x + 3.0) / 2.0) as usize] = 2000.0;
        check_counts(&line["histograms"]["x"], &expected);
    }
}
