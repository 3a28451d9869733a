//! Delivers each epoch to its operator once, in order, when nothing more can arrive for it, and
//! keeps capabilities after a fault.
//!
//! Guarantees of timely, and their consequences:
//!
//! - A frontier of an input bounds the times that may still arrive there, and it never goes back.
//!   An epoch that lies before the frontiers of all inputs is closed: its data are complete on this
//!   worker, and it closes once.
//! - Epochs are numbers, so all epochs before a closed one are closed as well. All epochs that have
//!   closed are delivered in order, as one run, so an operator pays the fixed cost of a run once
//!   for all of its epochs.
//! - An operator may send at a time while it holds a capability there, and downstream operators
//!   keep that epoch and all later ones open meanwhile. [`OpenEpochs`] holds one capability, at or
//!   before the first epoch with data, until that has been delivered.
//! - So data may travel at any time up to their epoch: the time is a bound, and data of a run of
//!   epochs travel together, at the time of the first.
//! - Timely activates an operator when data arrive or a frontier moves. So no close is missed, and
//!   nothing else activates the operator.
//!
//! A dropped capability looks like the end of the stream. After a [`Fault`], no epoch is delivered
//! and every capability is kept.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use timely::communication::Pull;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::ParallelizationContract;
use timely::dataflow::operators::generic::InputHandleCore;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::{Capability, InputCapability};
use timely::progress::frontier::MutableAntichain;

/// Largest number of epochs that [`EveryEpoch`] gives at once: even epochs without data take
/// memory.
const MAX_RUN: u64 = 256;

/// Reason of the fault of a source that closes without giving a last epoch.
const NO_END: &str = "the input closed without a last epoch on `ends`: send it there, or the end of the input looks like lost \
                      data";

type BatchInput<P, D> = InputHandleCore<u64, Vec<D>, P>;

/// A shared flag with the first reason for which it was raised.
///
/// A failing source or operator must keep its capabilities, because dropping one looks like the end
/// of the stream. It raises the fault instead, and the process ends at once.
#[derive(Clone, Default)]
pub struct Fault(Arc<OnceLock<String>>);

impl Fault {
    /// Returns a fault that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the fault. The first reason is kept. It must hold no private data.
    pub fn raise(&self, reason: impl Display) {
        let _ = self.0.set(reason.to_string());
    }

    /// Returns the reason if it was raised.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.reason().is_some()
    }
}

/// Sends what `map` returns for every item and its time. An error raises the fault and keeps a
/// capability at the item's time.
pub fn map_or_fault<'scope, T: 'static, U: 'static, I: IntoIterator<Item = U>>(
    items: StreamVec<'scope, u64, T>,
    pact: impl ParallelizationContract<u64, Vec<T>>,
    name: &str,
    fault: Fault,
    mut map: impl FnMut(u64, T) -> Result<I, String> + 'static,
) -> StreamVec<'scope, u64, U> {
    items.unary(pact, name, move |_capability, _info| {
        let mut failed = Vec::new();
        move |input, output| {
            input.for_each_time(|time, batches| {
                let mut session = output.session(&time);
                for item in batches.flat_map(|batch| batch.drain(..)) {
                    match map(*time.time(), item) {
                        Ok(mapped) => session.give_iterator(mapped.into_iter()),
                        Err(reason) => {
                            failed.push(time.retain(0));
                            fault.raise(reason);
                        }
                    }
                }
            });
        }
    })
}

/// Per-epoch buffer of an operator's data until each epoch closes. `OUTPUTS` is the operator's
/// number of outputs.
///
/// Sums of numbers, sent when their epoch closes:
///
/// ```
/// use hushflow_operators::{Fault, OpenEpochs};
/// use timely::dataflow::channels::pact::Pipeline;
/// use timely::dataflow::operators::generic::operator::Operator;
/// use timely::dataflow::operators::{Inspect, vec::{Delay, ToStream}};
///
/// timely::example(|scope| {
///     let numbers = vec![3, 1, 3].to_stream(scope).delay(|&number, _| number);
///     let sums = numbers.unary_frontier(Pipeline, "Sums", |_capability, _info| {
///         let mut epochs = OpenEpochs::new(Fault::new());
///         move |(input, frontier), output| {
///             epochs.collect(input, || 0, |sum, number| *sum += number);
///             epochs.on_close([frontier], |run| {
///                 for closed in run {
///                     let [time] = closed.own_times();
///                     output.session(&time).give(closed.data);
///                 }
///                 Ok(())
///             });
///         }
///     });
///     let expected = [(1, 1), (3, 6)];
///     let sums = sums.container::<Vec<_>>();
///     sums.inspect_time(move |&epoch, &sum| assert!(expected.contains(&(epoch, sum))));
/// });
/// ```
pub struct OpenEpochs<S, const OUTPUTS: usize = 1> {
    fault: Fault,
    open: BTreeMap<u64, S>,
    held: HeldTime<OUTPUTS>,
}

