//! Formats of components, hidden components, correlations by column, and parameters.

use super::*;
use hushflow_mechanism::view::SecondMomentSource;
use hushflow_mechanism::workload::Workload;

use crate::estimates::{ColumnScales, EstimateView};

const LAYOUT: Layout = Layout::new(2, SecondMoment::Full);

fn log(columns: &'static [&'static str]) -> LogFacts<'static> {
    LogFacts::plain(columns, SecondMoment::Full)
}

/// Columns x and y with the half-widths 10 and 2.
fn scaled() -> Arc<ScaledView> {
    let view = EstimateView::new(Workload::Prefix, &log(&["x", "y"]));
    let columns = ["x", "y"].map(String::from).to_vec();
    let key_scales = vec![ColumnScales { centres: vec![5.0, 0.0], half_widths: vec![10.0, 2.0] }];
    Arc::new(ScaledView {
        view,
        columns,
        key_scales,
        indicator_step: None,
        keyed_bounds: Vec::new(),
        histograms: Vec::new(),
        bins_every_record: true,
    })
}

/// 1000 records of mean 0 with the covariance (0.1, 0.04; 0.04, 0.2), in scaled coordinates.
fn moments(second_noise: f64) -> Moments {
    let noise = MomentNoise { count: 0.0, first: 0.0, second: second_noise };
    Moments {
        epoch: 1,
        key: 0,
        coordinates: vec![1000.0, 0.0, 0.0, 100.0, 40.0, 200.0],
        layout: LAYOUT,
        noise,
        source: SecondMomentSource::Released,
        sent_noise: 0.0,
        bin_noise: 0.0,
    }
}

fn line(estimate: &dyn Estimate) -> Map<String, Value> {
    let mut line = Map::new();
    estimate.json(&mut line);
    line
}

#[test]
fn components_are_shown_in_every_form() {
    let pca = Pca { number: 2, of: PrincipalOf::Covariance };
    let found = pca.estimate(moments(1.0), &scaled());
    let line = line(&*found);
    let (first, second) = (&line["components"][0], &line["components"][1]);
    // (10, 0.8; 0.8, 0.8)
    let middle = 4.6f64.hypot(0.8);
    let close = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() < 1e-3, "{value} {expected}");
    };
    close(&first["eigenvalue"], 5.4 + middle);
    close(&second["eigenvalue"], 5.4 - middle);
    close(&line["total_variance"], 10.8);
    close(&first["direction"]["x"], (0.8f64.atan2(4.6) / 2.0).cos());
    assert!(
        second["direction"]["y"].as_f64().unwrap() > 0.9 && second["direction"]["x"].as_f64().unwrap() < 0.0
    );
    let angle = first["angle_degrees"].as_f64().unwrap();
    assert!(angle > 0.0 && angle < 1.0, "{angle}");
    assert_eq!((&line["quality"], &line["of"]), (&json!("good"), &json!("covariance")));
    assert_eq!(found.fields().len(), 2 * (4 + 1 + 2 * 2) + 2 + 1);
    assert_eq!(found.cells().unwrap().len(), found.titles().len());
    assert_eq!(found.titles()[..4], ["variance pc1", "variance pc2", "angle pc1", "angle pc2"]);
    assert_eq!(found.titles()[4..], ["pc1 x", "pc1 y", "pc2 x", "pc2 y"]);
}

#[test]
fn components_that_noise_mixes_have_no_direction() {
    let found = Pca { number: 1, of: PrincipalOf::Covariance }.estimate(moments(300.0), &scaled());
    let line = line(&*found);
    let component = &line["components"][0];
    assert_eq!(component["quality"], "noise-dominated");
    assert!(component["direction"].is_null() && component["angle_degrees"].is_null());
    assert!(component["eigenvalue_interval"][1].as_f64().unwrap() > 10.07);
    assert!(matches!(found.cells().unwrap()[1..], [Cell::Empty, Cell::Empty, Cell::Empty]));
    assert_eq!(found.fields().len(), 4 + 1 + 2 * 2 + 2 + 1);

    // A variance that noise may account for, and too few records.
    let correlation = Pca { number: 1, of: PrincipalOf::Correlation };
    for (noise, count, quality) in [(50.0, 0.0, "noise-dominated"), (1.0, 400.0, "too-few-records")] {
        let mut moments = moments(noise);
        moments.noise.count = count;
        let found = correlation.estimate(moments, &scaled());
        assert_eq!(found.quality(), Some(quality));
        assert!(found.cells().is_err());
        let line = self::line(&*found);
        assert_eq!(line["components"][0]["quality"], quality);
        assert!(line["components"][0]["eigenvalue"].is_null() && line["total_variance"].is_null());
        assert_eq!(found.fields().len(), 4 + 1 + 2 * 2 + 2 + 1);
    }
}

#[test]
fn the_number_of_components_is_checked() {
    let check = |text: &str, expected: Result<&str, &str>| {
        let found = ESTIMATOR.from_flag(text, &log(&["x", "y"])).map(|pca| format!("{pca:?}"));
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    };
    check("2", Ok("Pca { number: 2, of: Covariance }"));
    check("1:correlation", Ok("Pca { number: 1, of: Correlation }"));
    check("3", Err("components: found 3, expected at most 2, the number of columns"));
    check("0", Err("components: found 0, expected a whole number from 1"));
    check("two", Err("found \"two\", expected a number of components, such as 2 or 2:correlation"));
    check("1:both", Err("of: found \"both\", expected \"covariance\" or \"correlation\""));
}
