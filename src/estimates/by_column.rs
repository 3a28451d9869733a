//! `gaussian` for logs with `missing = "by-column"`: each column over the rows that have it, each
//! covariance over the rows that have both columns (`docs/estimates.md`).

use std::sync::Arc;

use hushflow_mechanism::estimate::by_column::{ColumnwiseMoments, PairCorrelation, SubsetMoments};
use hushflow_mechanism::estimate::density::{Density, DensityError, Quality};
use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::view::Moments;
use nalgebra::{DMatrix, DVector};
use serde_json::{Map, Value, json};

use super::gaussian::{ends, quality, within_bounds};
use super::{CORRELATION, COUNTS, Cell, ColumnScales, Estimate, EstimateField, Reading, ScaledView, pairs};

/// Returns the moments by column, if rows of the log may lack some of their columns.
pub(super) fn columnwise<'a>(moments: &'a Moments, scaled: &ScaledView) -> Option<ColumnwiseMoments<'a>> {
    // A publication by column has these moments.
    ColumnwiseMoments::new(moments.noisy(), scaled.indicator_step?).ok()
}

/// Mean and covariance by column, in the units of the columns.
#[derive(Debug)]
pub(super) struct ColumnwiseEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
    /// The density of each column alone.
    columns: Vec<Result<Density, DensityError>>,
    /// Covariances before projection and their noise; NaN if there is no estimate.
    covariance: (DMatrix<f64>, DMatrix<f64>),
    /// All columns together, with the view's projection.
    density: Result<Density, DensityError>,
}

impl ColumnwiseEstimate {
    /// Estimates from moments of a log by column. Returns the moments of other logs unchanged.
    pub(super) fn new(moments: Moments, scaled: &Arc<ScaledView>) -> Result<Self, Moments> {
        let Some(by_column) = columnwise(&moments, scaled) else { return Err(moments) };
        let ColumnScales { centres, half_widths } = scaled.scales(moments.key);
        let projection = scaled.view.covariance;
        let own = |column: usize| {
            let density = by_column.column(column).noisy().density_by(projection)?;
            let density = within_bounds(density, projection);
            density.to_units(&half_widths[column..=column], &centres[column..=column])
        };
        let columns: Vec<_> = (0..by_column.columns()).map(own).collect();
        let area = {
            let widths = DVector::from_column_slice(half_widths);
            &widths * widths.transpose()
        };
        let in_units = |(matrix, noise): (DMatrix<f64>, DMatrix<f64>)| {
            (matrix.component_mul(&area), noise.component_mul(&area))
        };
        let covariance = in_units(by_column.entries());
        let projected = by_column.covariance_matrix(projection).map(in_units);
        let density = match (columns.iter().find_map(|column| column.as_ref().err()), projected) {
            (Some(error), _) => Err(*error),
            (None, None) => Err(pair_error(&by_column)),
            (None, Some(projected)) => Ok(joint_density(&columns, projected, &moments)),
        };
        Ok(Self { scaled: Arc::clone(scaled), columns, covariance, density, moments })
    }

