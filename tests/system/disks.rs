//! Failures of real disks: full, mounted read-only, at a file size limit, without permission. The
//! error is clear, nothing is lost, and the run continues after the cause is removed.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::can_mount;
use crate::harness::{
    Ended, Lab, PRIVATE_LOG, Stream, await_until, expected_sums, finish, hushflow, releases, run, sums, wait,
};
use hushflow::state::ReleaseFrame;

/// Long enough that no commit holds most of its epochs, whose frames in the private log take 4 MB:
/// the reader is held up before that.
const STREAM: Stream = Stream { rows: 100_000, epochs: 2000 };

/// A lab with a stream and its pipeline.
fn lab() -> (Lab, PathBuf) {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ""));
    (lab, pipeline)
}

/// Runs to the end; earlier releases must be unchanged.
fn resumes(pipeline: &Path, state: &Path, before: &[ReleaseFrame]) {
    finish(&mut run(pipeline, state, 2)).succeeded();
    let after = releases(state);
    assert!(after.starts_with(before), "an epoch that had been published is another now");
    assert_eq!(after.len() as u64, STREAM.epochs);
    assert!(sums(state) == expected_sums(pipeline));
}

/// Runs `script` in a shell, with the binary as `$1`, the pipeline as `$2` and the state directory
/// as `$3`.
fn shell(prefix: &[&str], script: &str, pipeline: &Path, state: &Path) -> Ended {
    let binary = hushflow([""; 0]).get_program().to_owned();
    let words = [prefix, &["sh", "-c", script, "sh"]].concat();
    let mut command = Command::new(words[0]);
    finish(command.args(&words[1..]).arg(binary).arg(pipeline).arg(state))
}

#[test]
fn a_file_at_its_limit_ends_the_run_and_the_next_run_resumes() {
    let (lab, pipeline) = lab();
    let state = lab.path("state");
    // In units of 512 bytes, or 1024 in some shells: enough for some epochs, not for all.
    let script = "ulimit -f 4000; exec \"$1\" run --quiet \"$2\" --state \"$3\"";
    for _ in 0..2 {
        let before = releases(&state).len();
        shell(&[], script, &pipeline, &state).failed(1, &["/state/", "File too large"]);
        assert!((before..STREAM.epochs as usize).contains(&releases(&state).len()));
    }
    let before = releases(&state);
    assert!(!before.is_empty());
    resumes(&pipeline, &state, &before);
}

/// Runs `script` with `$3` on a small separate file system, whose contents are copied to the lab at
/// the end.
fn on_a_small_disk(lab: &Lab, size: &str, script: &str, pipeline: &Path) -> Ended {
    let disk = lab.path("disk");
    std::fs::create_dir(&disk).expect("a mount point");
    let script = format!(
        "set -e; mount -t tmpfs -o size={size} none \"${{3%/state}}\"; set +e; {script}; cp -a \"$3\" \"$3/../../state\""
    );
    shell(&["unshare", "-m"], &script, pipeline, &disk.join("state"))
}

#[test]
fn a_full_disk_ends_the_run_and_the_next_run_resumes_with_space() {
    let (lab, pipeline) = lab();
    if !can_mount(&lab) {
        return;
    }
    let script = "\"$1\" run --quiet \"$2\" --state \"$3\"; echo first $?; \
        \"$1\" run --quiet \"$2\" --state \"$3\"; echo second $?; \
        mount -o remount,size=64m none \"$3/..\"";
    let ended = on_a_small_disk(&lab, "3000k", script, &pipeline);
    assert_eq!(ended.out, "first 1\nsecond 1\n", "{}", ended.err);
    assert!(ended.err.contains("No space left on device"), "{}", ended.err);
    let before = releases(&lab.path("state"));
    assert!((1..STREAM.epochs as usize).contains(&before.len()), "{} epochs", before.len());
    resumes(&pipeline, &lab.path("state"), &before);
}

#[test]
fn a_disk_mounted_read_only_is_refused_and_the_next_run_resumes() {
    let (lab, pipeline) = lab();
    if !can_mount(&lab) {
        return;
    }
    let script = "\"$1\" run --quiet \"$2\" --state \"$3\" & \
        while [ ! -s \"$3/public.log\" ]; do sleep 0.01; done; kill -9 $!; wait $!; \
        mount -o remount,ro none \"$3/..\"; \
        \"$1\" run --quiet \"$2\" --state \"$3\"; echo run $?; \
        \"$1\" tail \"$3\" > /dev/null; echo tail $?; \
        mount -o remount,rw none \"$3/..\"";
    let ended = on_a_small_disk(&lab, "64m", script, &pipeline);
    assert_eq!(ended.out, "run 1\ntail 0\n", "{}", ended.err);
    assert!(ended.err.contains("Read-only file system"), "{}", ended.err);
    resumes(&pipeline, &lab.path("state"), &releases(&lab.path("state")));
}

