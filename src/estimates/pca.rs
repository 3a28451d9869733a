//! `pca`: the leading principal components, with intervals and angles that account for the noise.
//!
//! [`principal`](hushflow_mechanism::estimate::principal) has the derivations. With missing values
//! by column, covariances of pairs are of different rows. Under the assumption that values are
//! missing at random, they are treated as one covariance matrix. Its noise is that of the noisiest
//! entry. As in a released matrix, the noise is √2 times as large on the diagonal as off it.

use std::f64::consts::SQRT_2;
use std::sync::Arc;

use hushflow_mechanism::estimate::by_column::ColumnwiseMoments;
use hushflow_mechanism::estimate::debias::{MomentNoise, NoisyMoments};
use hushflow_mechanism::estimate::density::DensityError;
use hushflow_mechanism::estimate::intervals::Interval;
use hushflow_mechanism::estimate::principal::{PrincipalComponent, PrincipalComponents, PrincipalOf};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::view::Moments;
use serde_json::{Map, Value, json};

use super::by_column::columnwise;
use super::gaussian::{ends, quality};
use super::{
    Averages, Band, Cell, ChartGroup, ChartSeries, Estimate, EstimateField, EstimatorKind, FieldPart, Flag,
    HistogramNeed, LogFacts, OneAverage, Plot, Reading, ScaledView, ViewEstimator,
};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType, Word, forms, word};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Leading principal components of the covariance or the correlation",
    needs: SecondMoment::Full,
    histograms: HistogramNeed::None,
    own_workloads: false,
    flag: Some(Flag {
        name: "pca",
        value: "K",
        help: "Show the K leading principal components of the covariance in the units of the columns; K:correlation \
               for those of the correlation",
        fields,
    }),
    fields: &[
        FieldDefinition::required(
            "components",
            FieldType::from(1),
            "2",
            "Number of leading components, at most that of the columns.",
        ),
        FieldDefinition::with_default(
            "of",
            FieldType::Words(|| forms(MATRIX_WORDS)),
            "\"covariance\"",
            "\"correlation\"",
            "The matrix whose components are shown.",
        ),
    ],
    read,
};

const NAME: &str = "pca";

/// Name of the group of charts of variances.
const VARIANCE: &str = "variance";

const MATRIX_WORDS: &[Word<PrincipalOf>] = &[
    word("covariance", PrincipalOf::Covariance, "In the units of the columns, which weigh them."),
    word("correlation", PrincipalOf::Correlation, "Columns have equal weight, whatever their units."),
];

/// The fields of `2` or `2:correlation`.
fn fields(text: &str) -> Result<toml::Table, String> {
    let (number, of) = text.split_once(':').map_or((text, None), |(number, of)| (number, Some(of)));
    let number: i64 = number.trim().parse().map_err(|_| {
        format!("found {text:?}, expected a number of components, such as 2 or 2:correlation")
    })?;
    let of = of.map(|of| ("of".into(), of.trim().into()));
    Ok([("components".into(), number.into())].into_iter().chain(of).collect())
}

/// Reads `components` and `of`.
fn read(section: &Section<'_>, log: &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>> {
    let of = section.word("of", MATRIX_WORDS);
    let number = section.require("components", section.count("components"))?;
    let number = number.map(|&number| match log.columns.as_ref().map(Vec::len) {
        Some(columns) if number > columns as u64 => {
            Err(format!("found {number}, expected at most {columns}, the number of columns"))
        }
        _ => Ok(number as usize),
    })?;
    Some(Arc::new(Pca { number: number.value, of: of.unwrap_or(PrincipalOf::Covariance) }))
}

#[derive(Clone, Copy, Debug)]
struct Pca {
    number: usize,
    of: PrincipalOf,
}

impl ViewEstimator for Pca {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let variances = (0..self.number).map(|index| ChartSeries {
            name: format!("pc{}", index + 1),
            value: json!(["components", index, "eigenvalue"]),
            band: Band::Interval(json!(["components", index, "eigenvalue_interval"])),
        });
        let coordinates = (0..self.number).flat_map(|index| {
            scaled.columns.iter().map(move |column| ChartSeries {
                name: format!("pc{} {column}", index + 1),
                value: json!(["components", index, "direction", column]),
                band: Band::Noise(json!(["components", index, "direction_noise", column])),
            })
        });
        let group = |name, title: &str, series: Vec<_>| ChartGroup { name, title: title.into(), series };
        Plot {
            band: scaled.view.intervals.promise("an epoch"),
            groups: vec![
                group(VARIANCE, "Variance", variances.collect()),
                group("component", "Direction", coordinates.collect()),
            ],
            matrix: false,
        }
    }

    fn parameter(&self, _columns: &[String]) -> Option<String> {
        let of = MATRIX_WORDS.iter().find(|word| word.value == self.of && self.of != PrincipalOf::Covariance);
        Some(of.map_or_else(|| self.number.to_string(), |word| format!("{}:{}", self.number, word.name)))
    }
}

