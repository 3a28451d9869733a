//! Counts records by epoch and key.

use std::collections::{BTreeMap, HashMap};

use hushflow_operators::Records;

use crate::pipeline::Pipeline;

/// The records of a stream. Private.
#[derive(Clone, Default)]
pub struct RecordTally {
    /// Records of each key by epoch; epochs without records are absent.
    pub epochs: BTreeMap<u64, Vec<u64>>,
    /// Records.
    pub records: u64,
    /// Records without a usable value, which count as the centre of the bounds.
    pub centred: u64,
    /// Values of each column among the records.
    pub values: Vec<u64>,
    /// Records of each discovered key, by its number; its entities if they are protected.
    pub discovered: HashMap<u32, u64>,
    discovers: bool,
    keys: usize,
}

impl RecordTally {
    /// No records of this pipeline yet.
    pub fn new(pipeline: &Pipeline) -> Self {
        RecordTally {
            keys: pipeline.listed_keys(),
            discovers: pipeline.discovery().is_some(),
            values: vec![0; pipeline.columns.len()],
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
        for row in rows {
            let present = row.iter().zip(&mut self.values).filter(|(value, _)| !value.is_nan());
            let present = present.map(|(_, count)| *count += 1).count();
            self.centred += u64::from(present == 0);
        }
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
