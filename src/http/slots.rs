//! Limits on the readers of a publishing process: connections, descriptors and processor time.
//!
//! A publishing process needs descriptors for its logs at any moment. The readers of all its
//! servers together get half of the system's limit, and each server at most a quarter. A few more
//! connections of each server are for probes alone, so readers can't make a process seem dead. The
//! threads of readers have a lower priority, and one of them computes at a time. So all readers
//! together take less of one processor than a thread of the run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTION_LIMIT: usize = 64;

/// Connections of readers for each one that is for probes. A probe needs one descriptor.
const READERS_EACH_PROBE: usize = 8;

/// Maximum number of descriptors of a connection: its socket, the log's directory and file, and
/// that file opened again.
const DESCRIPTORS_EACH: usize = 4;

/// Connections of all servers of this process.
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// The connection slots of a server.
pub(super) struct ConnectionSlots {
    limit: usize,
    occupied: Arc<AtomicUsize>,
    limit_of_all: usize,
    occupied_of_all: &'static AtomicUsize,
    /// Connections for probes that are taken while readers have all others.
    probes: Arc<AtomicUsize>,
}

/// An occupied slot, until it is dropped.
pub(super) struct ConnectionSlot {
    occupied: Arc<AtomicUsize>,
    /// None for a slot of probes.
    occupied_of_all: Option<&'static AtomicUsize>,
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
            probes: Arc::default(),
        }
    }

    /// Takes a slot: one of probes if no other one is free.
    pub(super) fn take(&self) -> Option<ConnectionSlot> {
        if let Some(slot) = self.take_reader() {
            return Some(slot);
        }
        occupy(&self.probes, (self.limit / READERS_EACH_PROBE).max(1))?;
        Some(ConnectionSlot { occupied: Arc::clone(&self.probes), occupied_of_all: None })
    }

    fn take_reader(&self) -> Option<ConnectionSlot> {
        occupy(&self.occupied, self.limit)?;
        if occupy(self.occupied_of_all, self.limit_of_all).is_none() {
            self.occupied.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let occupied = Arc::clone(&self.occupied);
        Some(ConnectionSlot { occupied, occupied_of_all: Some(self.occupied_of_all) })
    }
}

impl ConnectionSlot {
    /// Whether it is for probes alone.
    pub(super) fn is_for_probes(&self) -> bool {
        self.occupied_of_all.is_none()
    }
}

fn occupy(occupied: &AtomicUsize, limit: usize) -> Option<usize> {
    let more = |occupied: usize| (occupied < limit).then_some(occupied + 1);
    occupied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.occupied.fetch_sub(1, Ordering::Relaxed);
        if let Some(of_all) = self.occupied_of_all {
            of_all.fetch_sub(1, Ordering::Relaxed);
        }
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
            for server in &servers {
                let probes: Vec<_> = std::iter::from_fn(|| server.take()).collect();
                assert_eq!(probes.len(), (of_one / 8).max(1), "{descriptors}");
                assert!(probes.iter().all(ConnectionSlot::is_for_probes));
                drop(probes);
                assert!(server.take().is_some(), "a released slot of probes is free");
            }
            drop(occupied);
            assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
            let slot = servers[3].take().expect("a released slot is free");
            assert!(!slot.is_for_probes());
        }
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
