//! State directories. One file of an intact directory is replaced by the input: byte for byte, or as frames whose checksums
//! are right. Reading, verifying and starting must end with an answer.

use super::framed;
use super::place::{in_memory, state_directory};
use hushflow::state::{EpochFrame, PublicHeader, PublicReader, Store, verify};

/// A file: its name, its role, what is in it.
type File = (&'static str, u8, &'static [u8]);

/// A whole log, and from its second file on one that begins after epoch 1.
const FILES: [File; 6] = [
    ("private-000001.log", 1, include_bytes!("../../tests/fixtures/state/private-000001.log")),
    ("private-000002.log", 1, include_bytes!("../../tests/fixtures/state/private-000002.log")),
    ("private-000003.log", 1, include_bytes!("../../tests/fixtures/state/private-000003.log")),
    ("public.log", 2, include_bytes!("../../tests/fixtures/state/public.log")),
    ("checkpoint.a", 3, include_bytes!("../../tests/fixtures/state/checkpoint.a")),
    ("checkpoint.b", 3, include_bytes!("../../tests/fixtures/state/checkpoint.b")),
];

/// Every file that an input may replace, with its directory's name and files.
fn replaceable() -> impl Iterator<Item = (&'static str, &'static [File], usize)> {
    let logs: [(_, &[File]); 2] = [("compacted", &FILES[1..]), ("whole", &FILES)];
    logs.into_iter().flat_map(|(name, files)| (0..files.len()).map(move |replaced| (name, files, replaced)))
}

/// The first byte of an input says which file is replaced (modulo 16), and then whether by frames
/// (16), and of a version that nobody knows (32).
pub fn run(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let Some((_, files, replaced)) = replaceable().nth(usize::from(which % 16)) else { return };
    let content = match which & 48 {
        16 => framed::file(files[replaced].1, framed::VERSION, rest),
        48 => framed::file(files[replaced].1, framed::VERSION + 1, rest),
        _ => rest.to_vec(),
    };
    let content = |place, intact| if place == replaced { &content[..] } else { intact };
    let files = files.iter().enumerate();
    let files = files.map(|(place, (name, _, intact))| (*name, content(place, *intact)));
    in_memory(|outer| {
        let path = state_directory(outer, "state", files);
        let _ = verify(&path);
        if let Ok(mut reader) = PublicReader::open(&path) {
            while let Ok(Some(_)) = reader.next_frame() {}
        }
        let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
        let Ok((mut store, recovered)) = Store::open(&path, &header) else { return };
        let sound = recovered.replay.map_while(Result::ok).count();
        assert!(sound as u64 <= store.committed());
        let Some(epoch) = store.committed().checked_add(1) else { return };
        let next =
            EpochFrame { epoch, positions: vec![], sums: vec![1].into(), values: vec![2], admitted: None };
        store.commit(&[next]).expect("a store that opens goes on");
        drop(store);
        verify(&path).expect("a directory that a store has opened can be read");
    });
}

/// Every file as it is.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |(which, (log, files, replaced)): (u8, (&str, &[File], usize))| {
        let (name, _, intact) = files[replaced];
        let raw = [&[which], intact].concat();
        let framed = [&[which | 16], &framed::input(intact)[..]].concat();
        [(format!("raw-{log}-{name}"), raw), (format!("framed-{log}-{name}"), framed)]
    };
    (0..).zip(replaceable()).flat_map(seed).collect()
}