    fn by_column(&self) -> Option<ColumnwiseMoments<'_>> {
        columnwise(&self.moments, &self.scaled)
    }

    /// Pairs of columns whose second moment is known, in the order of moments.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let layout = Layout::new(self.columns.len(), self.moments.layout.second);
        layout.second_entries()
    }

    fn is_full(&self) -> bool {
        self.moments.layout.second == SecondMoment::Full
    }

    /// The confidence of each interval by itself.
    fn confidence(&self) -> Confidence {
        let confidence = self.scaled.view.confidence(self.moments.epoch);
        let statements = if confidence.joint { self.columns.len() + self.pairs().count() } else { 1 };
        let level = 1.0 - (1.0 - confidence.level) / statements as f64;
        Confidence { level, joint: false, ..confidence }
    }

    fn scales(&self) -> &ColumnScales {
        self.scaled.scales(self.moments.key)
    }

    fn column_count(&self, column: usize) -> (f64, f64) {
        self.by_column().map_or((f64::NAN, f64::NAN), |moments| moments.column(column).count())
    }

    fn column_count_interval(&self, column: usize) -> Option<Interval> {
        Some(self.by_column()?.column_count_interval(column, self.scaled.view.intervals.level))
    }

    /// The count of a column, within its interval.
    fn shown_column_count(&self, column: usize) -> Option<f64> {
        Some(self.column_count_interval(column)?.nearest(self.column_count(column).0))
    }

    fn pair_count(&self, (i, j): (usize, usize)) -> Option<(f64, f64)> {
        let moments = self.by_column()?;
        Some(if i == j { moments.column(i).count() } else { moments.pair(i, j)?.count() })
    }

    fn mean(&self, column: usize) -> Option<(f64, f64)> {
        let density = self.columns[column].as_ref().ok()?;
        Some((density.mean[0], density.mean_noise[0]))
    }

    /// A covariance and its noise. A variance is that of the density of its column, after the
    /// view's projection.
    fn covariance(&self, pair: (usize, usize)) -> Option<(f64, f64)> {
        if pair.0 == pair.1 {
            let density = self.columns[pair.0].as_ref().ok()?;
            return Some((density.covariance[(0, 0)], density.covariance_noise[(0, 0)]));
        }
        let (matrix, noise) = &self.covariance;
        Some((matrix[pair], noise[pair])).filter(|_| matrix[pair].is_finite())
    }

    fn mean_interval(&self, column: usize) -> Option<Interval> {
        let ColumnScales { centres, half_widths } = self.scales();
        let moments = self.by_column()?.column(column);
        let interval = moments.intervals(self.confidence()).ok()?.within_bounds().mean(0)?;
        let interval = interval.to_units(half_widths[column], centres[column]);
        Some(self.mean(column).map_or(interval, |(mean, _)| interval.with(mean)))
    }

    /// The quality of a column.
    fn word(&self, column: usize) -> &'static str {
        quality(self.columns[column].as_ref())
    }

    fn covariance_interval(&self, (i, j): (usize, usize)) -> Option<Interval> {
        let widths = &self.scales().half_widths;
        let by_column = self.by_column()?;
        let of = |moments: SubsetMoments, other: usize| {
            moments.intervals(self.confidence()).ok()?.within_bounds().covariance(0, other)
        };
        let interval = if i == j { of(by_column.column(i), 0) } else { of(by_column.pair(i, j)?, 1) };
        let interval = interval?.to_units(widths[i] * widths[j], 0.0);
        // A projection may change the estimate, so the interval is extended to contain it.
        Some(self.covariance((i, j)).map_or(interval, |(covariance, _)| interval.with(covariance)))
    }

    /// `None` unless the variance is above 0. Some projections leave a variance of 0.
    fn deviation(&self, column: usize) -> Option<f64> {
        let (variance, _) = self.covariance((column, column))?;
        (variance > 0.0).then(|| variance.sqrt())
    }

    fn deviation_interval(&self, column: usize) -> Option<Interval> {
        self.covariance_interval((column, column)).map(Interval::square_root)
    }

    fn correlation(&self, (i, j): (usize, usize)) -> Option<(PairCorrelation, Interval)> {
        let (view, moments) = (&self.scaled.view, self.by_column()?);
        let heaviest = view.workload.largest_coefficient(self.moments.epoch);
        match view.intervals.missing_at_random && !moments.contradict_random(&[i, j], heaviest) {
            true => moments.correlation_at_random(i, j, self.confidence()),
            false => moments.correlation(i, j, self.confidence()),
        }
    }

    fn of_columns(&self, value: impl Fn(usize) -> Value) -> Value {
        self.scaled.columns.iter().cloned().zip((0..).map(value)).collect()
    }

    fn of_pairs(&self, value: impl Fn((usize, usize)) -> Value) -> Value {
        let all = 0..self.columns.len();
        all.clone().map(|i| all.clone().map(|j| value((i, j))).collect::<Value>()).collect()
    }
}

/// The cell of a correlation whose quotient is beyond ±1 by more than its noise.
const BEYOND_ONE: &str = "beyond ±1";

