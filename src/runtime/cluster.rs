//! The processes of a run find together: every pair shares one TCP connection, made before the dataflow starts.
//!
//! Process i listens at its own address, calls every process before it, and is called by those after it. Both ends
//! say who they are, how many workers they have and which pipeline they run, and refuse each other on any difference.
//! The connections carry exact sums, in plain text and without authentication: use a loopback or private network.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::PanicHookInfo;
use std::time::{Duration, Instant};

use hushflow_operators::Fault;
use thiserror::Error;
use timely::WorkerConfig;
use timely::communication::Hooks;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::worker::Worker;
use tracing::info;

use crate::source::{Control, connect, keep_alive};

const MAGIC: [u8; 8] = *b"hushflow";
const VERSION: u32 = 1;
const GREETING: usize = 24;
const RETRY: Duration = Duration::from_millis(50);

/// Where the processes of a run are.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Number of this process, from 0. The first reads the source and commits.
    pub process: usize,
    /// `host:port` of every process, in their order.
    pub hosts: Vec<String>,
    /// How long to wait for the others.
    pub patience: Duration,
    /// What ends this process after a fault: it must not return, for a peer that lingers is waited for.
    pub on_fault: fn(&str) -> !,
}

/// Why the processes did not find together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is no such process.
    #[error("this is process {process} of {processes}: number the processes from 0, one address each")]
    Process {
        /// Number of this process.
        process: usize,
        /// Number of addresses.
        processes: usize,
    },
    /// Two processes have one address.
    #[error("processes {first} and {second} are both at {address}: give each an address of its own")]
    SameAddress {
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
        /// Where both are said to be.
        address: String,
    },
    /// The run was stopped before all had come.
    #[error("stopped while waiting for the other processes")]
    Stopped,
    /// The address of this process can't be listened at.
    #[error("can't listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process did not come in time.
    #[error(
        "process {process} was not reached at {address} within {seconds} s ({reason}): start all processes"
    )]
    Unreached {
        /// The other process.
        process: usize,
        /// Its address.
        address: String,
        /// How long we waited.
        seconds: u64,
        /// The last failure.
        reason: String,
    },
    /// Not all later processes called in time.
    #[error("{missing} of the processes after this one did not call within {seconds} s: start all processes")]
    Missing {
        /// How many.
        missing: usize,
        /// How long we waited.
        seconds: u64,
    },
    /// Another process runs something else.
    #[error("process {process} {difference}: start all processes alike")]
    Different {
        /// The other process.
        process: usize,
        /// In what it differs.
        difference: &'static str,
    },
    /// The connections could not be taken over.
    #[error("the connections between the processes failed: {0}")]
    Network(std::io::Error),
}

/// What a process says of itself.
#[derive(Clone, Copy)]
struct Greeting {
    process: u32,
    workers: u32,
    pipeline: u32,
}

impl Greeting {
    fn encode(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&MAGIC);
        for (field, place) in
            [VERSION, self.process, self.workers, self.pipeline].into_iter().zip((8..).step_by(4))
        {
            bytes[place..place + 4].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The process that greets, once it has been found to run the same.
    fn check(self, bytes: [u8; GREETING]) -> Result<usize, ClusterError> {
        let field = |place: usize| {
            bytes[place..place + 4].iter().rev().fold(0u32, |value, &byte| value << 8 | u32::from(byte))
        };
        let process = field(12) as usize;
        let different = |difference| Err(ClusterError::Different { process, difference });
        if bytes[..8] != MAGIC || field(8) != VERSION {
            return different("is another program or another version");
        }
        if field(16) != self.workers {
            return different("has another number of workers");
        }
        if field(20) != self.pipeline {
            return different("runs another pipeline");
        }
        Ok(process)
    }
}

impl Cluster {
    /// Connects to all other processes, unless the run is stopped before. `pipeline` identifies what is run.
    pub(super) fn connect(
        &self,
        workers: usize,
        pipeline: &[u8],
        control: &Control,
    ) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let processes = self.hosts.len();
        let address = self.hosts.get(self.process);
        let address = address.ok_or(ClusterError::Process { process: self.process, processes })?.clone();
        self.check_addresses()?;
        let greeting = Greeting {
            process: self.process as u32,
            workers: workers as u32,
            pipeline: crc32c::crc32c(pipeline),
        };
        let deadline = Instant::now() + self.patience;
        let listener = TcpListener::bind(&address);
        let listener = listener.map_err(|source| ClusterError::Listen { address, source })?;
        let mut sockets: Vec<Option<TcpStream>> = (0..processes).map(|_| None).collect();
        for (process, socket) in sockets.iter_mut().enumerate().take(self.process) {
            *socket = Some(self.call(process, greeting, deadline, control)?);
        }
        self.await_calls(&listener, greeting, deadline, control, &mut sockets)?;
        Ok(sockets)
    }

