//! Delivers each epoch to its operator once, in order, when nothing more can arrive for it, and
//! keeps capabilities after a fault.
//!
//! Guarantees of timely, and their consequences:
//!
//! - A frontier of an input bounds the times that may still arrive there, and it never goes back.
//!   An epoch that no input's frontier reaches down to is closed: its data are complete on this
//!   worker, and it closes once.
//! - Epochs are numbers, so all epochs before a closed one are closed as well. They are delivered
//!   in order.
//! - An operator may send at a time while it holds a capability there, and downstream operators
//!   keep that epoch open meanwhile. [`OpenEpochs`] holds the capabilities of an epoch from its
//!   first data until it has been delivered.
//! - Timely activates an operator when data arrive or a frontier moves. So no close is missed, and
//!   nothing else activates the operator.
//!
//! A dropped capability looks like the end of the stream. After a [`Fault`], no epoch is delivered
//! and every capability is kept.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use timely::communication::Pull;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::ParallelizationContract;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::InputHandleCore;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::frontier::MutableAntichain;

/// Most epochs that [`EveryEpoch`] gives at once: epochs without data would take memory.
const RUN: u64 = 256;

/// Fault of a source that closes without giving a last epoch.
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

/// Sends on what `map` makes of every item and its time. An error raises the fault, and its time is
/// kept.
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

/// The epochs for which an operator with this number of outputs has data, until they close.
///
/// Sums of numbers, sent when their epoch closes:
///
/// ```
/// use hushflow_operators::{ClosedEpoch, Fault, OpenEpochs};
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
///                 for ClosedEpoch { times: [time], data: sum, .. } in run {
///                     output.session(time).give(sum);
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
    open: BTreeMap<u64, ([Capability<u64>; OUTPUTS], S)>,
    /// Capabilities of the run whose operator failed.
    failed: Vec<[Capability<u64>; OUTPUTS]>,
}

/// A closed epoch.
pub struct ClosedEpoch<'a, S, const OUTPUTS: usize = 1> {
    /// The epoch.
    pub epoch: u64,
    /// Where to send: a capability for each output.
    pub times: &'a [Capability<u64>; OUTPUTS],
    /// Everything that was collected for the epoch.
    pub data: S,
}

impl<S, const OUTPUTS: usize> OpenEpochs<S, OUTPUTS> {
    /// Starts without open epochs. An operator that fails raises `fault`.
    pub fn new(fault: Fault) -> Self {
        OpenEpochs { fault, open: BTreeMap::new(), failed: Vec::new() }
    }

    /// Takes what has arrived at an input. An epoch's first data make it `new`.
    pub fn collect<D, P: Pull<Message<u64, Vec<D>>>>(
        &mut self,
        input: &mut BatchInput<P, D>,
        mut new: impl FnMut() -> S,
        mut take: impl FnMut(&mut S, D),
    ) {
        input.for_each_time(|time, batches| {
            let retained = || std::array::from_fn(|output| time.retain(output));
            let (_, data) = self.open.entry(*time.time()).or_insert_with(|| (retained(), new()));
            batches.flat_map(|batch| batch.drain(..)).for_each(|item| take(data, item));
        });
    }

    /// Gives the run of epochs that have data and are closed now, ascending, if there are any.
    /// `frontiers` are those of all inputs. An error of `give` raises the fault.
    pub fn on_close<'a>(
        &mut self,
        frontiers: impl IntoIterator<Item = &'a MutableAntichain<u64>>,
        give: impl FnOnce(Vec<ClosedEpoch<'_, S, OUTPUTS>>) -> Result<(), String>,
    ) {
        let reached = frontiers.into_iter().filter_map(|frontier| frontier.frontier().first().copied());
        self.give_before(reached.min().unwrap_or(u64::MAX), give);
    }

