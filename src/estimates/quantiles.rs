//! `quantiles`: medians and other quantiles of the histograms of numbers (`docs/estimates.md`).

use std::sync::Arc;

use hushflow_mechanism::estimate::histogram::NoisyHistogram;
use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use serde_json::{Map, Value, json};

use super::gaussian::ends;
use super::histogram::{COLUMN, column, count_interval, each, quality, shown};
use super::{
    Averages, Band, Cell, ChartGroup, ChartSeries, Estimate, EstimateField, EstimatorKind, FieldPart, Flag,
    HistogramNeed, LogFacts, OneAverage, Plot, Reading, ScaledView, ViewEstimator,
};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Quantiles of the histograms of numbers",
    needs: SecondMoment::None,
    histograms: HistogramNeed::Numeric,
    own_workloads: false,
    flag: Some(Flag {
        name: "quantiles",
        value: "Q,…",
        help: "Show quantiles of the histograms of numbers, such as 0.5,0.9",
        fields,
    }),
    fields: &[
        FieldDefinition::with_default(
            "quantiles",
            FieldType::Shares,
            "[0.5]",
            "[0.5, 0.9]",
            "The quantiles to show; 0.5 is the median.",
        ),
        COLUMN,
    ],
    read,
};

const NAME: &str = "quantiles";

/// The fields of `0.5,0.9`.
fn fields(text: &str) -> Result<toml::Table, String> {
    let numbers = text.split(',').map(|number| number.trim().parse::<f64>().map(toml::Value::from));
    let numbers: Vec<toml::Value> = numbers
        .collect::<Result<_, _>>()
        .map_err(|_| format!("found {text:?}, expected numbers between 0 and 1, such as 0.5,0.9"))?;
    Ok([("quantiles".into(), toml::Value::Array(numbers))].into_iter().collect())
}

fn read(section: &Section<'_>, log: &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>> {
    let column = column(section, log, true);
    let expected = FieldType::Shares.expected();
    let quantiles = match section.get("quantiles") {
        None => vec![0.5],
        Some(field) => {
            let is_share = |share: &f64| *share > 0.0 && *share < 1.0;
            let quantiles = field.numbers(&expected)?;
            let quantiles = quantiles.filter(&expected, |all| !all.is_empty() && all.iter().all(is_share))?;
            quantiles.map(|all| distinct(all))?.value
        }
    };
    Some(Arc::new(Quantiles { quantiles, column: column? }))
}

/// Returns the quantiles, or an error if one is listed twice: each names columns of a table.
fn distinct(quantiles: &[f64]) -> Result<Vec<f64>, String> {
    let twice = quantiles.iter().enumerate().find(|(place, q)| quantiles[..*place].contains(q));
    match twice {
        Some((_, q)) => Err(format!("the quantile {q} is listed twice: remove one")),
        None => Ok(quantiles.to_vec()),
    }
}

#[derive(Clone, Debug)]
struct Quantiles {
    quantiles: Vec<f64>,
    column: Option<String>,
}

impl ViewEstimator for Quantiles {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let of = |column: String| {
            self.quantiles.iter().enumerate().map(move |(index, q)| ChartSeries {
                name: title(&column, *q),
                value: json!(["quantiles", column, index, "value"]),
                band: Band::Interval(json!(["quantiles", column, index, "interval"])),
            })
        };
        let columns = shown(scaled, self.column.as_deref(), true).map(|shown| shown.of.column.clone());
        let series = columns.flat_map(of).collect();
        Plot {
            band: scaled.view.intervals.promise("an epoch"),
            groups: vec![ChartGroup { name: "quantile", title: "Quantile".into(), series }],
            matrix: false,
        }
    }

    fn parameter(&self, _columns: &[String]) -> Option<String> {
        Some(self.quantiles.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    }
}

fn title(column: &str, q: f64) -> String {
    if q == 0.5 { format!("median {column}") } else { format!("q{q} {column}") }
}