    fn check_addresses(&self) -> Result<(), ClusterError> {
        for (second, address) in self.hosts.iter().enumerate() {
            if let Some(first) = self.hosts[..second].iter().position(|other| other == address) {
                return Err(ClusterError::SameAddress { first, second, address: address.clone() });
            }
        }
        Ok(())
    }

    fn call(
        &self,
        process: usize,
        greeting: Greeting,
        deadline: Instant,
        control: &Control,
    ) -> Result<TcpStream, ClusterError> {
        let address = &self.hosts[process];
        loop {
            // Within a time, for a machine that is not there yet may not even refuse.
            let reason = match connect(address).and_then(|mut stream| {
                stream.write_all(&greeting.encode())?;
                let answer = read_greeting(&mut stream, deadline)?;
                Ok((stream, answer))
            }) {
                Ok((stream, answer)) => {
                    let found = greeting.check(answer)?;
                    if found == process {
                        info!(process, address, "another process was reached");
                        return Ok(stream);
                    }
                    return Err(ClusterError::Different {
                        process,
                        difference: "is at another process's address",
                    });
                }
                Err(error) => error.to_string(),
            };
            if control.is_stopped() {
                return Err(ClusterError::Stopped);
            }
            if Instant::now() >= deadline {
                let seconds = self.patience.as_secs();
                return Err(ClusterError::Unreached { process, address: address.clone(), seconds, reason });
            }
            std::thread::sleep(RETRY);
        }
    }

    fn await_calls(
        &self,
        listener: &TcpListener,
        greeting: Greeting,
        deadline: Instant,
        control: &Control,
        sockets: &mut [Option<TcpStream>],
    ) -> Result<(), ClusterError> {
        listener.set_nonblocking(true).map_err(ClusterError::Network)?;
        loop {
            let missing = sockets[self.process + 1..].iter().filter(|socket| socket.is_none()).count();
            if missing == 0 {
                return Ok(());
            }
            match listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false).map_err(ClusterError::Network)?;
                    // Whoever calls and says nothing sensible is not one of us: wait for the others.
                    let Ok(bytes) = read_greeting(&mut stream, deadline) else { continue };
                    if bytes[..MAGIC.len()] != MAGIC || stream.write_all(&greeting.encode()).is_err() {
                        continue;
                    }
                    let process = greeting.check(bytes)?;
                    if let Some(socket) = sockets.get_mut(process)
                        && process > self.process
                    {
                        info!(process, "another process has called");
                        *socket = Some(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
                Err(error) => return Err(ClusterError::Network(error)),
            }
            if control.is_stopped() {
                return Err(ClusterError::Stopped);
            }
            if Instant::now() >= deadline {
                return Err(ClusterError::Missing { missing, seconds: self.patience.as_secs() });
            }
        }
    }
}

fn read_greeting(stream: &mut TcpStream, deadline: Instant) -> std::io::Result<[u8; GREETING]> {
    let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
    stream.set_read_timeout(Some(left.min(Duration::from_secs(5))))?;
    let mut bytes = [0; GREETING];
    stream.read_exact(&mut bytes)?;
    stream.set_read_timeout(None)?;
    stream.set_nodelay(true)?;
    keep_alive(stream)?;
    Ok(bytes)
}

/// Whether this panic is the engine's way to say that the connection to another process is lost.
pub fn is_lost_peer(panic: &PanicHookInfo<'_>) -> bool {
    panic
        .payload()
        .downcast_ref::<String>()
        .is_some_and(|text| text.starts_with("timely communication error"))
}

