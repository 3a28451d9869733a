//! The ingest journal. One of its two sessions is replaced by the input: byte for byte, or as frames whose checksums are right.
//! What opens is read to its end, goes on, and is there when it is opened again.

use super::framed;
use super::place::{in_memory, state_directory};
use hushflow::state::{Ingest, IngestPlace, IngestReader, PublicHeader, StateError, Store, verify_ingest};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

const SEGMENTS: [&str; 2] = ["ingest-000000-000000.log", "ingest-000001-000000.log"];
const ROLE: u8 = 7;

/// The first byte of an input says which session is replaced (1), whether by frames (2), and from which session (4) the journal
/// is read; the second at which offset.
pub fn run(input: &[u8]) {
    let [which, offset, rest @ ..] = input else { return };
    let replaced = usize::from(which & 1);
    let content = if which & 2 == 0 { rest.to_vec() } else { framed::file(ROLE, framed::VERSION, rest) };
    let place = IngestPlace { session: u32::from(which & 4 != 0), offset: u64::from(*offset) };
    let mut segments = intact();
    segments[replaced] = content;
    in_memory(|outer| {
        let files = SEGMENTS.into_iter().zip(segments.iter().map(Vec::as_slice));
        let path = state_directory(outer, "journal", files);
        let _ = verify_ingest(&path);
        let Ok(there) = go_on(&path, place, b"7\n") else { return };
        assert_eq!(go_on(&path, place, b"8\n").ok(), Some(there + 1), "a journal that opens goes on");
        verify_ingest(&path).expect("a directory that a store has opened can be read");
    });
}

/// Adds a record to the journal, and reads all of it: how many records had been there.
fn go_on(path: &Path, place: IngestPlace, record: &[u8]) -> Result<u64, StateError> {
    let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
    let (store, _) = Store::open(path, &header)?;
    let ingest = Arc::new(store.ingest(place, u64::MAX)?);
    let there = ingest.acknowledged(None).unwrap_or(0);
    ingest.begin(b"x\n", &mut |_| false)?;
    ingest.append([record, &[]], 1, &mut |_| false)?;
    ingest.end(None);
    for session in place.session..ingest.session() {
        let _ = read(
            &ingest,
            IngestPlace { session, offset: if session == place.session { place.offset } else { 0 } },
        );
    }
    let own = read(&ingest, IngestPlace { session: ingest.session(), offset: 0 });
    assert_eq!(own.ok().as_deref(), Some(record), "what this run wrote is there");
    Ok(there)
}

fn read(ingest: &Arc<Ingest>, place: IngestPlace) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut reader) = IngestReader::open(ingest, place)? {
        reader.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Two sessions of two groups each, as the project writes them.
fn intact() -> [Vec<u8>; 2] {
    thread_local! {
        static INTACT: [Vec<u8>; 2] = write().expect("a journal can be written");
    }
    INTACT.with(Clone::clone)
}

fn write() -> Result<[Vec<u8>; 2], StateError> {
    let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
    in_memory(|outer| {
        let path = state_directory(outer, "intact", []);
        for records in [["1\n2\n", "3\n"], ["4\n", "5\n6\n"]] {
            let (store, _) = Store::open(&path, &header)?;
            let ingest = store.ingest(IngestPlace::START, u64::MAX)?;
            ingest.begin(b"x\n", &mut |_| false)?;
            for records in records {
                let count = records.lines().count() as u64;
                ingest.append([records.as_bytes(), &[]], count, &mut |_| false)?;
            }
        }
        Ok(SEGMENTS.map(|name| std::fs::read(path.join(name)).expect("a segment")))
    })
}

/// Every segment as it is.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |(which, segment): (u8, Vec<u8>)| {
        let raw = [&[which, 2], &segment[..]].concat();
        let framed = [&[which | 2, 2], &framed::input(&segment)[..]].concat();
        [(format!("raw-{which}"), raw), (format!("framed-{which}"), framed)]
    };
    (0..).zip(intact()).flat_map(seed).collect()
}