/// A run that publishes nothing is not charged, for any size of the disk.
#[test]
fn a_disk_without_room_for_the_first_epoch_costs_nothing() {
    let lab = Lab::new();
    if !can_mount(&lab) {
        return;
    }
    lab.write("data.csv", STREAM.csv());
    let ledger = "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n";
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", ledger));
    let disk = lab.path("disk");
    std::fs::create_dir(&disk).expect("a mount point");
    let sizes = (60..=1740).step_by(60);
    let script =
        "cd \"$3\"; for size in $(seq 60 60 1740); do mount -t tmpfs -o size=${size}k none .; cd \"$3\"
        \"$1\" run --quiet \"$2\" --state state; echo $?
        cp -a state ../state-$size; cd ..; umount \"$3\"; cd \"$3\"; done";
    let ended = shell(&["unshare", "-m"], script, &pipeline, &disk).succeeded();
    assert_eq!(ended.out, "1\n".repeat(29), "{}", ended.err);
    let published = |size: &u64| !releases(&lab.path(&format!("state-{size}"))).is_empty();
    let published = sizes.filter(published).count();
    let mut account = hushflow(["ledger", "--json"]);
    let account = finish(account.arg(lab.path("shared"))).succeeded().json().remove(0);
    assert_eq!(account["entries"].as_array().expect("entries").len(), published, "{}", ended.err);
    assert!((2..29).contains(&published), "{published} runs published something: {}", ended.err);
}

/// Makes permissions apply to a command: root drops its privileges, if it can.
fn obedient(command: Command, lab: &Lab) -> Option<Command> {
    if std::fs::metadata(lab.path("")).expect("a lab").uid() != 0 {
        return Some(command);
    }
    let bound = |program: &OsStr| {
        let mut bound = Command::new("setpriv");
        bound.arg("--bounding-set=-dac_override,-dac_read_search").arg(program);
        bound
    };
    if !bound("true".as_ref()).status().is_ok_and(|tried| tried.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: root is bound by permissions only where setpriv is");
        return None;
    }
    let mut same = bound(command.get_program());
    same.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(same)
}

#[test]
fn revoked_access_during_a_run_ends_it_and_the_next_run_resumes() {
    let (lab, file) = lab();
    let piped = lab.write("piped.toml", STREAM.pipeline("-", ""));
    let state = lab.path("state");
    let Some(mut command) = obedient(run(&piped, &state, 2), &lab) else { return };
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the run starts");
    let rows = STREAM.csv();
    let (first, rest) = rows.split_at(rows.len() / 2);
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(first.as_bytes()).expect("the run listens");
    await_until("a quarter is published", || releases(&state).len() >= 100);
    let set = |mode| std::fs::set_permissions(&state, PermissionsExt::from_mode(mode)).expect("our own");
    set(0o500);
    // The write fails if the run has ended.
    let _ = input.write_all(rest.as_bytes());
    drop(input);
    let ended = wait(child);
    set(0o700);
    ended.failed(1, &["checkpoint", "Permission denied"]);
    let before = releases(&state);
    assert!((100..STREAM.epochs as usize).contains(&before.len()), "{} epochs", before.len());
    resumes(&file, &state, &before);
}

#[test]
fn a_revoked_permission_is_named_and_no_epoch_is_lost() {
    let (lab, pipeline) = lab();
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let before = releases(&state);
    let set = |name: &str, mode| {
        let path = if name.is_empty() { state.clone() } else { state.join(name) };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("the test owns its files");
    };
    // Readable by other users, so raw sums could be read.
    for (name, closed, open) in
        [("", 0o700, 0o755), (PRIVATE_LOG, 0o600, 0o644), ("checkpoint.a", 0o600, 0o640)]
    {
        set(name, open);
        finish(&mut run(&pipeline, &state, 1)).failed(1, &[name, "chmod"]);
        set(name, closed);
    }
    resumes(&pipeline, &state, &before);
}