/// A closed epoch.
pub struct ClosedEpoch<'a, S, const OUTPUTS: usize = 1> {
    /// The epoch.
    pub epoch: u64,
    /// Outputs for data that carry their epoch: for each output a capability at the epoch, or
    /// before it.
    pub times: &'a [Capability<u64>; OUTPUTS],
    /// Everything that was collected for the epoch.
    pub data: S,
}

impl<S, const OUTPUTS: usize> ClosedEpoch<'_, S, OUTPUTS> {
    /// Returns where to send data whose epoch is their time: for each output a capability at the
    /// epoch.
    pub fn own_times(&self) -> [Capability<u64>; OUTPUTS] {
        self.times.each_ref().map(|time| time.delayed(&self.epoch))
    }
}

/// Capabilities at or before the first epoch with data, one for each output.
pub(crate) struct HeldTime<const OUTPUTS: usize = 1>(Option<[Capability<u64>; OUTPUTS]>);

impl<const OUTPUTS: usize> HeldTime<OUTPUTS> {
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// Holds this time, unless an earlier one is held.
    pub(crate) fn hold(&mut self, time: &InputCapability<u64>) {
        if self.time().is_none_or(|held| *time.time() < held) {
            self.0 = Some(std::array::from_fn(|output| time.retain(output)));
        }
    }

    pub(crate) fn get(&self) -> Option<&[Capability<u64>; OUTPUTS]> {
        self.0.as_ref()
    }

    fn time(&self) -> Option<u64> {
        self.0.as_ref()?.first().map(|held| *held.time())
    }

    /// Gives up the times before `limit`, or all if nothing is open.
    pub(crate) fn advance(&mut self, limit: u64, is_open: bool) {
        if !is_open {
            self.0 = None;
        } else if let Some(held) = &mut self.0 {
            held.iter_mut().filter(|time| *time.time() < limit).for_each(|time| time.downgrade(&limit));
        }
    }
}

impl<S, const OUTPUTS: usize> OpenEpochs<S, OUTPUTS> {
    /// Starts without open epochs. An operator that fails raises `fault`.
    pub fn new(fault: Fault) -> Self {
        OpenEpochs { fault, open: BTreeMap::new(), held: HeldTime::new() }
    }

    /// Adds the data that have arrived at an input to the epoch of their time. `new` makes an
    /// epoch's state when its first data arrive.
    pub fn collect<D, P: Pull<Message<u64, Vec<D>>>>(
        &mut self,
        input: &mut BatchInput<P, D>,
        mut new: impl FnMut() -> S,
        mut take: impl FnMut(&mut S, D),
    ) {
        self.collect_with(input, |time, item, open| take(open.entry(time).or_insert_with(&mut new), item));
    }

    /// Passes the data that have arrived at an input to `take` with their time. `take` adds them to
    /// epochs from that time on.
    pub(crate) fn collect_with<D, P: Pull<Message<u64, Vec<D>>>>(
        &mut self,
        input: &mut BatchInput<P, D>,
        mut take: impl FnMut(u64, D, &mut BTreeMap<u64, S>),
    ) {
        input.for_each_time(|time, batches| {
            self.held.hold(&time);
            batches
                .flat_map(|batch| batch.drain(..))
                .for_each(|item| take(*time.time(), item, &mut self.open));
        });
    }

    /// Passes the epochs that have data and are closed now, ascending, to `give` as one run, if
    /// there are any. `frontiers` are those of all inputs. An error of `give` raises the fault.
    pub fn on_close<'a>(
        &mut self,
        frontiers: impl IntoIterator<Item = &'a MutableAntichain<u64>>,
        give: impl FnOnce(Vec<ClosedEpoch<'_, S, OUTPUTS>>) -> Result<(), String>,
    ) {
        let limit = least_frontier(frontiers);
        if self.fault.is_raised() {
            return;
        }
        if let Some(times) = self.held.get()
            && self.open.first_key_value().is_some_and(|(&first, _)| first < limit)
        {
            let later = self.open.split_off(&limit);
            let closed = std::mem::replace(&mut self.open, later);
            let run = closed.into_iter().map(|(epoch, data)| ClosedEpoch { epoch, times, data });
            if let Err(reason) = give(run.collect()) {
                return self.fault.raise(reason);
            }
        }
        self.held.advance(limit, !self.open.is_empty());
    }
}

/// Returns the first epoch that may still get data at one of these inputs, `u64::MAX` if there is
/// none.
pub(crate) fn least_frontier<'a>(frontiers: impl IntoIterator<Item = &'a MutableAntichain<u64>>) -> u64 {
    let reached = frontiers.into_iter().filter_map(|frontier| frontier.frontier().first().copied());
    reached.min().unwrap_or(u64::MAX)
}

/// Runs of all epochs from the first to the last one, as they close: the clock of [`EveryEpoch`],
/// where its rules are documented.
pub(crate) struct EveryRun {
    fault: Fault,
    /// Capability at the first epoch that has not been given; `None` after the last.
    next: Option<[Capability<u64>; 1]>,
    last: Option<u64>,
}