    fn give_before(
        &mut self,
        limit: u64,
        give: impl FnOnce(Vec<ClosedEpoch<'_, S, OUTPUTS>>) -> Result<(), String>,
    ) {
        let is_closed = |(&epoch, _): (&u64, &_)| epoch < limit;
        if self.fault.is_raised() || !self.open.first_key_value().is_some_and(is_closed) {
            return;
        }
        let later = self.open.split_off(&limit);
        let closed = std::mem::replace(&mut self.open, later);
        let (times, run): (Vec<_>, Vec<_>) =
            closed.into_iter().map(|(epoch, (times, data))| (times, (epoch, data))).unzip();
        let run = times.iter().zip(run).map(|(times, (epoch, data))| ClosedEpoch { epoch, times, data });
        if let Err(reason) = give(run.collect()) {
            self.fault.raise(reason);
            self.failed = times;
        }
    }
}

/// All epochs from the first to the last one, also those without data, until they close. An
/// operator in a loop can use it, too: an epoch closes there when the data of the earlier ones have
/// come back.
///
/// The last epoch is the largest that comes through an input `ends`. Until that is closed, its
/// frontier is the clock beside that of the data, so a source lets both move on together. Data of
/// later epochs hold the frontier of the data once their source has dropped its capabilities. Which
/// epochs they belong to is private, and without the clock all epochs before them would be given.
/// Once `ends` is closed, the operator stops at the last epoch even if its data never end, as in a
/// loop that contains it.
pub struct EveryEpoch<D> {
    epochs: OpenEpochs<Vec<D>>,
    /// At the first epoch that has not been given; `None` after the last.
    next: Option<Capability<u64>>,
    last: Option<u64>,
}

impl<D> EveryEpoch<D> {
    /// Starts with the `first` epoch, at the capability that the operator was built with. An
    /// operator that fails raises `fault`.
    pub fn new(mut capability: Capability<u64>, first: u64, fault: Fault) -> Self {
        capability.downgrade(&first);
        EveryEpoch { epochs: OpenEpochs::new(fault), next: Some(capability), last: None }
    }

