//! `robust_mean`: the private and robust mean of every key in every epoch, over tumbling windows.
//!
//! Rows travel to the worker that owns their key, wait until their epoch is complete, and go through
//! [`estimate`] together. Each row is in one window, so all windows together cost what one does (parallel composition); the numbers
//! of rows of windows are public, as the estimator asks. Every declared key answers for every epoch, also where it has no rows:
//! then by a reason.
//!
//! Unlike sums, an estimate is not merged from parts: this operator is the one that exchanges rows. They keep the order in which
//! each worker read them, workers after one another: never an order that depends on values, for neighbours must agree on the
//! place of every other row.

use crate::{Fault, Records};
use hushflow_mechanism::mean::{Answer, Question, estimate};
use hushflow_mechanism::noise::NoiseSource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;
use zeroize::Zeroizing;

/// What is asked of every window.
#[derive(Clone, Debug)]
pub struct MeanSetup {
    /// The question; its (ε, δ) is that of each window, and of all of them.
    pub question: Question,
    /// Columns of a record.
    pub columns: usize,
    /// Keys that answer, from 0; a record of another key raises the fault.
    pub keys: u32,
    /// Epochs that answer, from 1.
    pub epochs: u64,
    /// Where noise comes from: the generator of a window is that of its (epoch, key).
    pub source: NoiseSource,
}

/// The answer of one window.
#[derive(Clone, Debug)]
pub struct WindowMean {
    /// Its key.
    pub key: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Its rows: public.
    pub rows: usize,
    /// What was found, or why nothing can be asked of so many rows.
    pub answer: Result<Answer, String>,
}

/// Estimates means.
pub trait RobustMeans<'scope> {
    /// The mean of every key at every epoch, from 1 to the last, of records that were brought to their [`Epochs`](crate::Epochs).
    fn robust_mean(self, setup: MeanSetup, fault: Fault) -> StreamVec<'scope, u64, WindowMean>;
}

/// Rows of one key, on their way. Private data, so it can't be printed.
#[derive(Clone, Serialize, Deserialize)]
struct Rows {
    key: u32,
    /// The worker that read them, and how many batches it had read before.
    place: (usize, u64),
    values: Zeroizing<Vec<f64>>,
}

impl<'scope> RobustMeans<'scope> for StreamVec<'scope, u64, Records> {
    fn robust_mean(self, setup: MeanSetup, fault: Fault) -> StreamVec<'scope, u64, WindowMean> {
        let (index, peers) = (self.scope().index(), self.scope().peers());
        let (mut batches, malformed, columns) = (0, fault.clone(), setup.columns);
        let rows = self.flat_map(move |records| {
            batches += 1;
            split(&records, (index, batches), columns)
                .unwrap_or_else(|reason| {
                    malformed.raise(reason);
                    BTreeMap::new()
                })
                .into_values()
        });
        let by_key = Exchange::new(|rows: &Rows| u64::from(rows.key));
        rows.unary_frontier(by_key, "RobustMean", move |mut capability, _info| {
            capability.downgrade(&1);
            let mut capability = Some(capability);
            let mut open: BTreeMap<u64, Vec<Rows>> = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each_time(|time, batches| {
                    open.entry(*time.time()).or_default().extend(batches.flat_map(|batch| batch.drain(..)));
                });
                let Some(held) = capability.as_mut() else { return };
                let next = frontier.frontier().first().copied().unwrap_or(u64::MAX);
                while !fault.is_raised() && *held.time() < next.min(setup.epochs + 1) {
                    let epoch = *held.time();
                    let owned = (0..setup.keys).filter(|&key| key as usize % peers == index);
                    match answers(&setup, epoch, owned, open.remove(&epoch).unwrap_or_default()) {
                        Ok(answers) => output.session(&held).give_iterator(answers.into_iter()),
                        Err(reason) => fault.raise(reason),
                    }
                    // On a fault the capability stays with its epoch: it must not look like an end.
                    if !fault.is_raised() {
                        held.downgrade(&(epoch + 1));
                    }
                }
                if *held.time() > setup.epochs {
                    capability = None;
                }
            }
        })
    }
}

/// A batch by keys.
fn split(
    records: &Records,
    place: (usize, u64),
    columns: usize,
) -> Result<BTreeMap<u32, Rows>, &'static str> {
    if records.values.len() != records.len() * columns {
        return Err("a batch of records does not have the declared number of columns");
    }
    let mut by_key: BTreeMap<u32, Rows> = BTreeMap::new();
    for (&key, row) in records.keys.iter().zip(records.values.chunks_exact(columns)) {
        let rows = by_key.entry(key).or_insert_with(|| Rows { key, place, values: Zeroizing::default() });
        rows.values.extend_from_slice(row);
    }
    Ok(by_key)
}

/// The answers of an epoch, of all keys that a worker owns.
fn answers(
    setup: &MeanSetup,
    epoch: u64,
    owned: impl Iterator<Item = u32>,
    mut parts: Vec<Rows>,
) -> Result<Vec<WindowMean>, &'static str> {
    if parts.iter().any(|rows| rows.key >= setup.keys) {
        return Err("a record has a key that is not declared");
    }
    parts.sort_by_key(|rows| (rows.key, rows.place));
    let mut windows: BTreeMap<u32, Zeroizing<Vec<f64>>> = BTreeMap::new();
    for rows in parts {
        windows.entry(rows.key).or_default().extend_from_slice(&rows.values);
    }
    let mut answer = |key: u32| {
        let rows = windows.remove(&key).unwrap_or_default();
        let mut generator =
            setup.source.generator(epoch, u64::from(key)).map_err(|_| "there is no entropy")?;
        let answer = estimate(&rows, setup.columns, &setup.question, &mut generator);
        let answer = answer.map_err(|error| error.to_string());
        Ok(WindowMean { key, epoch, rows: rows.len() / setup.columns.max(1), answer })
    };
    owned.map(&mut answer).collect()
}
