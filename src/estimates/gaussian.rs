//! `gaussian`: mean and covariance in the units of the columns, with confidence intervals
//! (`docs/estimates.md`).

use std::sync::Arc;

use hushflow_mechanism::estimate::density::{Density, DensityError, Quality};
use hushflow_mechanism::estimate::intervals::{Interval, MomentIntervals};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use nalgebra::DMatrix;
use serde_json::{Map, Value, json};

use super::by_column::ColumnwiseEstimate;
use super::{
    Averages, Band, CORRELATION, Cell, ChartGroup, ChartSeries, ColumnScales, Estimate, EstimateField,
    EstimatorKind, HistogramNeed, OneAverage, Plot, Reading, ScaledView, ViewEstimator, pairs,
};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Mean and covariance, in the units of the columns",
    needs: SecondMoment::Diagonal,
    histograms: HistogramNeed::None,
    own_workloads: false,
    flag: None,
    fields: &[],
    read: |_, _| Some(Arc::new(Gaussian)),
};

const NAME: &str = "gaussian";

#[derive(Debug)]
struct Gaussian;

impl ViewEstimator for Gaussian {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let group = |name, title: &str, field: &'static str| {
            let interval = format!("{field}_interval");
            let series = scaled.columns.iter().map(|name| ChartSeries {
                name: name.clone(),
                value: json!([field, name]),
                band: Band::Interval(json!([interval, name])),
            });
            ChartGroup { name, title: title.into(), series: series.collect() }
        };
        Plot {
            band: scaled.view.intervals.promise("an epoch"),
            groups: vec![
                group("mean", "Mean", "mean"),
                group("sd", "Standard deviation", "standard_deviation"),
            ],
            matrix: true,
        }
    }

    fn has_densities(&self) -> bool {
        true
    }
}

impl OneAverage for Gaussian {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        let moments = match ColumnwiseEstimate::new(moments, scaled) {
            Ok(estimate) => return Arc::new(estimate),
            Err(moments) => moments,
        };
        let ColumnScales { centres, half_widths } = scaled.scales(moments.key);
        let density = moments.noisy().density_by(scaled.view.covariance);
        let density = density.map(|density| within_bounds(density, scaled.view.covariance));
        let density = density.and_then(|density| density.to_units(half_widths, centres));
        Arc::new(GaussianEstimate { scaled: Arc::clone(scaled), moments, density })
    }
}

/// Projects a density onto what the bounds allow, unless the projection is `Raw`.
pub(super) fn within_bounds(density: Density, projection: Projection) -> Density {
    match projection {
        Projection::Raw => density,
        _ => density.within_bounds(),
    }
}

/// Returns one word: how large the noise is relative to the bounds, or why there is no density.
pub fn quality(density: Result<&Density, &DensityError>) -> &'static str {
    match density {
        Ok(Density { quality: Quality::Good, .. }) => "good",
        Ok(_) => "noise-dominated",
        Err(DensityError::TooFewRecords { .. }) => "too-few-records",
        Err(DensityError::NoSecondMoments) => "no-second-moments",
        Err(DensityError::DifferentRows) => "different-rows",
        Err(DensityError::NotMissingAtRandom) => "not-missing-at-random",
        Err(_) => "out-of-range",
    }
}

#[derive(Debug)]
struct GaussianEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
    /// In the units of the columns.
    density: Result<Density, DensityError>,
}

impl GaussianEstimate {
    /// Pairs of columns whose second moment is known, in the order of moments.
    fn pairs(&self) -> Vec<(usize, usize)> {
        self.moments.layout.second_entries().collect()
    }

    fn is_full(&self) -> bool {
        self.moments.layout.second == SecondMoment::Full
    }

