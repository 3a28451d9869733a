//! Maps the wanted fields of a row to their meaning in the pipeline.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use hushflow_operators::Entity;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use crate::format::Format;
use crate::format::csv::header_row;
use crate::format::form::RowLayout;
use crate::format::row::TimeForm;
use crate::histogram::{HistogramBins, extra_columns};
use crate::pipeline::{KeyTexts, Pipeline, Source};
use crate::time::time_zone;

/// The meaning of each wanted field of a row.
pub(super) struct FieldRoles {
    /// The first fields are the d values.
    pub(super) dimension: usize,
    /// The next fields are for histograms alone: numbers, or texts by their position in a list.
    pub(super) extra: Vec<Option<TextNumbers>>,
    /// Field of the key, and the number of each key.
    pub(super) key: Option<(usize, KeyNumbers)>,
    /// Field that identifies the entity, if entities are protected as a whole.
    pub(super) entity: Option<usize>,
    /// Field that identifies duplicates.
    pub(super) id: Option<usize>,
    /// Field of the event time.
    pub(super) time: Option<usize>,
    /// Field that moves the clock.
    pub(super) clock: Option<usize>,
    /// The format of times.
    pub(super) times: TimeForm,
}

impl FieldRoles {
    /// Returns the roles, and the shape of the rows to which they refer.
    pub(super) fn new(pipeline: &Pipeline, source: &Source) -> (Self, RowLayout) {
        let mut wanted: Vec<String> = pipeline.columns.iter().map(|column| column.name.clone()).collect();
        let dimension = wanted.len();
        let columns: Vec<&str> = pipeline.columns.iter().map(|column| column.name.as_str()).collect();
        let extra = extra_columns(&pipeline.histograms, &columns).map(|histogram| {
            wanted.push(histogram.column.clone());
            match &histogram.bins {
                HistogramBins::Edges(_) => None,
                HistogramBins::Values(values) => Some(numbers(values)),
            }
        });
        let extra = extra.collect();
        let mut slot = |name: &String| {
            wanted.push(name.clone());
            wanted.len() - 1
        };
        let key = pipeline.key.as_ref().map(|key| {
            let listed = || KeyNumbers::Listed(numbers(&key.values));
            let found = key.discover.as_ref().map(|discover| KeyNumbers::Discovered(discover.texts.clone()));
            (slot(&key.column), found.unwrap_or_else(listed))
        });
        let entity = pipeline.entity.as_ref().map(|entity| slot(&entity.column));
        let time = pipeline.epochs.time.as_ref().map(&mut slot);
        let id = pipeline.id.as_ref().map(&mut slot);
        let clock = match &source.schedule {
            Schedule::ByTime(by) if by.clock == ClockSource::EventTime => time,
            _ => source.arrival.as_ref().map(slot),
        };
        let header = match (source.format, &source.header) {
            (Format::Csv(delimiter), Some(names)) => Some(header_row(names, delimiter)),
            _ => None,
        };
        let shape = RowLayout { format: source.format, header, wanted };
        let zone = match &source.schedule {
            Schedule::ByTime(by) => by.calendar.as_ref().and_then(|calendar| time_zone(&calendar.time_zone)),
            Schedule::ByCount(_) => None,
        };
        let times = TimeForm { format: source.time_format.clone(), zone: zone.unwrap_or(TimeZone::UTC) };
        (FieldRoles { dimension, extra, key, entity, id, time, clock, times }, shape)
    }
}

/// Identifies an entity by the first half of the SHA-256 of its name, so that a name cannot be
/// chosen to collide with another.
pub fn entity(name: &[u8]) -> Entity {
    Entity(half(Sha256::digest(name)))
}

/// Identifies duplicates of a record: half of the SHA-256 of all arguments. Only the id has a
/// variable length, which precedes it.
pub(super) fn fingerprint(
    id: &[u8],
    key: u32,
    event_time: i64,
    entity: Option<Entity>,
    values: &[f64],
) -> u128 {
    let mut digest = Sha256::new();
    digest.update((id.len() as u64).to_le_bytes());
    digest.update(id);
    digest.update(key.to_le_bytes());
    digest.update(event_time.to_le_bytes());
    digest.update(entity.map_or([0; 16], |Entity(hash)| hash.to_le_bytes()));
    values.iter().for_each(|value| digest.update(value.to_le_bytes()));
    half(digest.finalize())
}

fn half(digest: impl AsRef<[u8]>) -> u128 {
    u128::from_le_bytes(*digest.as_ref().first_chunk().expect("a digest has 32 bytes"))
}

fn numbers(texts: &[String]) -> TextNumbers {
    texts.iter().zip(0..).map(|(text, number)| (text.clone().into_bytes(), number)).collect()
}

pub(super) enum KeyNumbers {
    /// Numbered by the list of the pipeline.
    Listed(TextNumbers),
    /// Numbered in the order of their first rows. Rows choose these texts, so their hash is random.
    Discovered(KeyTexts),
}

impl KeyNumbers {
    /// Returns the number of a key; `None` if it is not listed, or can't be a key.
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        match self {
            KeyNumbers::Listed(numbers) => numbers.get(text).copied(),
            KeyNumbers::Discovered(texts) => texts.number(text),
        }
    }

    /// Whether there are more keys than a run can have.
    pub(super) fn are_too_many(&self) -> bool {
        matches!(self, KeyNumbers::Discovered(texts) if texts.are_too_many())
    }
}

/// Numbers of listed texts, such as keys. The list is the pipeline's own, so rows can't cause
/// collisions in it and a simple fast hash suffices.
pub(super) type TextNumbers = HashMap<Vec<u8>, u32, BuildHasherDefault<Fnv1a>>;

/// The 64-bit hash of Fowler, Noll and Vo.
pub(super) struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Fnv1a(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv1a {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
