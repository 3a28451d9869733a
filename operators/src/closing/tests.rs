//! Tests that each epoch is delivered once, in order, with all its data.

use super::*;
use proptest::prelude::*;
use std::sync::{Mutex, mpsc};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Input;
use timely::dataflow::operators::vec::Broadcast;
use timely::dataflow::{InputHandle, Scope};

/// An action of a worker on one of its two inputs.
#[derive(Clone, Copy, Debug)]
enum InputAction {
    /// Sends a number to an epoch this far ahead.
    Send(usize, u64, u32),
    /// Advances the frontier.
    Advance(usize, u64),
    /// Runs the dataflow.
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
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel::<DeliveredEpoch>()).unzip();
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

/// Returns the numbers that the first `inputs` inputs sent to each worker's epochs, sorted.
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
