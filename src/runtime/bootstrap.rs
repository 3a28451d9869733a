//! Cluster bootstrap: connects the processes of a run before the dataflow starts.
//!
//! Every process calls those with lower numbers, each from a separate thread, and is called by
//! those with higher numbers. The called side is one loop over non-blocking connections, so a slow
//! or silent caller delays no other. A caller has five seconds for the handshake. If too many wait,
//! the oldest is dropped. A caller without the key is dropped and counted. A connected process
//! keeps its number. If it ends before the dataflow starts, the others end at once.

use std::io::{self, ErrorKind, Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::cluster::{Cluster, ClusterError};
use super::link::{
    CallerHandshake, EncryptedLink, GREETING, Greeting, GreetingVerdict, HandshakeAnswer, InvalidHandshake,
    LinkSession, SHORT_FRAME, answer,
};
use crate::control::Control;
use crate::key::SharedKey;
use crate::tcp::{connect, keep_alive};

/// Time limit for the handshake of one connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of callers in the handshake. One more drops the oldest.
const MAX_CALLERS: usize = 64;

/// How often the loop checks for a stop and for processes reached by calls.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// First pause between calls; pauses double up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Links to all other processes, by number.
pub(super) type ProcessLinks = Vec<Option<EncryptedLink<TcpStream>>>;

/// Connects to all other processes, unless the run is stopped first. `pipeline` identifies the run.
pub(super) fn connect_processes(
    cluster: &Cluster,
    workers: usize,
    pipeline: &[u8],
    control: &Control,
) -> Result<ProcessLinks, ClusterError> {
    let (process, processes) = (cluster.process, cluster.hosts.len());
    let address = cluster.hosts.get(process).ok_or(ClusterError::Process { process, processes })?;
    check_addresses(cluster)?;
    let listener =
        listen(address).map_err(|source| ClusterError::Listen { address: address.clone(), source })?;
    let own = Greeting {
        process: process as u32,
        to: process as u32,
        processes: processes as u32,
        workers: workers as u32,
        pipeline: Sha256::digest(pipeline).into(),
    };
    let (reached, calls) = channel();
    let reasons = (0..process).map(|to| start_call(cluster, own, to, &reached)).collect::<Result<_, _>>()?;
    let links = (0..processes).map(|_| None).collect();
    let (callers, dropped, last_difference) = (Vec::new(), 0, None);
    let bootstrap = ClusterBootstrap { cluster, control, own, links, callers, dropped, last_difference };
    bootstrap.wait_for_all(&listener, &calls, reasons)
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn check_addresses(cluster: &Cluster) -> Result<(), ClusterError> {
    for (second, address) in cluster.hosts.iter().enumerate() {
        if let Some(first) = cluster.hosts[..second].iter().position(|other| other == address) {
            return Err(ClusterError::SameAddress { first, second, address: address.clone() });
        }
        let local =
            |mut found: std::vec::IntoIter<SocketAddr>| found.all(|address| address.ip().is_loopback());
        if cluster.key.is_none() && !address.to_socket_addrs().is_ok_and(local) {
            return Err(ClusterError::NoKey { address: address.clone() });
        }
    }
    Ok(())
}

/// Returns what is wrong with another process, if it does not belong to this run.
fn difference(own: &Greeting, other: &Greeting) -> Option<&'static str> {
    match () {
        () if other.to != own.process => Some("is at another process's address"),
        () if other.processes != own.processes => Some("belongs to a cluster of another size"),
        () if other.process >= own.processes => Some("has a number outside this cluster"),
        () if other.workers != own.workers => Some("has another number of workers"),
        () if other.pipeline != own.pipeline => Some("runs another pipeline"),
        () => None,
    }
}

/// Why a process has not been reached yet.
type FailureReason = Arc<Mutex<String>>;

/// A link to a process, or the reason why there can be none.
type LinkResult = (usize, Result<EncryptedLink<TcpStream>, ClusterError>);

/// Calls a process from a separate thread until it answers or the bootstrap is over.
fn start_call(
    cluster: &Cluster,
    own: Greeting,
    to: usize,
    reached: &Sender<LinkResult>,
) -> Result<FailureReason, ClusterError> {
    let reason = FailureReason::default();
    let wanted = Arc::downgrade(&reason);
    let (address, key, reached) = (cluster.hosts[to].clone(), cluster.key.clone(), reached.clone());
    thread::Builder::new()
        .name(format!("call-{to}"))
        .spawn(move || {
            if let Some(result) = call(&address, key.as_ref(), Greeting { to: to as u32, ..own }, &wanted) {
                // A bootstrap that is over ignores further links.
                let _ = reached.send((to, result));
            }
        })
        .map_err(ClusterError::Network)?;
    Ok(reason)
}

fn call(
    address: &str,
    key: Option<&SharedKey>,
    own: Greeting,
    wanted: &Weak<Mutex<String>>,
) -> Option<Result<EncryptedLink<TcpStream>, ClusterError>> {
    let mut pause = FIRST_PAUSE;
    while wanted.strong_count() > 0 {
        match attempt(address, key, &own) {
            Ok(done) => return Some(done),
            Err(error) => {
                *wanted.upgrade()?.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
            }
        }
        thread::sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
    None
}

/// Makes one call. After an error, another attempt is worthwhile.
fn attempt(
    address: &str,
    key: Option<&SharedKey>,
    own: &Greeting,
) -> io::Result<Result<EncryptedLink<TcpStream>, ClusterError>> {
    let process = own.to as usize;
    // `connect` has a time limit: a host that is down may not even refuse the connection.
    let mut stream = connect(address, &Control::new())?;
    if key.is_none() && !stream.peer_addr()?.ip().is_loopback() {
        return Ok(Err(ClusterError::NoKey { address: address.into() }));
    }
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let (call, greeting) = CallerHandshake::begin(key, own)?;
    stream.write_all(&greeting)?;
    let answer = read_until(&mut stream, deadline).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            io::Error::other("it refuses our greeting: do both have the same key and version?")
        }
        _ => error,
    })?;
    let (other, mut session) = call.answered(&answer)?;
    stream.write_all(&session.seal(0)?)?;
    let difference = match other.process {
        number if number != own.to => Some("is at another process's address"),
        _ => difference(own, &other),
    };
    if let Some(difference) = difference {
        return Ok(Err(ClusterError::Different { process, difference }));
    }
    let verdict = session.open(&read_until(&mut stream, deadline)?)?;
    match GreetingVerdict::of(verdict) {
        Some(GreetingVerdict::Welcome) => {}
        Some(GreetingVerdict::Taken) => return Ok(Err(ClusterError::Taken { process })),
        Some(GreetingVerdict::Different) => {
            let difference = "finds that this process differs from it";
            return Ok(Err(ClusterError::Different { process, difference }));
        }
        None => return Err(InvalidHandshake.into()),
    }
    info!(process, address, "another process was reached");
    into_link(stream, session).map(Ok)
}