    fn intervals(&self) -> UnitIntervals<'_> {
        let confidence = self.scaled.view.confidence(self.moments.epoch);
        let intervals = self.moments.noisy().intervals(confidence).ok();
        let intervals = intervals.map(MomentIntervals::within_bounds);
        let density = self.density.as_ref().ok();
        UnitIntervals { scales: self.scaled.scales(self.moments.key), intervals, density }
    }

    /// `None` without a variance above 0, which some projections leave.
    fn deviation(&self, column: usize) -> Option<f64> {
        let variance = self.density.as_ref().ok()?.covariance[(column, column)];
        (variance > 0.0).then(|| variance.sqrt())
    }

    fn by_column(&self, value: impl Fn(usize) -> Value) -> Value {
        self.scaled.columns.iter().cloned().zip((0..).map(value)).collect()
    }

    fn by_pair(&self, entry: impl Fn((usize, usize)) -> Value) -> Value {
        let dimension = self.moments.layout.dimension;
        (0..dimension).map(|i| (0..dimension).map(|j| entry((i, j))).collect::<Value>()).collect()
    }
}

impl Estimate for GaussianEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn density(&self) -> Option<Result<&Density, &DensityError>> {
        Some(self.density.as_ref())
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let (view, density) = (&self.scaled.view, self.density.as_ref().ok());
        let by_column = |numbers: fn(&Density) -> &[f64]| match density {
            Some(density) => self.by_column(|column| numbers(density)[column].into()),
            None => Value::Null,
        };
        let by_pair = |matrix: fn(&Density) -> &DMatrix<f64>| match density {
            Some(density) => self.by_pair(|pair| matrix(density)[pair].into()),
            None => Value::Null,
        };
        let intervals = self.intervals();
        let deviation = |column| Some(intervals.covariance((column, column))?.square_root());
        let correlation = |pair| intervals.correlation(pair);
        let fields = [
            ("quality", self.quality().into()),
            ("mean", by_column(|density| density.mean.as_slice())),
            ("mean_noise", by_column(|density| density.mean_noise.as_slice())),
            ("covariance", by_pair(|density| &density.covariance)),
            ("covariance_noise", by_pair(|density| &density.covariance_noise)),
            ("projection", view.covariance.name().into()),
            ("level", view.intervals.level.into()),
            ("joint", view.intervals.joint.into()),
            ("about", view.intervals.about().into()),
            ("mean_interval", self.by_column(|column| ends(intervals.mean(column)))),
            ("covariance_interval", self.by_pair(|pair| ends(intervals.covariance(pair)))),
            ("standard_deviation", self.by_column(|column| json!(self.deviation(column)))),
            ("standard_deviation_interval", self.by_column(|column| ends(deviation(column)))),
            ("correlation", self.by_pair(|pair| correlation(pair).and_then(|found| found.0).into())),
            ("correlation_interval", self.by_pair(|pair| ends(correlation(pair).map(|estimate| estimate.1)))),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let (density, intervals, columns) =
            (self.density.as_ref().ok(), self.intervals(), &self.scaled.columns);
        let mean = |i: usize| {
            let found = density.map(|density| (density.mean[i], density.mean_noise[i]));
            EstimateField::all("mean", &[&columns[i]], found, intervals.mean(i))
        };
        let covariance = |(i, j): (usize, usize)| {
            let found = density.map(|density| (density.covariance[(i, j)], density.covariance_noise[(i, j)]));
            EstimateField::all("covariance", &[&columns[i], &columns[j]], found, intervals.covariance((i, j)))
        };
        let means = (0..columns.len()).flat_map(mean);
        let numbers = means.chain(self.pairs().into_iter().flat_map(covariance));
        numbers.chain([EstimateField::word("quality", self.quality())]).collect()
    }

    fn legend(&self) -> String {
        self.scaled.view.intervals.legend(self.is_full() && self.scaled.columns.len() > 1)
    }

