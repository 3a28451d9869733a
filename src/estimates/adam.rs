//! `adam`: the averages m and v of Adam (Kingma & Ba 2015) over the records, and its update.
//!
//! The gradients are the records. Adam's averages with their bias correction are weighted means:
//! the correction divides by the sum of the weights `β^(t−i)` of the records of epoch i. Let n, s
//! and q be the weighted count, sum and sum of squares of a column in centred and scaled
//! coordinates, under β₁ or β₂. Let c be the middle of its bounds and w half their width. Then in
//! the units of the column
//!
//! ```text
//! m = c + w z₁,    v = c² + e,    e = 2cw z₂ + w² (1 − r₂) q₂/n₂
//! z = (1 − r) s/n,    r = τ₀²/n²
//! update = m/(√max(v, f) + ε),    f = κ times the standard deviation of the noise of v
//! ```
//!
//! The factor 1 − r removes the bias of the division by a noisy count, to second order
//! ([`debias`](hushflow_mechanism::estimate::debias)). For `method = "pp"` the view has subtracted
//! the variance of the noise from the squares, as DP-AdamBC does, unless `squares = "raw"`.
//!
//! **Noise.** To first order, with independent noise of n, s and q of deviations τ₀, τ₁ and τ₂,
//!
//! ```text
//! dm = w (ds₁ − z₁ dn₁)/n₁,    dv = (2cw ds₂ − e dn₂ + w² dq₂)/n₂
//! ```
//!
//! Noise of s₁ and s₂ has the correlation ρ of the rows of both decoders, and so has that of n₁ and
//! n₂ ([`noise_correlations`](hushflow_mechanism::view::noise_correlations)). It determines the
//! covariance of m and v, and thereby the noise of the update. At the floor v counts as known. For
//! `pp` q is computed from s, and their covariance is left out.

use std::sync::Arc;

use hushflow_mechanism::estimate::debias::{MIN_COUNT_TO_NOISE, MomentNoise};
use hushflow_mechanism::estimate::density::DensityError;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use hushflow_mechanism::workload::{Decay, Workload};
use serde_json::{Map, Value, json};

use super::by_column::columnwise;
use super::gaussian::quality;
use super::{
    Averages, Band, Cell, ChartGroup, ChartSeries, ColumnScales, Estimate, EstimateField, EstimatorKind,
    FieldPart, HistogramNeed, LogFacts, Plot, Reading, ScaledView, SecondAverage, TwoAverages, ViewEstimator,
};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType, Range};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Averages m and v of Adam, and its update, in the units of the columns",
    needs: SecondMoment::Diagonal,
    histograms: HistogramNeed::None,
    own_workloads: true,
    flag: None,
    fields: &[
        FieldDefinition::with_default(
            "beta1",
            FieldType::Number(Range::SHARE),
            "0.9",
            "0.95",
            "β₁, the decay per epoch of the average m of the values.",
        ),
        FieldDefinition::with_default(
            "beta2",
            FieldType::Number(Range::SHARE),
            "0.999",
            "0.99",
            "β₂, the decay per epoch of the average v of their squares.",
        ),
        FieldDefinition::with_default(
            "stability",
            FieldType::Number(Range::POSITIVE),
            "1e-8",
            "1e-6",
            "ε, which is added to √v, in the unit of the column.",
        ),
        FieldDefinition::with_default(
            "floor",
            FieldType::Number(Range { from: Some((0.0, false)), below: None }),
            "1",
            "2",
            "κ: in the update, v is at least this many standard deviations of its noise.",
        ),
    ],
    read,
};

const NAME: &str = "adam";

fn read(section: &Section<'_>, _log: &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>> {
    let number = |key, default| section.number(key).map_or(default, |number| number.value);
    let decays = [Decay::new(number("beta1", 0.9)).ok()?, Decay::new(number("beta2", 0.999)).ok()?];
    Some(Arc::new(Adam { decays, stability: number("stability", 1e-8), floor: number("floor", 1.0) }))
}

/// The parameters.
#[derive(Clone, Copy, Debug)]
struct Adam {
    decays: [Decay; 2],
    stability: f64,
    /// κ.
    floor: f64,
}