/// Reads N bytes, in any number of pieces, before a deadline.
fn read_until<const N: usize>(stream: &mut TcpStream, deadline: Instant) -> io::Result<[u8; N]> {
    let (mut bytes, mut filled) = ([0; N], 0);
    while filled < N {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Turns a connection into a link after the handshake.
fn into_link(stream: TcpStream, session: LinkSession) -> io::Result<EncryptedLink<TcpStream>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    EncryptedLink::new(stream, session)
}

/// State of the called side.
struct ClusterBootstrap<'a> {
    cluster: &'a Cluster,
    control: &'a Control,
    own: Greeting,
    links: ProcessLinks,
    callers: Vec<Caller>,
    dropped: u64,
    /// How the last process that was dropped for a difference differs.
    last_difference: Option<&'static str>,
}

impl ClusterBootstrap<'_> {
    /// Waits until all processes are connected.
    fn wait_for_all(
        mut self,
        listener: &TcpListener,
        calls: &Receiver<LinkResult>,
        reasons: Vec<FailureReason>,
    ) -> Result<ProcessLinks, ClusterError> {
        let deadline = Instant::now() + self.cluster.timeout;
        loop {
            for (process, reached) in calls.try_iter() {
                self.links[process] = Some(reached?);
            }
            let is_missing =
                |process: &usize| *process != self.cluster.process && self.links[*process].is_none();
            let missing: Vec<usize> = (0..self.links.len()).filter(is_missing).collect();
            let Some(&first) = missing.first() else { return Ok(self.links) };
            if self.control.is_stopped() {
                return Err(ClusterError::Stopped);
            }
            if Instant::now() >= deadline {
                return Err(self.timeout_error(first, missing.len(), &reasons));
            }
            self.wait(listener)?;
            self.accept(listener);
            self.read_callers()?;
        }
    }

    fn timeout_error(&self, process: usize, missing: usize, reasons: &[FailureReason]) -> ClusterError {
        let seconds = self.cluster.timeout.as_secs();
        let Some(reason) = reasons.get(process) else {
            let reason = match (self.last_difference, self.dropped) {
                (Some(difference), _) => format!("one that called {difference}"),
                (None, 0) => "no process called".into(),
                (None, dropped) => {
                    format!("{dropped} callers were dropped: do all have the same key and version?")
                }
            };
            return ClusterError::Missing { missing, seconds, reason };
        };
        let reason = reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let address = self.cluster.hosts[process].clone();
        ClusterError::Unreached { process, address, seconds, reason }
    }

    /// Waits briefly until a caller connects or sends. A connected process that has ended is an
    /// error.
    fn wait(&self, listener: &TcpListener) -> Result<(), ClusterError> {
        let linked: Vec<(usize, &TcpStream)> =
            connected(&self.links).map(|(process, link)| (process, link.stream())).collect();
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        wait_for(&linked, [listener.as_fd()].into_iter().chain(callers))
    }

    /// Accepts new callers.
    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..MAX_CALLERS {
            match listener.accept() {
                Ok((stream, address)) => {
                    if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                        self.callers.push(Caller::new(stream, address));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The caller is gone, or no descriptor is left: waiting callers will free some.
                Err(_) => return thread::sleep(FIRST_PAUSE),
            }
            if self.callers.len() > MAX_CALLERS {
                let oldest = self.callers.remove(0);
                self.drop_caller(&oldest, "too many wait");
            }
        }
    }

    /// Reads from the accepted callers.
    fn read_callers(&mut self) -> Result<(), ClusterError> {
        let mut waiting = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.read_handshake(self.cluster.key.as_ref(), &self.own) {
                Ok(None) if caller.since.elapsed() < HANDSHAKE_TIMEOUT => waiting.push(caller),
                Ok(None) => self.drop_caller(&caller, "it took too long"),
                Ok(Some((greeting, session))) => self.admit(caller, greeting, session)?,
                Err(reason) => self.drop_caller(&caller, reason),
            }
        }
        self.callers = waiting;
        Ok(())
    }

    /// Connects a process that has the key, if it belongs to the run and is new.
    fn admit(
        &mut self,
        caller: Caller,
        other: Greeting,
        mut session: LinkSession,
    ) -> Result<(), ClusterError> {
        let process = other.process as usize;
        let expected = self.own.process < other.process;
        let difference = difference(&self.own, &other).or((!expected).then_some("calls a process after it"));
        let verdict = match difference {
            Some(_) => GreetingVerdict::Different,
            None if self.links[process].is_some() => GreetingVerdict::Taken,
            None => GreetingVerdict::Welcome,
        };
        let sealed = session.seal(verdict as u8).map_err(io::Error::from);
        let sealed = sealed.and_then(|frame| (&caller.stream).write_all(&frame));
        match (verdict, difference) {
            (GreetingVerdict::Welcome, _) => {
                let address = caller.address;
                match sealed.and_then(|()| into_link(caller.stream, session)) {
                    Ok(link) => {
                        info!(process, "another process has called");
                        self.links[process] = Some(link);
                    }
                    Err(error) => warn!(%address, %error, "the connection to a process that called was lost"),
                }
            }
            (_, Some(difference)) if self.cluster.key.is_some() => {
                return Err(ClusterError::Different { process, difference });
            }
            // Without a key it may be any process.
            (_, Some(difference)) => {
                self.last_difference = Some(difference);
                self.drop_caller(&caller, difference);
            }
            (_, None) => self.drop_caller(&caller, "its number is taken"),
        }
        Ok(())
    }

    /// Counts a dropped caller and logs counts of 1, 2, 4, 8, …, so that callers can't fill a log.
    fn drop_caller(&mut self, caller: &Caller, reason: &str) {
        self.dropped += 1;
        if self.dropped.is_power_of_two() {
            let (dropped, address) = (self.dropped, caller.address);
            self.control.notice(&format!(
                "{dropped} callers that are not processes of this cluster were dropped; the last came from {address}: {reason}"
            ));
        }
    }
}