    fn titles(&self) -> Vec<String> {
        let columns = &self.scaled.columns;
        let of = |prefix: &'static str| columns.iter().map(move |name| format!("{prefix}{name}"));
        let mut titles: Vec<String> = of("mean ").chain(of("sd ")).collect();
        if self.is_full() && columns.len() > 1 {
            titles.extend(pairs(columns.len()).map(|(i, j)| format!("corr {}~{}", columns[i], columns[j])));
        }
        titles
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let density = self.density.as_ref().map_err(DensityError::to_string)?;
        let intervals = self.intervals();
        let within = |value: f64, interval: Option<Interval>, bounds| {
            interval.map_or(Cell::Plain(value), |interval| Cell::of_interval(value, interval, bounds))
        };
        let (shown, scales) = (density.mean.len(), intervals.scales);
        let means = (0..shown).map(|i| within(density.mean[i], intervals.mean(i), scales.means(i)));
        let deviations = (0..shown).map(|i| {
            match intervals.covariance((i, i)).map(Interval::square_root) {
                // The variance may be 0: only its upper bound is known.
                Some(interval) if interval.lower == 0.0 => Cell::AtMost(interval.upper),
                interval => {
                    within(density.covariance[(i, i)].max(0.0).sqrt(), interval, scales.deviations(i))
                }
            }
        });
        let mut cells: Vec<_> = means.chain(deviations).collect();
        if self.is_full() && shown > 1 {
            let correlation = |pair| intervals.correlation(pair);
            cells
                .extend(pairs(shown).map(|pair| correlation(pair).map_or(Cell::Empty, Cell::of_correlation)));
        }
        Ok(cells)
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let intervals = self.intervals();
        match group {
            CORRELATION => {
                let found = pairs(self.scaled.columns.len()).nth(index);
                let found = found.and_then(|pair| intervals.correlation(pair));
                Reading::within(found.and_then(|found| found.0), found.map(|found| found.1))
            }
            "sd" => {
                let variance = intervals.covariance((index, index));
                Reading::within(self.deviation(index), variance.map(Interval::square_root))
            }
            _ => {
                let mean = self.density.as_ref().ok().map(|density| density.mean[index]);
                Reading::within(mean, intervals.mean(index))
            }
        }
    }

    fn quality(&self) -> Option<&'static str> {
        Some(quality(self.density.as_ref()))
    }

    fn count_interval(&self) -> Option<Interval> {
        Some(self.moments.noisy().count_interval(self.scaled.view.intervals.level))
    }
}

/// Intervals in the units of the columns. Each contains its estimate: if a projection has moved the
/// estimate out of its interval, the interval is extended to it, which never lowers its coverage.
struct UnitIntervals<'a> {
    scales: &'a ColumnScales,
    /// In centred and scaled coordinates; `None` without a density.
    intervals: Option<MomentIntervals<'a>>,
    density: Option<&'a Density>,
}

impl UnitIntervals<'_> {
    fn mean(&self, column: usize) -> Option<Interval> {
        let ColumnScales { centres, half_widths } = self.scales;
        let interval = self.intervals.as_ref()?.mean(column)?.to_units(half_widths[column], centres[column]);
        Some(self.density.map_or(interval, |density| interval.with(density.mean[column])))
    }

    fn covariance(&self, (i, j): (usize, usize)) -> Option<Interval> {
        let widths = &self.scales.half_widths;
        let interval = self.intervals.as_ref()?.covariance(i, j)?.to_units(widths[i] * widths[j], 0.0);
        Some(self.density.map_or(interval, |density| interval.with(density.covariance[(i, j)])))
    }

    /// `None` if only diagonal moments are known.
    fn correlation(&self, (i, j): (usize, usize)) -> Option<(Option<f64>, Interval)> {
        self.intervals.as_ref()?.correlation(i, j)
    }
}

