//! JSON lines: one object for a key at an epoch.

use hushflow_mechanism::estimate::density::Density;
use hushflow_mechanism::estimate::intervals::Interval;
use hushflow_mechanism::moments::Layout;
use hushflow_mechanism::view::SecondMomentSource;
use serde_json::{Map, Value, json};

use super::Line;

pub(super) fn line(line: &Line<'_>) -> String {
    let moments = line.moments;
    let mut object = Map::new();
    object.insert("epoch".into(), moments.epoch.into());
    if !line.start().is_empty() {
        object.insert("start".into(), line.start().into());
    }
    object.insert("key".into(), line.key().into());
    object.insert("view".into(), line.view.name.as_str().into());
    object.insert("workload".into(), line.view.workload.to_string().into());
    object.insert("private".into(), line.publication.is_private().into());
    object.insert("generation".into(), line.stamp.generation.into());
    object.insert("chain".into(), line.stamp.chain.short().into());
    object.insert("count".into(), moments.count().into());
    object.insert("count_noise".into(), moments.noise.count.into());
    if let SecondMomentSource::EpochSums(bias) = moments.source {
        object.insert("second_moments_of".into(), "epoch-sums".into());
        object.insert("squares".into(), json!(bias));
    }
    match line.density {
        None => insert_moments(&mut object, line),
        Some(density) => {
            object.insert("quality".into(), line.quality().into());
            insert_density(&mut object, line, density.ok());
            insert_intervals(&mut object, line);
        }
    }
    Value::Object(object).to_string()
}

/// Adds moments, in centred and scaled coordinates.
fn insert_moments(object: &mut Map<String, Value>, line: &Line<'_>) {
    let moments = line.moments;
    object.insert("first".into(), moments.first().into());
    object.insert("first_noise".into(), moments.noise.first.into());
    let noise = moments.noise.second;
    if line.is_full() {
        let second = moments.second();
        object.insert("second".into(), matrix(moments.layout, |place, _, _| second[place]));
        let level = |i, j| if i == j { noise } else { noise * std::f64::consts::FRAC_1_SQRT_2 };
        object.insert("second_noise".into(), matrix(moments.layout, |_, i, j| level(i, j)));
    } else if !moments.second().is_empty() {
        object.insert("second".into(), moments.second().into());
        object.insert("second_noise".into(), vec![noise; moments.second().len()].into());
    }
}

/// Adds the density in the units of the columns; null if the count is too small for its noise.
fn insert_density(object: &mut Map<String, Value>, line: &Line<'_>, density: Option<&Density>) {
    let by_column = |numbers: Option<&[f64]>| match numbers {
        Some(numbers) => {
            line.columns().map(String::from).zip(numbers.iter().map(|&x| Value::from(x))).collect()
        }
        None => Value::Null,
    };
    object.insert("mean".into(), by_column(density.map(|density| density.mean.as_slice())));
    object.insert("mean_noise".into(), by_column(density.map(|density| density.mean_noise.as_slice())));
    let square = |choose: fn(&Density) -> &nalgebra::DMatrix<f64>| match density {
        Some(density) => {
            let rows = choose(density).row_iter().map(|row| row.iter().copied().collect::<Vec<_>>());
            json!(rows.collect::<Vec<_>>())
        }
        None => Value::Null,
    };
    object.insert("covariance".into(), square(|density| &density.covariance));
    object.insert("covariance_noise".into(), square(|density| &density.covariance_noise));
}

/// Adds intervals in the units of the columns; null for unknown or infinite ends.
fn insert_intervals(object: &mut Map<String, Value>, line: &Line<'_>) {
    let view = line.view;
    object.insert("projection".into(), view.covariance.name().into());
    object.insert("level".into(), view.intervals.level.into());
    object.insert("joint".into(), view.intervals.joint.into());
    object.insert("about".into(), if view.intervals.population { "population" } else { "records" }.into());
    let dimension = line.moments.layout.dimension;
    let ends = |interval: Option<Interval>| interval.map_or(Value::Null, |x| json!([x.lower, x.upper]));
    let by_column = |interval: &dyn Fn(usize) -> Option<Interval>| -> Value {
        line.columns().map(String::from).zip((0..dimension).map(|i| ends(interval(i)))).collect()
    };
    let square = |entry: &dyn Fn((usize, usize)) -> Value| -> Value {
        (0..dimension).map(|i| (0..dimension).map(|j| entry((i, j))).collect::<Value>()).collect()
    };
    object.insert("mean_interval".into(), by_column(&|i| line.mean_interval(i)));
    object.insert("covariance_interval".into(), square(&|pair| ends(line.covariance_interval(pair))));
    let deviation = |i| Some(line.covariance_interval((i, i))?.square_root());
    object.insert("standard_deviation_interval".into(), by_column(&deviation));
    let correlation = |pair| line.correlation(pair);
    object.insert("correlation".into(), square(&|pair| correlation(pair).map(|(value, _)| value).into()));
    object
        .insert("correlation_interval".into(), square(&|pair| ends(correlation(pair).map(|found| found.1))));
}

/// A symmetric matrix from its packed entries.
fn matrix(layout: Layout, entry: impl Fn(usize, usize, usize) -> f64) -> Value {
    let mut rows = vec![vec![0.0; layout.dimension]; layout.dimension];
    for (place, (i, j)) in layout.second_entries().enumerate() {
        rows[i][j] = entry(place, i, j);
        rows[j][i] = rows[i][j];
    }
    json!(rows)
}