/// Describes the estimate of a correlation in one word.
fn correlation_word((found, _): (PairCorrelation, Interval)) -> &'static str {
    match found {
        PairCorrelation::Shown(_) => "good",
        PairCorrelation::Hidden => "noise-dominated",
        PairCorrelation::BeyondOne => "beyond-one",
    }
}

/// Reason for a missing joint density although each column has one.
fn pair_error(moments: &ColumnwiseMoments<'_>) -> DensityError {
    let mut pairs = (0..moments.columns()).flat_map(|i| (0..i).map(move |j| (j, i)));
    let error = pairs.find_map(|(i, j)| moments.covariance(i, j).err());
    error.unwrap_or(DensityError::Eigenvalues)
}

/// Returns the density of all columns.
fn joint_density(
    columns: &[Result<Density, DensityError>],
    (covariance, covariance_noise): (DMatrix<f64>, DMatrix<f64>),
    moments: &Moments,
) -> Density {
    let of = |value: fn(&Density) -> f64| {
        DVector::from_iterator(columns.len(), columns.iter().flatten().map(value))
    };
    let mut qualities = columns.iter().flatten().map(|density| density.quality);
    Density {
        mean: of(|density| density.mean[0]),
        mean_noise: of(|density| density.mean_noise[0]),
        covariance,
        covariance_noise,
        count: moments.count(),
        count_noise: moments.noise.count,
        quality: qualities.rfind(|quality| *quality != Quality::Good).unwrap_or(Quality::Good),
    }
}

/// Returns the value of a pair of value and noise, or null.
fn value(pair: Option<(f64, f64)>) -> Value {
    json!(pair.map(|(value, _)| value))
}

/// Returns the noise of such a pair, or null.
fn noise(pair: Option<(f64, f64)>) -> Value {
    json!(pair.map(|(_, noise)| noise))
}

impl Estimate for ColumnwiseEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn density(&self) -> Option<Result<&Density, &DensityError>> {
        Some(self.density.as_ref())
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let view = &self.scaled.view;
        let word = |column: usize| self.word(column).into();
        let fields = [
            ("quality", self.quality().into()),
            ("quality_by_column", self.of_columns(word)),
            ("column_count", self.of_columns(|column| json!(self.shown_column_count(column)))),
            ("column_count_noise", self.of_columns(|column| noise(Some(self.column_count(column))))),
            ("column_count_interval", self.of_columns(|column| ends(self.column_count_interval(column)))),
            ("pair_count", self.of_pairs(|pair| value(self.pair_count(pair)))),
            ("pair_count_noise", self.of_pairs(|pair| noise(self.pair_count(pair)))),
            ("mean", self.of_columns(|column| value(self.mean(column)))),
            ("mean_noise", self.of_columns(|column| noise(self.mean(column)))),
            ("covariance", self.of_pairs(|pair| value(self.covariance(pair)))),
            ("covariance_noise", self.of_pairs(|pair| noise(self.covariance(pair)))),
            // The entries are over different rows, so the matrix is not projected.
            ("projection", Projection::Raw.name().into()),
            ("level", view.intervals.level.into()),
            ("joint", view.intervals.joint.into()),
            ("about", view.intervals.about().into()),
            ("missing_at_random", view.intervals.missing_at_random.into()),
            ("mean_interval", self.of_columns(|column| ends(self.mean_interval(column)))),
            ("covariance_interval", self.of_pairs(|pair| ends(self.covariance_interval(pair)))),
            ("standard_deviation", self.of_columns(|column| json!(self.deviation(column)))),
            ("standard_deviation_interval", self.of_columns(|column| ends(self.deviation_interval(column)))),
            (
                "correlation",
                self.of_pairs(|pair| json!(self.correlation(pair).and_then(|found| found.0.shown()))),
            ),
            (
                "correlation_quality",
                self.of_pairs(|pair| json!(self.correlation(pair).map(correlation_word))),
            ),
            ("correlation_interval", self.of_pairs(|pair| ends(self.correlation(pair).map(|found| found.1)))),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let columns = &self.scaled.columns;
        let all = 0..self.columns.len();
        let count = |column: usize| {
            let shown = self.shown_column_count(column).map(|count| (count, self.column_count(column).1));
            EstimateField::noisy("count", &[&columns[column]], shown)
        };
        let mean = |column: usize| {
            EstimateField::all("mean", &[&columns[column]], self.mean(column), self.mean_interval(column))
        };
        let covariance = |pair: (usize, usize)| {
            let of = [columns[pair.0].as_str(), columns[pair.1].as_str()];
            EstimateField::all("covariance", &of, self.covariance(pair), self.covariance_interval(pair))
        };
        let numbers = all.clone().flat_map(count).chain(all.flat_map(mean));
        let numbers = numbers.chain(self.pairs().flat_map(covariance));
        numbers.chain([EstimateField::word("quality", self.quality())]).collect()
    }

