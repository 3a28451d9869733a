//! Principal components: in every form, on real flights, for entities and missing values, and
//! invalid requests.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::estimates::flights;
use crate::harness::{Lab, close, finish, hushflow, number, run, tail};

/// Rows of x, y = x/2 and w, which is independent, followed by the text `more`.
fn pipeline(lab: &Lab, settings: &str, more: &str) -> PathBuf {
    let row = |index: usize| {
        let (x, w) = ((index % 20) as f64 / 10.0 - 1.0, (index * 7 % 13) as f64 / 6.5 - 1.0);
        let y = if index.is_multiple_of(11) { String::new() } else { (x / 2.0).to_string() };
        format!("{x},{y},{w},{}\n", index % 900)
    };
    lab.write("data.csv", String::from("x,y,w,user\n") + &(0..8000).map(row).collect::<String>());
    let text = format!(
        "name = 'components'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }},
  {{ name = 'w', lower = -4, upper = 4 }}]
epochs = {{ records = 800, horizon = 10 }}
simulation.seed = 3
{settings}
{more}"
    );
    lab.write("components.toml", text)
}

const COMPLETE: &str =
    "source.path = 'data.csv'\nsource.missing = 'skip'\nprivacy = { epsilon = 20, delta = 1e-6 }\n";

const VIEW: &str = "[[views]]\nname = 'so far'\nworkload = 'prefix'\nestimate = 'pca'\ncomponents = 2\n[[sinks]]\npath = 'lines.ndjson'\n";

fn last(state: &Path, arguments: &[&str]) -> Value {
    finish(&mut tail(state, arguments)).succeeded().json().pop().expect("a last epoch")
}

#[test]
fn components_are_computed_in_every_form() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, COMPLETE, VIEW);
    let state = lab.path("state");
    let run = finish(hushflow(["run", "--json"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
    assert_eq!(std::fs::read_to_string(lab.path("lines.ndjson")).expect("a sink"), run.out);
    let tailed = |arguments: &[&str]| {
        finish(hushflow(["tail", "--pca", "2"]).arg(&state).args(arguments)).succeeded().out
    };
    assert_eq!(tailed(&["--json"]), run.out);
    let last = run.json().pop().expect("ten epochs");
    let [first, second] = [0, 1].map(|index| &last["components"][index]);
    // The component of (x, x/2), then that of w.
    for (component, value) in [(first, 0.416), (second, 0.359)] {
        let (found, noise) = (number(&component["eigenvalue"]), number(&component["eigenvalue_noise"]));
        assert!(noise < 0.02 && (found - value).abs() < 6.0 * noise + 0.003, "{found} ± {noise}");
        assert!(component["eigenvalue_interval"][0].as_f64() < Some(found));
    }
    close("total", &last["total_variance"], 0.775, 0.1);

    let csv = tailed(&["--format", "csv"]);
    let header = "epoch,start,key,view,count,count_noise,eigenvalue_1,eigenvalue_noise_1,eigenvalue_lower_1,\
        eigenvalue_upper_1,angle_degrees_1,direction_1_x,direction_noise_1_x,direction_1_y,direction_noise_1_y,\
        direction_1_w,direction_noise_1_w,eigenvalue_2,";
    assert!(csv.starts_with(header), "{csv}");
    assert!(csv.lines().all(|line| line.split(',').count() == 31), "{csv}");
    let table = tailed(&[]);
    for part in ["±: half-width of the 95 %", "variance pc1", "angle pc2", "pc1 x", "in degrees"] {
        assert!(table.contains(part), "{part:?}: {table}");
    }

    // In the correlation, w is alone: the first component is (1, 1)/√2 with the variance 2.
    let line = self::last(&state, &["--pca", "3:correlation"]);
    let component = &line["components"][0];
    assert_eq!((&component["quality"], &line["of"]), (&json!("good"), &json!("correlation")));
    close("total", &line["total_variance"], 3.0, 0.0);
    let angle = number(&component["angle_degrees"]).to_radians();
    let cosine = (number(&component["direction"]["x"]) + number(&component["direction"]["y"])) / 2f64.sqrt();
    assert!(angle < 0.2 && cosine.acos() < 2.0 * angle, "{angle} {cosine}");
    let refused = finish(hushflow(["tail", "--pca", "1", "--sample", "3"]).arg(&state));
    refused.failed(2, &["--sample", "use --view gaussian"]);
}

#[test]
fn delays_of_flights_have_one_component() {
    let lab = Lab::new();
    let state = flights(&lab);
    let line = last(&state, &["--pca", "2", "--key", "JFK"]);
    let first = &line["components"][0];
    assert_eq!(first["quality"], "good", "{line}");
    assert!(number(&first["direction"]["dep_delay"]) > 0.4 && number(&first["direction"]["arr_delay"]) > 0.4);
    assert!(number(&first["angle_degrees"]) < 30.0 && number(&first["eigenvalue"]) > 1000.0, "{line}");
    let wider = last(&state, &["--pca", "2", "--key", "JFK", "--joint", "--population"]);
    assert!(wider["components"][0]["angle_degrees"].as_f64() > first["angle_degrees"].as_f64(), "{wider}");
}

#[test]
fn components_of_different_rows_need_an_assumption() {
    let lab = Lab::new();
    let settings = COMPLETE.replace("'skip'", "'by-column'");
    let state = lab.path("state");
    finish(&mut run(&pipeline(&lab, &settings, ""), &state, 1)).succeeded();
    let line = last(&state, &["--pca", "1"]);
    assert_eq!(line["quality"], "different-rows");
    assert!(line["components"][0]["eigenvalue"].is_null());
    let line = last(&state, &["--pca", "1:correlation", "--missing-at-random"]);
    assert_eq!(line["quality"], "good", "{line}");
    assert!((number(&line["components"][0]["eigenvalue"]) - 2.0).abs() < 0.5, "{line}");
}

#[test]
fn invalid_requests_for_components_are_refused() {
    let refused = |settings: &str, view: &str, parts: &[&str]| {
        let lab = Lab::new();
        let pipeline = pipeline(&lab, settings, view);
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(lab.path("state"))).failed(2, parts);
    };
    let view = |components: &str| VIEW.replace("components = 2", components);
    refused(COMPLETE, &view("components = 4"), &["views[0].components: found 4, expected at most 3"]);
    refused(COMPLETE, &view(""), &["views[0]: the field components is missing"]);
    refused(
        COMPLETE,
        &view("components = 1\nof = 'x'"),
        &["views[0].of: found \"x\", expected \"covariance\""],
    );
    let diagonal = COMPLETE.replace("1e-6", "1e-6, second_moments = 'diagonal'");
    refused(&diagonal, VIEW, &["views[0].estimate: no second moments of pairs of columns are released"]);
}
