//! Limits on the readers of a publishing process: connections, descriptors and processor time.
//!
//! A publishing process needs descriptors for its logs at any moment. The readers of all its
//! servers together get half of the system's limit, and each server at most a quarter. A connection
//! becomes a reader once it has asked for something other than a probe. Until then, and while it
//! asks for a probe, it is an arrival. A server has half as many places for arrivals as for
//! readers. If all are taken, the oldest arrival that sends nothing is disconnected, so neither
//! readers nor silent connections make a process seem dead.
//!
//! The threads of readers have a lower priority, and one of them computes at a time. So all readers
//! together take less of one processor than a thread of the run.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTION_LIMIT: usize = 64;

/// Readers for each place of an arrival, which needs two descriptors.
const READERS_EACH_ARRIVAL: usize = 2;

/// How long an arrival may be silent while others wait for its place.
const SILENCE: Duration = Duration::from_millis(10);

/// How long a connection waits for the place of an arrival.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often it looks for one.
const PLACE_STEP: Duration = Duration::from_millis(1);

/// Maximum number of descriptors of a reader: its socket, the log's directory and file, and that
/// file opened again.
const DESCRIPTORS_EACH: usize = 4;

/// Readers of all servers of this process.
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// The connection slots of a server.
pub(super) struct ConnectionSlots {
    limit: usize,
    occupied: Arc<AtomicUsize>,
    limit_of_all: usize,
    occupied_of_all: &'static AtomicUsize,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// Connections that have not become readers.
#[derive(Default)]
struct Arrivals {
    /// By number, in the order of their arrival.
    waiting: BTreeMap<u64, WaitingArrival>,
    last: u64,
}

struct WaitingArrival {
    /// A handle to disconnect it by; none once its request is there or it was disconnected.
    socket: Option<TcpStream>,
    since: Instant,
    is_disconnected: bool,
}

/// The place of an arrival, until it is dropped.
pub(super) struct ArrivalSlot {
    arrivals: Arc<Mutex<Arrivals>>,
    number: u64,
}

/// The slot of a reader, until it is dropped.
pub(super) struct ReaderSlot {
    occupied: Arc<AtomicUsize>,
    occupied_of_all: &'static AtomicUsize,
}

impl ConnectionSlots {
    /// Derives the limits from this process's descriptors, after raising their number to the
    /// system's maximum.
    pub(super) fn of_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // If the system refuses, the limit stays.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
        let descriptors = if raised { maximum } else { current };
        let descriptors = descriptors.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        Self::among(descriptors, &CONNECTED)
    }

    fn among(descriptors: usize, occupied_of_all: &'static AtomicUsize) -> Self {
        let connections = descriptors / DESCRIPTORS_EACH;
        Self {
            limit: (connections / 4).clamp(1, CONNECTION_LIMIT),
            occupied: Arc::default(),
            limit_of_all: (connections / 2).max(1),
            occupied_of_all,
            arrivals: Arc::default(),
        }
    }

    /// Waits for the place of an arrival; `None` if those that have one are too busy.
    pub(super) fn arrive(&self, stream: &TcpStream) -> Option<ArrivalSlot> {
        let places = (self.limit / READERS_EACH_ARRIVAL).max(1);
        let socket = stream.try_clone().ok()?;
        let begun = Instant::now();
        loop {
            let mut arrivals = lock(&self.arrivals);
            if arrivals.waiting.len() < places {
                arrivals.last += 1;
                let (number, since) = (arrivals.last, Instant::now());
                let waiting = WaitingArrival { socket: Some(socket), since, is_disconnected: false };
                arrivals.waiting.insert(number, waiting);
                return Some(ArrivalSlot { arrivals: Arc::clone(&self.arrivals), number });
            }
            arrivals.disconnect_a_silent_one();
            drop(arrivals);
            if begun.elapsed() >= PLACE_TIMEOUT {
                return None;
            }
            thread::sleep(PLACE_STEP);
        }
    }

    /// Takes the slot of a reader.
    pub(super) fn take_reader(&self) -> Option<ReaderSlot> {
        occupy(&self.occupied, self.limit)?;
        if occupy(self.occupied_of_all, self.limit_of_all).is_none() {
            self.occupied.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(ReaderSlot { occupied: Arc::clone(&self.occupied), occupied_of_all: self.occupied_of_all })
    }
}

impl Arrivals {
    /// Disconnects the oldest arrival that sends nothing, unless one is still leaving. Its thread
    /// then reads the end of the connection, and leaves its place.
    fn disconnect_a_silent_one(&mut self) {
        if self.waiting.values().any(|arrival| arrival.is_disconnected) {
            return;
        }
        let mut old = self.waiting.values_mut().filter(|arrival| arrival.since.elapsed() >= SILENCE);
        if let Some(silent) = old.find(|arrival| arrival.socket.as_ref().is_some_and(is_silent)) {
            let socket = silent.socket.take();
            silent.is_disconnected = true;
            // A client that has gone already needs no end.
            let _ = socket.map(|socket| socket.shutdown(Shutdown::Both));
        }
    }
}

/// Whether nothing that was sent waits to be read.
fn is_silent(socket: &TcpStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&now)) == Ok(0)
}