/// Returns the existing links with the numbers of their processes.
fn connected(links: &ProcessLinks) -> impl Iterator<Item = (usize, &EncryptedLink<TcpStream>)> {
    links.iter().enumerate().filter_map(|(process, link)| Some((process, link.as_ref()?)))
}

/// Waits briefly until something is readable. A connected process that has ended is an error.
fn wait_for<'a>(
    linked: &'a [(usize, impl AsFd)],
    others: impl Iterator<Item = BorrowedFd<'a>>,
) -> Result<(), ClusterError> {
    // Data from a connected process is left for the dataflow; only its end matters here.
    let links = linked.iter().map(|(_, link)| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::RDHUP));
    let others = others.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN));
    let mut watched: Vec<PollFd<'_>> = links.chain(others).collect();
    match poll(&mut watched, Some(&POLL_INTERVAL)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(ClusterError::Network(error.into())),
    }
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let ended_link = linked.iter().zip(&watched).find(|(_, watched)| watched.revents().intersects(ended));
    ended_link.map_or(Ok(()), |(&(process, _), _)| Err(ClusterError::Gone { process }))
}

/// Ends this process when another one ends, until dropped. Used while nothing reads the links.
pub(super) struct PeerWatch {
    /// The thread ends when this is dropped.
    _wanted: Sender<()>,
}

