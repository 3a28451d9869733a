//! Checks which system features a test can use. A test that can't run prints the reason to standard
//! error, and passes.

use std::io::Write;
use std::process::Command;

use super::Lab;

fn succeeds(command: &mut Command, otherwise: &str) -> bool {
    let can = command.output().is_ok_and(|tried| tried.status.success());
    if !can {
        let _ = writeln!(std::io::stderr(), "skipped: {otherwise}");
    }
    can
}

/// Returns whether file systems can be mounted, in a separate namespace.
pub(crate) fn can_mount(lab: &Lab) -> bool {
    let mut mount = Command::new("unshare");
    mount.args(["-m", "mount", "-t", "tmpfs", "none"]).arg(lab.path(""));
    succeeds(&mut mount, "mounting a file system takes root and unshare")
}

/// Returns whether system calls can be made to fail.
pub(crate) fn can_fail_system_calls() -> bool {
    let mut trace = Command::new("strace");
    trace.args(["-qq", "-o", "/dev/null", "true"]);
    succeeds(&mut trace, "making system calls fail takes strace, which can't be used here")
}
