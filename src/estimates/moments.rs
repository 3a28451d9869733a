//! `moments`: the weighted moments themselves, in centred and scaled coordinates.

use std::f64::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use hushflow_mechanism::estimate::debias::MomentNoise;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::{Moments, SecondMomentSource};
use nalgebra::DMatrix;
use serde_json::{Map, Value, json};

use super::by_column::columnwise;
use super::{
    Averages, Band, Cell, ChartGroup, ChartSeries, Estimate, EstimateField, EstimatorKind, HistogramNeed,
    OneAverage, Plot, Reading, ScaledView, ViewEstimator,
};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Weighted moments, in centred and scaled coordinates",
    needs: SecondMoment::None,
    histograms: HistogramNeed::None,
    own_workloads: false,
    flag: None,
    fields: &[],
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

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let series = scaled.columns.iter().enumerate().map(|(index, name)| ChartSeries {
            name: name.clone(),
            value: json!(["first", index]),
            band: Band::Noise(json!(["first_noise"])),
        });
        let title = "Weighted sum, in centred and scaled coordinates".into();
        Plot {
            band: "the exact sum".into(),
            groups: vec![ChartGroup { name: "sum", title, series: series.collect() }],
            matrix: false,
        }
    }
}

impl OneAverage for MomentsEstimator {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        match ColumnwiseSums::new(&moments, scaled) {
            Some(sums) => Arc::new(ColumnwiseMomentsEstimate { scaled: Arc::clone(scaled), moments, sums }),
            None => Arc::new(MomentsEstimate { scaled: Arc::clone(scaled), moments }),
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

    fn fields(&self) -> Vec<EstimateField> {
        let first = self.moments.first().iter().map(|&sum| Some((sum, self.moments.noise.first)));
        let statistic = if self.squares_epoch_sums() { "squared_sum" } else { "second" };
        let first = self.scaled.columns.iter().zip(first);
        let first = first.flat_map(|(column, found)| EstimateField::noisy("first", &[column], found));
        first.chain(second_fields(statistic, &self.scaled.columns, self.squares(), &self.moments)).collect()
    }

    fn titles(&self) -> Vec<String> {
        let squares = if self.squares_epoch_sums() { "(Σ)² " } else { "Σ² " };
        titles(&self.scaled, &self.moments, &["Σ "], squares)
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let noise = self.moments.noise;
        let sums = self.moments.first().iter().map(|&sum| Cell::Value(sum, noise.first));
        let squares = self.squares().filter(|((i, j), _)| i == j);
        Ok(sums.chain(squares.map(|(_, square)| Cell::Value(square, noise.second))).collect())
    }

    fn reading(&self, _group: &str, index: usize) -> Reading {
        Reading::with_noise(self.moments.first().get(index).copied(), self.moments.noise.first)
    }
}

/// The fields of second moments and their noise, on and off the diagonal.
fn second_fields(
    statistic: &'static str,
    columns: &[String],
    squares: impl Iterator<Item = ((usize, usize), f64)>,
    moments: &Moments,
) -> impl Iterator<Item = EstimateField> {
    let noise = moments.noise.second;
    squares.flat_map(move |((i, j), square)| {
        let level = if i == j { noise } else { noise * FRAC_1_SQRT_2 };
        EstimateField::noisy(statistic, &[&columns[i], &columns[j]], Some((square, level)))
    })
}

/// Titles of the cells of each kind, and of squares if they are known.
fn titles(scaled: &ScaledView, moments: &Moments, kinds: &[&str], squares: &str) -> Vec<String> {
    let squares = (!moments.second().is_empty()).then_some(squares);
    let kinds = kinds.iter().copied().chain(squares);
    kinds.flat_map(|kind| scaled.columns.iter().map(move |name| format!("{kind}{name}"))).collect()
}

/// Sums of each column and pair over the rows that have them, and the noise of each kind.
#[derive(Debug)]
struct ColumnwiseSums {
    /// Counts and Σx of columns.
    counts: Vec<f64>,
    first: Vec<f64>,
    noise: MomentNoise,
    /// Counts and Σx of pairs; Σx is that of the row's column. Null on the diagonal.
    pairs: Option<PairSums>,
}

#[derive(Debug)]
struct PairSums {
    counts: DMatrix<f64>,
    first: DMatrix<f64>,
    noise: MomentNoise,
}

impl ColumnwiseSums {
    /// `None` unless values may be missing one by one.
    fn new(moments: &Moments, scaled: &ScaledView) -> Option<Self> {
        let moments = columnwise(moments, scaled)?;
        let columns: Vec<_> = (0..moments.columns()).map(|column| moments.column(column)).collect();
        let (mut counts, mut first) = (DMatrix::from_element(columns.len(), columns.len(), f64::NAN), None);
        let mut noise = None;
        for (i, j) in (0..columns.len()).flat_map(|i| (0..columns.len()).map(move |j| (i, j))) {
            let Some(pair) = moments.pair(i, j) else { continue };
            counts[(i, j)] = pair.count().0;
            first.get_or_insert_with(|| counts.map(|_| f64::NAN))[(i, j)] = pair.first()[0];
            noise = Some(pair.noise());
        }
        Some(Self {
            counts: columns.iter().map(|column| column.count().0).collect(),
            first: columns.iter().map(|column| column.first()[0]).collect(),
            noise: columns.first()?.noise(),
            pairs: first.zip(noise).map(|(first, noise)| PairSums { counts, first, noise }),
        })
    }
}

/// The sums by column.
#[derive(Debug)]
struct ColumnwiseMomentsEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
    sums: ColumnwiseSums,
}