    fn legend(&self) -> String {
        let legend = self.scaled.view.intervals.legend(self.is_full() && self.columns.len() > 1);
        format!("{legend}; n: rows that have the column")
    }

    fn titles(&self) -> Vec<String> {
        let columns = &self.scaled.columns;
        let of = |prefix: &'static str| columns.iter().map(move |name| format!("{prefix}{name}"));
        let mut titles: Vec<String> = of("mean ").chain(of("n ")).chain(of("sd ")).collect();
        if self.is_full() && columns.len() > 1 {
            titles.extend(pairs(columns.len()).map(|(i, j)| format!("corr {}~{}", columns[i], columns[j])));
        }
        titles
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        if let Some(Err(error)) = self.columns.iter().find(|column| column.is_err())
            && self.columns.iter().all(Result::is_err)
        {
            return Err(error.to_string());
        }
        let within = |value: f64, interval: Option<Interval>, bounds| {
            interval.map_or(Cell::Plain(value), |interval| Cell::of_interval(value, interval, bounds))
        };
        let scales = self.scales();
        let shown = 0..self.columns.len();
        let means = shown.clone().map(|column| match self.mean(column) {
            Some((mean, _)) => within(mean, self.mean_interval(column), scales.means(column)),
            None => Cell::Empty,
        });
        let counts = shown.clone().map(|column| {
            let shown = self.shown_column_count(column).zip(self.column_count_interval(column));
            shown.map_or(Cell::Empty, |(count, interval)| Cell::of_interval(count, interval, COUNTS))
        });
        let deviations = shown.map(|column| {
            match (self.deviation(column), self.deviation_interval(column)) {
                // The variance may be 0: only its upper bound is known.
                (_, Some(interval)) if interval.lower == 0.0 => Cell::AtMost(interval.upper),
                (None, _) => Cell::Empty,
                (Some(deviation), interval) => within(deviation, interval, scales.deviations(column)),
            }
        });
        let mut cells: Vec<_> = means.chain(counts).chain(deviations).collect();
        if self.is_full() && self.columns.len() > 1 {
            let cell = |pair| match self.correlation(pair) {
                None => Cell::Empty,
                Some((PairCorrelation::BeyondOne, _)) => Cell::Word(BEYOND_ONE),
                Some((found, interval)) => Cell::of_correlation((found.shown(), interval)),
            };
            cells.extend(pairs(self.columns.len()).map(cell));
        }
        Ok(cells)
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        match group {
            CORRELATION => {
                let found = pairs(self.columns.len()).nth(index).and_then(|pair| self.correlation(pair));
                Reading::within(found.and_then(|found| found.0.shown()), found.map(|found| found.1))
            }
            "sd" => Reading::within(self.deviation(index), self.deviation_interval(index)),
            _ => Reading::within(self.mean(index).map(|mean| mean.0), self.mean_interval(index)),
        }
    }

    /// Returns the quality of the first column that is not good.
    fn quality(&self) -> Option<&'static str> {
        let mut words = (0..self.columns.len()).map(|column| self.word(column));
        Some(words.find(|word| *word != "good").unwrap_or("good"))
    }

    fn count_interval(&self) -> Option<Interval> {
        Some(self.by_column()?.count_interval(self.scaled.view.intervals.level))
    }
}
