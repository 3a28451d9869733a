//! Processes of a cluster and their worker threads. Every pair of processes has one link, made
//! before the dataflow starts.
//!
//! Process i listens at its own address, calls every process with a lower number, and is called by
//! those with higher numbers ([`bootstrap`](super::bootstrap)). All communication, including the
//! dataflow's own exchange, uses encrypted links ([`link`](super::link)).

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::rc::Rc;
use std::time::Duration;

use hushflow_operators::Fault;
use thiserror::Error;
use timely::WorkerConfig;
use timely::communication::Hooks;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;

use super::PARK_TIMEOUT;
use super::bootstrap::ProcessLinks;
use super::journal::RunStart;
use crate::key::SharedKey;

/// Addresses of the processes of a run.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Number of this process, from 0. The first takes the rows in their order and commits.
    pub process: usize,
    /// `host:port` of every process, by number.
    pub hosts: Vec<String>,
    /// The secret that all processes share. Without one they must be on loopback addresses.
    pub key: Option<SharedKey>,
    /// How long to wait for the other processes.
    pub timeout: Duration,
    /// Ends this process after a fault. It must not return: the others wait for a process that
    /// lingers.
    pub on_fault: fn(&str) -> !,
}

/// Why the processes of a cluster could not connect.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The process number is out of range.
    #[error("this is process {process} of {processes}: number the processes from 0, one address each")]
    Process {
        /// Number of this process.
        process: usize,
        /// Number of addresses.
        processes: usize,
    },
    /// Two processes have the same address.
    #[error("processes {first} and {second} are both at {address}: give each an address of its own")]
    SameAddress {
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
        /// The address of both.
        address: String,
    },
    /// The run was stopped before all processes were connected.
    #[error("stopped while waiting for the other processes")]
    Stopped,
    /// This process can't listen at its address.
    #[error("can't listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process was not reached in time.
    #[error(
        "process {process} was not reached at {address} within {seconds} s ({reason}): start all processes"
    )]
    Unreached {
        /// The other process.
        process: usize,
        /// Its address.
        address: String,
        /// Seconds waited.
        seconds: u64,
        /// The last failure.
        reason: String,
    },
    /// Not all processes with higher numbers connected in time.
    #[error(
        "{missing} of the processes with higher numbers did not connect within {seconds} s ({reason}): \
         start all processes"
    )]
    Missing {
        /// Number of missing processes.
        missing: usize,
        /// Seconds waited.
        seconds: u64,
        /// How a caller differs from this process, or the number of callers that were dropped.
        reason: String,
    },
    /// A connected process ended before the dataflow started.
    #[error("process {process} has ended before the run began: start all processes")]
    Gone {
        /// The other process.
        process: usize,
    },
    /// Another process with the same number is connected.
    #[error(
        "process {process} is connected to another process with the number of this one, and keeps it: give each process a \
         number of its own"
    )]
    Taken {
        /// The other process.
        process: usize,
    },
    /// An address is reachable from other machines, and there is no key.
    #[error(
        "{address} is not a loopback address, so others could join the cluster: make a key with `hushflow key FILE`, copy it \
         to all machines, and start all processes with --key FILE"
    )]
    NoKey {
        /// The address.
        address: String,
    },
    /// Another process runs something different.
    #[error("process {process} {difference}: start all processes alike")]
    Different {
        /// The other process.
        process: usize,
        /// The difference.
        difference: &'static str,
    },
    /// The connections could not be handed to the dataflow.
    #[error("the connections between the processes failed: {0}")]
    Network(std::io::Error),
}

/// Returns whether this panic of the engine means that the connection to another process is lost.
pub fn is_lost_peer(panic: &PanicHookInfo<'_>) -> bool {
    panic
        .payload()
        .downcast_ref::<String>()
        .is_some_and(|text| text.starts_with("timely communication error"))
}

/// Returns whether this panic of the engine means that another worker of this process was never
/// started.
pub fn is_missing_worker(panic: &PanicHookInfo<'_>) -> bool {
    let engine = panic.location().is_some_and(|location| location.file().contains("timely_communication"));
    let text = panic.payload().downcast_ref::<String>();
    engine && text.is_some_and(|text| text.contains("buzzer") || text.contains("RecvError"))
}

/// Runs `work` on every worker of this process and returns the results. In a cluster, `cluster`
/// holds the number of this process and its links to the others.
pub(super) fn execute<T: Send + 'static>(
    workers: usize,
    cluster: Option<(usize, ProcessLinks)>,
    fault: &Fault,
    work: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
) -> Result<Vec<T>, super::RunError> {
    let hooks = Hooks::default();
    let local = ProcessBuilder::new_typed_vector(workers, hooks.refill.clone(), hooks.spill.clone());
    let config = WorkerConfig::default();
    // timely's message is meant for programmers.
    let start = |_: String| {
        super::RunError::Start(format!(
            "the system gives no threads for {workers} workers: allow more processes and memory (ulimit -u, or TasksMax of \
             the service), or ask for fewer --workers"
        ))
    };
    let guards = match cluster {
        None => {
            let builders = local.into_iter().map(AllocatorBuilder::Process).collect();
            timely::execute::execute_from(builders, Box::new(()), config, work)
        }
        Some((process, links)) => {
            let (builders, guard) = initialize_networking_from_sockets(local, links, process, workers, hooks)
                .map_err(ClusterError::Network)?;
            let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
            timely::execute::execute_from(builders, Box::new(guard), config, work)
        }
    };
    let results = guards.map_err(start)?.join();
    results.into_iter().collect::<Result<_, _>>().map_err(|reason| {
        fault.raise(&reason);
        super::RunError::Fault(reason)
    })
}

/// Sends every worker of every process its start, with only the private state that it owns.
pub(super) fn send_starts(worker: &mut Worker, start: Option<&RunStart>) -> RunStart {
    let received: Rc<RefCell<Option<RunStart>>> = Rc::default();
    let probe = ProbeHandle::new();
    let mut input: InputHandle<u64, CapacityContainerBuilder<Vec<(u64, RunStart)>>> = InputHandle::new();
    let sink = Rc::clone(&received);
    worker.dataflow::<u64, _, _>(|scope| {
        let starts = scope.input_from(&mut input).exchange(|(to, _)| *to);
        starts.inspect(move |(_, start)| *sink.borrow_mut() = Some(start.clone())).probe_with(&probe);
    });
    if let Some(start) = start.filter(|_| worker.index() == 0) {
        let peers = worker.peers();
        (0..peers).for_each(|to| input.send((to as u64, start.of_worker(to, peers))));
    }
    input.close();
    while !probe.done() && worker.step_or_park(Some(PARK_TIMEOUT)) {}
    received.take().expect("the first worker of the first process has sent it")
}
