//! The records that entities sent, and the share of them that counted (`[entity] sent_limit`).

use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use hushflow_mechanism::estimate::share::Share;
use hushflow_mechanism::view::Moments;
use serde_json::{Map, Value};

use super::gaussian::ends;
use super::{COUNTS, Cell, EstimateField, FieldPart};

/// Range of a share in percent.
const PERCENT: Interval = Interval { lower: 0.0, upper: 100.0 };

/// The number of sent records of a line, and the share of them that counted.
#[derive(Clone, Copy, Debug)]
pub struct SentRecords {
    number: f64,
    noise: f64,
    /// Interval of the number.
    interval: Interval,
    counted: Share,
}

impl SentRecords {
    /// Title of the cell of a table.
    pub const TITLE: &str = "counted %";

    /// Meaning of the cell of a table.
    pub const LEGEND: &str = "counted %: share of the records of entities in the epochs in which they count";

    /// Estimates the number and the share, with intervals at this level; `None` where the log does
    /// not release the number.
    pub fn of(moments: &Moments, level: f64) -> Option<Self> {
        let (number, noise) = moments.sent()?;
        let reach = noise * Confidence { level, ..Confidence::default() }.normal_quantile();
        let interval = Interval { lower: number - reach, upper: number + reach }.within(COUNTS, reach);
        let counted = Share::of((moments.count(), moments.noise.count), (number, noise), level);
        Some(Self { number: interval.nearest(number), noise, interval, counted })
    }

    /// Adds the fields of a JSON line.
    pub fn json(&self, object: &mut Map<String, Value>) {
        let fields = [
            ("sent", self.number.into()),
            ("sent_noise", self.noise.into()),
            ("sent_interval", ends(Some(self.interval))),
            ("counted_share", self.counted.estimate.into()),
            ("counted_share_interval", ends(Some(self.counted.interval))),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    /// Fields of a CSV line.
    pub fn fields(&self) -> impl Iterator<Item = EstimateField> {
        let Share { estimate, interval } = self.counted;
        EstimateField::noisy("sent", &[], Some((self.number, self.noise)))
            .into_iter()
            .chain([EstimateField::number("counted_share", FieldPart::Value, &[], estimate)])
            .chain(EstimateField::ends("counted_share", &[], Some(interval)))
    }

    /// The cell of a table: the share in percent.
    pub fn cell(&self) -> Cell {
        let percent = self.counted.interval.to_units(100.0, 0.0);
        match self.counted.estimate {
            Some(estimate) => Cell::of_interval(100.0 * estimate, percent, PERCENT),
            None => Cell::Range(percent.lower, percent.upper),
        }
    }
}
