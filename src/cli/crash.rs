//! How a command dies of a fault of its own: at once, saying where and nothing else, and leaving no image of its memory.
//!
//! Memory holds raw rows and exact sums, and a panic's message may hold what was being looked at.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{Write, stderr};
use std::panic::PanicHookInfo;
use std::sync::Arc;

use hushflow::runtime::{is_lost_peer, is_missing_worker};
use hushflow::source::file_being_decoded;
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag::register;

use super::run::warn;

const LOST_PEER: &str = "another process of the cluster has ended or can't be reached, so this one ends too: \
    start all of them again, and the run goes on after the last committed epoch";

const NO_THREAD: &str = "the operating system starts no more threads for this user or service: raise the limit (`ulimit -u`, or \
    `TasksMax=` of a systemd unit), or use fewer --workers; the run goes on after the last committed epoch";

const NO_ENTROPY: &str = "the operating system gives no random bytes, without which no noise can be drawn: see whether the system \
    call getrandom is allowed here; the run goes on after the last committed epoch";

/// Bytes that a core dump may have. It must not be written to a file, which any number below a page says, and not be handed
/// to a program of the system either, which to Linux only 1 says.
const CORE_DUMP: u64 = 1;

/// What every command does first: from here on it dies in this way alone.
pub(super) fn prepare() {
    end_at_first_panic();
    if let Err(error) = leave_no_core_dump() {
        warn(&format!("core dumps can't be switched off ({error}): one would hold raw rows and exact sums"));
    }
    // A file at its limit (ulimit -f) is an error that names the file, not the end of the process.
    if let Err(error) = register(SIGXFSZ, Arc::default()) {
        warn(&format!(
            "a file that reaches its limit ends this without a message: signals can't be handled ({error})"
        ));
    }
}

fn leave_no_core_dump() -> std::io::Result<()> {
    let limit = Rlimit { current: Some(CORE_DUMP), maximum: Some(CORE_DUMP) };
    Ok(setrlimit(Resource::Core, limit)?)
}

/// A worker that unwinds would leave its siblings waiting for ever.
fn end_at_first_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if is_lost_peer(panic) {
            end_process(LOST_PEER);
        }
        if let Some(refusal) = refusal(panic) {
            end_process(refusal);
        }
        if let Some(path) = file_being_decoded() {
            end_process(&format!(
                "{}: the Parquet file can't be decoded: it is damaged: write it anew, or take it out of `path`, then start again",
                path.display()
            ));
        }
        let place = panic.location().map_or("an unknown place".to_owned(), ToString::to_string);
        let _ =
            writeln!(stderr(), "error: panicked at {place}, which is a fault of hushflow: please report it");
        // Names of functions, if RUST_BACKTRACE asks for them.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = writeln!(stderr(), "{trace}");
        }
        std::process::abort();
    }));
}

/// What the operating system has refused to a library that panics without it.
fn refusal(panic: &PanicHookInfo<'_>) -> Option<&'static str> {
    let text = panic.payload().downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.payload().downcast_ref::<&str>().copied())?;
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if says(&["failed to spawn thread", "ThreadPoolBuildError"]) || is_missing_worker(panic) {
        return Some(NO_THREAD);
    }
    says(&["failed to generate random data", "getrandom"]).then_some(NO_ENTROPY)
}

/// A process of a cluster that lingers after a fault would be waited for by the others.
pub(super) fn end_process(reason: &str) -> ! {
    let _ = writeln!(stderr(), "error: {reason}");
    std::process::exit(1)
}
