//! Rules about keys: listed ones without rows, and unlisted ones that are nearly listed.

use std::collections::HashMap;

use super::{Observation, Problem, SourceRows};
use crate::pipeline::{KeyColumn, Pipeline};
use crate::spelling::closest;

/// Largest number of rows for each row that spells a listed key in another way, if that is a
/// problem.
const ROWS_PER_MISSPELT: u64 = 20;

/// Minimum number of rows with unlisted keys that may be those of a listed key without a row.
const LEAST_UNLISTED: u64 = 20;

/// A listed key without rows, if many rows have unlisted keys.
pub(super) fn unseen(pipeline: &Pipeline, seen: &Observation<'_>) -> Option<Problem> {
    let name = unseen_key(pipeline, seen)?;
    let message = format!(
        "no row has the listed key {name:?}, and many rows have keys that [key] doesn't list: check its spelling, to the letter"
    );
    let public = pipeline.privacy.neighbours.counts_are_public();
    Some(Problem::new("key without rows", public, message))
}

/// Returns a listed key without a record, if there are rows with unlisted keys: for each listed key
/// without a record at least a tenth of the mean number of records of the other listed keys.
fn unseen_key<'a>(pipeline: &'a Pipeline, seen: &Observation<'_>) -> Option<&'a str> {
    let key = pipeline.key.as_ref().filter(|key| key.discover.is_none())?;
    let unlisted: u64 = seen.sources.iter().map(|source| source.counters.unknown_key).sum();
    if unlisted < LEAST_UNLISTED {
        return None;
    }
    let unseen: Vec<usize> = seen.coverage.empty_keys().collect();
    let (first, empty, all) = (*unseen.first()?, unseen.len() as u64, key.values.len() as u64);
    let is_enough = 10 * u128::from(unlisted) * u128::from(all - empty)
        >= u128::from(seen.coverage.closed.records) * u128::from(empty);
    (empty < all && is_enough).then(|| key.values[first].as_str())
}

/// Returns a listed key that many rows spell in another way, though every listed key has rows. A
/// list may leave out other keys on purpose, but not a spelling. No run stops at it.
pub(super) fn in_two_spellings<'a>(pipeline: &'a Pipeline, seen: &SourceRows<'_>) -> Option<&'a str> {
    let key = pipeline.key.as_ref()?;
    let listed: HashMap<String, &str> =
        key.values.iter().map(|value| (plain(value), value.as_str())).collect();
    let spelt = seen.survey.unlisted_keys.iter().filter_map(|(text, &rows)| {
        let listed = listed.get(&plain(std::str::from_utf8(text).ok()?))?;
        Some((rows, *listed))
    });
    let spelt: Vec<(u64, &str)> = spelt.collect();
    let rows: u64 = spelt.iter().map(|&(rows, _)| rows).sum();
    let name = spelt.iter().map(|&(_, name)| name).min()?;
    (ROWS_PER_MISSPELT * rows >= seen.counters.rows).then_some(name)
}

/// Returns a key in lower case and without blanks.
fn plain(word: &str) -> String {
    word.split_whitespace().collect::<String>().to_lowercase()
}

/// Returns the listed key that is most like an unlisted one. It is public; the unlisted one is not.
pub(super) fn similar<'a>(key: &'a KeyColumn, seen: &SourceRows<'_>) -> Option<&'a str> {
    let listed: Vec<&str> = key.values.iter().map(String::as_str).collect();
    let mut unlisted: Vec<_> = seen.survey.unlisted_keys.iter().collect();
    unlisted.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let like = |text: &str| {
        let same = listed.iter().copied().find(|&word| plain(word) == plain(text));
        same.or_else(|| closest(text, &listed))
    };
    unlisted.iter().find_map(|(text, _)| like(std::str::from_utf8(text).ok()?))
}