impl ViewEstimator for Adam {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::Two(self.decays, self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let group = |(name, title, field): (&'static str, &str, &'static str)| {
            let series = scaled.columns.iter().map(|column| ChartSeries {
                name: column.clone(),
                value: json!([field, column]),
                band: Band::Noise(json!([format!("{field}_noise"), column])),
            });
            ChartGroup { name, title: title.into(), series: series.collect() }
        };
        let groups = [
            ("update", "Update", "update"),
            ("m", "First moment m", "first_moment"),
            ("v", "Second moment v", "second_moment"),
        ];
        Plot {
            band: "the number without noise".into(),
            groups: groups.into_iter().map(group).collect(),
            matrix: false,
        }
    }
}

impl TwoAverages for Adam {
    fn estimate(
        &self,
        moments: Moments,
        second: SecondAverage,
        scaled: &Arc<ScaledView>,
    ) -> Arc<dyn Estimate> {
        let ColumnScales { centres, half_widths } = scaled.scales(moments.key);
        let sums = column_sums(&moments, scaled).into_iter().zip(column_sums(&second.moments, scaled));
        let scales = centres.iter().copied().zip(half_widths.iter().copied());
        let columns = sums.zip(scales).map(|(sums, scale)| self.column(sums, second.correlation, scale));
        let columns = columns.collect();
        Arc::new(AdamEstimate { scaled: Arc::clone(scaled), adam: *self, moments, second, columns })
    }
}

/// Sums of one column under one average, in centred and scaled coordinates.
struct ColumnSums {
    count: f64,
    first: f64,
    second: f64,
    noise: MomentNoise,
}

/// Returns the sums of each column, over the rows that have it.
fn column_sums(moments: &Moments, scaled: &ScaledView) -> Vec<ColumnSums> {
    if let Some(by_column) = columnwise(moments, scaled) {
        let own = (0..by_column.columns()).map(|column| by_column.column(column));
        let sums = own.map(|own| ColumnSums {
            count: own.count().0,
            first: own.first()[0],
            second: own.noisy().coordinates[own.noisy().layout.second().start],
            noise: own.noise(),
        });
        return sums.collect();
    }
    let entries = moments.layout.second_entries().zip(moments.second());
    let squares = entries.filter(|((i, j), _)| i == j).map(|(_, &second)| second);
    let sums = moments.first().iter().zip(squares);
    let (count, noise) = (moments.count(), moments.noise);
    sums.map(|(&first, second)| ColumnSums { count, first, second, noise }).collect()
}

impl ColumnSums {
    /// 1 − r.
    fn shrink(&self) -> Result<f64, DensityError> {
        let (count, count_noise) = (self.count, self.noise.count);
        match count > 0.0 && count > MIN_COUNT_TO_NOISE * count_noise {
            true => Ok(1.0 - (count_noise / count).powi(2)),
            false => Err(DensityError::TooFewRecords { count, count_noise }),
        }
    }
}

/// The numbers of a column, in its units; each pair is a value and the deviation of its noise.
#[derive(Clone, Copy, Debug)]
struct AdamColumn {
    first: (f64, f64),
    second: (f64, f64),
    floored: f64,
    update: (f64, f64),
}

impl Adam {
    fn column(
        &self,
        (one, two): (ColumnSums, ColumnSums),
        correlation: f64,
        (centre, half_width): (f64, f64),
    ) -> Result<AdamColumn, DensityError> {
        let mean = one.shrink()? * one.first / one.count;
        let first = centre + half_width * mean;
        // Deviations of the parts from the sum, the count and the squares.
        let of_first = [one.noise.first, mean * one.noise.count].map(|noise| half_width * noise / one.count);
        let first_noise = of_first[0].hypot(of_first[1]);

        let (slope, area) = (2.0 * centre * half_width, half_width * half_width);
        let excess = two.shrink()? * (slope * two.first + area * two.second) / two.count;
        let second = centre * centre + excess;
        let of_second = [slope * two.noise.first, excess * two.noise.count, area * two.noise.second]
            .map(|noise| noise / two.count);
        let second_noise = of_second[0].hypot(of_second[1]).hypot(of_second[2]);
        let covariance = correlation * (of_first[0] * of_second[0] + of_first[1] * of_second[1]);

        let floored = second.max(self.floor * second_noise);
        let root = floored.sqrt();
        let by_first = (root + self.stability).recip();
        let update = first * by_first;
        let by_second = match second > self.floor * second_noise {
            true => -update * by_first / (2.0 * root),
            false => 0.0,
        };
        let variance = (by_first * first_noise).powi(2)
            + 2.0 * by_first * by_second * covariance
            + (by_second * second_noise).powi(2);
        let column = AdamColumn {
            first: (first, first_noise),
            second: (second, second_noise),
            floored,
            update: (update, variance.max(0.0).sqrt()),
        };
        let AdamColumn { first, second, update, .. } = column;
        let numbers = [first.0, first.1, second.0, second.1, floored, update.0, update.1, variance];
        if numbers.into_iter().all(f64::is_finite) { Ok(column) } else { Err(DensityError::OutOfRange) }
    }
}