impl PeerWatch {
    pub(super) fn begin(links: &ProcessLinks, end: fn(&str) -> !) -> Result<Self, ClusterError> {
        let streams = connected(links).map(|(process, link)| Ok((process, link.stream().try_clone()?)));
        let linked = streams.collect::<io::Result<Vec<_>>>().map_err(ClusterError::Network)?;
        let (wanted, is_wanted) = channel();
        let watch = move || {
            loop {
                let waited = wait_for(&linked, iter::empty());
                // Check first whether the watch was dropped: after that, an end may be orderly.
                match (is_wanted.try_recv(), waited) {
                    (Err(TryRecvError::Disconnected), _) => return,
                    (_, Ok(())) => {}
                    (_, Err(error)) => end(&error.to_string()),
                }
            }
        };
        thread::Builder::new().name("links".into()).spawn(watch).map_err(ClusterError::Network)?;
        Ok(PeerWatch { _wanted: wanted })
    }
}

/// A connection in the handshake.
struct Caller {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
    /// Received bytes of the next message.
    greeting: [u8; GREETING],
    filled: usize,
    /// Set once its greeting has been answered.
    answered: Option<(Greeting, LinkSession)>,
}

impl Caller {
    fn new(stream: TcpStream, address: SocketAddr) -> Self {
        Caller { stream, address, since: Instant::now(), greeting: [0; GREETING], filled: 0, answered: None }
    }

    /// Reads available bytes. Returns the caller's identity once proven, or why it is dropped.
    fn read_handshake(
        &mut self,
        key: Option<&SharedKey>,
        own: &Greeting,
    ) -> Result<Option<(Greeting, LinkSession)>, &'static str> {
        loop {
            let length = if self.answered.is_some() { SHORT_FRAME } else { GREETING };
            match self.stream.read(&mut self.greeting[self.filled..length]) {
                Ok(0) => return Err("it closed the connection"),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err("its connection failed"),
            }
            if self.filled < length {
                continue;
            }
            self.filled = 0;
            let no_key = |InvalidHandshake| "it does not have the key";
            match (self.answered.take(), self.greeting.first_chunk::<SHORT_FRAME>()) {
                (Some((greeting, mut session)), Some(frame)) => {
                    session.open(frame).map_err(no_key)?;
                    return Ok(Some((greeting, session)));
                }
                _ => {
                    let reply = |caller: &Greeting| Greeting { to: caller.process, ..*own };
                    let HandshakeAnswer { caller: greeting, answer, session } =
                        answer(key, &self.greeting, reply).map_err(no_key)?;
                    self.stream.write_all(&answer).map_err(|_| "its connection failed")?;
                    self.answered = Some((greeting, session));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
