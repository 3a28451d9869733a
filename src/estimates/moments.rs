//! `moments`: the weighted moments themselves, in centred and scaled coordinates.

use std::f64::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::{Moments, SecondMomentSource};
use serde_json::{Map, Value, json};

use super::{
    Band, Cell, ChartSeries, Estimate, EstimatorKind, Plot, ScaledView, TABLE_COLUMNS, ViewEstimator,
};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Weighted moments, in centred and scaled coordinates",
    needs: SecondMoment::None,
    flag: None,
    read: |_, _| Some(estimator()),
};

const NAME: &str = "moments";

pub(super) fn estimator() -> Arc<dyn ViewEstimator> {
    Arc::new(MomentsEstimator)
}

#[derive(Debug)]
struct MomentsEstimator;

impl ViewEstimator for MomentsEstimator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        Arc::new(MomentsEstimate { scaled: Arc::clone(scaled), moments })
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let series = scaled.columns.iter().enumerate().map(|(index, name)| ChartSeries {
            name: name.clone(),
            value: json!(["first", index]),
            band: Band::Noise(json!(["first_noise"])),
        });
        Plot {
            title: "Weighted sums, in centred and scaled coordinates".into(),
            band: "the exact sum".into(),
            series: series.collect(),
            matrix: false,
        }
    }
}

#[derive(Debug)]
struct MomentsEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
}

impl MomentsEstimate {
    fn squares_epoch_sums(&self) -> bool {
        self.moments.source != SecondMomentSource::Released
    }

    /// Second moments with their columns.
    fn squares(&self) -> impl Iterator<Item = ((usize, usize), f64)> {
        self.moments.layout.second_entries().zip(self.moments.second().iter().copied())
    }

    /// A symmetric matrix from its entries.
    fn matrix(&self, entries: impl Iterator<Item = ((usize, usize), f64)>) -> Value {
        let dimension = self.moments.layout.dimension;
        let mut rows = vec![vec![0.0; dimension]; dimension];
        for ((i, j), entry) in entries {
            rows[i][j] = entry;
            rows[j][i] = entry;
        }
        json!(rows)
    }
}

impl Estimate for MomentsEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let moments = &self.moments;
        object.insert("first".into(), moments.first().into());
        object.insert("first_noise".into(), moments.noise.first.into());
        let noise = moments.noise.second;
        if moments.layout.second == SecondMoment::Full {
            let level = |(i, j)| if i == j { noise } else { noise * FRAC_1_SQRT_2 };
            object.insert("second".into(), self.matrix(self.squares()));
            let levels = self.squares().map(|(pair, _)| (pair, level(pair)));
            object.insert("second_noise".into(), self.matrix(levels));
        } else if !moments.second().is_empty() {
            object.insert("second".into(), moments.second().into());
            object.insert("second_noise".into(), vec![noise; moments.second().len()].into());
        }
    }

    fn csv_titles(&self) -> Vec<String> {
        let columns = &self.scaled.columns;
        let mut titles: Vec<_> = columns.iter().map(|column| format!("first_{column}")).collect();
        titles.push("first_noise".into());
        let prefix = if self.squares_epoch_sums() { "squared_sum" } else { "second" };
        let pair = |((i, j), _): ((usize, usize), f64)| format!("{prefix}_{}_{}", columns[i], columns[j]);
        titles.extend(self.squares().map(pair));
        if !self.moments.second().is_empty() {
            titles.extend([format!("{prefix}_noise"), format!("{prefix}_off_diagonal_noise")]);
        }
        titles
    }

    fn csv(&self) -> Vec<String> {
        let noise = self.moments.noise;
        let mut numbers = self.moments.first().to_vec();
        numbers.push(noise.first);
        numbers.extend(self.moments.second());
        if !self.moments.second().is_empty() {
            numbers.extend([noise.second, noise.second * FRAC_1_SQRT_2]);
        }
        numbers.iter().map(f64::to_string).collect()
    }

    fn titles(&self) -> Vec<String> {
        let columns = self.scaled.columns.iter().take(TABLE_COLUMNS);
        let of = |prefix: &'static str| columns.clone().map(move |name| format!("{prefix}{name}"));
        let squares = if self.squares_epoch_sums() { "(Σ)² " } else { "Σ² " };
        match self.moments.second().is_empty() {
            true => of("Σ ").collect(),
            false => of("Σ ").chain(of(squares)).collect(),
        }
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let noise = self.moments.noise;
        let sums = self.moments.first().iter().take(TABLE_COLUMNS).map(|&sum| Cell::Value(sum, noise.first));
        let squares = self.squares().filter(|((i, j), _)| i == j).take(TABLE_COLUMNS);
        Ok(sums.chain(squares.map(|(_, square)| Cell::Value(square, noise.second))).collect())
    }
}
