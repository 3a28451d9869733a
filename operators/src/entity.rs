//! Limits on the participation of an entity, and the rule that applies them. The rule is
//! deterministic.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A 128-bit hash that identifies an entity. Private, so it has no `Debug`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entity(pub u128);

impl Entity {
    /// Returns which of `workers` holds all records and the standing of the entity.
    pub fn owner(self, workers: usize) -> usize {
        // Multiply, because tables use the low bits of the same hash. The upper half times the
        // number of workers fits for fewer than 2³² workers.
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
    /// k: maximum number of epochs in which it takes part, at least 1.
    pub participations: u64,
    /// b: minimum distance of two of these epochs, at least 1.
    pub min_separation: u64,
    /// m: maximum number of records in one epoch, at least 1.
    pub records_per_epoch: u32,
    /// Treatment of several records of an entity in an epoch.
    pub several: Several,
}

/// Treatment of several records of an entity in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Several {
    /// Keeps the first ones in the stream.
    #[default]
    Keep,
    /// Replaces records of one key by their mean, and keeps the means of the keys that come first
    /// in the stream.
    Average,
}

/// All that the rule needs of an entity's past. Private, so it has no `Debug`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Standing {
    /// Number of epochs in which it took part.
    pub participations: u64,
    /// The last of these epochs.
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

    /// Maximum number of epochs, of the given number, in which an entity takes part.
    pub(crate) fn most_participations(&self, epochs: Option<u64>) -> u64 {
        let within = |epochs: u64| epochs.div_ceil(self.min_separation.max(1));
        epochs.map_or(self.participations, |epochs| within(epochs).min(self.participations))
    }

    /// Applies the rule: returns the standing of an entity after `epoch`, or `None` if it may not
    /// take part. An entity takes part as soon as it may.
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