#[derive(Debug)]
struct AdamEstimate {
    scaled: Arc<ScaledView>,
    adam: Adam,
    /// Moments under β₁.
    moments: Moments,
    second: SecondAverage,
    columns: Vec<Result<AdamColumn, DensityError>>,
}

/// A statistic of a column.
type ColumnReader<T> = fn(&AdamColumn) -> T;

/// Numbers of a column by statistic.
const NUMBERS: [(&str, FieldPart, ColumnReader<f64>); 7] = [
    ("first_moment", FieldPart::Value, |column| column.first.0),
    ("first_moment", FieldPart::Noise, |column| column.first.1),
    ("second_moment", FieldPart::Value, |column| column.second.0),
    ("second_moment", FieldPart::Noise, |column| column.second.1),
    ("floored_second_moment", FieldPart::Value, |column| column.floored),
    ("update", FieldPart::Value, |column| column.update.0),
    ("update", FieldPart::Noise, |column| column.update.1),
];

/// Cells of a column by title.
const CELLS: [(&str, ColumnReader<(f64, f64)>); 4] = [
    ("m", |column| column.first),
    ("v", |column| column.second),
    ("update", |column| column.update),
    ("floored v", |column| (column.floored, column.second.1)),
];

impl AdamEstimate {
    /// A number of each column, if it is known.
    fn numbers(&self, value: ColumnReader<f64>) -> impl Iterator<Item = Option<f64>> {
        self.columns.iter().map(move |column| column.as_ref().ok().map(value))
    }
}

impl Estimate for AdamEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let Adam { decays: [_, decay], stability, floor } = self.adam;
        let second = &self.second.moments;
        let settings = [
            ("quality", self.quality().into()),
            ("second_workload", Workload::Adam(decay).to_string().into()),
            ("second_count", second.count().into()),
            ("second_count_noise", second.noise.count.into()),
            ("stability", stability.into()),
            ("floor", floor.into()),
        ];
        object.extend(settings.map(|(name, value)| (name.into(), value)));
        object.extend(NUMBERS.map(|(statistic, part, value)| {
            let columns = self.scaled.columns.iter().cloned();
            let name = EstimateField::number(statistic, part, &[], None::<f64>).title();
            (name, columns.zip(self.numbers(value).map(Value::from)).collect())
        }));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let of = |(statistic, part, value)| {
            let columns = self.scaled.columns.iter().zip(self.numbers(value));
            columns.map(move |(column, number)| EstimateField::number(statistic, part, &[column], number))
        };
        let numbers = NUMBERS.into_iter().flat_map(of);
        numbers.chain([EstimateField::word("quality", self.quality())]).collect()
    }

    fn titles(&self) -> Vec<String> {
        let of = |(title, _): (&'static str, _)| {
            self.scaled.columns.iter().map(move |column| format!("{title} {column}"))
        };
        CELLS.into_iter().flat_map(of).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        if let Some(Err(error)) = self.columns.first()
            && self.columns.iter().all(Result::is_err)
        {
            return Err(error.to_string());
        }
        let cell = |column: &Result<AdamColumn, _>, value: ColumnReader<(f64, f64)>| {
            column.as_ref().map_or(Cell::Empty, |column| {
                let (value, noise) = value(column);
                Cell::Value(value, noise)
            })
        };
        let of = |(_, value)| self.columns.iter().map(move |column| cell(column, value));
        Ok(CELLS.into_iter().flat_map(of).collect())
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let column = self.columns.get(index).and_then(|column| column.as_ref().ok());
        let found = column.map(|column| match group {
            "m" => column.first,
            "v" => column.second,
            _ => column.update,
        });
        Reading::with_noise(found.map(|found| found.0), found.map_or(f64::NAN, |found| found.1))
    }

    /// `noise-dominated` if the v of a column is below its floor.
    fn quality(&self) -> Option<&'static str> {
        if let Some(error) = self.columns.iter().find_map(|column| column.as_ref().err()) {
            return Some(quality(Err(error)));
        }
        let is_hidden = |column: &AdamColumn| column.floored > column.second.0;
        let hidden = self.columns.iter().flatten().any(is_hidden);
        Some(if hidden { "noise-dominated" } else { "good" })
    }
}

#[cfg(test)]
mod tests;
