//! What readers may take of the process that they read from: connections, descriptors and time.
//!
//! A process that publishes needs descriptors for its logs at any moment. Readers of all its servers together get half of those that
//! the system allows, and each server a quarter at most. Their threads have a lower priority, and one of them computes at a
//! time, so however many there are, they take less than a run's thread of one processor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most connections of a server.
const CONNECTION_LIMIT: usize = 64;

/// The most descriptors of a connection: its socket, the log's directory and file, and that file opened anew.
const DESCRIPTORS_EACH: usize = 4;

/// Connections of all servers of this process.
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// The places that a server has for connections.
pub(super) struct Places {
    /// Of this server.
    limit: usize,
    taken: Arc<AtomicUsize>,
    /// Of all servers of the process.
    limit_of_all: usize,
    taken_of_all: &'static AtomicUsize,
}

/// A place that is taken, until this is dropped.
pub(super) struct Place {
    taken: Arc<AtomicUsize>,
    taken_of_all: &'static AtomicUsize,
}

impl Places {
    /// As many as this process has descriptors for, once it may have all that the system grants.
    pub(super) fn of_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // A system that refuses this leaves the limit as it is.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
        let descriptors = if raised { maximum } else { current };
        let descriptors = descriptors.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        Self::among(descriptors, &CONNECTED)
    }

    fn among(descriptors: usize, taken_of_all: &'static AtomicUsize) -> Self {
        let connections = descriptors / DESCRIPTORS_EACH;
        Self {
            limit: (connections / 4).clamp(1, CONNECTION_LIMIT),
            taken: Arc::default(),
            limit_of_all: (connections / 2).max(1),
            taken_of_all,
        }
    }

    /// A place, if there is one.
    pub(super) fn take(&self) -> Option<Place> {
        take_one(&self.taken, self.limit)?;
        if take_one(self.taken_of_all, self.limit_of_all).is_none() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Place { taken: Arc::clone(&self.taken), taken_of_all: self.taken_of_all })
    }
}

fn take_one(taken: &AtomicUsize, limit: usize) -> Option<usize> {
    let more = |taken: usize| (taken < limit).then_some(taken + 1);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.taken_of_all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much nicer readers are than a run: on a processor that both want, they get about a quarter. The lowest priority would
/// starve them on a machine with other work.
const NICENESS: i32 = 5;

/// Gives this thread, and those that it starts, a lower priority. Elsewhere than on Linux a priority is that of the whole
/// process, and stays.
pub(super) fn yield_to_others() {
    #[cfg(target_os = "linux")]
    // A system that refuses this leaves the priority as it is.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// Whose turn it is to compute, in the order in which readers ask.
struct Turns {
    line: Mutex<Line>,
    moved: Condvar,
}

#[derive(Default)]
struct Line {
    /// The number of the next one who asks.
    last: u64,
    /// The number of the one whose turn it is.
    first: u64,
}

static TURNS: Turns = Turns { line: Mutex::new(Line { last: 0, first: 0 }), moved: Condvar::new() };

/// The right to compute for a reader, until this is dropped. Never held while waiting for a client.
pub(crate) struct Turn(());

impl Turn {
    /// Waits for the turn of this thread, which must not have one.
    pub(crate) fn wait() -> Self {
        let mut line = TURNS.lock();
        let own = line.last;
        line.last += 1;
        while line.first != own {
            line = TURNS.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.lock().first += 1;
        TURNS.moved.notify_all();
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_leave_half_of_the_descriptors() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let all = |places: &Places| std::iter::from_fn(|| places.take()).collect::<Vec<_>>();
        for (descriptors, of_one, of_all) in
            [(0, 1, 1), (16, 1, 2), (128, 8, 16), (1024, 64, 128), (usize::MAX, 64, 256)]
        {
            let servers = [(); 4].map(|()| Places::among(descriptors, &TAKEN));
            let taken: Vec<_> = servers.iter().map(all).collect();
            assert_eq!(taken[0].len(), of_one, "{descriptors}");
            let connected: usize = taken.iter().map(Vec::len).sum();
            assert_eq!(connected, of_all, "{descriptors}");
            assert_eq!(TAKEN.load(Ordering::Relaxed), of_all);
            assert!(descriptors < 16 || connected * DESCRIPTORS_EACH <= descriptors / 2);
            drop(taken);
            assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
            assert!(servers[3].take().is_some(), "a place that was left is free");
        }
    }

    #[test]
    fn one_computes_at_a_time() {
        let computing = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _turn = Turn::wait();
                        assert_eq!(computing.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        computing.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
