//! The logs of a state directory: releases, exact sums, frames, and damage to them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use hushflow::state::{PublicHeader, PublicReader, ReleaseFrame, Store};

use super::Lab;

/// The first segment of the private log of a state directory.
pub(crate) const PRIVATE_LOG: &str = "private-000001.log";

/// Returns the public log, checking that every epoch occurs once, in order; empty if there is none
/// yet.
pub(crate) fn releases(state: &Path) -> Vec<ReleaseFrame> {
    let Ok(mut reader) = PublicReader::open(state) else { return Vec::new() };
    let frames: Vec<_> = std::iter::from_fn(|| reader.next_frame().expect("a sound public log")).collect();
    assert!(frames.iter().map(|frame| frame.epoch).eq(1..=frames.len() as u64));
    frames
}

/// Returns the exact sums of every committed epoch, if all are kept: in a copy without checkpoints
/// the store replays the whole log.
pub(crate) fn sums(state: &Path) -> Vec<Vec<i128>> {
    let (_lab, copy) = copied(state);
    let header = PublicReader::open(&copy).expect("a public log").header().clone();
    let (_store, recovered) = Store::open(&copy, &header).expect("a sound state");
    let frames = recovered.replay.map(|frame| frame.expect("a sound frame"));
    let sums: Vec<_> = frames.zip(1..).inspect(|(frame, epoch)| assert_eq!(frame.epoch, *epoch)).collect();
    sums.into_iter().map(|(frame, _)| frame.sums.to_vec()).collect()
}

/// Returns the position at which a start resumes, if a commit has recorded one: the file, or the
/// session of a journal, and the offset.
pub(crate) fn recorded(state: &Path) -> Option<(u32, u64)> {
    let (_lab, copy) = copied(state);
    // The public log may be garbage after a power cut; the start of the private one never is.
    let first = copy.join(PRIVATE_LOG);
    let payload = frames(&first).first().map(|frame| frame.start as usize + 24..frame.end as usize)?;
    let payload = std::fs::read(&first).expect("a log")[payload].to_vec();
    let (private, parameters) = payload.split_last().expect("parameters, and whether the noise is private");
    let header = PublicHeader { parameters: parameters[8..].to_vec(), private: *private == 1 };
    let (_store, recovered) = Store::open(&copy, &header).expect("a sound state");
    let place = recovered.positions.first()?;
    let file = place.payload.first_chunk().expect("a position begins with the number of its file");
    Some((u32::from_le_bytes(*file), place.offset))
}

/// Copies the logs of a state directory.
fn copied(state: &Path) -> (Lab, PathBuf) {
    let lab = Lab::new();
    let copy = lab.path("copy");
    std::fs::create_dir(&copy).expect("a directory for the copy");
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("mode 0700");
    for name in logs(state) {
        std::fs::copy(state.join(&name), copy.join(&name)).expect("a log to copy");
    }
    (lab, copy)
}

/// Returns the names of the logs in a state directory, in order.
pub(crate) fn logs(state: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(state).expect("a state directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut logs: Vec<String> = names.filter(|name| name.ends_with(".log")).collect();
    logs.sort();
    logs
}

/// Appends the content of all files in a directory and below.
pub(crate) fn gather(path: &Path, found: &mut Vec<u8>) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => gather(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.extend(std::fs::read(entry.path()).unwrap_or_default()),
            _ => {}
        }
    }
}

/// A frame of a log or a checkpoint (`docs/formats.md`).
pub(crate) struct FramePosition {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u8,
    /// In the private log, the synced length of the file when it was written.
    pub(crate) synced: u64,
    /// The epoch of frames that have one; else 0.
    pub(crate) epoch: u64,
}

/// Returns the frames of a file up to its end or the first incomplete one; empty without a file.
/// Ignores checksums: lengths and kinds detect zeros and garbage.
pub(crate) fn frames(file: &Path) -> Vec<FramePosition> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let mut frames = Vec::new();
    let mut start = 16;
    while start + 24 <= bytes.len() {
        let kind = bytes[start + 4];
        let end = start + 24 + (number(start) as u32) as usize;
        if !(1..=17).contains(&kind) || end > bytes.len() {
            break;
        }
        let epoch = if (3..=5).contains(&kind) && end >= start + 40 { number(start + 32) } else { 0 };
        frames.push(FramePosition {
            start: start as u64,
            end: end as u64,
            kind,
            synced: number(start + 8),
            epoch,
        });
        start = end;
    }
    frames
}

/// Returns the range of a log's last frame.
pub(crate) fn last_frame(log: &Path) -> Range<u64> {
    let frames = frames(log);
    let last = frames.last().expect("a frame");
    last.start..last.end
}

/// Cuts a log short.
pub(crate) fn cut(log: &Path, length: u64) {
    let file = std::fs::File::options().write(true).open(log).expect("a log");
    file.set_len(length).expect("a file can be cut");
}
