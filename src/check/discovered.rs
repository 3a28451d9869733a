//! The keys that a run would discover among the rows that were read. Private.

use std::cmp::Reverse;

use serde::Serialize;

use super::RecordTally;
use crate::pipeline::Pipeline;
use crate::publication::{Publication, PublicationError};

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
