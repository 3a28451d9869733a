//! Counts records by epoch and key, and the keys that a run would discover among them. Private.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use hushflow_operators::Records;
use serde::Serialize;

use crate::pipeline::Pipeline;
use crate::publication::{Publication, PublicationError};

/// The records of a stream. Private.
#[derive(Clone, Default)]
pub struct RecordTally {
    /// Records of each key by epoch; epochs without records are absent.
    pub epochs: BTreeMap<u64, Vec<u64>>,
    /// Records.
    pub records: u64,
    /// Records without a usable value, which count as the centre of the bounds.
    pub centred: u64,
    /// Records of each discovered key, by its number.
    pub discovered: HashMap<u32, u64>,
    discovers: bool,
    keys: usize,
    dimension: usize,
}

impl RecordTally {
    /// No records of this pipeline yet.
    pub fn new(pipeline: &Pipeline) -> Self {
        RecordTally {
            keys: pipeline.listed_keys(),
            discovers: pipeline.discovery().is_some(),
            dimension: pipeline.columns.len(),
            ..RecordTally::default()
        }
    }

    /// Adds records.
    pub fn add(&mut self, records: &Records) {
        self.records += records.len() as u64;
        for (&epoch, &key) in records.epochs.iter().zip(&records.keys) {
            let counts = self.epochs.entry(epoch).or_insert_with(|| vec![0; self.keys]);
            if self.discovers {
                *self.discovered.entry(key).or_default() += 1;
            }
            counts[if self.discovers { 0 } else { key as usize }] += 1;
        }
        // Values for histograms alone follow those of the columns.
        let rows = records.values.chunks((records.values.len() / records.len().max(1)).max(1));
        let is_centred = |values: &&[f64]| values.iter().take(self.dimension).all(|value| value.is_nan());
        self.centred += rows.filter(is_centred).count() as u64;
    }

    /// Returns the records of each key.
    pub fn by_key(&self) -> Vec<u64> {
        let mut sums = vec![0; self.keys];
        for counts in self.epochs.values() {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sums
    }
}

/// The keys of the rows that were read, and how many of them a run would show.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiscoveredKeys {
    /// Number of different keys.
    pub keys: u64,
    /// Expected number of keys whose noisy count exceeds the threshold after `epoch`, at most the
    /// number of slots.
    pub expected: f64,
    /// The last epoch that would be published; 1 if there is none.
    pub epoch: u64,
    /// The threshold after that epoch, in records.
    pub threshold: f64,
    /// The keys with the most records.
    pub frequent: Vec<KeyRecords>,
}

/// A key, and the number of its records.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyRecords {
    /// Its name.
    pub key: String,
    /// Its records.
    pub records: u64,
}

impl DiscoveredKeys {
    /// Computes it from the records of all epochs, with up to `listed` names; `None` if keys are
    /// listed.
    ///
    /// # Errors
    /// [`PublicationError`] if the parameters of the discovery are invalid.
    pub fn new(
        pipeline: &Pipeline,
        publication: &Publication,
        (tally, published): (&RecordTally, u64),
        listed: usize,
    ) -> Result<Option<Self>, PublicationError> {
        let (Some(names), Publication::Moments(publication)) = (pipeline.discovery(), publication) else {
            return Ok(None);
        };
        let Some(discovery) = publication.discovery()? else { return Ok(None) };
        let epoch = published.clamp(1, publication.horizon());
        let chances = tally.discovered.values().map(|&records| discovery.chance(epoch, records));
        let expected = chances.sum::<f64>().min(names.most.into());
        let mut order: Vec<_> =
            tally.discovered.iter().map(|(&key, &records)| (Reverse(records), key)).collect();
        order.sort_unstable();
        let named = |&(Reverse(records), key): &(Reverse<u64>, u32)| {
            let key = names.texts.text(key)?.to_string();
            Some(KeyRecords { key, records })
        };
        Ok(Some(DiscoveredKeys {
            keys: order.len() as u64,
            expected,
            epoch,
            threshold: discovery.threshold(epoch),
            frequent: order.iter().take(listed).filter_map(named).collect(),
        }))
    }
}