fn lock(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ArrivalSlot {
    /// Notes that the request is there: the client may be silent from now on.
    pub(super) fn note_request(&self) {
        if let Some(own) = lock(&self.arrivals).waiting.get_mut(&self.number) {
            own.socket = None;
        }
    }
}

impl Drop for ArrivalSlot {
    fn drop(&mut self) {
        lock(&self.arrivals).waiting.remove(&self.number);
    }
}

fn occupy(occupied: &AtomicUsize, limit: usize) -> Option<usize> {
    let more = |occupied: usize| (occupied < limit).then_some(occupied + 1);
    occupied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        self.occupied.fetch_sub(1, Ordering::Relaxed);
        self.occupied_of_all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Niceness of readers relative to a run: on a shared processor they get about a quarter. The
/// lowest priority would starve them on a machine with other work.
const NICENESS: i32 = 5;

/// Lowers the priority of this thread and of those that it starts. Only on Linux: elsewhere a
/// priority belongs to the whole process and stays.
pub(super) fn yield_to_others() {
    #[cfg(target_os = "linux")]
    // If the system refuses, the priority stays.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// The queue of readers that want to compute, in the order of requests.
struct ComputeQueue {
    line: Mutex<QueueState>,
    moved: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Number of the next to queue.
    last: u64,
    /// Number of the current one.
    first: u64,
}

static TURNS: ComputeQueue =
    ComputeQueue { line: Mutex::new(QueueState { last: 0, first: 0 }), moved: Condvar::new() };

/// The right to compute for a reader, until it is dropped. Never held while waiting for a client.
pub(crate) struct ComputeTurn(());

impl ComputeTurn {
    /// Waits for this thread's turn. The thread must not already hold one.
    pub(crate) fn wait() -> Self {
        let mut line = TURNS.lock();
        let own = line.last;
        line.last += 1;
        while line.first != own {
            line = TURNS.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        ComputeTurn(())
    }
}

impl Drop for ComputeTurn {
    fn drop(&mut self) {
        TURNS.lock().first += 1;
        TURNS.moved.notify_all();
    }
}

impl ComputeQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn readers_leave_half_of_the_descriptors() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let all = |slots: &ConnectionSlots| std::iter::from_fn(|| slots.take_reader()).collect::<Vec<_>>();
        for (descriptors, of_one, of_all) in
            [(0, 1, 1), (16, 1, 2), (128, 8, 16), (1024, 64, 128), (usize::MAX, 64, 256)]
        {
            let servers = [(); 4].map(|()| ConnectionSlots::among(descriptors, &TAKEN));
            let occupied: Vec<_> = servers.iter().map(all).collect();
            assert_eq!(occupied[0].len(), of_one, "{descriptors}");
            let connected: usize = occupied.iter().map(Vec::len).sum();
            assert_eq!(connected, of_all, "{descriptors}");
            assert_eq!(TAKEN.load(Ordering::Relaxed), of_all);
            assert!(descriptors < 16 || connected * DESCRIPTORS_EACH <= descriptors / 2);
            drop(occupied);
            assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
            assert!(servers[3].take_reader().is_some(), "a released slot is free");
        }
    }

    /// A connection to a listener, and its other end.
    fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        (client, listener.accept().expect("a client").0)
    }

    #[test]
    fn the_oldest_silent_arrival_makes_room() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let slots = Arc::new(ConnectionSlots::among(64, &TAKEN));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let clients: Vec<_> = (0..3).map(|_| connected(&listener)).collect();
        let arrive = |client: &(TcpStream, TcpStream)| slots.arrive(&client.1);
        let [first, second] = [0, 1].map(|number| arrive(&clients[number]).expect("a place"));
        // The first one has sent its request, part of which is unread; the second one is silent.
        (&clients[0].0).write_all(b"GET").expect("it is read later");
        let silent = clients[1].1.try_clone().expect("a handle");
        let leaving = thread::spawn(move || {
            let end = (&silent).read(&mut [0]);
            drop(second);
            end
        });
        let third = arrive(&clients[2]).expect("the place of the silent one");
        assert_eq!(leaving.join().expect("its thread").expect("the end"), 0);
        // Requests that are there keep their places.
        [&first, &third].iter().for_each(|arrival| arrival.note_request());
        let fourth = connected(&listener);
        assert!(arrive(&fourth).is_none());
        drop(first);
        assert!(arrive(&fourth).is_some());
    }

    #[test]
    fn one_computes_at_a_time() {
        let computing = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _turn = ComputeTurn::wait();
                        assert_eq!(computing.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        computing.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
