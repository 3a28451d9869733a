//! Estimates of windows by column: whitened, and as CSV.

use crate::harness::{Lab, finish, hushflow, run};
use crate::windows::{COVARIANCE, MEAN, WEATHER, lines, weather, window};

/// Correlated columns are whitened if the pipeline says so, with the noise of the command, and the
/// log is read as written.
#[test]
fn whitening_is_chosen_by_name() {
    let lab = Lab::new();
    let release = "method = 'prime-ht'\ncorruption = 0.01\nscale = 'whiten'\n";
    let (pipeline, state) = (weather(&lab, WEATHER, 365, release, ""), lab.path("state"));
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let rows = lab.write("ewr.csv", window(WEATHER, "EWR", "2013-01-01T05", "2014-01-01T05"));
    let asked =
        ["--columns", "temp,wind_speed", "--method", "prime-ht", "--scale", "whiten", "--corruption", "0.01"];
    let promise = ["--epsilon", "2", "--delta", "1e-6", "--seed", "5", "--json"];
    let command = finish(hushflow(["mean".as_ref(), rows.as_os_str()]).args(asked).args(promise));
    let (expected, found) = (command.succeeded().json().remove(0), lines(&state).remove(0));
    for field in ["mean", "noise", "kept", "parts", "spent"] {
        assert!(!expected[field].is_null(), "{field} {expected}");
        assert_eq!(found[field], expected[field], "{field}");
    }
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(lines(&state)[0], found, "a run that goes on knows its own header");
}

/// Every line has as many fields as the header, the numbers of JSON, and a reason if there is no
/// estimate.
#[test]
fn csv_holds_the_numbers_of_json() {
    let lab = Lab::new();
    for (release, matrix) in [(MEAN, false), (COVARIANCE, true)] {
        let (pipeline, state) =
            (weather(&lab, WEATHER, 91, release, ""), lab.path(&release.len().to_string()));
        let flags = ["--format", "csv"];
        let of_run = finish(
            hushflow(["run".as_ref(), pipeline.as_os_str(), "--state".as_ref(), state.as_os_str()])
                .args(flags),
        );
        let text = of_run.succeeded().out;
        let of_tail = finish(hushflow(["tail".as_ref(), state.as_os_str()]).args(flags)).succeeded().out;
        assert_eq!(text, of_tail, "run and tail write the same");
        let mut csv = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = csv.next().unwrap();
        let json = lines(&state);
        assert_eq!(csv.clone().count(), json.len());
        for (line, json) in csv.zip(json) {
            let number = |name: &str| {
                let index = header
                    .iter()
                    .position(|field| *field == name)
                    .unwrap_or_else(|| panic!("{name} {header:?}"));
                line[index].parse::<f64>().ok()
            };
            assert_eq!(line.len(), header.len(), "{line:?}");
            assert_eq!(line[2], json["key"].as_str().unwrap());
            assert_eq!(number("mean_wind_speed"), json["mean"][1].as_f64());
            assert_eq!(number("rows"), json["rows"].as_f64());
            if matrix {
                assert_eq!(number("covariance_temp_wind_speed"), json["covariance"][0][1].as_f64());
            }
        }
    }
    let state = lab.path("few");
    let one = lab.write("one.csv", window(WEATHER, "EWR", "2013-01-01T05", "2013-01-01T07"));
    finish(&mut run(&weather(&lab, one.to_str().unwrap(), 91, MEAN, ""), &state, 1)).succeeded();
    let csv =
        finish(hushflow(["tail".as_ref(), state.as_os_str()]).args(["--format", "csv"])).succeeded().out;
    assert!(csv.lines().nth(1).unwrap().contains("rows are too few"), "{csv}");
}
