//! Many epochs in one run: memory, open files and the private log do not grow while the public log
//! does.
//!
//! `HUSHFLOW_SOAK=n` runs n epochs instead of 100,000.

use std::fmt::Write as _;
use std::io::{Write, stderr};
use std::path::Path;
use std::time::Duration;

use crate::harness::{Lab, finish, hushflow, releases, run, wait};

fn epochs() -> u64 {
    std::env::var("HUSHFLOW_SOAK").ok().and_then(|number| number.parse().ok()).unwrap_or(100_000)
}

/// Resources of a process at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    published_bytes: u64,
    private_bytes: u64,
    resident_kilobytes: u64,
    files: usize,
}

impl Sample {
    /// Returns the maximum of each size but the minimum of open files, because some files are open
    /// only briefly.
    fn most(self, other: Self) -> Self {
        Sample {
            published_bytes: self.published_bytes.max(other.published_bytes),
            private_bytes: self.private_bytes.max(other.private_bytes),
            resident_kilobytes: self.resident_kilobytes.max(other.resident_kilobytes),
            files: self.files.min(other.files),
        }
    }

    /// Samples a process. Returns `None` if it has ended.
    fn of(process: u32, state: &Path) -> Option<Self> {
        let directory = Path::new("/proc").join(process.to_string());
        let status = std::fs::read_to_string(directory.join("status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let mut sample = Sample {
            published_bytes: state.join("public.log").metadata().ok()?.len(),
            private_bytes: 0,
            resident_kilobytes: resident.split_ascii_whitespace().next()?.parse().ok()?,
            files: std::fs::read_dir(directory.join("fd")).ok()?.count(),
        };
        for entry in std::fs::read_dir(state).ok()?.map_while(Result::ok) {
            if entry.file_name() != "public.log" {
                // A file removed meanwhile takes no space.
                sample.private_bytes += entry.metadata().map_or(0, |file| file.len());
            }
        }
        Some(sample)
    }
}

#[test]
fn memory_files_and_the_private_log_do_not_grow_with_the_epochs() {
    let lab = Lab::new();
    let epochs = epochs();
    let mut rows = String::from("x,y\n");
    for row in 0..2 * epochs {
        let _ = writeln!(rows, "0.{:03},-0.{:03}", row % 997, row % 991);
    }
    lab.write("data.csv", rows);
    let pipeline = lab.write(
        "pipeline.toml",
        format!(
            "name = 'soak'
source.path = 'data.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
epochs = {{ records = 2, horizon = {epochs} }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release.strategy = 'blt:2'
"
        ),
    );
    let state = lab.path("state");
    let mut child = run(&pipeline, &state, 1).spawn().expect("the run starts");
    let mut samples = Vec::new();
    while child.try_wait().expect("a child can be asked").is_none() {
        samples.extend(Sample::of(child.id(), &state));
        std::thread::sleep(Duration::from_millis(2));
    }
    wait(child).succeeded();
    assert_eq!(releases(&state).len() as u64, epochs);
    finish(hushflow(["verify"]).arg(&state)).succeeded();
    check(&samples, state.join("public.log").metadata().expect("a public log").len());
}

/// Checks that, from a tenth of the run on, the second half uses no more than the first.
fn check(samples: &[Sample], published: u64) {
    let within = |from: u64, to: u64| {
        let part = samples.iter().filter(move |sample| {
            (published * from / 100..published * to / 100).contains(&sample.published_bytes)
        });
        part.copied().reduce(Sample::most).expect("the run is sampled in each part")
    };
    let (early, late) = (within(10, 55), within(55, 101));
    let written = writeln!(stderr(), "{} samples; at most {early:?}, then {late:?}", samples.len());
    written.expect("standard error is open");
    assert!(late.resident_kilobytes < early.resident_kilobytes + 2048, "memory grows");
    assert!(late.files <= early.files, "files stay open");
    // Whole, it would be twice as long as the releases. How much waits for a checkpoint depends on
    // time.
    assert!(late.private_bytes < published + published / 2, "the private log grows");
}
