//! How often an entity may take part, and the rule that says when it does: pure, and the same in every run.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A hash of 128 bits that stands for an entity. Private data, as is whatever it stands for: it can't be printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entity(pub u128);

impl Entity {
    /// The worker, of so many, that holds all records of the entity and knows how it stands.
    pub fn owner(self, workers: usize) -> usize {
        // Multiplied, for tables are ordered by the low bits of the same hash. The upper half times the number of workers is
        // below 2³² of them.
        let folded = (self.0 ^ self.0 >> 64) as u64;
        let scattered = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((scattered * workers as u64) >> 32) as usize
    }
}

impl fmt::Debug for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entity(private)")
    }
}

/// How often an entity may take part, and with how many records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityLimits {
    /// k: the most epochs in which it takes part, at least 1.
    pub participations: u64,
    /// b: the least number of epochs from one of them to the next, at least 1.
    pub min_separation: u64,
    /// m: the most records in one of them, at least 1.
    pub records_per_epoch: u32,
    /// What becomes of several records of an entity in an epoch.
    pub several: Several,
}

/// What becomes of several records of an entity in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Several {
    /// Those that come first in the stream are kept.
    #[default]
    Keep,
    /// Those of one key become one record, their mean; means of the keys that come first in the stream are kept.
    Average,
}

/// What an entity's past leaves behind: all that the rule has to know of it. Private data: it can't be printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Standing {
    /// Number of epochs in which it took part.
    pub participations: u64,
    /// The last of them.
    pub last: u64,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing(private)")
    }
}

impl EntityLimits {
    /// One record of an entity.
    pub(crate) const LEAST: Self =
        Self { participations: 1, min_separation: 1, records_per_epoch: 1, several: Several::Keep };

    /// The most epochs of so many in which an entity takes part.
    pub(crate) fn most_participations(&self, epochs: Option<u64>) -> u64 {
        let within = |epochs: u64| epochs.div_ceil(self.min_separation.max(1));
        epochs.map_or(self.participations, |epochs| within(epochs).min(self.participations))
    }

    /// The rule: what an entity's standing is after it took part in `epoch`, or `None` where it may not. Greedy in the order
    /// of epochs: it takes part as soon as it may.
    ///
    /// ```
    /// use hushflow_operators::{EntityLimits, Several, Standing};
    ///
    /// let limits = EntityLimits { participations: 2, min_separation: 3, records_per_epoch: 1, several: Several::Keep };
    /// let first = limits.admit(None, 5);
    /// assert_eq!(first, Some(Standing { participations: 1, last: 5 }));
    /// assert_eq!(limits.admit(first, 7), None); // too soon
    /// let second = limits.admit(first, 8);
    /// assert_eq!(limits.admit(second, 100), None); // twice is enough
    /// ```
    pub fn admit(&self, standing: Option<Standing>, epoch: u64) -> Option<Standing> {
        let Standing { participations, last } = match standing {
            None => return (self.participations > 0).then_some(Standing { participations: 1, last: epoch }),
            Some(standing) => standing,
        };
        let apart = epoch > last && epoch - last >= self.min_separation;
        (apart && participations < self.participations)
            .then_some(Standing { participations: participations + 1, last: epoch })
    }
}
