//! `histogram`: how many records fall into each bin, and their shares; of numbers also the
//! distribution function with a simultaneous band (`docs/estimates.md`).

use std::sync::Arc;

use hushflow_mechanism::estimate::histogram::{Distribution, NoisyHistogram};
use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use hushflow_mechanism::estimate::selection;
use hushflow_mechanism::estimate::share::Share;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use serde_json::{Map, Value, json};

use super::gaussian::ends;
use super::{
    Averages, Band, COUNTS, Cell, ChartGroup, ChartSeries, Estimate, EstimateField, EstimatorKind, FieldPart,
    HistogramNeed, LogFacts, OneAverage, Plot, Reading, ScaledView, ViewEstimator,
};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType};
use crate::histogram::{Histogram, HistogramBins, even_edges};
use crate::spelling::did_you_mean;

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Counts and shares of the bins of histograms, and distribution functions of numbers",
    needs: SecondMoment::None,
    histograms: HistogramNeed::Any,
    own_workloads: false,
    flag: None,
    fields: &[COLUMN],
    read,
};

const NAME: &str = "histogram";

/// The column of a view of histograms.
pub(super) const COLUMN: FieldDefinition = FieldDefinition::optional(
    "column",
    FieldType::Text,
    "all of `[[histograms]]`",
    "\"age\"",
    "The only one of `[[histograms]]` to show.",
);

/// Names of the groups of charts.
const COUNT: &str = "count";
const SHARE: &str = "share";

fn read(section: &Section<'_>, log: &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>> {
    Some(Arc::new(Histograms { column: column(section, log, false)? }))
}

/// Reads `column`; `Some(None)` without it.
pub(super) fn column(section: &Section<'_>, log: &LogFacts<'_>, numeric: bool) -> Option<Option<String>> {
    let Some(name) = section.text("column") else { return Some(None) };
    let known = || log.histograms.iter().filter(|histogram| histogram.is_numeric() || !numeric);
    let checked = name.map(|name| match known().any(|histogram| histogram.column == *name) {
        true => Ok((*name).to_owned()),
        false => {
            let known: Vec<&str> = known().map(|histogram| histogram.column.as_str()).collect();
            let (expected, meant) = (known.join(", "), did_you_mean(name, &known));
            Err(format!("there is no such histogram of {name:?}: expected one of {expected}{meant}"))
        }
    })?;
    Some(Some(checked.value))
}

/// A histogram of a log that a view shows, and the position of its bins.
pub(super) struct ShownHistogram<'a> {
    pub(super) of: &'a Histogram,
    start: usize,
}

/// Returns the histograms that a view shows: the one of a column, or all.
pub(super) fn shown<'a>(
    scaled: &'a ScaledView,
    column: Option<&'a str>,
    numeric: bool,
) -> impl Iterator<Item = ShownHistogram<'a>> {
    let starts = scaled.histograms.iter().scan(0, |next, histogram| {
        let start = *next;
        *next += histogram.levels().iter().sum::<usize>();
        Some(ShownHistogram { of: histogram, start })
    });
    let is_shown = move |found: &ShownHistogram<'_>| {
        column.is_none_or(|column| column == found.of.column) && (found.of.is_numeric() || !numeric)
    };
    starts.filter(is_shown)
}

impl ShownHistogram<'_> {
    /// Returns the noisy bins, which agree with the count where each record has a bin.
    pub(super) fn noisy(&self, moments: &Moments, scaled: &ScaledView) -> NoisyHistogram {
        let nodes = self.of.levels().iter().sum::<usize>();
        let nodes = moments.bins().get(self.start..self.start + nodes).unwrap_or_default();
        let complete = scaled.bins_every_record && scaled.columns.contains(&self.of.column);
        let count = complete.then(|| (moments.count(), moments.noise.count));
        NoisyHistogram::of_tree(nodes, self.of.number(), self.of.branching(), moments.bin_noise, count)
    }

    /// Returns the edges for a key; `None` for texts. Keys with bounds of their own split these
    /// evenly.
    pub(super) fn edges(&self, scaled: &ScaledView, key: u32) -> Option<Vec<f64>> {
        let HistogramBins::Edges(edges) = &self.of.bins else { return None };
        let Some(column) = self.keyed_column(scaled) else { return Some(edges.clone()) };
        let scales = scaled.scales(key);
        let (centre, half) = (scales.centres[column], scales.half_widths[column]);
        Some(even_edges(centre - half, centre + half, edges.len() - 1))
    }

    /// Returns the names of its bins.
    fn labels(&self, scaled: &ScaledView) -> Vec<String> {
        self.of.labels(self.keyed_column(scaled).is_some())
    }

    /// Returns the position of its column, if keys have bounds of their own there.
    fn keyed_column(&self, scaled: &ScaledView) -> Option<usize> {
        let column = scaled.columns.iter().position(|column| *column == self.of.column)?;
        scaled.keyed_bounds.get(column).copied().unwrap_or_default().then_some(column)
    }
}