impl EveryRun {
    pub(crate) fn new(mut capability: Capability<u64>, first: u64, fault: Fault) -> Self {
        capability.downgrade(&first);
        EveryRun { fault, next: Some([capability]), last: None }
    }

    /// Returns the first epoch that has not been given; `None` after the last.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next.as_ref().map(|[time]| *time.time())
    }

    /// Gives the epochs that are closed by the frontier of the data and by `ends`, without a gap. A
    /// run that begins with an epoch ends at the latest with `last_of_run` of that epoch. Returns
    /// whether more epochs follow.
    pub(crate) fn on_close<E: Pull<Message<u64, Vec<u64>>>>(
        &mut self,
        frontier: &MutableAntichain<u64>,
        (ends, ends_frontier): (&mut BatchInput<E, u64>, &MutableAntichain<u64>),
        last_of_run: impl Fn(u64) -> u64,
        mut give: impl FnMut(Range<u64>, &[Capability<u64>; 1]) -> Result<(), String>,
    ) -> bool {
        ends.for_each_time(|_, batches| {
            self.last = batches.flat_map(|batch| batch.drain(..)).max().max(self.last);
        });
        let Some(times) = self.next.as_mut() else { return false };
        // The last epoch is known once `ends` is closed; until then its frontier is the clock.
        let end = match (ends_frontier.frontier().first(), self.last) {
            (Some(&clock), _) => clock,
            (None, Some(last)) => last + 1,
            (None, None) => {
                self.fault.raise(NO_END);
                return false;
            }
        };
        let limit = least_frontier([frontier]).min(end);
        while *times[0].time() < limit && !self.fault.is_raised() {
            let first = *times[0].time();
            let next = limit.min(last_of_run(first).max(first).saturating_add(1));
            match give(first..next, times) {
                Ok(()) => times[0].downgrade(&next),
                Err(reason) => self.fault.raise(reason),
            }
        }
        if self.fault.is_raised() {
            return false;
        }
        if ends_frontier.is_empty() && (frontier.is_empty() || *times[0].time() >= end) {
            self.next = None;
        }
        self.next.is_some()
    }
}

/// Per-epoch buffer that yields every epoch from the first to the last one, also those without
/// data, when it closes. An operator in a loop can use this buffer, too: an epoch closes there when
/// the data of the earlier ones have come back.
///
/// The last epoch is the largest that comes through an input `ends`. Until `ends` is closed, its
/// frontier is a second clock beside the frontier of the data, so a source must advance both
/// together. Once a source has dropped its capabilities, data of later epochs hold the frontier of
/// the data. Which epochs they belong to is private, but without the second clock all epochs before
/// them would be given. Once `ends` is closed, the operator stops at the last epoch even if its
/// data never end, as in a loop that contains it.
pub struct EveryEpoch<D> {
    runs: EveryRun,
    open: BTreeMap<u64, Vec<D>>,
}

impl<D> EveryEpoch<D> {
    /// Starts with the `first` epoch, at the capability that the operator was built with. An
    /// operator that fails raises `fault`.
    pub fn new(capability: Capability<u64>, first: u64, fault: Fault) -> Self {
        EveryEpoch { runs: EveryRun::new(capability, first, fault), open: BTreeMap::new() }
    }

    /// Takes the data that have arrived and gives runs of closed epochs without a gap. Data from
    /// before the first epoch are dropped. Returns whether more epochs follow.
    ///
    /// If `ends` closes without a last epoch, the fault is raised.
    pub fn on_close<P: Pull<Message<u64, Vec<D>>>, E: Pull<Message<u64, Vec<u64>>>>(
        &mut self,
        (data, frontier): (&mut BatchInput<P, D>, &MutableAntichain<u64>),
        ends: (&mut BatchInput<E, u64>, &MutableAntichain<u64>),
        mut give: impl FnMut(Vec<ClosedEpoch<'_, Vec<D>>>) -> Result<(), String>,
    ) -> bool {
        let (open, next) = (&mut self.open, self.runs.next().unwrap_or(u64::MAX));
        data.for_each_time(|time, batches| {
            let items = batches.flat_map(|batch| batch.drain(..));
            if *time.time() >= next {
                open.entry(*time.time()).or_default().extend(items);
            } else {
                items.for_each(drop);
            }
        });
        let last_of_run = |first: u64| first.saturating_add(MAX_RUN - 1);
        let more = self.runs.on_close(frontier, ends, last_of_run, |run, times| {
            let closed = |epoch| {
                let data = open.remove(&epoch).unwrap_or_default();
                ClosedEpoch { epoch, times, data }
            };
            give(run.map(closed).collect())
        });
        if self.runs.next().is_none() {
            self.open = BTreeMap::new();
        }
        more
    }
}

#[cfg(test)]
mod tests;
