//! Keys that the pipeline does not list: `[key] discover`, the numbers of their names in a run, and
//! the names of slots in a log.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hushflow_mechanism::discovery::{Counted, DiscoveryParameters};
use serde::{Deserialize, Serialize};

use super::{KeyColumn, Pipeline, PublicParameters};

/// Maximum number of bytes of the name of a key: a longer one is not a key.
const MOST_BYTES: usize = 256;

/// Maximum number of keys of a run, shown or not.
pub(crate) const MOST_KEYS: usize = 1 << 24;

/// How keys are discovered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyDiscovery {
    /// `delta`: probability that any key of a single record, or of a single entity, is ever shown.
    pub delta: f64,
    /// `share`: share of the budget that finds keys.
    pub share: f64,
    /// `most`: number of keys that can be shown. Each has a slot in every release.
    pub most: u32,
    /// `at_least`: a key with fewer records, or entities, is never shown.
    pub at_least: u64,
    /// `threshold`: the threshold after every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
    /// The keys of a run, which all clones share. Private, and not part of the header.
    #[serde(skip)]
    pub(crate) texts: KeyTexts,
    /// The names of slots, as far as the log has been read; all clones share them.
    #[serde(skip)]
    pub(crate) slots: SlotNames,
}

impl PublicParameters {
    /// Returns the number of keys; 1 without keys.
    pub fn keys(&self) -> u32 {
        self.key.as_ref().map_or(1, KeyColumn::number)
    }

    /// Returns how keys are discovered; `None` if they are listed.
    pub fn discovery(&self) -> Option<&KeyDiscovery> {
        self.key.as_ref()?.discover.as_ref()
    }

    /// Returns the parameters for [`Discovery`](hushflow_mechanism::discovery::Discovery); `None`
    /// if keys are listed.
    pub fn discovery_parameters(&self) -> Option<DiscoveryParameters> {
        let &KeyDiscovery { delta, share, most, at_least, threshold, .. } = self.discovery()?;
        let counted = match self.entity {
            None => Counted::Records,
            Some(_) => Counted::Entities { records: self.records_at_once() },
        };
        Some(DiscoveryParameters { delta, share, most, at_least, threshold, counted })
    }

    /// Returns the keys that have a name: all that are listed, and those discovered so far.
    pub fn named_keys(&self) -> impl Iterator<Item = u32> {
        let discovers = self.discovery().is_some();
        (0..self.keys()).take_while(move |&key| !discovers || !self.key_name(key).is_empty())
    }

    /// Returns the name of a key; `all` without keys. That of a discovered key is empty before its
    /// epoch has been read from the log.
    pub fn key_name(&self, key: u32) -> &str {
        if let Some(discovery) = self.discovery() {
            return discovery.slots.name(key);
        }
        let values = self.key.as_ref().map(|key| key.values.as_slice()).unwrap_or_default();
        values.get(key as usize).map_or("all", String::as_str)
    }
}

impl Pipeline {
    /// Returns how keys are discovered; `None` if they are listed.
    pub fn discovery(&self) -> Option<&KeyDiscovery> {
        self.key.as_ref()?.discover.as_ref()
    }

    /// Returns the number of listed keys; 1 without keys and if they are discovered.
    pub(crate) fn listed_keys(&self) -> usize {
        self.key.as_ref().filter(|key| key.discover.is_none()).map_or(1, |key| key.values.len())
    }
}

/// Numbers of key texts, in the order in which rows have shown them. Private.
#[derive(Clone, Default)]
pub(crate) struct KeyTexts(Arc<Mutex<Texts>>);

#[derive(Default)]
struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl KeyTexts {
    /// Returns the number of a key; `None` if the text can't be the name of a key: it is empty, too
    /// long, not UTF-8, or has control characters.
    pub(crate) fn number(&self, text: &[u8]) -> Option<u32> {
        let text = std::str::from_utf8(text).ok()?;
        if text.is_empty() || text.len() > MOST_BYTES || text.chars().any(char::is_control) {
            return None;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(text) {
            return Some(number);
        }
        let (number, text) = (known.texts.len() as u32, Arc::<str>::from(text));
        known.numbers.insert(Arc::clone(&text), number);
        known.texts.push(text);
        Some(number)
    }

    pub(crate) fn text(&self, number: u32) -> Option<Arc<str>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.texts.get(number as usize).cloned()
    }

    /// Whether there are more keys than a run can have.
    pub(crate) fn are_too_many(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).texts.len() > MOST_KEYS
    }
}

/// Prints nothing: keys are private.
impl fmt::Debug for KeyTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyTexts")
    }
}

/// Always equal, because it is not a parameter.
impl PartialEq for KeyTexts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Names of the slots of a log. The first reader of a name in the log sets it, for all readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotNames(Arc<OnceLock<Box<[OnceLock<String>]>>>);

impl SlotNames {
    /// Returns the name of a slot; empty before it is known.
    pub(crate) fn name(&self, slot: u32) -> &str {
        self.0.get().and_then(|names| names.get(slot as usize)?.get()).map_or("", String::as_str)
    }

    /// Sets the name of one of `most` slots.
    pub(crate) fn set(&self, most: u32, slot: u32, name: String) {
        let names = self.0.get_or_init(|| (0..most).map(|_| OnceLock::new()).collect());
        if let Some(own) = names.get(slot as usize) {
            // A reader of the same log has set the same name.
            let _ = own.set(name);
        }
    }
}

/// Always equal, because they are not a parameter.
impl PartialEq for SlotNames {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_numbered_and_others_are_no_keys() {
        let texts = KeyTexts::default();
        assert_eq!([&b"a"[..], b"b", b"a"].map(|text| texts.number(text)), [Some(0), Some(1), Some(0)]);
        assert_eq!(texts.clone().number("é".as_bytes()), Some(2));
        for text in [&b""[..], b"\xff", b"a\x1b[0m", b"a\n", &[b'x'; MOST_BYTES + 1]] {
            assert_eq!(texts.number(text), None);
        }
        assert_eq!(texts.text(2).as_deref(), Some("é"));
        assert!(texts.text(3).is_none() && format!("{texts:?}") == "KeyTexts");
    }

    #[test]
    fn names_of_slots_are_set_once() {
        let names = SlotNames::default();
        assert_eq!(names.name(1), "");
        names.clone().set(2, 1, "a".into());
        names.set(2, 1, "b".into());
        names.set(2, 2, "beyond".into());
        assert_eq!([0, 1, 2].map(|slot| names.name(slot)), ["", "a", ""]);
    }
}
