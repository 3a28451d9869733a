//! Helpers for the kill campaigns: a witness of published releases, and power cuts that truncate,
//! zero or corrupt unsynced parts of the logs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hushflow::state::{PublicReader, ReleaseFrame};

use super::{FramePosition, Random, frames, logs, recorded};

/// Number of kills: `HUSHFLOW_KILLS`, or else `default`.
pub(crate) fn kills(default: usize) -> usize {
    std::env::var("HUSHFLOW_KILLS").ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// Releases seen so far in a public log. Noise is fresh in every run, so drawing an epoch twice is
/// detected.
pub(crate) struct Witness {
    state: PathBuf,
    pub(crate) seen: Vec<ReleaseFrame>,
}

impl Witness {
    pub(crate) fn of(state: &Path) -> Self {
        Witness { state: state.to_owned(), seen: Vec::new() }
    }

    /// Reads the log again: earlier releases must be unchanged, or missing after a power cut.
    /// Returns the number of epochs seen in all, or the epoch that was published twice.
    pub(crate) fn observe(&mut self) -> Result<usize, u64> {
        let now = readable(&self.state);
        let twice = now.iter().zip(&self.seen).find(|(now, before)| now != before);
        if let Some((now, _)) = twice {
            return Err(now.epoch);
        }
        self.seen.extend_from_slice(now.get(self.seen.len()..).unwrap_or_default());
        Ok(self.seen.len())
    }
}

/// The releases up to the first unreadable one.
fn readable(state: &Path) -> Vec<ReleaseFrame> {
    let Ok(mut reader) = PublicReader::open(state) else { return Vec::new() };
    let frames: Vec<_> = std::iter::from_fn(|| reader.next_frame().ok().flatten()).collect();
    assert!(frames.iter().map(|frame| frame.epoch).eq(1..=frames.len() as u64));
    frames
}

/// Simulates a power cut: unsynced parts of a log are lost in one of several ways.
pub(crate) fn lose_power(state: &Path, published: usize, random: &mut Random) {
    // Segments with a successor were synced, and so was the start of each segment.
    let logs = if state.exists() { logs(state) } else { Vec::new() };
    let Some(last) = logs.iter().rfind(|name| name.starts_with("private")) else { return };
    let private = state.join(last);
    let found = frames(&private);
    // Published epochs had been synced, and so had everything that a later frame records as synced.
    let of_published = found
        .iter()
        .filter(|frame| [1, 6].contains(&frame.kind) || frame.kind == 3 && frame.epoch <= published as u64);
    let said = found.iter().map(|frame| frame.synced).max().unwrap_or(0);
    lose(&private, of_published.map(|frame| frame.end).max().unwrap_or(0).max(said), random);

    // The public log is synced before a checkpoint; after a loss it is rebuilt from the private
    // one.
    let checkpoints = ["checkpoint.a", "checkpoint.b"].map(|name| frames(&state.join(name)));
    let newest = checkpoints.iter().flatten().map(|frame| frame.epoch).max();
    let public = state.join("public.log");
    let synced = newest.map_or(0, |newest| {
        frames(&public).iter().filter(|frame| frame.epoch <= newest).map(|frame| frame.end).max().unwrap_or(0)
    });
    lose(&public, synced, random);
}

fn lose(log: &Path, synced: u64, random: &mut Random) {
    let Ok(file) = File::options().write(true).open(log) else { return };
    let length = file.metadata().expect("a log").len();
    if length <= synced {
        return;
    }
    let from = synced + random.below(length - synced);
    let bytes = (length - from) as usize;
    match random.below(5) {
        0 => return,
        1 => file.set_len(from),
        2 => file.write_all_at(&vec![0; bytes], from),
        3 => {
            let garbage: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            file.write_all_at(&garbage, from)
        }
        // One sector did not arrive, but later ones did.
        _ => file.write_all_at(&vec![0; bytes.min(512)], from),
    }
    .expect("the test may write its files");
}

/// The last segment of the ingest journal, if there is one.
pub(crate) fn last_segment(state: &Path) -> Option<PathBuf> {
    let last = logs(state).into_iter().rfind(|name| name.starts_with("ingest-"));
    last.map(|name| state.join(name))
}

/// Simulates a power cut while a journal is written: unsynced bytes are lost. `safe` records had
/// been acknowledged.
pub(crate) fn lose_journal(state: &Path, safe: u64, random: &mut Random) {
    let Some(last) = last_segment(state) else { return };
    let durable = durable_end(state, &last, safe);
    lose(&last, durable, random);
    tear(&last, durable, random);
}

/// Returns the length of the last segment that had certainly been synced: its head, the synced
/// length of a later frame, acknowledged records, and records read by a committed epoch.
fn durable_end(state: &Path, segment: &Path, safe: u64) -> u64 {
    let bytes = std::fs::read(segment).expect("a segment");
    let number = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().expect("eight bytes"));
    let name = segment.file_name().expect("a name").to_string_lossy().into_owned();
    let (committed, offset) = recorded(state).unwrap_or((0, 0));
    let read = if name.starts_with(&format!("ingest-{committed:06}-")) { offset } else { 0 };
    let (mut durable, mut counted, mut passed) = (0, 0, 0);
    for FramePosition { start, end, kind, synced, .. } in frames(segment) {
        let begins = kind == 16;
        if begins || counted < safe || passed < read {
            durable = end;
        }
        durable = durable.max(synced);
        if begins {
            (passed, counted) = (number(start + 32), number(start + 40));
        } else {
            (passed, counted) = (passed + (end - start - 32), number(start + 24));
        }
    }
    durable
}

/// Leaves a part of the bytes being written: zeros, garbage, or the start of a frame.
fn tear(segment: &Path, durable: u64, random: &mut Random) {
    let file = File::options().write(true).open(segment).expect("a segment");
    let length = 1 + random.below(3000);
    let bytes = std::fs::read(segment).expect("a segment");
    let torn: Vec<u8> = match random.below(4) {
        0 => return,
        1 => vec![0; length as usize],
        2 => (0..length).map(|_| random.below(256) as u8).collect(),
        _ => {
            let found = frames(segment);
            let Some(frame) = found.iter().rfind(|frame| frame.kind == 17 && frame.end <= durable) else {
                return;
            };
            let end = frame.start + length.min(frame.end - frame.start - 1);
            bytes[frame.start as usize..end as usize].to_vec()
        }
    };
    file.write_all_at(&torn, bytes.len() as u64).expect("a segment can be torn");
}