impl OneAverage for Pca {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        let found = self.components(&moments, scaled);
        Arc::new(PcaEstimate { scaled: Arc::clone(scaled), pca: *self, moments, found })
    }
}

impl Pca {
    fn components(
        &self,
        moments: &Moments,
        scaled: &ScaledView,
    ) -> Result<PrincipalComponents, DensityError> {
        let (units, confidence) =
            (&scaled.scales(moments.key).half_widths, scaled.view.confidence(moments.epoch));
        let of =
            |moments: NoisyMoments<'_>| moments.principal_components(units, self.of, self.number, confidence);
        let Some(by_column) = columnwise(moments, scaled) else { return of(moments.noisy()) };
        if !scaled.view.intervals.missing_at_random {
            return Err(DensityError::DifferentRows);
        }
        let columns: Vec<usize> = (0..by_column.columns()).collect();
        let heaviest = scaled.view.workload.largest_coefficient(moments.epoch);
        let (layout, coordinates, noise) = at_random(&by_column)?;
        match by_column.contradict_random(&columns, heaviest) {
            true => Err(DensityError::NotMissingAtRandom),
            false => of(NoisyMoments { layout, coordinates: &coordinates, noise }),
        }
    }
}

/// The moments of records with the mean 0 and the covariances of pairs.
fn at_random(by_column: &ColumnwiseMoments<'_>) -> Result<(Layout, Vec<f64>, MomentNoise), DensityError> {
    let columns = by_column.columns();
    let layout = Layout::new(columns, SecondMoment::Full);
    let mut count = f64::INFINITY;
    for (i, j) in layout.second_entries() {
        if i == j {
            by_column.column(i).noisy().density()?;
            count = count.min(by_column.column(i).count().0);
        } else {
            by_column.covariance(i, j)?;
            count = by_column.pair(i, j).map_or(count, |pair| count.min(pair.count().0));
        }
    }
    let (covariance, noise) = by_column.entries();
    let relative = |(i, j)| noise[(i, j)] * if i == j { 1.0 } else { SQRT_2 };
    let largest = layout.second_entries().map(relative).fold(0.0, f64::max);
    let second = layout.second_entries().map(|pair| count * covariance[pair]);
    let coordinates = [count].into_iter().chain(vec![0.0; columns]).chain(second).collect();
    Ok((layout, coordinates, MomentNoise { count: 0.0, first: 0.0, second: count * largest }))
}

#[derive(Debug)]
struct PcaEstimate {
    scaled: Arc<ScaledView>,
    pca: Pca,
    moments: Moments,
    found: Result<PrincipalComponents, DensityError>,
}

impl PcaEstimate {
    /// Each component that the view shows, if it is known.
    fn components(&self) -> impl Iterator<Item = Option<&PrincipalComponent>> {
        (0..self.pca.number).map(|index| self.found.as_ref().ok()?.components.get(index))
    }

    fn total(&self) -> Option<(f64, f64)> {
        self.found.as_ref().ok().map(|found| found.total)
    }

    /// Coordinates of a direction by column.
    fn coordinates(&self, values: Option<&[f64]>) -> Value {
        values.map_or(Value::Null, |values| {
            let values = values.iter().map(|&value| Value::from(value));
            self.scaled.columns.iter().cloned().zip(values).collect()
        })
    }

    /// The largest eigenvalue that the bounds of the columns allow.
    fn bounds(&self) -> Interval {
        let squares = self.scaled.scales(self.moments.key).half_widths.iter().map(|width| width * width);
        let upper = match self.pca.of {
            PrincipalOf::Covariance => squares.sum(),
            PrincipalOf::Correlation => self.scaled.columns.len() as f64,
        };
        Interval { lower: 0.0, upper }
    }
}

/// `noise-dominated` for a component that may be mixed with others because of noise.
fn word_of(component: &PrincipalComponent) -> &'static str {
    if component.direction.is_some() { "good" } else { "noise-dominated" }
}

fn degrees(component: Option<&PrincipalComponent>) -> Option<f64> {
    Some(component?.direction.as_ref()?.angle.to_degrees())
}