impl OneAverage for Quantiles {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        let shown: Vec<_> = shown(scaled, self.column.as_deref(), true).collect();
        // All quantiles and the count.
        let statements = shown.len() * self.quantiles.len() + 1;
        let confidence = each(scaled.view.confidence(moments.epoch), statements);
        let (mut found, mut histograms) = (Vec::new(), Vec::new());
        for histogram in &shown {
            let noisy = histogram.noisy(&moments, scaled);
            let edges = histogram.edges(scaled, moments.key).unwrap_or_default();
            let at = |position: f64| {
                let below = (position as usize).min(edges.len().saturating_sub(2));
                let inside = position - below as f64;
                edges[below] * (1.0 - inside) + edges[below + 1] * inside
            };
            for &q in &self.quantiles {
                let quantile = noisy.quantile(q, confidence).map(|quantile| {
                    let [lower, upper] = quantile.edges.map(|edge| edges[edge]);
                    (at(quantile.position), Interval { lower, upper })
                });
                found.push(FoundQuantile { column: histogram.of.column.clone(), q, quantile });
            }
            histograms.push((noisy, Interval { lower: edges[0], upper: edges[edges.len() - 1] }));
        }
        let (scaled, each) = (Arc::clone(scaled), self.quantiles.len());
        Arc::new(QuantilesEstimate { scaled, moments, confidence, histograms, each, found })
    }
}

#[derive(Debug)]
struct FoundQuantile {
    column: String,
    q: f64,
    quantile: Option<(f64, Interval)>,
}

#[derive(Debug)]
struct QuantilesEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
    /// Confidence of each single interval.
    confidence: Confidence,
    /// The histogram of each column, and its outer edges.
    histograms: Vec<(NoisyHistogram, Interval)>,
    /// Number of quantiles of each histogram.
    each: usize,
    /// The quantiles, column by column.
    found: Vec<FoundQuantile>,
}

impl Estimate for QuantilesEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let intervals = self.scaled.view.intervals;
        let of_column = |found: &[FoundQuantile]| {
            let of = |found: &FoundQuantile| {
                let value = found.quantile.map(|(value, _)| value);
                json!({ "q": found.q, "value": value, "interval": ends(found.quantile.map(|found| found.1)) })
            };
            (found[0].column.clone(), found.iter().map(of).collect::<Value>())
        };
        let all: Map<String, Value> = self.found.chunks(self.each).map(of_column).collect();
        let fields = [
            ("quality", self.quality().into()),
            ("quantiles", Value::Object(all)),
            ("level", intervals.level.into()),
            ("joint", intervals.joint.into()),
            ("about", intervals.about().into()),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let of = |found: &FoundQuantile| {
            let q = found.q.to_string();
            let of = [found.column.as_str(), q.as_str()];
            let value = found.quantile.map(|(value, _)| value);
            let value = EstimateField::number("quantile", FieldPart::Value, &of, value);
            let ends = EstimateField::ends("quantile", &of, found.quantile.map(|found| found.1));
            [value].into_iter().chain(ends).collect::<Vec<_>>()
        };
        let word = EstimateField::word("quality", self.quality());
        self.found.iter().flat_map(of).chain([word]).collect()
    }

    fn legend(&self) -> String {
        format!("{}; an interval ends at edges of bins", self.scaled.view.intervals.legend(false))
    }

    fn titles(&self) -> Vec<String> {
        self.found.iter().map(|found| title(&found.column, found.q)).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        if self.found.iter().all(|found| found.quantile.is_none()) {
            return Err("the number of records is lost in its noise".into());
        }
        let cell = |(at, found): (usize, &FoundQuantile)| {
            let (_, bounds) = self.histograms[at / self.each];
            found.quantile.map_or(Cell::Empty, |(value, interval)| Cell::of_interval(value, interval, bounds))
        };
        Ok(self.found.iter().enumerate().map(cell).collect())
    }

    fn reading(&self, _group: &str, index: usize) -> Reading {
        let quantile = self.found.get(index).and_then(|found| found.quantile);
        Reading::within(quantile.map(|(value, _)| value), quantile.map(|(_, interval)| interval))
    }

    fn count_interval(&self) -> Option<Interval> {
        Some(count_interval(
            &self.moments,
            self.histograms.iter().map(|(noisy, _)| noisy),
            self.confidence.level,
        ))
    }

    fn quality(&self) -> Option<&'static str> {
        Some(quality(self.histograms.iter().map(|(noisy, _)| noisy)))
    }
}
