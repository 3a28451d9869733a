//! The keys that a run would discover among the rows that were read. Private.

use std::cmp::Reverse;

use hushflow_mechanism::discovery::Counted;
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
    /// The threshold after that epoch.
    pub threshold: f64,
    /// What is counted: `records`, or `entities`.
    pub counted: &'static str,
    /// The keys with the largest counts.
    pub frequent: Vec<KeyCount>,
}

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyCount {
    /// Its name.
    pub key: String,
    /// Its records, or its entities.
    pub count: u64,
}

impl DiscoveredKeys {
    /// Computes these numbers from the counts of all epochs, with up to `listed` names; `None` if
    /// keys are listed.
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
        let counted = match discovery.parameters().counted {
            Counted::Records => "records",
            Counted::Entities { .. } => "entities",
        };
        let chances = tally.discovered.values().map(|&count| discovery.chance(epoch, count));
        let expected = chances.sum::<f64>().min(names.most.into());
        let mut order: Vec<_> = tally.discovered.iter().map(|(&key, &count)| (Reverse(count), key)).collect();
        order.sort_unstable();
        let named = |&(Reverse(count), key): &(Reverse<u64>, u32)| {
            let key = names.texts.text(key)?.to_string();
            Some(KeyCount { key, count })
        };
        Ok(Some(DiscoveredKeys {
            keys: order.len() as u64,
            expected,
            epoch,
            threshold: discovery.threshold(epoch),
            counted,
            frequent: order.iter().take(listed).filter_map(named).collect(),
        }))
    }
}