impl Estimate for PcaEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let intervals = self.scaled.view.intervals;
        let component = |component: Option<&PrincipalComponent>| {
            let direction = component.and_then(|component| component.direction.as_ref());
            json!({
                "quality": component.map_or_else(|| self.quality(), |component| Some(word_of(component))),
                "eigenvalue": component.map(|component| component.eigenvalue),
                "eigenvalue_noise": component.map(|component| component.noise),
                "eigenvalue_interval": ends(component.map(|component| component.interval)),
                "direction": self.coordinates(direction.map(|direction| direction.vector.as_slice())),
                "direction_noise": self.coordinates(direction.map(|direction| direction.noise.as_slice())),
                "angle_degrees": degrees(component),
            })
        };
        let of = MATRIX_WORDS.iter().find(|word| word.value == self.pca.of).map(|word| word.name);
        let fields = [
            ("quality", self.quality().into()),
            ("of", of.into()),
            ("components", self.components().map(component).collect()),
            ("total_variance", json!(self.total().map(|total| total.0))),
            ("total_variance_noise", json!(self.total().map(|total| total.1))),
            ("level", intervals.level.into()),
            ("joint", intervals.joint.into()),
            ("about", intervals.about().into()),
            ("missing_at_random", intervals.missing_at_random.into()),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let of = |(component, rank): (Option<&PrincipalComponent>, usize)| {
            let rank = rank.to_string();
            let found = component.map(|component| (component.eigenvalue, component.noise));
            let interval = component.map(|component| component.interval);
            let angle =
                EstimateField::number("angle_degrees", FieldPart::Value, &[&rank], degrees(component));
            let direction = component.and_then(|component| component.direction.as_ref());
            let coordinate = |(column, index): (&String, usize)| {
                let found = direction.map(|direction| (direction.vector[index], direction.noise[index]));
                EstimateField::noisy("direction", &[&rank, column], found)
            };
            let coordinates = self.scaled.columns.iter().zip(0..).flat_map(coordinate);
            let numbers = EstimateField::all("eigenvalue", &[&rank], found, interval);
            numbers.into_iter().chain([angle]).chain(coordinates).collect::<Vec<_>>()
        };
        let components = self.components().zip(1..).flat_map(of);
        let total = EstimateField::noisy("total_variance", &[], self.total());
        components.chain(total).chain([EstimateField::word("quality", self.quality())]).collect()
    }

    fn legend(&self) -> String {
        let legend = self.scaled.view.intervals.legend(false);
        format!("{legend}; angle: of a component to the true one, at most, in degrees")
    }

    fn titles(&self) -> Vec<String> {
        let each = |name: &'static str| (1..=self.pca.number).map(move |rank| format!("{name} pc{rank}"));
        let coordinates = (1..=self.pca.number)
            .flat_map(|rank| self.scaled.columns.iter().map(move |column| format!("pc{rank} {column}")));
        each("variance").chain(each("angle")).chain(coordinates).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let found = self.found.as_ref().map_err(DensityError::to_string)?;
        let bounds = self.bounds();
        let variance = |component: &PrincipalComponent| match component.interval {
            Interval { lower: 0.0, upper } => Cell::AtMost(upper),
            interval => Cell::of_interval(component.eigenvalue.max(0.0), interval, bounds),
        };
        let angle =
            |component: &PrincipalComponent| degrees(Some(component)).map_or(Cell::Empty, Cell::AtMost);
        let coordinates = |component: &PrincipalComponent| match &component.direction {
            Some(direction) => direction.vector.iter().map(|&value| Cell::Plain(value)).collect(),
            None => vec![Cell::Empty; self.scaled.columns.len()],
        };
        let all = found.components.iter();
        Ok(all.clone().map(variance).chain(all.clone().map(angle)).chain(all.flat_map(coordinates)).collect())
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let found = |rank: usize| self.components().nth(rank).flatten();
        if group == VARIANCE {
            let component = found(index);
            let variance = component.map(|component| component.eigenvalue);
            return Reading::within(variance, component.map(|component| component.interval));
        }
        let (rank, column) = (index / self.scaled.columns.len(), index % self.scaled.columns.len());
        let direction = found(rank).and_then(|component| component.direction.as_ref());
        let noise = direction.map_or(f64::NAN, |direction| direction.noise[column]);
        Reading::with_noise(direction.map(|direction| direction.vector[column]), noise)
    }

    /// `good` if every component has a direction.
    fn quality(&self) -> Option<&'static str> {
        Some(match &self.found {
            Ok(found) => {
                let words = found.components.iter().map(word_of);
                words.into_iter().find(|word| *word != "good").unwrap_or("good")
            }
            Err(DensityError::HiddenVariance { .. }) => "noise-dominated",
            Err(error) => quality(Err(error)),
        })
    }

    fn count_interval(&self) -> Option<Interval> {
        Some(self.moments.noisy().count_interval(self.scaled.view.intervals.level))
    }
}

#[cfg(test)]
mod tests;