impl ColumnwiseMomentsEstimate {
    /// Second moments of columns and pairs of columns, each over the rows that have them.
    fn squares(&self) -> impl Iterator<Item = ((usize, usize), f64)> {
        let columns = self.scaled.columns.len();
        let entries = self.moments.layout.second_entries().zip(self.moments.second().iter().copied());
        entries.filter(move |((i, j), _)| *i < columns && *j < columns)
    }

    fn matrix(&self, entry: impl Fn(usize, usize) -> f64) -> Value {
        let all = 0..self.scaled.columns.len();
        // JSON has no NaN: it becomes null.
        let row = |i| all.clone().map(|j| json!(entry(i, j))).collect::<Value>();
        all.clone().map(row).collect()
    }
}

impl Estimate for ColumnwiseMomentsEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let ColumnwiseSums { counts, first, noise, pairs } = &self.sums;
        object.insert("column_count".into(), counts.clone().into());
        object.insert("column_count_noise".into(), noise.count.into());
        object.insert("first".into(), first.clone().into());
        object.insert("first_noise".into(), noise.first.into());
        if let Some(pairs) = pairs {
            let mut second = pairs.counts.clone();
            self.squares().for_each(|((i, j), sum)| (second[(i, j)], second[(j, i)]) = (sum, sum));
            let level = |i, j| if i == j { noise.second } else { noise.second * FRAC_1_SQRT_2 };
            object.insert("second".into(), self.matrix(|i, j| second[(i, j)]));
            object.insert("second_noise".into(), self.matrix(level));
            object.insert("pair_count".into(), self.matrix(|i, j| pairs.counts[(i, j)]));
            object.insert("pair_count_noise".into(), pairs.noise.count.into());
            object.insert("pair_first".into(), self.matrix(|i, j| pairs.first[(i, j)]));
            object.insert("pair_first_noise".into(), pairs.noise.first.into());
        } else if !self.moments.second().is_empty() {
            let squares: Vec<f64> = self.squares().map(|(_, sum)| sum).collect();
            object.insert("second_noise".into(), vec![noise.second; squares.len()].into());
            object.insert("second".into(), squares.into());
        }
    }

    fn fields(&self) -> Vec<EstimateField> {
        let ColumnwiseSums { counts, first, noise, .. } = &self.sums;
        let columns = &self.scaled.columns;
        let of = |statistic, sums: &[f64], noise| {
            let found = columns.iter().zip(sums);
            let field = |(column, &sum): (&String, &f64)| {
                EstimateField::noisy(statistic, &[column], Some((sum, noise)))
            };
            found.flat_map(field).collect::<Vec<_>>()
        };
        let numbers = of("count", counts, noise.count).into_iter().chain(of("first", first, noise.first));
        numbers.chain(second_fields("second", columns, self.squares(), &self.moments)).collect()
    }

    fn titles(&self) -> Vec<String> {
        titles(&self.scaled, &self.moments, &["n ", "Σ "], "Σ² ")
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let ColumnwiseSums { counts, first, noise, .. } = &self.sums;
        let counts = counts.iter().map(|&count| Cell::Value(count, noise.count));
        let sums = first.iter().map(|&sum| Cell::Value(sum, noise.first));
        let squares = self.squares().filter(|((i, j), _)| i == j);
        let squares = squares.map(|(_, square)| Cell::Value(square, noise.second));
        Ok(counts.chain(sums).chain(squares).collect())
    }

    fn reading(&self, _group: &str, index: usize) -> Reading {
        Reading::with_noise(self.sums.first.get(index).copied(), self.sums.noise.first)
    }
}