/// Returns `[lower, upper]`; null for unknown or infinite ends.
pub(crate) fn ends(interval: Option<Interval>) -> Value {
    interval.map_or(Value::Null, |interval| json!([interval.lower, interval.upper]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimates::{EstimateView, LogFacts};
    use hushflow_mechanism::estimate::debias::MomentNoise;
    use hushflow_mechanism::moments::Layout;
    use hushflow_mechanism::view::SecondMomentSource;
    use hushflow_mechanism::workload::Workload;

    /// The estimate of 1000 records of two columns with a mean of 0, these squares and this
    /// product. By column their indicators are one apart, and no value is missing.
    fn estimate_of(
        squares: [f64; 2],
        product: f64,
        covariance: Projection,
        by_column: bool,
    ) -> Arc<dyn Estimate> {
        let log = LogFacts::plain(&["x", "y"], SecondMoment::Full);
        let scales = ColumnScales { centres: vec![0.0; 2], half_widths: vec![1.0; 2] };
        let scaled = ScaledView {
            view: EstimateView { covariance, ..EstimateView::new(Workload::Prefix, &log) },
            columns: ["x", "y"].map(String::from).to_vec(),
            key_scales: vec![scales],
            indicator_step: by_column.then_some(1.0),
            keyed_bounds: Vec::new(),
            histograms: Vec::new(),
            bins_every_record: true,
        };
        let (dimension, coordinates) = match by_column {
            true => {
                let first = [1000.0, 0.0, 0.0, 500.0, 500.0];
                let second = [squares[0], product, 0.0, 0.0, squares[1], 0.0, 0.0, 250.0, 250.0, 250.0];
                (4, [&first[..], &second].concat())
            }
            false => (2, vec![1000.0, 0.0, 0.0, squares[0], product, squares[1]]),
        };
        let moments = Moments {
            epoch: 1,
            key: 0,
            coordinates,
            layout: Layout::new(dimension, SecondMoment::Full),
            noise: MomentNoise { count: 0.0, first: 5.0, second: 10.0 },
            source: SecondMomentSource::Released,
            sent_noise: 0.0,
            bin_noise: 0.0,
        };
        Gaussian.estimate(moments, &Arc::new(scaled))
    }

    fn estimate(product: f64) -> Arc<dyn Estimate> {
        estimate_of([200.0; 2], product, Projection::Floor, false)
    }

    /// A projection moves estimates, most where noise made a variance negative.
    #[test]
    fn every_interval_contains_its_estimate() {
        let contains = |value: &Value, interval: &Value, what: &str| {
            let [value, lower, upper] =
                [value, &interval[0], &interval[1]].map(|number| number.as_f64().unwrap());
            assert!(lower <= value && value <= upper, "{what}: {value} in {lower} to {upper}");
        };
        for by_column in [false, true] {
            for covariance in [Projection::Floor, Projection::Nearest, Projection::Shrink, Projection::Raw] {
                for squares in [[-30.0, -15.0], [-40.0, 200.0], [5.0, 100.0], [200.0, 900.0]] {
                    for product in [-190.0, -20.0, 0.0, 60.0, 300.0] {
                        let mut line = Map::new();
                        estimate_of(squares, product, covariance, by_column).json(&mut line);
                        let what = format!("{by_column} {covariance} {squares:?} {product}");
                        for (i, name) in ["x", "y"].into_iter().enumerate() {
                            contains(&line["mean"][name], &line["mean_interval"][name], &what);
                            let deviation = &line["standard_deviation"][name];
                            // Without a projection noise may leave no variance above 0.
                            if covariance != Projection::Raw || !deviation.is_null() {
                                contains(deviation, &line["standard_deviation_interval"][name], &what);
                                assert!(deviation.as_f64() > Some(0.0), "{what}");
                            }
                            for j in 0..2 {
                                let entry = &line["covariance"][i][j];
                                contains(entry, &line["covariance_interval"][i][j], &what);
                                let correlation = &line["correlation"][i][j];
                                if !correlation.is_null() {
                                    contains(correlation, &line["correlation_interval"][i][j], &what);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// A correlation of 2. The quality of a line follows from its count and not from such numbers:
    /// these would select lines whose other numbers are wrong as well.
    #[test]
    fn a_correlation_wholly_beyond_one_has_an_interval_at_one() {
        let beyond = estimate(400.0);
        assert_eq!((estimate(150.0).quality(), beyond.quality()), (Some("good"), Some("good")));
        let Ok(cells) = beyond.cells() else { panic!("an estimate") };
        let Some(Cell::Range(lower, upper)) = cells.last() else { panic!("{cells:?}") };
        assert!(*upper == 1.0 && (0.5..0.95).contains(lower), "{cells:?}");
    }
}