    /// Takes what has arrived and gives runs of closed epochs without a gap. Data from before the
    /// first epoch are dropped. Returns whether more epochs follow.
    ///
    /// `ends` that close without a last epoch are a fault of their source.
    pub fn on_close<P: Pull<Message<u64, Vec<D>>>, E: Pull<Message<u64, Vec<u64>>>>(
        &mut self,
        (data, frontier): (&mut BatchInput<P, D>, &MutableAntichain<u64>),
        (ends, ends_frontier): (&mut BatchInput<E, u64>, &MutableAntichain<u64>),
        mut give: impl FnMut(Vec<ClosedEpoch<'_, Vec<D>>>) -> Result<(), String>,
    ) -> bool {
        self.epochs.collect(data, Vec::new, Vec::push);
        ends.for_each_time(|_, batches| {
            self.last = batches.flat_map(|batch| batch.drain(..)).max().max(self.last);
        });
        let Some(capability) = self.next.as_mut() else {
            self.epochs.open.clear();
            return false;
        };
        self.epochs.open.retain(|epoch, _| epoch >= capability.time());
        let reached = |frontier: &MutableAntichain<u64>| frontier.frontier().first().copied();
        let (has_ended, reached) = (frontier.is_empty(), reached(frontier).unwrap_or(u64::MAX));
        // The last epoch is known once `ends` is closed; until then its frontier is the clock.
        let end = match (ends_frontier.frontier().first(), self.last) {
            (Some(&clock), _) => clock,
            (None, Some(last)) => last + 1,
            (None, None) => {
                self.epochs.fault.raise(NO_END);
                return false;
            }
        };
        let is_known = ends_frontier.is_empty();
        let limit = reached.min(end);
        while *capability.time() < limit && !self.epochs.fault.is_raised() {
            let next = limit.min(capability.time() + RUN);
            for epoch in *capability.time()..next {
                self.epochs.open.entry(epoch).or_insert_with(|| ([capability.delayed(&epoch)], Vec::new()));
            }
            capability.downgrade(&next);
            self.epochs.give_before(next, &mut give);
        }
        if self.epochs.fault.is_raised() {
            return false;
        }
        if is_known && (has_ended || *capability.time() >= end) {
            (self.next, self.epochs.open) = (None, BTreeMap::new());
        }
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::{Mutex, mpsc};
    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::channels::pact::{Exchange, Pipeline};
    use timely::dataflow::operators::Input;
    use timely::dataflow::operators::vec::Broadcast;
    use timely::dataflow::{InputHandle, Scope};

    /// What a worker does to one of its two inputs.
    #[derive(Clone, Copy, Debug)]
    enum InputAction {
        /// Sends a number to an epoch this far ahead.
        Send(usize, u64, u32),
        /// Lets the frontier move on.
        Advance(usize, u64),
        /// Lets the dataflow work.
        Work,
    }

    fn steps() -> impl Strategy<Value = Vec<InputAction>> {
        let step = prop_oneof![
            4 => (0..2_usize, 0..5_u64, 0..99_u32).prop_map(|(to, ahead, number)| InputAction::Send(to, ahead, number)),
            2 => (0..2_usize, 1..4_u64).prop_map(|(input, by)| InputAction::Advance(input, by)),
            1 => Just(InputAction::Work),
        ];
        prop::collection::vec(step, 0..40)
    }

    /// Numbers of an epoch, on the worker with this index.
    type DeliveredEpoch = (usize, u64, Vec<u32>);

    type NumberInput = InputHandle<u64, CapacityContainerBuilder<Vec<(u64, u32)>>>;

    /// Sends numbers at the times of their epochs.
    fn numbers<'scope>(scope: Scope<'scope, u64>, input: &mut NumberInput) -> StreamVec<'scope, u64, u32> {
        scope.input_from(input).unary(Pipeline, "Numbers", |_capability, _info| {
            |input, output| {
                input.for_each_time(|time, batches| {
                    for (epoch, number) in batches.flat_map(|batch| batch.drain(..)) {
                        output.session(&time.delayed(&epoch, 0)).give(number);
                    }
                });
            }
        })
    }

    /// Returns the delivered epochs of both inputs, and of the first one from `first` to `last`.
    fn delivered(scripts: &[Vec<InputAction>], first: u64, last: u64) -> [Vec<DeliveredEpoch>; 2] {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..2).map(|_| mpsc::channel::<DeliveredEpoch>()).unzip();
        let (senders, workers) = (Mutex::new(senders), scripts.len());
        let scripts = Arc::new(scripts.to_vec());
        let work = move |worker: &mut timely::worker::Worker| {
            let senders = senders.lock().expect("no panic").clone();
            let index = worker.index();
            let give = |to: usize| {
                let sender = senders[to].clone();
                move |epoch, numbers| sender.send((index, epoch, numbers)).map_err(|error| error.to_string())
            };
            let (give_closed, give_every) = (give(0), give(1));
            let mut inputs = [NumberInput::new(), NumberInput::new()];
            let mut end = InputHandle::<u64, CapacityContainerBuilder<Vec<u64>>>::new();
            worker.dataflow(|scope| {
                let [one, other] = inputs.each_mut().map(|input| numbers(scope, input));
                let by_number = || Exchange::new(|&number: &u32| u64::from(number));
                one.clone().binary_frontier::<_, CapacityContainerBuilder<Vec<()>>, _, _, _, _>(
                    other,
                    by_number(),
                    by_number(),
                    "Closed",
                    move |_capability, _info| {
                        let mut epochs = OpenEpochs::<_>::new(Fault::new());
                        move |(one, one_frontier), (other, other_frontier), _output| {
                            epochs.collect(one, Vec::new, Vec::push);
                            epochs.collect(other, Vec::new, Vec::push);
                            epochs.on_close([one_frontier, other_frontier], |run| {
                                run.into_iter().try_for_each(|closed| give_closed(closed.epoch, closed.data))
                            });
                        }
                    },
                );
                let ends = scope.input_from(&mut end).broadcast();
                one.binary_frontier::<_, CapacityContainerBuilder<Vec<()>>, _, _, _, _>(
                    ends,
                    by_number(),
                    Pipeline,
                    "Every",
                    move |capability, _info| {
                        let mut epochs = EveryEpoch::new(capability, first, Fault::new());
                        move |one, ends, _output| {
                            epochs.on_close(one, ends, |run| {
                                run.into_iter().try_for_each(|closed| give_every(closed.epoch, closed.data))
                            });
                        }
                    },
                );
            });
            if index == 0 {
                end.send(last);
            }
            let mut end = Some(end);
            let half = scripts[index].len() / 2;
            for (number, step) in scripts[index].iter().enumerate() {
                match *step {
                    InputAction::Send(to, ahead, number) => {
                        let epoch = inputs[to].time() + ahead;
                        inputs[to].send((epoch, number));
                    }
                    InputAction::Advance(input, by) => {
                        let time = inputs[input].time() + by;
                        inputs[input].advance_to(time);
                    }
                    InputAction::Work => drop(worker.step()),
                }
                if number == half {
                    drop(end.take());
                }
            }
        };
        timely::execute(timely::Config::process(workers), work).expect("workers").join();
        receivers
            .into_iter()
            .map(|receiver| receiver.iter().collect())
            .collect::<Vec<_>>()
            .try_into()
            .expect("two")
    }