#[derive(Clone, Debug)]
struct Histograms {
    column: Option<String>,
}

impl ViewEstimator for Histograms {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let group = |name: &'static str, title: &str| {
            let interval = format!("{name}_interval");
            let of = |histogram: ShownHistogram<'_>| {
                let labels = histogram.labels(scaled).into_iter().enumerate();
                let column = &histogram.of.column;
                let series = labels.map(|(bin, label)| ChartSeries {
                    name: format!("{column} {label}"),
                    value: json!(["histograms", column, name, bin]),
                    band: Band::Interval(json!(["histograms", column, interval, bin])),
                });
                series.collect::<Vec<_>>()
            };
            let series = shown(scaled, self.column.as_deref(), false).flat_map(of).collect();
            ChartGroup { name, title: title.into(), series }
        };
        Plot {
            band: scaled.view.intervals.promise("an epoch"),
            groups: vec![group(COUNT, "Records"), group(SHARE, "Share")],
            matrix: false,
        }
    }
}

impl OneAverage for Histograms {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        let shown: Vec<_> = shown(scaled, self.column.as_deref(), false).collect();
        // A count and a share of each bin, a band of each distribution function, and the count.
        let of = |shown: &ShownHistogram<'_>| 2 * shown.of.number() + usize::from(shown.of.is_numeric());
        let statements = 1 + shown.iter().map(of).sum::<usize>();
        let confidence = each(scaled.view.confidence(moments.epoch), statements);
        let own = shown.iter().map(|histogram| {
            let noisy = histogram.noisy(&moments, scaled);
            HistogramEstimate {
                column: histogram.of.column.clone(),
                labels: histogram.labels(scaled),
                edges: histogram.edges(scaled, moments.key),
                shares: noisy.shares(confidence),
                noisy,
            }
        });
        let own = own.collect();
        Arc::new(HistogramsEstimate { scaled: Arc::clone(scaled), moments, confidence, own })
    }
}

/// Returns the confidence of each of `statements` statements. If `confidence` is joint, all of them
/// hold together.
pub(super) fn each(confidence: Confidence, statements: usize) -> Confidence {
    let statements = if confidence.joint { statements.max(1) } else { 1 };
    let level = 1.0 - (1.0 - confidence.level) / statements as f64;
    Confidence { level, joint: false, ..confidence }
}

/// `good`, or `noise-dominated` if noise hides whether a total is above 0.
pub(super) fn quality<'a>(mut histograms: impl Iterator<Item = &'a NoisyHistogram>) -> &'static str {
    if histograms.all(NoisyHistogram::has_shares) { "good" } else { "noise-dominated" }
}

/// The interval of the number of records, conditional on the quality.
pub(super) fn count_interval<'a>(
    moments: &Moments,
    histograms: impl Iterator<Item = &'a NoisyHistogram>,
    level: f64,
) -> Interval {
    let selections: Vec<_> = histograms.map(NoisyHistogram::count_selection).collect();
    selection::count_interval(moments.count(), moments.noise.count, level, &selections)
}

#[derive(Debug)]
struct HistogramEstimate {
    column: String,
    labels: Vec<String>,
    edges: Option<Vec<f64>>,
    noisy: NoisyHistogram,
    shares: Vec<Share>,
}

#[derive(Debug)]
struct HistogramsEstimate {
    scaled: Arc<ScaledView>,
    moments: Moments,
    /// Confidence of each single interval and band.
    confidence: Confidence,
    own: Vec<HistogramEstimate>,
}

impl HistogramsEstimate {
    fn distribution(&self, own: &HistogramEstimate) -> Option<Distribution> {
        own.edges.as_ref()?;
        own.noisy.distribution(self.confidence)
    }

    /// The count of a bin, within its interval.
    fn bin_count(&self, own: &HistogramEstimate, bin: usize) -> f64 {
        self.bin_interval(own, bin).nearest(own.noisy.counts()[bin])
    }

    fn bin_interval(&self, own: &HistogramEstimate, bin: usize) -> Interval {
        own.noisy.count_interval(bin, self.confidence.level)
    }

