//! Crash handling: a panic ends the process at once, prints only its source location, and leaves no
//! core dump.
//!
//! Memory holds raw rows and exact sums, and a panic message may contain private values.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{Write, stderr};
use std::panic::PanicHookInfo;
use std::sync::Arc;

use hushflow::format::file_being_decoded;
use hushflow::runtime::{is_lost_peer, is_missing_worker};
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag::register;

use super::output::warn;

const LOST_PEER: &str = "another process of the cluster has ended or can't be reached, so this one ends too: \
    start all processes again, and the run continues after the last committed epoch";

const NO_THREAD: &str = "the operating system refuses to start more threads for this user or service: raise the limit (`ulimit -u`, or \
    `TasksMax=` of a systemd unit), or use fewer --workers; the run continues after the last committed epoch";

const NO_ENTROPY: &str = "the operating system gives no random bytes, so no noise can be drawn: check that the system \
    call getrandom is allowed here; the run continues after the last committed epoch";

/// Limit of a core dump in bytes. Any limit below one page prevents a dump file; on Linux, only a
/// limit of 1 also keeps the dump from being piped to a program (core(5)).
const CORE_DUMP: u64 = 1;

/// Installs the crash handling; every command calls it first.
pub(super) fn prepare() {
    end_at_first_panic();
    if let Err(error) = leave_no_core_dump() {
        warn(&format!("can't disable core dumps ({error}): a dump would hold raw rows and exact sums"));
    }
    // With a handler, a write beyond the file size limit (ulimit -f) returns an error that names
    // the file.
    if let Err(error) = register(SIGXFSZ, Arc::default()) {
        warn(&format!(
            "can't install a signal handler ({error}): a file that reaches its size limit will end this command without a message"
        ));
    }
}

fn leave_no_core_dump() -> std::io::Result<()> {
    let limit = Rlimit { current: Some(CORE_DUMP), maximum: Some(CORE_DUMP) };
    Ok(setrlimit(Resource::Core, limit)?)
}

/// Ends the process at the first panic: a worker that unwinds would leave the others waiting
/// forever.
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
                "{}: the Parquet file is damaged and can't be decoded: write it again, or remove it from `path`, then restart",
                path.display()
            ));
        }
        let location = panic.location().map_or("an unknown location".to_owned(), ToString::to_string);
        let _ =
            writeln!(stderr(), "error: panicked at {location}: this is a bug in hushflow, please report it");
        // A backtrace holds function names only; RUST_BACKTRACE enables it.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = writeln!(stderr(), "{trace}");
        }
        std::process::abort();
    }));
}

/// Recognises panics of libraries to which the operating system refused threads or random bytes.
fn refusal(panic: &PanicHookInfo<'_>) -> Option<&'static str> {
    let text = panic.payload().downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.payload().downcast_ref::<&str>().copied())?;
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if says(&["failed to spawn thread", "ThreadPoolBuildError"]) || is_missing_worker(panic) {
        return Some(NO_THREAD);
    }
    says(&["failed to generate random data", "getrandom"]).then_some(NO_ENTROPY)
}

/// Ends the process after a fault: the other processes of a cluster would wait for one that
/// lingers.
pub(super) fn end_process(reason: &str) -> ! {
    let _ = writeln!(stderr(), "error: {reason}");
    std::process::exit(1)
}