    /// Returns the numbers sent to each worker's epochs, sorted, by the first inputs of this count.
    fn sent(scripts: &[Vec<InputAction>], inputs: usize) -> BTreeMap<(usize, u64), Vec<u32>> {
        let mut sent: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for script in scripts {
            let mut times = [0; 2];
            for step in script {
                match *step {
                    InputAction::Send(to, ahead, number) if to < inputs => {
                        let worker = number as usize % scripts.len();
                        sent.entry((worker, times[to] + ahead)).or_default().push(number);
                    }
                    InputAction::Advance(input, by) => times[input] += by,
                    _ => {}
                }
            }
        }
        sent.values_mut().for_each(|numbers| numbers.sort_unstable());
        sent
    }

    #[test]
    fn a_fault_keeps_its_first_reason() {
        let fault = Fault::new();
        let watcher = fault.clone();
        assert!(!watcher.is_raised());
        fault.raise("the disk is full");
        fault.raise("something that follows from it");
        assert_eq!(watcher.reason(), Some("the disk is full"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_epoch_is_delivered_once_in_order_with_all_its_data(
            scripts in prop::collection::vec(steps(), 1..4), first in 1..4_u64, more in 0..40_u64,
        ) {
            let last = first + more;
            let [closed, every] = delivered(&scripts, first, last);
            for given in [&closed, &every] {
                for worker in 0..scripts.len() {
                    let epochs: Vec<u64> =
                        given.iter().filter(|given| given.0 == worker).map(|given| given.1).collect();
                    prop_assert!(epochs.is_sorted_by(|one, next| one < next), "worker {}: {:?}", worker, epochs);
                }
            }
            let sorted = |given: Vec<DeliveredEpoch>| given.into_iter().map(|(worker, epoch, mut numbers)| {
                numbers.sort_unstable();
                ((worker, epoch), numbers)
            }).collect::<BTreeMap<_, _>>();
            prop_assert_eq!(sorted(closed), sent(&scripts, 2));
            let mut expected = sent(&scripts, 1);
            expected.retain(|(_, epoch), _| (first..=last).contains(epoch));
            for worker in 0..scripts.len() {
                for epoch in first..=last {
                    expected.entry((worker, epoch)).or_default();
                }
            }
            prop_assert_eq!(sorted(every), expected);
        }
    }
}