    fn json_of(&self, own: &HistogramEstimate) -> Value {
        let all = 0..own.labels.len();
        let mut object = Map::new();
        match &own.edges {
            Some(edges) => object.insert("edges".into(), edges.clone().into()),
            None => object.insert("values".into(), own.labels.clone().into()),
        };
        let noises: Value = all.clone().map(|bin| Value::from(own.noisy.count_noise(bin))).collect();
        let counts: Value = all.clone().map(|bin| Value::from(self.bin_count(own, bin))).collect();
        let intervals: Value = all.map(|bin| ends(Some(self.bin_interval(own, bin)))).collect();
        let shares: Value = own.shares.iter().map(|share| json!(share.estimate)).collect();
        let share_intervals: Value = own.shares.iter().map(|share| ends(Some(share.interval))).collect();
        let fields = [
            ("quality", quality([&own.noisy].into_iter()).into()),
            ("count", counts),
            ("count_noise", noises),
            ("count_interval", intervals),
            ("share", shares),
            ("share_interval", share_intervals),
        ];
        object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        if let Some(Distribution { values, band }) = self.distribution(own) {
            let band: Value = band.into_iter().map(|interval| ends(Some(interval))).collect();
            object.insert("distribution".into(), values.into());
            object.insert("distribution_band".into(), band);
        }
        Value::Object(object)
    }

    fn bins(&self) -> impl Iterator<Item = (&HistogramEstimate, usize)> {
        self.own.iter().flat_map(|own| (0..own.labels.len()).map(move |bin| (own, bin)))
    }
}

impl Estimate for HistogramsEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let intervals = self.scaled.view.intervals;
        let own: Map<String, Value> =
            self.own.iter().map(|own| (own.column.clone(), self.json_of(own))).collect();
        let fields = [
            ("quality", self.quality().into()),
            ("histograms", Value::Object(own)),
            ("level", intervals.level.into()),
            ("joint", intervals.joint.into()),
            ("about", intervals.about().into()),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let of_bin = |(own, bin): (&HistogramEstimate, usize)| {
            let of = [own.column.as_str(), own.labels[bin].as_str()];
            let share = own.shares[bin];
            let found = Some((self.bin_count(own, bin), own.noisy.count_noise(bin)));
            let count = EstimateField::all("bin_count", &of, found, Some(self.bin_interval(own, bin)));
            let share_value = EstimateField::number("bin_share", FieldPart::Value, &of, share.estimate);
            let share_ends = EstimateField::ends("bin_share", &of, Some(share.interval));
            count.into_iter().chain([share_value]).chain(share_ends).collect::<Vec<_>>()
        };
        let of_edges = |own: &HistogramEstimate| {
            let found = self.distribution(own);
            let inner = if own.edges.is_some() { own.labels.len().saturating_sub(1) } else { 0 };
            let of_edge = |edge: usize| {
                let of = [own.column.as_str(), own.labels[edge].as_str()];
                let value = found.as_ref().map(|found| found.values[edge]);
                let band = found.as_ref().map(|found| found.band[edge]);
                let value = EstimateField::number("distribution", FieldPart::Value, &of, value);
                [value].into_iter().chain(EstimateField::ends("distribution", &of, band)).collect::<Vec<_>>()
            };
            (0..inner).flat_map(of_edge).collect::<Vec<_>>()
        };
        let numbers = self.bins().flat_map(of_bin).chain(self.own.iter().flat_map(of_edges));
        numbers.chain([EstimateField::word("quality", self.quality())]).collect()
    }

    fn legend(&self) -> String {
        format!("{}; cells: records in a bin", self.scaled.view.intervals.legend(false))
    }

    fn titles(&self) -> Vec<String> {
        self.bins().map(|(own, bin)| format!("{} {}", own.column, own.labels[bin])).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let cell = |(own, bin): (&HistogramEstimate, usize)| {
            Cell::of_interval(self.bin_count(own, bin), self.bin_interval(own, bin), COUNTS)
        };
        Ok(self.bins().map(cell).collect())
    }

    fn reading(&self, group: &str, index: usize) -> Reading {
        let Some((own, bin)) = self.bins().nth(index) else { return Reading::within(None, None) };
        match group {
            SHARE => Reading::within(own.shares[bin].estimate, Some(own.shares[bin].interval)),
            _ => Reading::within(Some(self.bin_count(own, bin)), Some(self.bin_interval(own, bin))),
        }
    }

    fn count_interval(&self) -> Option<Interval> {
        Some(count_interval(&self.moments, self.own.iter().map(|own| &own.noisy), self.confidence.level))
    }

    fn quality(&self) -> Option<&'static str> {
        Some(quality(self.own.iter().map(|own| &own.noisy)))
    }
}