/// Runs `work` on every worker of this process and gives what each gave.
pub(super) fn execute<T: Send + 'static>(
    workers: usize,
    cluster: Option<(&Cluster, &[u8], &Control)>,
    fault: &Fault,
    work: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
) -> Result<Vec<T>, super::RunError> {
    let hooks = Hooks::default();
    let local = ProcessBuilder::new_typed_vector(workers, hooks.refill.clone(), hooks.spill.clone());
    let config = WorkerConfig::default();
    let start = super::RunError::Start;
    let guards = match cluster {
        None => {
            let builders = local.into_iter().map(AllocatorBuilder::Process).collect();
            timely::execute::execute_from(builders, Box::new(()), config, work)
        }
        Some((cluster, pipeline, control)) => {
            let sockets = cluster.connect(workers, pipeline, control)?;
            let (builders, guard) =
                initialize_networking_from_sockets(local, sockets, cluster.process, workers, hooks)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn free_addresses(number: usize) -> Vec<String> {
        let listeners: Vec<_> = (0..number).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
    }

    fn connect_all(pipelines: &[&'static [u8]], workers: &[usize]) -> Vec<Result<usize, String>> {
        let hosts = free_addresses(pipelines.len());
        let threads: Vec<_> = (0..hosts.len())
            .map(|process| {
                let (hosts, patience) = (hosts.clone(), Duration::from_secs(2));
                let cluster = Cluster { process, hosts, patience, on_fault: |reason| panic!("{reason}") };
                let (workers, pipeline) = (workers[process], pipelines[process]);
                std::thread::spawn(move || {
                    let sockets = cluster
                        .connect(workers, pipeline, &Control::new())
                        .map_err(|error| error.to_string())?;
                    Ok(sockets.iter().flatten().count())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn three_processes_find_together() {
        assert_eq!(connect_all(&[b"p".as_slice(); 3], &[2; 3]), [Ok(2), Ok(2), Ok(2)]);
    }

    #[test]
    fn processes_that_run_something_else_are_refused() {
        for (pipelines, workers, expected) in [
            ([b"p".as_slice(), b"q"], [1, 1], "runs another pipeline"),
            ([b"p", b"p"], [1, 2], "has another number of workers"),
        ] {
            let results = connect_all(&pipelines, &workers);
            assert!(
                results.iter().all(|result| result.as_ref().is_err_and(|error| error.contains(expected))),
                "{results:?}"
            );
        }
    }

    #[test]
    fn whoever_stays_away_is_named() {
        let hosts = free_addresses(2);
        let patience = Duration::from_millis(200);
        let on_fault = |reason: &str| panic!("{reason}");
        let wait = |process| Cluster { process, hosts: hosts.clone(), patience, on_fault };
        let connect = |process| wait(process).connect(1, b"p", &Control::new()).unwrap_err().to_string();
        let error = connect(1);
        assert!(error.contains("process 0 was not reached"), "{error}");
        let error = connect(0);
        assert!(error.contains("1 of the processes after this one"), "{error}");
        let error = connect(2);
        assert!(error.contains("process 2 of 2"), "{error}");
    }

    #[test]
    fn whoever_is_none_of_us_is_not_minded() {
        let hosts = free_addresses(2);
        let patience = Duration::from_secs(5);
        let process = |process| Cluster { process, hosts: hosts.clone(), patience, on_fault: |_| panic!() };
        let first = process(0);
        let waiting = std::thread::spawn(move || first.connect(1, b"p", &Control::new()).is_ok());
        let stray = std::iter::repeat_with(|| TcpStream::connect(&hosts[0])).find_map(Result::ok);
        stray.unwrap().write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        assert!(process(1).connect(1, b"p", &Control::new()).is_ok());
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn one_address_is_not_that_of_two() {
        let hosts = vec!["127.0.0.1:1".into(), "127.0.0.1:2".into(), "127.0.0.1:1".into()];
        let patience = Duration::from_secs(60);
        let cluster = Cluster { process: 0, hosts, patience, on_fault: |_| panic!() };
        let error = cluster.connect(1, b"p", &Control::new()).unwrap_err().to_string();
        assert!(error.contains("processes 0 and 2 are both at 127.0.0.1:1"), "{error}");
    }

    #[test]
    fn a_stop_ends_the_wait_for_the_others() {
        let hosts = free_addresses(2);
        let control = Control::new();
        control.stop();
        for process in [0, 1] {
            let patience = Duration::from_secs(60);
            let cluster = Cluster { process, hosts: hosts.clone(), patience, on_fault: |_| panic!() };
            let begun = Instant::now();
            assert!(matches!(cluster.connect(1, b"p", &control), Err(ClusterError::Stopped)));
            assert!(begun.elapsed() < patience / 2);
        }
    }
}
